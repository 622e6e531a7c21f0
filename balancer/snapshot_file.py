"""The file that the index outlives a restart in.

Knows folders, drafts and what makes a file whole or not there. Never knows what is in it, but for the first bytes: a file
that is no snapshot is somebody else's, and never replaced.
"""

import asyncio
import contextlib
import fcntl
import glob
import os
import secrets
import time
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import IO, Final, TypeVar

from indexer.snapshot import MAGIC

T = TypeVar("T")

READ_BYTES: Final = 128 * 1024

LEFTOVER_SECONDS: Final = 3600.0
"""Age of a draft that nobody can be writing any more, should the folder be one without locks."""


def problem(path: Path) -> str | None:
    """Why no index can be saved there, as far as that can be said without trying."""
    folder = path.absolute().parent
    if not folder.is_dir():
        return f"there is no folder {folder}"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"{folder} cannot be written to"
    if path.is_dir():
        return "it is a folder itself"
    if path.exists() and not path.is_file():
        return "it is there, and is no regular file"
    try:
        with path.open("rb") as file:
            begins = file.read(len(MAGIC))
    except FileNotFoundError:
        return None
    except OSError as error:
        return error.strerror or str(error)
    # An empty file, or one that broke off, costs nobody anything.
    return None if MAGIC.startswith(begins) else "it is there, and is no kvlb snapshot"


async def read(path: Path) -> AsyncGenerator[bytes, None]:
    """The file, piece by piece.

    Raises:
        OSError: it cannot be read.
    """
    with await asyncio.to_thread(_open, path) as file:
        while data := await asyncio.to_thread(file.read, READ_BYTES):
            yield data


def _open(path: Path) -> IO[bytes]:
    return open(
        os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb"
    )  # a pipe that was put there is empty, and not waited for


async def write(path: Path, pieces: AsyncGenerator[bytes, None]) -> int:
    """Write the file, all of it or nothing, and close ``pieces``; returns its bytes.

    Raises:
        OSError: it cannot be written.
    """
    # Two gateways that were given the same file by mistake must not write into each other's.
    draft = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    size = 0
    try:
        async with contextlib.aclosing(pieces), _created(draft) as file:
            async for piece in pieces:
                size += await _in_thread(file.write, piece)
            await _in_thread(_flush, file)
        await _in_thread(_replace, draft, path)
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
    return size


async def _in_thread(call: Callable[..., T], *args: object) -> T:
    """The call's result; when cancelled, only after it has ended: a file must not be closed while it is written."""
    task = asyncio.ensure_future(asyncio.to_thread(call, *args))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


@contextlib.asynccontextmanager
async def _created(path: Path) -> AsyncGenerator[IO[bytes], None]:
    opening = asyncio.ensure_future(asyncio.to_thread(_create, path))
    try:
        yield await asyncio.shield(opening)
    finally:
        await asyncio.wait([opening])
        if opening.exception() is None:
            opening.result().close()


def _create(path: Path) -> IO[bytes]:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with contextlib.suppress(OSError):  # where there are no locks, age alone tells
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return open(file, "wb")


def _flush(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _replace(draft: Path, path: Path) -> None:
    os.replace(draft, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def remove_leftovers(path: Path) -> None:
    """Drafts of gateways that were killed while they wrote: whoever writes one holds a lock on it."""
    for draft in path.parent.glob(f"{glob.escape(path.name)}.*.tmp"):
        with contextlib.suppress(OSError):
            if _is_left(draft):
                draft.unlink()


def _is_left(draft: Path) -> bool:
    with _open(draft) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return time.time() - draft.stat().st_mtime > LEFTOVER_SECONDS
    return True
