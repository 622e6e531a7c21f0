"""A gateway that is replaced under load: no request is lost to it, and whoever cannot be served to the end is told."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from simulations.demo import free_ports
from tests.support.gateways import get, post, split
from tests.support.processes import ROOT, SECONDS
from tests.support.upstream import OK, Received, Upstream, upstream
from tests.support.waiting import eventually, run

PATH = "/v1/completions"
BODY = b'{"prompt":[1,2,3]}'
TOKEN = b'data: {"choices":[{"text":"Hi","finish_reason":null}]}\n\n'
LAST = b'data: {"choices":[{"text":"","finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'


class Gateway:
    """A process of ``kvlb serve``."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.process = process
        self.port = port

    async def exchange(self, data: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(data)
            return await reader.read()
        finally:
            writer.close()

    async def status(self, path: str) -> str:
        return split(await self.exchange(get(path)))[0]

    async def ended(self) -> int:
        async with asyncio.timeout(SECONDS):
            return await self.process.wait()


@contextlib.asynccontextmanager
async def serving(replica: Upstream, folder: Path, **server: float) -> AsyncIterator[Gateway]:
    (port,) = free_ports(1)
    lines = [f"{name} = {value}" for name, value in {"port": port, **server}.items()]
    (folder / "kvlb.toml").write_text("\n".join(["[server]", *lines, "[[replicas]]", f'url = "{replica.url}"']))
    words = (sys.executable, "-m", "balancer", "serve", "--config", str(folder / "kvlb.toml"))
    process = await asyncio.create_subprocess_exec(*words, cwd=ROOT, stderr=asyncio.subprocess.DEVNULL)
    try:
        front = Gateway(process, port)
        await _until_ready_says(front, "200 OK")
        yield front
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _until_ready_says(front: Gateway, status: str) -> None:
    async with asyncio.timeout(SECONDS):
        while True:
            with contextlib.suppress(ConnectionError):
                if await front.status("/ready") == f"HTTP/1.1 {status}":
                    return
            await asyncio.sleep(0.02)


def with_streams(folder: Path, check: Any, count: int, **server: float) -> None:
    """``check`` with a gateway, its replica, and so many streams that have begun."""

    async def begin_stream(request: Received) -> None:
        request.begin_stream()
        request.chunk(TOKEN)

    async def begin() -> None:
        async with upstream() as replica, serving(replica, folder, **server) as front:
            replica.answer = begin_stream
            streams = [asyncio.create_task(front.exchange(post(PATH, BODY))) for _ in range(count)]
            await eventually(lambda: len(replica.received) == count, SECONDS)
            await check(front, replica, streams)

    run(begin(), 2 * SECONDS)


def test_it_says_no_first_goes_on_for_a_while_and_ends_when_the_last_stream_has(tmp_path: Path) -> None:
    async def check(front: Gateway, replica: Upstream, streams: list["asyncio.Task[bytes]"]) -> None:
        running = list(replica.received)
        replica.answer = Upstream().answer
        front.process.send_signal(signal.SIGTERM)
        await _until_ready_says(front, "503 Service Unavailable")
        late = split(await front.exchange(post(PATH, BODY, close=False)))
        assert (late[0], late[2]) == ("HTTP/1.1 200 OK", OK)
        assert ("Connection", "close") in late[1]
        async with asyncio.timeout(SECONDS):
            with contextlib.suppress(ConnectionError):  # until it listens no more
                while True:
                    assert split(await front.exchange(post(PATH, BODY)))[0] == "HTTP/1.1 200 OK"
                    await asyncio.sleep(0.02)
        assert front.process.returncode is None
        for request in running:
            request.chunk(LAST)
            request.chunk(b"")
        for answer in await asyncio.gather(*streams):
            assert split(answer)[2] == TOKEN + LAST
        assert await front.ended() == 0

    with_streams(tmp_path, check, 50, drain_grace_seconds=0.5)


def test_streams_that_do_not_end_in_time_are_told(tmp_path: Path) -> None:
    async def check(front: Gateway, replica: Upstream, streams: list["asyncio.Task[bytes]"]) -> None:
        front.process.send_signal(signal.SIGINT)
        for answer in await asyncio.gather(*streams):
            assert b"kvlb is shutting down" in answer
            assert not answer.endswith(b"0\r\n\r\n")
        assert await front.ended() == 0

    with_streams(tmp_path, check, 10, drain_timeout_seconds=0.2)


def test_whoever_cannot_wait_sends_the_signal_again(tmp_path: Path) -> None:
    async def check(front: Gateway, replica: Upstream, streams: list["asyncio.Task[bytes]"]) -> None:
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGTERM):
            front.process.send_signal(number)
            await asyncio.sleep(0.2)  # or the system makes one of two
        async with asyncio.timeout(5):
            assert await front.ended() == 0
        await asyncio.gather(*streams, return_exceptions=True)

    with_streams(tmp_path, check, 3, drain_grace_seconds=60, drain_timeout_seconds=60)
