"""vLLM's ExampleConnector (SharedStorageConnector up to 0.11): a folder for each computed prompt, in a shared directory.

Knows how its folders are named. A prompt is found only if its own tokens, but for the last ones, were kept as a whole: another
one that goes on where it ends finds nothing. The connector takes nothing out, and knows neither models nor salts.
"""

import os
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from balancer.connectors.base import Writer, connector
from balancer.connectors.watching import Change, Watched, is_fresh
from balancer.errors import ConfigError
from balancer.store_settings import StoreSettings
from balancer.stores import Reading, Traits
from hashing.example import NAME, ExampleKeys, key_of_name


@connector("example")
class Example(msgspec.Struct, frozen=True):
    """``path`` is ``shared_storage_path`` as mounted here, ``block_size`` the engines'; a look each ``interval_seconds``."""

    path: str
    block_size: int = 16
    interval_seconds: float = 0.5

    @property
    def traits(self) -> Traits:
        return Traits(Reading.PROMPT, is_looked_at=True)

    @property
    def is_asked(self) -> bool:
        return False

    def open(self, settings: StoreSettings, writer: Writer) -> Watched:
        if self.block_size < 1 or self.interval_seconds <= 0:
            raise ConfigError(f"stores.{settings.name}: block_size and interval_seconds must be above 0")
        keys = ExampleKeys(self.block_size)
        return Watched(self.path, self.interval_seconds, lambda: Folders(self.path, keys), writer)

    def carries(self, tokens: int) -> dict[str, Any]:
        """Nothing steers it."""
        return {}


class Folders:
    """The folders of one directory (``balancer.connectors.watching.Layout``)."""

    def __init__(self, path: str, keys: ExampleKeys) -> None:
        self._path = path
        self._keys = keys
        self._known: set[int] = set()
        self._changed: int | None = None

    def changes(self, breathe: Callable[[], None]) -> Iterator[Change]:
        """Nothing is listed while the directory says that it has not changed, but for what it may have changed just before."""
        changed = os.stat(self._path).st_mtime_ns
        if changed == self._changed:
            return
        with os.scandir(self._path) as entries:
            found = {key_of_name(entry.name) for entry in entries if NAME.fullmatch(entry.name) and entry.is_dir()}
        breathe()
        # A second change within the clock's grain would go unseen: what has just changed is listed once more.
        self._changed = changed if changed == os.stat(self._path).st_mtime_ns and not is_fresh(changed) else None
        yield Change("", "", self._keys, 1, list(found - self._known), list(self._known - found))
        self._known = found
