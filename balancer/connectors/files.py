"""The file tier of vLLM's OffloadingConnector (0.26 and later): a file for each chunk of blocks, in a shared directory.

Knows how files and folders are named (``FileMapper`` and ``FileSystemTierManager``, vLLM 0.32.0):
``ROOT/MODEL_DIGEST/config.json`` says what is kept, ``ROOT/MODEL_DIGEST_rRANK/HHH/HH_gGROUP/HASH.bin`` is one chunk, named by
the whole hash of its last block. vLLM's scheduler looks for the files of rank 0, so those count here. Nothing in vLLM ever
removes one; whoever cleans up does.
"""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from balancer.connectors.base import StoreError, Writer, connector
from balancer.connectors.watching import Change, Watched, is_fresh
from balancer.errors import ConfigError
from balancer.store_settings import StoreSettings
from balancer.stores import Reading, Traits

BLOCK_FILE: Final = re.compile(r"[0-9a-f]*([0-9a-f]{16})\.bin")

CONFIG: Final = "config.json"


@connector("files")
class Files(msgspec.Struct, frozen=True):
    """``path`` is the tier's ``root_dir`` as mounted here, looked at every ``interval_seconds``."""

    path: str
    interval_seconds: float = 1.0

    @property
    def traits(self) -> Traits:
        return Traits(Reading.REST, ("STORAGE/REMOTE",), is_looked_at=True)

    @property
    def is_asked(self) -> bool:
        return False

    def open(self, settings: StoreSettings, writer: Writer) -> Watched:
        if self.interval_seconds <= 0:
            raise ConfigError(f"stores.{settings.name}.interval_seconds: must be above 0")
        return Watched(self.path, self.interval_seconds, lambda: BlockFiles(self.path), writer)

    def carries(self, tokens: int) -> dict[str, Any]:
        """vLLM (0.32) loads from all tiers unless it is told which: none to load nothing."""
        return {} if tokens else {"kv_load_tiers": []}


class _Config(msgspec.Struct):
    model_name: str
    blocks_per_file: int = 1
    kv_cache_groups: list[Any] = []


class _Folder(msgspec.Struct):
    """What was in a folder when it was listed; ``changed`` is None where it may have changed since unseen."""

    changed: int | None
    names: set[str]


class BlockFiles:
    """The files of one directory (``balancer.connectors.watching.Layout``).

    A folder is listed again only when it says that it has changed: a look at a million files costs a stat for each folder.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._folders: dict[str, _Folder] = {}
        self._parts: dict[str, _Config] = {}

    def changes(self, breathe: Callable[[], None]) -> Iterator[Change]:
        parts = self._listed(str(self._path)).names
        seen = {str(self._path)}
        for part in sorted(parts):
            config = self._config(part)
            if config is None:
                continue
            root = str(self._path / f"{part}_r0")
            added, removed = self._part(root, seen, breathe)
            if added or removed:
                yield Change(part, config.model_name, None, config.blocks_per_file, added, removed)
        for folder in self._folders.keys() - seen:
            del self._folders[folder]

    def _part(self, root: str, seen: set[str], breathe: Callable[[], None]) -> tuple[list[int], list[int]]:
        """Keys that have come, and that have gone, below one part's folder."""
        added: list[int] = []
        removed: list[int] = []
        before = set(self._below(root))
        for upper in self._names(root, seen):
            for lower in self._names(upper, seen, "_g0"):
                breathe()
                known = self._folders.get(lower)
                names = self._names_of_blocks(lower, seen)
                was = known.names if known is not None else set()
                if names is not was:
                    added += map(_key, names - was)
                    removed += map(_key, was - names)
        for gone in before - seen:
            removed += map(_key, self._folders[gone].names)
        return added, removed

    def _below(self, root: str) -> Iterator[str]:
        """Folders of blocks that were there."""
        return (folder for folder in self._folders if folder.startswith(root + os.sep) and folder.endswith("_g0"))

    def _names(self, folder: str, seen: set[str], suffix: str = "") -> list[str]:
        try:
            names = self._listed(folder).names
        except FileNotFoundError:
            return []
        seen.add(folder)
        return [os.path.join(folder, name) for name in names if name.endswith(suffix)]

    def _names_of_blocks(self, folder: str, seen: set[str]) -> set[str]:
        try:
            names = self._listed(folder).names
        except FileNotFoundError:
            return set()
        seen.add(folder)
        return names

    def _listed(self, folder: str) -> _Folder:
        changed = os.stat(folder).st_mtime_ns
        known = self._folders.get(folder)
        if known is not None and known.changed == changed:
            return known
        names = {name for name in os.listdir(folder) if not name.endswith(".tmp")}
        if known is not None and names == known.names:
            names = known.names
        self._folders[folder] = found = _Folder(None if is_fresh(changed) else changed, names)
        return found

    def _config(self, part: str) -> _Config | None:
        """What the folder of this name says it keeps; None where it says nothing, or keeps several cache groups."""
        if part in self._parts:
            return self._parts[part]
        if re.search(r"_r\d+$", part):
            return None
        try:
            text = (self._path / part / CONFIG).read_bytes()
            config = msgspec.json.decode(text, type=_Config)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except msgspec.MsgspecError:  # it is being written
            return None
        if len(config.kv_cache_groups) > 1:
            return None
        if config.blocks_per_file < 1:
            raise StoreError(f"path: '{part}/{CONFIG}' has no usable blocks_per_file")
        self._parts[part] = config
        return config


def _key(name: str) -> int:
    """The block key of a file's name; 0 for what is no block, which no prompt has."""
    found = BLOCK_FILE.fullmatch(name)
    return int(found[1], 16) if found else 0
