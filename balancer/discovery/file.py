"""Endpoints from a file that somebody else writes.

Knows the file's two formats and when its content can be trusted. It is read whole at each look and compared by its bytes: a
link that is turned to another file (as Kubernetes does with a ConfigMap), a clock that was set back and a file system of coarse
times are nothing special then.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import msgspec

from balancer.discovery.base import Failed, Found, discovery, read_replicas
from balancer.errors import ConfigError
from balancer.settings import ReplicaSettings, parse

SETTLE_SECONDS: Final = 0.05
"""Between two looks that must agree: a file that is written in its place is not whole before its writer is done."""

MAX_BYTES: Final = 16 * 1024 * 1024


@discovery("file")
class FileDiscovery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of ``[[replicas]]`` in TOML, or of the same in JSON where its name ends with ``.json``."""

    path: str
    interval_seconds: float = 2.0
    """Between two looks."""

    def __post_init__(self) -> None:
        if not Path(self.path).name or "\0" in self.path:
            raise ValueError(f"path: {self.path!a} names no file")
        if not 0 < self.interval_seconds < 86_400:
            raise ValueError(
                f"interval_seconds: {self.interval_seconds} cannot be used; give a number of seconds above 0"
            )

    async def watch(self) -> AsyncIterator[Found | Failed]:
        path = Path(self.path)
        last: bytes | None = None
        while True:
            try:
                content = await asyncio.to_thread(_read, path)
                if content != last:
                    content = await _settled(path, content)
                    last = content
                    yield Found(read(content, is_json=path.suffix == ".json"), f"{path} has changed")
            except OSError as error:
                last = None
                yield Failed(f"cannot read '{path}': {error.strerror or error}; write it, or correct discovery.path")
            except ConfigError as error:
                yield Failed(f"'{path}': {error}")
            await asyncio.sleep(self.interval_seconds)


async def _settled(path: Path, content: bytes) -> bytes:
    """What stands there when it no longer changes."""
    while True:
        await asyncio.sleep(SETTLE_SECONDS)
        again = await asyncio.to_thread(_read, path)
        if again == content:
            return content
        content = again


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise OSError(f"it has more than {MAX_BYTES} bytes")
    return content


def read(content: bytes, *, is_json: bool) -> tuple[ReplicaSettings, ...]:
    """The endpoints that a file names. An empty list must be written: an empty file says nothing.

    Raises:
        ConfigError: it cannot be read, or names something else.
    """
    try:
        tree: Any = msgspec.json.decode(content) if is_json else parse(content.decode())
    except UnicodeDecodeError as error:
        raise ConfigError(f"not valid TOML: {error}") from error
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ConfigError(f"not valid JSON: {error}") from error
    if not isinstance(tree, dict) or list(tree) != ["replicas"] or not isinstance(tree["replicas"], list):
        raise ConfigError("it must have a list of replicas and nothing else; write replicas = [] where there are none")
    return read_replicas(tree["replicas"])
