"""``balancer/connectors/mooncake.py``, ``lmcache.py`` and ``asking.py`` against answers that were recorded.

Mooncake's master 0.3.13 and LMCache's server 0.5.6 gave the answers below; LMCache's controller answers as its code says.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from balancer.connectors import asking
from balancer.connectors.asking import Server
from balancer.connectors.base import Question, Session, StoreError, Way, Writer, make
from balancer.errors import ConfigError
from balancer.store_settings import StoreSettings
from balancer.stores import Reading, Store
from hashing.chain import Chain
from hashing.own import LearnedKeys, OwnChain
from indexer.bound import Bound
from indexer.stores import Namespace, StoreIndex
from tests.support.routing import RECIPE, replica

PROMPT = list(range(1001))  # 250 full blocks of four tokens
CHAIN = Chain(RECIPE, PROMPT)
HERE = replica("a", root="/models/tiny")

HEALTH = '{"status":"ok","role":"leader","ha_state":"serving","service_ready":true,"leader_address":null,"view_version":null}'
THERE = {
    "ok": True,
    "error": None,
    "values": [{"size_": 1000, "buffer_address_": 139912200323072, "protocol_": "tcp", "transport_endpoint_": "h:1"}],
    "disk_values": None,
}
ABSENT = {"ok": False, "error": "OBJECT_NOT_FOUND", "values": None, "disk_values": None}
STATUS: dict[str, Any] = {
    "is_healthy": True,
    "engine_type": "MPCacheServer",
    "chunk_size": 64,
    "storage_manager": {"num_l2_adapters": 0, "l1_manager": {"is_healthy": True, "total_object_count": 3}},
    "kv_events": {"enabled": True, "incarnation": 1796027927494970443, "log_depth": 0},
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(**handlers: Handler) -> Any:
    """A server with these paths; its URL."""
    app = web.Application(client_max_size=1 << 24)
    for path, handler in handlers.items():
        app.router.add_route("*", f"/{path}", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def told(answer: Any) -> Handler:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(text=answer if isinstance(answer, str) else json.dumps(answer))

    return handler


class Used:
    def __init__(self, connector: str, **settings: Any) -> None:
        plain = StoreSettings(name="s", connector=connector, settings=settings)
        self.connector = make(plain)
        self.store = Store(plain, self.connector.traits)
        self.index = StoreIndex(Bound())
        self.opened = self.connector.open(plain, Writer(self.store, self.index))

    @property
    def session(self) -> Session:
        assert self.opened is not None
        return self.opened

    async def ask(self) -> None:
        await self.session.ask(Question(PROMPT, (Way(HERE, CHAIN),)))

    async def run(self, condition: Callable[[], bool]) -> None:
        running = asyncio.create_task(self.session.run())
        try:
            async with asyncio.timeout(10):
                while not condition():
                    if running.done():
                        running.result()
                    await asyncio.sleep(0.002)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


class Master:
    """Mooncake's, as it answers."""

    def __init__(self, blocks: int, ranks: int = 1, name: str = "tiny", prefix: str = "") -> None:
        self.asked: list[int] = []
        self.missing: set[str] = set()
        self._held = {
            f"{prefix}{name}@tp_rank:{rank}@pcp0@dcp0@pp_rank:0@group:0@{digest.hex()}"
            for digest in CHAIN.digests(blocks)
            for rank in range(ranks)
        }

    async def query(self, request: web.Request) -> web.Response:
        keys = request.query["keys"].split(",")
        self.asked.append(len(keys))
        data = {key: THERE if key in self._held - self.missing else ABSENT for key in keys}
        return web.json_response({"success": True, "data": data})


def test_a_master_is_asked_for_more_and_more_until_a_block_is_missing() -> None:
    async def story(blocks: int) -> tuple[list[int], int]:
        master = Master(blocks)
        async with serving(batch_query_keys=master.query) as url:
            used = Used("mooncake", url=url)
            await used.ask()
            await used.session.close()
            return master.asked, used.index.depth(Namespace("s", "m"), CHAIN, 1000)

    assert asyncio.run(story(0)) == ([8], 0)
    assert asyncio.run(story(5)) == ([8], 5)
    assert asyncio.run(story(8)) == ([8, 16], 8)
    assert asyncio.run(story(250)) == ([8, 16, 32, 32, 32, 32, 32, 32, 32, 2], 250)


def test_what_a_master_has_no_more_is_gone() -> None:
    async def story() -> None:
        master = Master(100)
        async with serving(batch_query_keys=master.query) as url:
            used = Used("mooncake", url=url)
            await used.ask()
            assert used.index.blocks("s") == 100
            master.missing = {key for key in master._held if CHAIN.digest(20).hex() in key}
            await used.ask()
            assert used.index.blocks("s") == 20
            await used.session.close()

    asyncio.run(story())


def test_a_block_is_there_when_all_ranks_have_it_under_its_name() -> None:
    async def story(master: Master, **settings: Any) -> int:
        async with serving(batch_query_keys=master.query) as url:
            used = Used("mooncake", url=url, **settings)
            await used.ask()
            await used.session.close()
            return used.index.blocks("s")

    assert asyncio.run(story(Master(40, ranks=2), tensor_parallel_size=2)) == 40
    assert asyncio.run(story(Master(40, ranks=1), tensor_parallel_size=2)) == 0
    assert asyncio.run(story(Master(40, name="other"), model_name="other")) == 40
    assert asyncio.run(story(Master(40, name="other"))) == 0
    assert asyncio.run(story(Master(40, prefix="team@"), cache_prefix="team")) == 40


def test_a_master_that_is_not_there_or_not_ready_is_told() -> None:
    async def story() -> None:
        async with serving(health=told(HEALTH)) as url:
            used = Used("mooncake", url=url, interval_seconds=0.005)
            used.store.problem = "it was away"
            await used.run(lambda: used.store.is_up)
            with pytest.raises(StoreError, match=r"/batch_query_keys answers 404; is it the right server\?"):
                await used.ask()
            await used.session.close()
        async with serving(health=told(HEALTH.replace("true", "false"))) as url:
            used = Used("mooncake", url=url)
            with pytest.raises(StoreError, match="Mooncake's master is not ready: it says 'ok'"):
                await used.run(lambda: False)
            await used.session.close()
        used = Used("mooncake", url=url)
        with pytest.raises(StoreError, match=r"http://127\.0\.0\.1:\d+ cannot be asked: "):
            await used.run(lambda: False)
        await used.session.close()

    asyncio.run(story())


def test_events_alone_need_no_server() -> None:
    mooncake, lmcache = Used("mooncake"), Used("lmcache")
    assert mooncake.opened is lmcache.opened is None
    assert (mooncake.connector.is_asked, lmcache.connector.is_asked) == (False, False)
    assert mooncake.store.settings.tiers == ("cpu",)
    assert lmcache.store.settings.tiers == ("CPU",)
    assert lmcache.store.traits.has_own_hashes
    assert (mooncake.store.traits.reading, lmcache.store.traits.reading) == (Reading.WHOLE, Reading.BUT_ONE)
    assert mooncake.connector.carries(0) == lmcache.connector.carries(0) == {}


def test_a_restart_of_lmcaches_server_empties_it() -> None:
    async def story() -> None:
        status = json.loads(json.dumps(STATUS))
        looks = [0]

        async def answer(request: web.Request) -> web.Response:
            looks[0] += 1
            return web.json_response(status)

        async with serving(status=answer) as url:
            used = Used("lmcache", url=url, interval_seconds=0.002)
            used.index.add(Namespace("s", "m", LearnedKeys(64)), [1, 2])
            await used.run(lambda: looks[0] > 3)
            assert used.index.blocks("s") == 2
            status["kv_events"]["incarnation"] += 1
            await used.run(lambda: used.store.counts["restarts"] == 1)
            assert used.index.blocks("s") == 0
            used.index.add(Namespace("s", "m", LearnedKeys(64)), [1, 2])
            status["storage_manager"]["l1_manager"]["total_object_count"] = 0
            await used.run(lambda: not used.index.blocks("s"))
            status["is_healthy"] = False
            with pytest.raises(StoreError, match="not healthy"):
                await used.run(lambda: False)
            await used.session.close()

    asyncio.run(story())


def test_what_no_event_of_lmcaches_server_can_tell_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        status = json.loads(json.dumps(STATUS))

        async def answer(request: web.Request) -> web.Response:
            return web.json_response(status)

        async with serving(status=answer) as url:
            used = Used("lmcache", url=url, interval_seconds=0.002)
            await used.run(lambda: used.store.is_up)
            assert not caplog.records
            for count in (3, 5):
                status["kv_events"]["unbound_stores"] = count
                await used.run(lambda: used.store.counts["untold"] == count)  # noqa: B023
            (told,) = [record.getMessage() for record in caplog.records]
            assert "store s:" in told
            assert "lmcache_driven" in told
            status["kv_events"] |= {"enabled": False}
            with pytest.raises(StoreError, match="--kv-event-log-size"):
                await used.run(lambda: False)
            await used.session.close()

    asyncio.run(story())


def test_lmcaches_controller_says_how_many_tokens_its_instances_have() -> None:
    async def story() -> None:
        layout: dict[str, tuple[str, int]] = {"one": ("LocalCPUBackend", 256), "two": ("LocalDiskBackend", 768)}
        bodies: list[Any] = []

        async def lookup(request: web.Request) -> web.Response:
            bodies.append(await request.json())
            return web.json_response({"event_id": "Lookup1", "layout_info": layout})

        async with serving(lookup=lookup) as url:
            used = Used("lmcache", controller=url)
            assert used.connector.is_asked
            await used.session.run()
            await used.ask()
            assert bodies == [{"tokens": PROMPT}]
            keys, chain = LearnedKeys(256), OwnChain(LearnedKeys(256), PROMPT)
            assert used.index.depth(Namespace("s", "m", keys), chain, 9) == 3
            layout.clear()
            await used.ask()
            assert used.index.blocks("s") == 0
            await used.session.close()

    asyncio.run(story())


@pytest.mark.parametrize("answer", ["<html>", '{"data": 3}', '{"data": {"a": 1}}'])
def test_what_is_not_understood_is_told(answer: str) -> None:
    async def story() -> None:
        async with serving(batch_query_keys=told(answer)) as url:
            used = Used("mooncake", url=url)
            with pytest.raises(StoreError, match="Mooncake's master says something that is not understood"):
                await used.ask()
            await used.session.close()

    asyncio.run(story())


def test_an_answer_without_end_and_one_that_never_comes_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "MAX_BYTES", 100)
    monkeypatch.setattr(asking, "SECONDS", 0.05)

    async def hang(request: web.Request) -> web.Response:
        await asyncio.sleep(0.5)
        return web.Response()

    async def story() -> None:
        async with serving(long=told("x" * 1000), hang=hang) as url:
            server = Server(url)
            with pytest.raises(StoreError, match="answers with more than 100 bytes"):
                await server.get("/long")
            with pytest.raises(StoreError, match=r"has not answered within 0\.05 s"):
                await server.get("/hang")
            await server.close()

    asyncio.run(story())


@pytest.mark.parametrize(
    ("connector", "settings"),
    [
        ("mooncake", {"tensor_parallel_size": 0}),
        ("mooncake", {"interval_seconds": 0}),
        ("lmcache", {"chunk_size": 0}),
        ("lmcache", {"url": "http://a", "controller": "http://b"}),
    ],
)
def test_settings_that_cannot_be_used_are_told(connector: str, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"stores\.s"):
        Used(connector, **settings)
