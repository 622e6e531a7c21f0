"""``balancer/connectors/running.py``: sessions that are kept going; deadlines, breaker and cache of lookups."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from balancer.connectors import base
from balancer.connectors.base import Question, StoreError, Writer, fetch_cost
from balancer.connectors.running import StoreRunner, stores_of
from balancer.core import RouteRequest
from balancer.errors import ConfigError
from balancer.policies.cache_aware import CacheAware
from balancer.router import Router
from balancer.store_settings import StoreSettings
from balancer.stores import Traits
from hashing.chain import Chain
from indexer.events import EMPTY, BlockStored
from indexer.index import ReplicaId
from tests.support.routing import RECIPE, replica, request

PROMPT = list(range(41))
KEYS = list(Chain(RECIPE, PROMPT).keys(10))


class Session:
    """Does what a test says."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self.asked: list[Question] = []
        self.runs = 0
        self.answer: Callable[[], Awaitable[None]] | None = None
        self.fails = 0
        self.is_closed = False
        self.is_up = asyncio.Event()

    async def run(self) -> None:
        self.runs += 1
        self.writer.add("m", KEYS[:2])
        if self.runs <= self.fails:
            raise StoreError("it is away")
        self.writer.up()
        self.is_up.set()

    async def ask(self, question: Question) -> None:
        self.asked.append(question)
        if self.answer is not None:
            await self.answer()
        self.writer.add("m", KEYS[:3])

    async def close(self) -> None:
        self.is_closed = True


OPENED: list[Session] = []
FAILS = [0]


class Staged(msgspec.Struct, frozen=True):
    @property
    def traits(self) -> Traits:
        return Traits()

    @property
    def is_asked(self) -> bool:
        return True

    def open(self, settings: StoreSettings, writer: Writer) -> Session:
        OPENED.append(Session(writer))
        OPENED[-1].fails = FAILS[0]
        return OPENED[-1]

    def carries(self, tokens: int) -> dict[str, Any]:
        return {}


@pytest.fixture(autouse=True)
def staged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(base.CONNECTORS._classes, "staged", Staged)
    OPENED.clear()
    FAILS[0] = 0


class Stage:
    """A router with two replicas, of which the first reads from a store that is asked."""

    def __init__(self, **settings: Any) -> None:
        plain: dict[str, Any] = {"name": "s", "connector": "staged", "replicas": ["http://a:8000"], **settings}
        self.router = Router(CacheAware(), "cache_aware", stores=stores_of([msgspec.convert(plain, StoreSettings)]))
        for name in ("a", "b"):
            self.router.put(replica(name))
        self.runner = StoreRunner(self.router)
        (self.store,) = self.router.caches.stores

    async def __aenter__(self) -> "Stage":
        self.runner.start()
        (self.session,) = OPENED
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.runner.stop()
        assert self.session.is_closed

    async def ask(self, asked: RouteRequest | None = None) -> bool:
        asking = self.runner.asking(asked or request(PROMPT))
        if asking is None:
            return False
        await asking
        return True

    def loads(self) -> dict[str, int]:
        found = self.router.consider(request(PROMPT), 0.0, 0.0).candidates
        return {each.replica: each.loadable_tokens for each in found}


def test_a_store_is_asked_once_about_a_prompt_and_then_remembered() -> None:
    async def story() -> None:
        async with Stage() as stage:
            assert await stage.ask()
            assert stage.loads() == {"a": 12, "b": 0}
            assert not await stage.ask()
            assert await stage.ask(request(PROMPT, salt="another"))
            first, second = stage.session.asked
            assert list(first.tokens) == PROMPT
            assert [way.replica.id for way in first.ways] == ["a"]
            assert (first.salt, second.salt) == (None, "another")
            assert first.ways[0].chain.keys(1) != second.ways[0].chain.keys(1)
            assert stage.store.counts["lookup_remembered"] == 1

    asyncio.run(story())


def test_an_answer_is_believed_for_a_while() -> None:
    async def story() -> None:
        async with Stage(cache_seconds=0) as stage:
            assert await stage.ask()
            assert await stage.ask()

    asyncio.run(story())


@pytest.mark.parametrize(
    "asked",
    [request(PROMPT, PROMPT), request(PROMPT, reads_cache=False), request(PROMPT[:4]), RouteRequest("m", size_hint=9)],
)
def test_what_no_store_can_help_is_not_asked(asked: RouteRequest) -> None:
    async def story() -> None:
        async with Stage() as stage:
            assert not await stage.ask(asked)

    asyncio.run(story())


def test_nobody_is_asked_for_whom_nobody_reads() -> None:
    async def story() -> None:
        async with Stage(replicas=["http://elsewhere:8000"]) as stage:
            assert not await stage.ask()

    asyncio.run(story())


def test_a_store_that_does_not_answer_in_time_is_not_waited_for() -> None:
    async def story() -> None:
        async with Stage(timeout_ms=5, failures=2, pause_seconds=0.05) as stage:
            stage.session.answer = asyncio.Event().wait  # type: ignore[assignment]
            for _ in range(2):
                assert stage.store.is_up
                assert await stage.ask(), "what has failed is not remembered"
            assert stage.store.problem == "it has not answered within 5 ms"
            assert stage.loads() == {"a": 0, "b": 0}, "what is known of it counts for nothing"
            assert not await stage.ask(), "it is left alone for a while"
            stage.session.answer = None
            until = time.monotonic() + 5
            while not await stage.ask():
                assert time.monotonic() < until
                await asyncio.sleep(0.01)
            assert stage.store.is_up
            assert stage.loads()["a"] == 12
            assert stage.store.counts["lookup_late"] == 2

    asyncio.run(story())


def test_a_store_that_says_why_it_cannot_is_quoted() -> None:
    async def refuse() -> None:
        raise StoreError("nobody is there")

    async def stumble() -> None:
        raise ValueError("a mistake of ours")

    async def story() -> None:
        async with Stage(failures=1, pause_seconds=60) as stage:
            stage.session.answer = refuse
            await stage.ask()
            assert stage.store.problem == "nobody is there"
        OPENED.clear()
        async with Stage(failures=1, pause_seconds=60) as stage:
            stage.session.answer = stumble
            await stage.ask()
            assert stage.store.problem == "ValueError: a mistake of ours"
            assert stage.runner.status()[0]["problem"] == stage.store.problem

    asyncio.run(story())


def test_a_session_that_ends_with_an_error_is_begun_anew() -> None:
    async def story() -> None:
        FAILS[0] = 2
        async with Stage(pause_seconds=0.01) as stage:
            assert stage.store.problem == "it is away"
            assert stage.router.caches.index.stores.blocks("s") == 0
            async with asyncio.timeout(5):
                await stage.session.is_up.wait()
            assert stage.store.is_up
            assert stage.store.counts["failed"] == 2
            (told,) = stage.runner.status()
            assert (told["store"], told["up"], told["blocks"], told["models"]) == ("s", True, 2, ["m"])
            assert told["attached"] == ["a"]

    asyncio.run(story())


def test_a_shared_place_that_no_setting_names_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()
    event = BlockStored(KEYS[:1], None, EMPTY, 4, medium="STORAGE", locality="REMOTE")
    stage.runner.look()
    assert not caplog.records
    stage.router.caches.apply(ReplicaId("b"), [event, msgspec.structs.replace(event, locality="LOCAL")])
    for _ in range(2):
        stage.runner.look()
    (record,) = caplog.records
    assert "KV events speak of STORAGE/REMOTE, which others may read, too" in record.message


def test_what_a_fetch_costs_is_what_the_settings_say() -> None:
    told = fetch_cost(StoreSettings(name="s", gigabits_per_second=10, latency_ms=2))
    assert (told.latency, told.bytes_per_second) == (0.002, 1.25e9)
    assert fetch_cost(StoreSettings(name="s")).bytes_per_second is None
    stage = Stage(gigabits_per_second=8)
    assert stage.runner.cost("s").bytes_per_second == 1e9
    assert stage.runner.cost("nobody").bytes_per_second is None


def test_a_store_that_is_asked_needs_the_process_that_has_the_tokens() -> None:
    asked = StoreSettings(name="s", connector="staged")
    with pytest.raises(ConfigError, match=r"stores\.s\.connector: staged is asked about each prompt's tokens"):
        stores_of([asked], processes=2)
    assert stores_of([StoreSettings(name="s")], processes=2)


def test_a_connector_that_there_is_not_is_told() -> None:
    with pytest.raises(ConfigError, match=r"stores\.s\.name: there is no connector 'nfs'; there are: .*events"):
        stores_of([StoreSettings(name="s", connector="nfs")])
    with pytest.raises(ConfigError, match=r"stores\.s\.pathh: events has no such setting"):
        stores_of([StoreSettings(name="s", settings={"pathh": "/x"})])
