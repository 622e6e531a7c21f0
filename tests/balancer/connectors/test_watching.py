"""``balancer/connectors/watching.py``, ``example.py``, ``files.py``: directories as vLLM fills them, and what goes wrong."""

import asyncio
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from balancer.connectors import watching
from balancer.connectors.base import Question, StoreError, Writer, make
from balancer.connectors.example import Folders
from balancer.connectors.files import BlockFiles
from balancer.connectors.watching import Change, Watched
from balancer.errors import ConfigError
from balancer.store_settings import StoreSettings
from balancer.stores import Reading, Store, Traits
from hashing.example import ExampleKeys
from indexer.bound import Bound
from indexer.stores import Namespace, StoreIndex

PART = "tiny_0123456789ab"


def nothing() -> None:
    """There is nobody to leave the interpreter to."""


def age(*paths: Path) -> None:
    """As if nothing had changed there for a minute."""
    for path in paths:
        found = path.stat().st_mtime - 60
        os.utime(path, (found, found))


def block(root: Path, digest: int, part: str = PART, rank: int = 0, group: int = 0) -> Path:
    """The file of a block, written as vLLM does: whole, or not at all."""
    name = f"{digest:064x}"
    file = root / f"{part}_r{rank}" / name[:3] / f"{name[3:5]}_g{group}" / f"{name}.bin"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"kv")
    return file


def config(root: Path, part: str = PART, **fields: Any) -> None:
    (root / part).mkdir(parents=True, exist_ok=True)
    plain = {"model_name": "./tiny", "tokens_per_hash": 32, "blocks_per_file": 1, "kv_cache_groups": [{}], "tp_size": 1}
    (root / part / "config.json").write_text(json.dumps({**plain, **fields}))


def look(layout: Folders | BlockFiles) -> dict[str, tuple[set[int], set[int]]]:
    """By part: what has come, and what has gone."""
    return {
        each.part: (set(each.added), set(each.removed))
        for each in layout.changes(nothing)
        if each.added or each.removed
    }


def test_files_come_and_go(tmp_path: Path) -> None:
    layout = BlockFiles(str(tmp_path))
    assert look(layout) == {}
    config(tmp_path)
    assert look(layout) == {}, "it says what it keeps before it keeps anything"
    first, second = block(tmp_path, 0xABC << 244 | 7), block(tmp_path, 8)
    assert look(layout) == {PART: ({7, 8}, set())}
    assert look(layout) == {}
    second.unlink()
    third = block(tmp_path, 9)
    assert look(layout) == {PART: ({9}, {8})}
    first.unlink()
    first.parent.rmdir()
    first.parent.parent.rmdir()
    assert look(layout) == {PART: (set(), {7})}
    third.unlink()
    assert look(layout) == {PART: (set(), {9})}


def test_what_is_no_block_of_rank_0_and_group_0_is_passed_over(tmp_path: Path) -> None:
    config(tmp_path)
    block(tmp_path, 1, rank=1)
    block(tmp_path, 2, group=1)
    whole = block(tmp_path, 3)
    whole.with_suffix(".bin.tmp").write_bytes(b"half")
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "notes.txt").write_text("x")
    assert look(BlockFiles(str(tmp_path))) == {PART: ({3}, set())}


def test_each_part_has_its_model_and_its_chunks(tmp_path: Path) -> None:
    config(tmp_path)
    config(tmp_path, "large_1", model_name="org/large", blocks_per_file=4)
    config(tmp_path, "hybrid_2", kv_cache_groups=[{}, {}])
    (tmp_path / "half_3").mkdir()
    (tmp_path / "half_3" / "config.json").write_text('{"model_n')
    block(tmp_path, 1)
    block(tmp_path, 2, "large_1")
    block(tmp_path, 3, "hybrid_2")
    block(tmp_path, 4, "half_3")
    layout = BlockFiles(str(tmp_path))
    found = {each.part: each for each in layout.changes(nothing)}
    assert found.keys() == {PART, "large_1"}
    assert (found["large_1"].model, found["large_1"].chunk, found["large_1"].added) == ("org/large", 4, [2])
    config(tmp_path, "half_3", model_name="late")
    assert [(each.model, each.added) for each in layout.changes(nothing)] == [("late", [4])]
    config(tmp_path, "broken_4", blocks_per_file=0)
    with pytest.raises(StoreError, match=r"broken_4/config\.json' has no usable blocks_per_file"):
        look(layout)


def test_a_folder_that_has_not_changed_is_not_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config(tmp_path)
    folders = {block(tmp_path, at << 240 | at).parent for at in range(1, 6)}
    age(*folders, *{each.parent for each in folders}, tmp_path / f"{PART}_r0", tmp_path)
    layout = BlockFiles(str(tmp_path))
    look(layout)
    listed: list[str] = []
    real = os.listdir

    def noted(path: str) -> list[str]:
        listed.append(path)
        return real(path)

    monkeypatch.setattr(os, "listdir", noted)
    assert look(layout) == {}
    assert listed == []
    new = block(tmp_path, 1 << 240 | 99)
    assert look(layout) == {PART: ({99}, set())}
    assert set(listed) == {str(new.parent)}
    listed.clear()
    look(layout)
    assert listed == [str(new.parent)], "what has just changed may have changed again within the clock's grain"


def test_folders_come_and_go(tmp_path: Path) -> None:
    layout = Folders(str(tmp_path), ExampleKeys(32))
    assert look(layout) == {}
    (tmp_path / ("0" * 15 + "5" + "f" * 16)).mkdir()
    (tmp_path / "README").write_text("x")
    (tmp_path / ("a" * 32)).write_text("a file")
    assert look(layout) == {"": ({5}, set())}
    age(tmp_path)
    assert look(layout) == {}
    assert look(layout) == {}
    (tmp_path / ("0" * 15 + "5" + "f" * 16)).rmdir()
    assert look(layout) == {"": (set(), {5})}


# The session


class Used:
    """A session on a directory, and the store that it writes to."""

    def __init__(self, path: Path, connector: str = "files", **settings: Any) -> None:
        plain = StoreSettings(name="s", connector=connector, settings={"path": str(path), **settings})
        self.connector = make(plain)
        self.store = Store(plain, self.connector.traits)
        self.index = StoreIndex(Bound())
        session = self.connector.open(plain, Writer(self.store, self.index))
        assert isinstance(session, Watched)
        self.session = session

    async def until(self, condition: Callable[[], bool]) -> None:
        """Use it until this is so."""
        running = asyncio.create_task(self.session.run())
        try:
            async with asyncio.timeout(10):
                while not condition():
                    if running.done():
                        running.result()
                    await asyncio.sleep(0.005)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await self.session.close()


def test_what_is_found_is_in_the_index(tmp_path: Path) -> None:
    config(tmp_path, blocks_per_file=2)
    for at in range(1, 4):
        block(tmp_path, at)
    used = Used(tmp_path, interval_seconds=0.01)
    asyncio.run(used.until(lambda: used.index.blocks("s") == 3))
    namespace = Namespace("s", "./tiny", None, PART)
    assert used.index.namespaces("s") == [namespace]
    assert used.store.chunks == {namespace: 2}
    assert used.store.traits == Traits(Reading.REST, ("STORAGE/REMOTE",), is_looked_at=True)
    for file in tmp_path.rglob("*.bin"):
        file.unlink()
    used.index.clear("s")
    asyncio.run(used.until(lambda: used.store.is_up))
    assert used.index.blocks("s") == 0


def test_a_running_session_sees_removals(tmp_path: Path) -> None:
    config(tmp_path)
    file = block(tmp_path, 5)
    used = Used(tmp_path, interval_seconds=0.01)

    def seen() -> bool:
        if used.index.blocks("s"):
            file.unlink(missing_ok=True)
        return not file.exists() and not used.index.blocks("s")

    asyncio.run(used.until(seen))


def test_the_example_connectors_folders_have_keys_of_their_own(tmp_path: Path) -> None:
    (tmp_path / ("0" * 15 + "5" + "f" * 16)).mkdir()
    used = Used(tmp_path, "example", block_size=32, interval_seconds=0.01)
    asyncio.run(used.until(lambda: used.index.blocks("s") == 1))
    assert used.index.holds(Namespace("s", "", ExampleKeys(32)), 5)
    assert used.store.traits.reading is Reading.PROMPT


@pytest.mark.parametrize("connector", ["files", "example"])
def test_a_directory_that_is_not_there_is_told(tmp_path: Path, connector: str) -> None:
    used = Used(tmp_path / "nowhere", connector)
    with pytest.raises(StoreError, match=r"path: cannot read '.*nowhere': No such file or directory"):
        asyncio.run(used.until(lambda: False))


def test_a_directory_that_hangs_keeps_nobody_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "SILENT_SECONDS", 0.05)
    hangs = threading.Event()

    class Hanging:
        def changes(self, breathe: Callable[[], None]) -> Iterator[Change]:
            hangs.wait(10)
            yield from ()

    store = Store(StoreSettings(name="s"), Traits())
    session = Watched(str(tmp_path), 0.01, Hanging, Writer(store, StoreIndex(Bound())))
    try:
        with pytest.raises(StoreError, match="has not answered for"):
            asyncio.run(session.run())
    finally:
        hangs.set()


def test_a_layout_that_fails_is_told(tmp_path: Path) -> None:
    class Broken:
        def changes(self, breathe: Callable[[], None]) -> Iterator[Change]:
            raise ValueError("a mistake of ours")

    store = Store(StoreSettings(name="s"), Traits())
    session = Watched(str(tmp_path), 0.01, Broken, Writer(store, StoreIndex(Bound())))
    with pytest.raises(StoreError, match="path: ValueError: a mistake of ours"):
        asyncio.run(session.run())
    asyncio.run(session.ask(Question([], ())))


def test_long_news_come_in_pieces() -> None:
    change = Change("", "m", None, 1, list(range(10_000)), [1])
    pieces = list(watching._pieces(change))
    assert [len(each.added) for each in pieces] == [4096, 4096, 1808]
    assert [each.removed for each in pieces] == [[1], [], []]


@pytest.mark.parametrize(
    ("connector", "settings"),
    [("files", {"interval_seconds": 0}), ("example", {"block_size": 0}), ("files", {"pathh": "x"})],
)
def test_settings_that_cannot_be_used_are_told(tmp_path: Path, connector: str, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"stores\.s"):
        Used(tmp_path, connector, **settings)


def test_what_a_request_must_carry() -> None:
    files = make(StoreSettings(name="s", connector="files", settings={"path": "/x"}))
    assert (files.carries(96), files.carries(0)) == ({}, {"kv_load_tiers": []})
    example = make(StoreSettings(name="s", connector="example", settings={"path": "/x"}))
    assert example.carries(0) == {}
