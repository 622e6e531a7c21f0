"""A gateway in this process, and clients for it that see every byte.

Knows the settings that make a test quick. ``idle`` says whether nothing is left of any request.
"""

import asyncio
import contextlib
import os
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families

from balancer import settings as settings_module
from balancer.commands.serve import running
from balancer.service import RouterService
from tests.support.split import running_split
from tests.support.waiting import eventually

SPLIT: Final = "KVLB_TESTS_SPLIT"
"""Variable of the environment; where it is set, every gateway here has its brain at the other end of a socket."""


class Gateway:
    """A running gateway."""

    def __init__(self, service: RouterService, url: str) -> None:
        self.service = service
        self.url = url
        host, _, port = url.partition("://")[2].rpartition(":")
        self.address = host, int(port)

    def is_idle(self) -> bool:
        """Whether every lease has been released and no load is left."""
        fleet = self.service.router.fleet
        return fleet.open_leases == 0 and all(live.in_flight == live.queued_tokens == 0 for live in fleet)

    async def outcomes(self, path: str | None = None) -> dict[str, int]:
        """Attempts at replicas by how they ended, as the metrics page has them; of one path, or of all."""
        found: Counter[str] = Counter()
        for labels, value in await self.samples("kvlb_requests_total"):
            if path in {None, labels["path"]}:
                found[labels["outcome"]] += int(value)
        return dict(found)

    async def samples(self, name: str) -> list[tuple[dict[str, str], float]]:
        """The samples of one metric."""
        page = split(await self.exchange(get("/metrics")))[2].decode()
        return [
            (sample.labels, sample.value)
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if sample.name == name
        ]

    async def send(
        self, data: bytes, tls: ssl.SSLContext | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection on which these bytes have been sent."""
        reader, writer = await asyncio.open_connection(*self.address, ssl=tls)
        writer.write(data)
        return reader, writer

    async def exchange(self, data: bytes, tls: ssl.SSLContext | None = None) -> bytes:
        """Everything that comes back for these bytes until the gateway closes the connection."""
        reader, writer = await self.send(data, tls)
        try:
            return await reader.read()
        finally:
            await close(writer)


async def close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


def post(path: str, body: bytes, *headers: str, close: bool = True) -> bytes:
    """The bytes of a request; ``headers`` are lines."""
    lines = [f"POST {path} HTTP/1.1", "Host: gateway", "User-Agent: test", f"Content-Length: {len(body)}", *headers]
    if close:
        lines.append("Connection: close")
    return "\r\n".join([*lines, "", ""]).encode() + body


def get(path: str, method: str = "GET", *headers: str) -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: gateway", "Connection: close", *headers, "", ""]).encode()


def split(answer: bytes) -> tuple[str, list[tuple[str, str]], bytes]:
    """(status line, headers, body) of a raw answer; a chunked body is joined, and must have its end."""
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
    if ("transfer-encoding", "chunked") in [(name.lower(), value) for name, value in headers]:
        joined, is_whole = unchunk(body)
        assert is_whole, "the body has no end"
        return first, headers, joined
    return first, headers, body


def unchunk(body: bytes) -> tuple[bytes, bool]:
    """The pieces of a chunked body together, and whether it was ended."""
    joined = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        if not length:
            return joined, True
        joined += body[:length]
        body = body[length + 2 :]
    return joined, False


@contextlib.asynccontextmanager
async def gateway(
    replicas: Sequence[str | dict[str, Any]], *, wait: bool = True, **sections: Any
) -> AsyncIterator[Gateway]:
    """A gateway before these endpoints, ready when it is given if ``wait``.

    Unless a test sets a policy, no request goes somewhere only because nobody went there for a while: who asks again is sent
    there again, however many came in between.
    """
    tree: dict[str, Any] = {
        "replicas": [{"url": each} if isinstance(each, str) else each for each in replicas],
        "health": {"interval_seconds": 0.1},
        "policy": {"trial_seconds": 0.0},
        **sections,
    }
    tree["server"] = {"port": 0, "expose_decisions": True, **sections.get("server", {})}
    begun = running_split if SPLIT in os.environ else running
    async with begun(settings_module.convert(tree)) as (service, url):
        made = Gateway(service, url)
        if wait:
            await eventually(lambda: all(not watcher.problem for watcher in service.watchers.values()))
        yield made
