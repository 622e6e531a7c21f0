"""``balancer/siblings/watching.py``: who answers is heard, who does not is told of, and nobody waits for either."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
import pytest
from aiohttp import web

from balancer.fleet import Fleet
from balancer.sessions import Sessions
from balancer.settings import convert
from balancer.siblings import watching
from balancer.siblings.book import Told
from balancer.siblings.exchange import Exchange
from balancer.siblings.report import MAX_BYTES, PATH, ReplicaLoad, Report, encode
from balancer.siblings.watching import Siblings
from balancer.timeouts import TimeoutSettings
from balancer.upstream import open_session
from simulations.demo import free_ports
from tests.support.routing import replica
from tests.support.waiting import eventually, run

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@contextlib.asynccontextmanager
async def served(handler: Handler, port: int = 0) -> AsyncIterator[str]:
    """Whatever answers there, at its address."""
    app = web.Application()
    app.router.add_get("/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0, handler_cancellation=True)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", port, reuse_address=True)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def telling(gateway: str = "other", in_flight: int = 3) -> Handler:
    """A sibling with that much at replica a."""
    sequence = 0

    async def answer(request: web.Request) -> web.Response:
        nonlocal sequence
        assert request.path == PATH
        sequence += 1
        load = {"a": ReplicaLoad(in_flight=in_flight)}
        return web.Response(body=encode(Report(gateway=gateway, sequence=sequence, replicas=load)))

    return answer


class Asker:
    """This gateway's side."""

    def __init__(self, *urls: str, **settings: object) -> None:
        self.fleet = Fleet()
        self.fleet.put(replica("a"))
        section = {"urls": list(urls), "interval_seconds": 0.05, **settings}
        self.siblings = Siblings(
            convert({"siblings": section}).siblings, Exchange(self.fleet, Sessions(), "self", 0.05)
        )

    def others(self) -> int:
        self.siblings.refresh()
        return next(iter(self.fleet)).others.requests(0)

    def told(self) -> Told:
        return self.siblings.told()[0]

    @contextlib.asynccontextmanager
    async def asking(self) -> AsyncIterator[aiohttp.ClientSession]:
        session = open_session(TimeoutSettings())
        task = asyncio.create_task(self.siblings.run(session))
        try:
            yield session
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await session.close()


def test_what_a_sibling_has_is_asked_for_again_and_again() -> None:
    async def scenario() -> None:
        async with served(telling()) as url:
            asker = Asker(url)
            async with asker.asking():
                await eventually(lambda: asker.told().results.get("counted", 0) > 3)
                assert asker.others() == 3
                assert asker.told().problem is None

    run(scenario())


async def _html(request: web.Request) -> web.Response:
    return web.Response(text="<html>hello</html>", content_type="text/html")


async def _liar(request: web.Request) -> web.Response:
    return web.json_response({"gateway": "x", "sequence": 1, "replicas": {"a": {"in_flight": -5}}})


async def _endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    for _ in range(2 * MAX_BYTES >> 16):
        await response.write(b" " * (1 << 16))
    return response


async def _never(request: web.Request) -> web.Response:
    await asyncio.Event().wait()
    raise AssertionError


async def _elsewhere(request: web.Request) -> web.Response:
    raise web.HTTPFound("http://127.0.0.1:9/")


async def _key(request: web.Request) -> web.Response:
    raise web.HTTPUnauthorized


async def _broken_off(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": "100"})
    await response.prepare(request)
    await response.write(b'{"gateway"')
    assert request.transport is not None
    request.transport.abort()
    return response


@pytest.mark.parametrize(
    ("handler", "result", "told"),
    [
        (_html, "refused", "its report cannot be read"),
        (_liar, "refused", "in_flight"),
        (_endless, "refused", "is longer than"),
        (_never, "failed", "no answer in time"),
        (_elsewhere, "refused", "with 302"),
        (_key, "refused", "give siblings.api_key"),
        (_broken_off, "failed", ""),
    ],
)
def test_what_is_no_report_counts_nothing_and_is_told_once(
    handler: Handler, result: str, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "balancer.siblings")

    async def scenario() -> None:
        async with served(handler) as url, served(telling()) as good:
            asker = Asker(url, good, timeout_seconds=0.3)
            async with asker.asking():
                await eventually(lambda: asker.told().results.get(result, 0) >= 2)
                await eventually(lambda: asker.others() == 3)  # the other one is not kept waiting
                assert told in (asker.told().problem or "")
                assert asker.told().weight == 0
        warnings = [each for each in caplog.records if each.levelno == logging.WARNING and url in each.getMessage()]
        assert len(warnings) == 1

    run(scenario())


def test_a_sibling_that_ends_counts_nothing_at_once_and_is_found_again() -> None:
    async def scenario() -> None:
        (port,) = free_ports(1)
        asker = Asker(f"http://127.0.0.1:{port}")
        async with asker.asking():
            await eventually(lambda: asker.told().problem is not None)
            async with served(telling("first"), port):
                await eventually(lambda: asker.others() == 3)
            await eventually(lambda: asker.told().problem is not None and asker.told().age is None)
            assert asker.others() == 0
            async with served(telling("second", 5), port):
                await eventually(lambda: asker.others() == 5)

    run(scenario())


@pytest.mark.parametrize("stands", [True, False], ids=["it has stood", "it flaps"])
def test_a_sibling_that_ends_again_is_told_of_again(
    stands: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """At once where it was back, and where it comes and goes, after a while."""
    monkeypatch.setattr(watching, "STANDS_SECONDS", 0.0 if stands else 3600.0)
    monkeypatch.setattr(watching, "TELL_AGAIN_SECONDS", 3600.0 if stands else 0.5)
    caplog.set_level(logging.INFO, "balancer.siblings")

    def lines(level: int) -> int:
        return sum(each.levelno == level for each in caplog.records)

    async def scenario() -> None:
        (port,) = free_ports(1)
        asker = Asker(f"http://127.0.0.1:{port}")
        async with asker.asking():
            for times in (1, 2, 3):
                await eventually(lambda: lines(logging.WARNING) == times)  # noqa: B023 - it is awaited here
                async with served(telling(), port):
                    await eventually(lambda: lines(logging.INFO) == times)  # noqa: B023

    run(scenario())


def test_itself_is_left_out() -> None:
    async def scenario() -> None:
        async with served(telling("self")) as url:
            asker = Asker(url)
            async with asker.asking():
                await eventually(lambda: asker.told().is_self)
                assert asker.others() == 0

    run(scenario())


def test_the_key_is_sent() -> None:
    async def careful(request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") != "Bearer ours":
            raise web.HTTPUnauthorized
        return await telling()(request)

    async def scenario() -> None:
        async with served(careful) as url:
            asker = Asker(url, api_key="ours")
            async with asker.asking():
                await eventually(lambda: asker.others() == 3)

    run(scenario())


def test_a_fault_of_our_own_ends_neither_this_nor_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with served(telling()) as url:
            asker = Asker(url)
            heard, faults = asker.siblings.exchange.heard, iter([True])

            def failing(*args: object) -> str | None:
                if next(faults, False):
                    raise RuntimeError("a fault")
                return heard(*args)  # type: ignore[arg-type]

            monkeypatch.setattr(asker.siblings.exchange, "heard", failing)
            async with asker.asking():
                await eventually(lambda: asker.others() == 3)
        assert "asking this sibling has failed" in caplog.text

    run(scenario())


# At the start


def test_an_index_is_taken_over_from_those_that_answer() -> None:
    async def scenario() -> None:
        async with served(telling()) as good, served(telling("self")) as own, served(_never) as silent:
            asker = Asker("http://127.0.0.1:9", own, silent, good, timeout_seconds=0.5)
            session = open_session(TimeoutSettings())
            try:
                assert await asker.siblings.to_take_over_from(session) == [good]
                assert await Asker(good, prewarm=False).siblings.to_take_over_from(session) == []
                assert await Asker().siblings.to_take_over_from(session) == []
            finally:
                await session.close()

    run(scenario())
