"""``GET /kvlb/snapshot``: whole for whoever takes it, and no hold on the others for whoever does not."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator

import pytest
from aiohttp import web

from balancer.gateway import snapshot
from balancer.handover import Handover
from balancer.settings import SnapshotSettings
from balancer.warm import ASKER, CONTENT_TYPE, PATH, WarmStart
from tests.support.gateways import gateway, get, split
from tests.support.handovers import URLS, A, B, fed, member
from tests.support.waiting import eventually, run


class Slow(WarmStart):
    """Its pieces are larger than any buffer between it and who asks."""

    def __init__(self) -> None:
        super().__init__(SnapshotSettings(), Handover(fed(), URLS), contextlib.nullcontext)
        self.is_closed = False
        self.is_loaded = True

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        try:
            for _ in range(1_000):
                yield bytes(1 << 20)
        finally:
            self.is_closed = True


def test_it_is_given_as_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with gateway([], wait=False) as made:
            known = Handover(fed(member(A), member(B)), URLS)
            monkeypatch.setattr(made.service.warm, "_handover", known)
            status, headers, body = split(await made.exchange(get(PATH)))
            assert status == "HTTP/1.1 200 OK"
            assert ("Content-Type", CONTENT_TYPE) in headers
            handover = Handover(fed(), URLS)
            restoration = handover.restoration(oldest=0)
            restoration.feed(body)
            assert handover.accept(restoration.finish()) == 4
            assert set(handover.waiting) == {A, B}

    run(scenario())


@contextlib.asynccontextmanager
async def reading(warm: Slow) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A client that has read the first bytes of an answer, and no more."""
    app = web.Application()
    snapshot.add_routes(app, warm)
    runner = web.AppRunner(app, shutdown_timeout=0, handler_cancellation=True)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        reader, writer = await asyncio.open_connection(*runner.addresses[0][:2], limit=1 << 10)
        writer.write(get(PATH))
        await reader.readexactly(100)
        yield reader, writer
        writer.transport.abort()
    finally:
        await runner.cleanup()


def test_who_reads_too_slowly_does_not_get_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(snapshot, "GIVE_SECONDS", 0.2)

    async def scenario() -> None:
        warm = Slow()
        async with reading(warm) as (reader, _):
            await eventually(lambda: warm.is_closed)
            with contextlib.suppress(ConnectionError):
                assert not (await reader.read()).endswith(b"0\r\n\r\n"), "taken for whole"

    run(scenario())
    assert "was not taken within" in caplog.text


def test_who_goes_away_holds_up_nobody() -> None:
    async def scenario() -> None:
        warm = Slow()
        async with reading(warm) as (_, writer):
            writer.transport.abort()
            await eventually(lambda: warm.is_closed)

    run(scenario())


def test_it_is_not_made_for_a_head() -> None:
    async def scenario() -> None:
        async with gateway([], wait=False) as made:
            status, _, _ = split(await made.exchange(get(PATH, "HEAD")))
            assert status == "HTTP/1.1 405 Method Not Allowed"

    run(scenario())


@pytest.mark.parametrize("is_itself", [True, False])
def test_a_gateway_that_is_starting_answers_and_gives_nothing_and_is_not_its_own_sibling(is_itself: bool) -> None:
    async def scenario() -> None:
        async with asyncio.timeout(20), contextlib.AsyncExitStack() as stack:
            silent = await stack.enter_async_context(await asyncio.start_server(_never, "127.0.0.1", 0))
            url = f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}"
            made = await stack.enter_async_context(gateway([], wait=False, snapshot={"siblings": [url]}))
            asked = get(PATH)
            if is_itself:
                asked = asked.replace(b"Host:", f"{ASKER}: {made.service.warm.name}\r\nHost:".encode())
            status, _, body = split(await made.exchange(asked))
            assert status.split()[1] == ("409" if is_itself else "503")
            assert (b"the gateway that asks" if is_itself else b"taking over an index itself") in body
            assert split(await made.exchange(get("/health")))[0] == "HTTP/1.1 200 OK"

    run(scenario())


async def _never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()
