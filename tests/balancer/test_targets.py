"""``targets.py``: endpoints come and go while the gateway runs, and no request is lost by it."""

import asyncio
import contextlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from balancer.discovery import file as file_module
from balancer.health import Watcher
from balancer.settings import ReplicaSettings
from balancer.targets import Targets
from tests.support.gateways import Gateway, close, gateway, get, post, split
from tests.support.upstream import OK, Received, upstream
from tests.support.waiting import eventually, run

BODY = b'{"model":"m","prompt":[1,2,3,4,5]}'


class Watched:
    """A watcher that only notes whether it is at work."""

    def __init__(self, replica: ReplicaSettings) -> None:
        self.replica = replica
        self.is_running = False

    async def run(self) -> None:
        self.is_running = True
        try:
            await asyncio.Event().wait()
        finally:
            self.is_running = False


class Seen:
    """Targets, every watcher that was ever made, and what was told."""

    def __init__(self) -> None:
        self.made: list[Watched] = []
        self.came: list[str] = []
        self.left: list[str] = []
        self.replaced: list[str] = []
        self.held: set[str] = set()
        self.targets = Targets(
            self._make, self.came.append, self.left.append, self.replaced.append, self.held.__contains__
        )

    def _make(self, replica: ReplicaSettings) -> Watcher:
        self.made.append(Watched(replica))
        return cast(Watcher, self.made[-1])

    def running(self) -> list[str]:
        return [each.replica.url for each in self.made if each.is_running]


def settings(*urls: str, **changes: Any) -> list[ReplicaSettings]:
    return [ReplicaSettings(url=url, **changes) for url in urls]


def test_each_endpoint_has_one_watcher_from_begin_to_stop() -> None:
    async def check() -> None:
        seen = Seen()
        seen.targets.set(settings("a", "b"))
        await asyncio.sleep(0)
        assert seen.running() == []
        seen.targets.begin()
        await asyncio.sleep(0)
        assert seen.running() == ["a", "b"]
        seen.targets.set(settings("b", "c"))
        await asyncio.sleep(0)
        await eventually(lambda: seen.running() == ["b", "c"])
        assert (seen.came, seen.left) == (["a", "b", "c"], ["a"])
        assert list(seen.targets.watchers) == ["b", "c"]
        await seen.targets.stop()
        assert seen.running() == []
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(check())


def test_an_endpoint_that_is_to_be_read_otherwise_is_watched_anew() -> None:
    async def check() -> None:
        seen = Seen()
        seen.targets.begin()
        seen.targets.set(settings("a"))
        await eventually(lambda: seen.running() == ["a"])
        seen.targets.set(settings("a", hash_seed="1"))
        await eventually(lambda: [each.is_running for each in seen.made] == [False, True])
        assert (seen.came, seen.left) == (["a", "a"], [])
        seen.targets.set(settings("a", hash_seed="1"))
        assert len(seen.made) == 2
        await seen.targets.stop()

    run(check())


def test_another_engine_behind_the_same_url_is_another_endpoint() -> None:
    async def check() -> None:
        seen = Seen()
        seen.targets.begin()
        seen.targets.set(settings("a", "b"), {"a": "uid-1", "b": "uid-2"})
        await eventually(lambda: seen.running() == ["a", "b"])
        seen.targets.set(settings("a", "b"), {"a": "uid-3", "b": "uid-2"})
        await eventually(lambda: [each.is_running for each in seen.made] == [False, True, True])
        assert (seen.came, seen.left, seen.replaced) == (["a", "b", "a"], [], ["a"])
        seen.targets.set(settings("a", "b"))  # whoever does not say who it is says nothing of another one
        seen.targets.set(settings("a", "b"), {"a": "uid-3", "b": "uid-2"})
        assert (len(seen.made), seen.replaced) == (3, ["a"])
        await seen.targets.stop()

    run(check())


@pytest.mark.parametrize(("is_held", "replaced"), [(True, ["a"]), (False, [])])
def test_who_has_left_is_known_by_who_it_was_as_long_as_anything_of_it_is(is_held: bool, replaced: list[str]) -> None:
    async def check() -> None:
        seen = Seen()
        seen.targets.set(settings("a"), {"a": "uid-1"})
        if is_held:
            seen.held.add("a")
        seen.targets.set([])
        seen.targets.set([])
        seen.targets.set(settings("a"), {"a": "uid-2"})
        assert (seen.came, seen.left, seen.replaced) == (["a", "a"], ["a"], replaced)

    run(check())


# With a gateway


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Sequence[str]], None]:
    monkeypatch.setattr(file_module, "SETTLE_SECONDS", 0.002)

    def write(urls: Sequence[str]) -> None:
        draft = tmp_path / "draft"
        draft.write_text(json.dumps({"replicas": list(urls)}))
        draft.replace(tmp_path / "replicas.json")

    return write


def finding(path: Path) -> contextlib.AbstractAsyncContextManager[Gateway]:
    """A gateway that looks there for its endpoints."""
    discovery = {"name": "file", "path": str(path / "replicas.json"), "interval_seconds": 0.01}
    return gateway([], wait=False, discovery=discovery)


def known(front: Gateway) -> set[str]:
    return {live.replica.endpoint for live in front.service.router.fleet}


async def ask(front: Gateway) -> tuple[str, str]:
    """(status, replica) of one request."""
    status, headers, _ = split(await front.exchange(post("/v1/completions", BODY)))
    return status.split(" ")[1], dict(headers).get("x-kvlb-replica", "")


def test_endpoints_come_and_go(tmp_path: Path, write: Callable[[Sequence[str]], None]) -> None:
    async def check() -> None:
        async with upstream() as one, upstream() as other, finding(tmp_path) as front:
            await eventually(lambda: front.service.follower.problem)
            assert (await ask(front))[0] == "503"
            write([one.url])
            await eventually(lambda: front.service.is_ready)
            assert await ask(front) == ("200", one.url.removeprefix("http://"))
            write([other.url])
            await eventually(lambda: known(front) == {other.url})
            assert await ask(front) == ("200", other.url.removeprefix("http://"))
            write([])
            await eventually(lambda: known(front) == set())
            assert (await ask(front))[0] == "503"
            assert front.service.follower.problem is None
            write([one.url, other.url])
            await eventually(lambda: known(front) == {one.url, other.url})
            assert (await ask(front))[0] == "200"

    run(check())


def test_an_endpoint_that_leaves_finishes_what_it_has(tmp_path: Path, write: Callable[[Sequence[str]], None]) -> None:
    async def check() -> None:
        async with upstream() as one, upstream() as other, finding(tmp_path) as front:
            streams: list[Received] = []

            async def stream(request: Received) -> None:
                streams.append(request)
                request.begin_stream()
                request.chunk(b'data: {"choices":[{"text":"a"}]}\n\n')

            one.answer = stream
            write([one.url])
            await eventually(lambda: front.service.is_ready)
            reader, writer = await front.send(post("/v1/completions", BODY))
            await reader.readuntil(b"data")
            write([other.url])
            await eventually(lambda: other.url in known(front))
            for _ in range(4):
                assert await ask(front) == ("200", other.url.removeprefix("http://"))
            assert known(front) == {one.url, other.url}, "it still has work"
            streams[0].chunk(b'data: {"choices":[{"text":"b","finish_reason":"stop"}]}\n\ndata: [DONE]\n\n')
            streams[0].chunk(b"")
            assert b"[DONE]" in await reader.read()
            await close(writer)
            await eventually(lambda: known(front) == {other.url})
            assert front.is_idle()

    run(check())


def test_an_endpoint_that_comes_back_while_it_leaves_goes_on(
    tmp_path: Path, write: Callable[[Sequence[str]], None]
) -> None:
    async def check() -> None:
        async with upstream() as one, finding(tmp_path) as front:
            hold = asyncio.Event()

            async def held(request: Received) -> None:
                await hold.wait()
                request.answer(OK)

            one.answer = held
            write([one.url])
            await eventually(lambda: front.service.is_ready)
            first = asyncio.create_task(ask(front))
            await eventually(lambda: one.received)
            write([])
            await eventually(lambda: not front.service.is_ready)
            write([one.url])
            await eventually(lambda: front.service.is_ready)
            hold.set()
            assert (await first)[0] == "200"
            assert (await ask(front))[0] == "200"
            assert known(front) == {one.url}

    run(check())


def test_a_file_that_is_broken_changes_nothing_and_is_told(
    tmp_path: Path, write: Callable[[Sequence[str]], None]
) -> None:
    async def check() -> None:
        async with upstream() as one, finding(tmp_path) as front:
            write([one.url])
            await eventually(lambda: front.service.is_ready)
            (tmp_path / "replicas.json").write_text("{")
            await eventually(lambda: front.service.follower.problem)
            assert (await ask(front))[0] == "200"
            assert [value for _, value in await front.samples("kvlb_discovery_problem")] == [1]
            page = (await front.exchange(get("/metrics"))).decode()
            (said,) = [line for line in page.splitlines() if line.startswith("# HELP kvlb_discovery_problem ")]
            assert "or some that should be there cannot be used" in said
            write([one.url])
            await eventually(lambda: front.service.follower.problem is None)

    run(check())


def test_metrics_tell_nothing_of_replicas_that_are_gone(tmp_path: Path, write: Callable[[Sequence[str]], None]) -> None:
    async def check() -> None:
        async with upstream() as one, finding(tmp_path) as front:
            for urls in ([one.url], []):
                write(urls)
                await eventually(lambda: known(front) == set(urls))  # noqa: B023 - it is awaited at once
                if urls:
                    await ask(front)
                    assert len(await front.samples("kvlb_routed_prompt_tokens_total")) == 1
            assert await front.samples("kvlb_routed_prompt_tokens_total") == []
            assert await front.samples("kvlb_in_flight_requests") == []

    run(check())
