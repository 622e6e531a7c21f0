"""``balancer/http/reasons.py``: what connections fail of is told in words, and without an address."""

import asyncio
import socket
import ssl

import aiohttp
import pytest

from balancer.http.reasons import reason
from tests.support.waiting import run


async def asked(url: str) -> str:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2.0)) as session:
        try:
            await session.get(url)
        except (aiohttp.ClientError, OSError) as error:
            return reason(error)
    raise AssertionError("somebody has answered")


def test_what_a_client_meets_is_told_in_words() -> None:
    async def check() -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            closed = free.getsockname()[1]
        assert await asked(f"http://127.0.0.1:{closed}") == "connection refused"
        assert await asked(f"https://127.0.0.1:{closed}") == "connection refused"
        assert await asked("http://no-such-host.invalid:1") == "its name cannot be resolved"
        answers = {b"": "the connection was closed without an answer", b"nonsense\r\n\r\n": "its answer is no HTTP"}
        for answer, expected in answers.items():

            async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: bytes = answer) -> None:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(answer)
                await writer.drain()
                writer.close()

            async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
                port = server.sockets[0].getsockname()[1]
                assert (await asked(f"http://127.0.0.1:{port}")).startswith(expected)

    run(check())


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConnectionRefusedError(111, "Connect call failed ('127.0.0.1', 1)"), "connection refused"),
        (OSError(113, "whatever"), "no route to host"),
        (TimeoutError(), "no answer in time"),
        (aiohttp.ServerTimeoutError("Connection timeout to host http://h:1"), "no answer in time"),
        (ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number"), "no TLS connection: "),
        (ValueError("odd"), "odd"),
        (ValueError(), "ValueError"),
    ],
)
def test_each_error_has_its_words(error: Exception, expected: str) -> None:
    assert reason(error).startswith(expected)
