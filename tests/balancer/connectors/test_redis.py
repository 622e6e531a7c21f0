"""``balancer/connectors/redis.py`` against a Redis server, with the names that LMCache 0.5.6 gives to chunks."""

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from balancer.connectors.base import Question, StoreError, Way, Writer, make
from balancer.connectors.redis import Names
from balancer.errors import ConfigError
from balancer.store_settings import StoreSettings
from balancer.stores import Store
from hashing.chain import Chain
from hashing.own import LearnedKeys, OwnChain
from indexer.bound import Bound
from indexer.stores import Namespace, StoreIndex
from tests.support.routing import RECIPE, replica

PROMPT = list(range(1, 201))
HERE = replica("a", root="/models/tiny")
NAMES = [f"/models/tiny@1@0@{each}@bfloat16" for each in ("515e1715a7ed837c", "ba6eb9c4699d8cfc", "3685d9879f471add")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A server at a Unix socket."""
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("no redis-server; install it from the distribution's packages")
    folder = tmp_path_factory.mktemp("redis")
    socket = folder / "s"
    command = [binary, "--port", "0", "--unixsocket", str(socket), "--dir", str(folder), "--save", ""]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield socket
    finally:
        process.kill()
        process.wait()


class Used:
    def __init__(self, url: str, **settings: Any) -> None:
        plain = StoreSettings(name="s", connector="redis", settings={"url": url, "chunk_size": 64, **settings})
        made = make(plain)
        self.store = Store(plain, made.traits)
        self.index = StoreIndex(Bound())
        opened = made.open(plain, Writer(self.store, self.index))
        assert isinstance(opened, Names)
        self.session = opened

    async def until_up(self) -> None:
        self.store.problem = "not asked yet"
        async with asyncio.timeout(10):
            while not self.store.is_up:
                running = asyncio.create_task(self.session.run())
                await asyncio.wait([running], timeout=0.05)
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)

    async def ask(self) -> int:
        """How many leading chunks there are, after asking."""
        await self.session.ask(Question(PROMPT, (Way(HERE, Chain(RECIPE, PROMPT)),)))
        keys = LearnedKeys(64)
        return self.index.depth(Namespace("s", "m", keys), OwnChain(keys, PROMPT), 9)


def test_chunks_are_there_by_lmcaches_names(server: Path) -> None:
    async def story() -> None:
        used = Used(f"unix://{server}")
        await used.until_up()
        client = used.session._client
        assert await used.ask() == 0
        for at in (0, 2):
            await client.set(NAMES[at] + "metadata", b"m")
        assert await used.ask() == 1, "a chunk behind a gap is of no use"
        await client.set(NAMES[1] + "metadata", b"m")
        assert await used.ask() == 3
        await client.delete(NAMES[0] + "metadata")
        assert await used.ask() == 0
        assert used.index.blocks("s") == 0
        await used.session.close()

    asyncio.run(story())


def test_a_server_that_is_away_is_told(tmp_path: Path) -> None:
    async def story() -> None:
        used = Used(f"unix://{tmp_path}/nowhere")
        with pytest.raises(StoreError, match="Redis cannot be asked: "):
            await used.session.run()
        with pytest.raises(StoreError, match="Redis cannot be asked: "):
            await used.ask()
        await used.session.close()

    asyncio.run(story())


def test_settings_that_cannot_be_used_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"stores\.s\.url: Redis URL must specify"):
        Used("http://host")
    with pytest.raises(ConfigError, match=r"stores\.s: chunk_size, world_size"):
        Used("redis://host", world_size=0)
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(ConfigError, match=r"redis needs redis-py; install kvlb\[redis\]"):
        Used("redis://host")
