"""A file, or standard input, as lines or as the items of one JSON list; packed (gzip, zstd) or not.

Knows bytes, and how many of them may lie in memory at once: a line that is too long is told and passed over, and so is what is
packed badly. Never knows what a line says.
"""

import gzip
import io
import re
import sys
import zlib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Final, cast

import msgspec

from balancer.errors import ConfigError

MAX_LINE: Final = 64 << 20
"""Bytes; a prompt of a million tokens is a tenth of that, as text or as ids."""

GIVE_UP: Final = 1 << 30
"""Bytes; a line that goes on for that long is the end of all reading."""

CHUNK: Final = 1 << 20

STANDARD_INPUT: Final = "-"

_GZIP: Final = b"\x1f\x8b"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_BOM: Final = b"\xef\xbb\xbf"
_WIDE: Final = (b"\xff\xfe", b"\xfe\xff")
_TOKENS: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"|["{}\[\]]', re.DOTALL)


class Bad(msgspec.Struct, frozen=True):
    """A line that is none; ``is_end`` where nothing more can be read."""

    what: str
    is_end: bool = False


Line = tuple[int, bytes | Bad]
"""A line's number, from 1 on, and its bytes without the line break."""


class Lines:
    """One file, read once. A context manager.

    Raises:
        ConfigError: it cannot be opened or read.
    """

    def __init__(self, path: str, *, max_line: int = MAX_LINE, give_up: int = GIVE_UP) -> None:
        self.path = path
        self.name = "standard input" if path == STANDARD_INPUT else path
        self.unit = "line"
        """What the numbers count: lines, or items of a list."""
        self._max_line = max_line
        self._give_up = give_up
        self._begin = b""
        self._broken: Bad | None = None
        self._raw = _open(path)
        try:
            self._file = self._unpacked(self._raw)
            self._chunks = self._read()
            self._begin = _without_bom(next(self._chunks, b""), self.name)
        except BaseException:
            self.__exit__()
            raise
        self.is_list = self._begin.lstrip()[:1] == b"["

    def __enter__(self) -> "Lines":
        return self

    def __exit__(self, *_: object) -> None:
        if self.path != STANDARD_INPUT:
            self._raw.close()

    def lines(self) -> Iterator[Line]:
        """The lines that are not empty; the last one need not be ended. The last of all tells if reading has ended early."""
        number = 0
        parts: list[bytes] = []
        held = 0
        for chunk in self._all():
            lines = chunk.split(b"\n")
            if len(lines) == 1:
                held += len(chunk)
                if held <= self._max_line:
                    parts.append(chunk)
                else:
                    parts = []
                if held > self._give_up:
                    yield (
                        number + 1,
                        Bad(f"goes on for more than {self._give_up >> 20} MiB; this is no trace", is_end=True),
                    )
                    return
                continue
            held += len(lines[0])
            if held > self._max_line:
                number += 1
                yield number, self._too_long()
            else:
                lines[0] = b"".join([*parts, lines[0]])
                number += 1
                if not _is_blank(lines[0]):
                    yield number, lines[0]
            for line in lines[1:-1]:  # no longer than a chunk
                number += 1
                if line and not _is_blank(line):
                    yield number, line
            parts, held = [lines[-1]], len(lines[-1])
        if held > self._max_line:
            yield number + 1, self._too_long()
        elif not _is_blank(last := b"".join(parts)):
            yield number + 1, last
        if self._broken is not None:
            yield number + 1, self._broken

    def items(self) -> Iterator[Line]:
        """The objects of one JSON list, each as it is written; the last of all tells if reading has ended early."""
        self.unit = "item"
        number, depth, begin, at = 0, 0, 0, 0
        held = b""
        is_dropped = False
        for chunk in self._all():
            held += chunk
            for token in _TOKENS.finditer(held, at):
                kind = held[token.start()]
                if kind == 0x22 and token.end() - token.start() == 1:
                    at = token.start()  # a text that is not ended yet
                    break
                at = token.end()
                if kind in b"{[":
                    depth += 1
                    if depth == 2:
                        number, begin, is_dropped = number + 1, token.start(), False
                elif kind in b"}]":
                    depth -= 1
                    if depth == 1:
                        yield number, self._too_long() if is_dropped else held[begin:at]
            else:
                at = len(held)
            keep = min(begin, at) if depth > 1 and not is_dropped else at
            if len(held) - keep > self._max_line:
                is_dropped, keep = True, at
                if len(held) - at > self._max_line:
                    yield (
                        number,
                        Bad(f"has a text of more than {self._max_line >> 20} MiB; nothing is read behind it", True),
                    )
                    return
            held, at, begin = held[keep:], at - keep, max(0, begin - keep)
        if self._broken is not None:
            yield number + 1, self._broken
        elif depth > 0:
            yield number + 1, Bad("the list is not ended; the file is not whole", is_end=True)

    def _too_long(self) -> Bad:
        return Bad(f"is longer than {self._max_line >> 20} MiB, which no request is; it was not read")

    def _all(self) -> Iterator[bytes]:
        return chain((self._begin,), self._chunks) if self._begin else iter(())

    def _read(self) -> Iterator[bytes]:
        while True:
            try:
                chunk = self._file.read(min(CHUNK, self._max_line))
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                self._broken = Bad(f"the packed file is not whole: {error}; fetch it again", is_end=True)
                return
            except OSError as error:
                raise ConfigError(f"{self.name}: cannot be read: {error.strerror or error}") from None
            except Exception as error:
                if type(error).__name__ != "ZstdError":
                    raise
                self._broken = Bad(f"the packed file is not whole: {error}; fetch it again", is_end=True)
                return
            if not chunk:
                return
            yield chunk

    def _unpacked(self, file: io.BufferedReader) -> BinaryIO:
        try:
            magic = file.peek(4)[:4]
        except OSError as error:
            raise ConfigError(f"{self.name}: cannot be read: {error.strerror or error}") from None
        if magic.startswith(_GZIP):
            return cast(BinaryIO, gzip.GzipFile(fileobj=file))
        if magic.startswith(_ZSTD):
            try:
                import zstandard  # noqa: PLC0415 - optional
            except ImportError:
                raise ConfigError(
                    f"{self.name}: is packed with zstd; install kvlb[zstd], or unpack it: zstd -dc FILE | kvlb ... -"
                ) from None
            return cast(BinaryIO, zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True))
        return file


def _open(path: str) -> io.BufferedReader:
    if path == STANDARD_INPUT:
        if sys.stdin is None:  # what Python makes of a descriptor that is closed
            raise ConfigError("standard input: is closed; name a file")
        return cast(io.BufferedReader, sys.stdin.buffer)
    try:
        return Path(path).open("rb")
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be opened: {error.strerror or error}; name a trace file, or - for standard input"
        ) from None
    except ValueError:
        raise ConfigError("the name of a trace has a character that no file name can have") from None


def _without_bom(begin: bytes, name: str) -> bytes:
    if begin.startswith(_WIDE):
        raise ConfigError(f"{name}: is UTF-16; write it as UTF-8, such as with iconv -f UTF-16 -t UTF-8")
    return begin.removeprefix(_BOM)


def _is_blank(line: bytes) -> bool:
    return not line or line.isspace()
