"""Clients of raw bytes, and the requests that they send.

Knows enough HTTP/1.1 to tell where an answer ends. Never knows what is in front of the replicas.
"""

import asyncio
import contextlib
import json
import random
import re
import time
from collections.abc import AsyncIterator, Callable
from typing import Final

from tests.support.gateways import post

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
COLD: Final = 10**9
"""More prompts than are ever sent."""

JSON: Final = "Content-Type: application/json"
LONGEST_HEAD: Final = 65_536


class Refused(Exception):
    """The other side does not serve this; the text says what it answers."""


class Client(asyncio.Protocol):
    """One connection: sends a request whenever the last one has its answer. ``refused`` says why it sends no more."""

    def __init__(self, requests: Callable[[], bytes]) -> None:
        self._requests = requests
        self._sent = 0.0
        self._tail = b""
        self._left: int | None = None
        self.transport: asyncio.Transport
        self.answers = 0
        self.chunks = 0
        self.seconds: list[float] = []
        self.is_over = False
        self.refused = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self._send()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.is_over and not self.refused:
            self.refused = "it closes the connection"

    def _send(self) -> None:
        self._left = None
        self._sent = time.perf_counter()
        self.transport.write(self._requests())

    def data_received(self, data: bytes) -> None:
        if self._left is None:
            self._tail += data
            head, end, data = self._tail.partition(b"\r\n\r\n")
            if not end and len(head) < LONGEST_HEAD:
                return
            if not head.startswith(b"HTTP/1.1 200"):
                self.refused = head.partition(b"\r\n")[0].decode("latin-1")
                self.transport.abort()
                return
            length = re.search(rb"(?i)content-length: *(\d+)", head)
            self._left = int(length[1]) if length else -1
            self._tail = b""
        if self._left < 0:
            self.chunks += data.count(b"data: {")
            self._tail = (self._tail + data)[-5:]
            is_whole = self._tail == b"0\r\n\r\n"
        else:
            self._left -= len(data)
            is_whole = self._left == 0
        if is_whole:
            self._tail = b""
            self.answers += 1
            self.seconds.append(time.perf_counter() - self._sent)
            if not self.is_over:
                self._send()


@contextlib.asynccontextmanager
async def clients(address: tuple[str, int], count: int, requests: Callable[[], bytes]) -> AsyncIterator[list[Client]]:
    """So many clients that go on until the block is left.

    Raises:
        Refused: at the end, where one of them was not served.
    """
    loop = asyncio.get_running_loop()
    made = [(await loop.create_connection(lambda: Client(requests), *address))[1] for _ in range(count)]
    try:
        yield made
    finally:
        for each in made:
            each.is_over = True
            each.transport.abort()
        await asyncio.sleep(0.2)
    refused = {each.refused for each in made if each.refused}
    if refused:
        raise Refused("; ".join(sorted(refused)))


def chat(size: int, *, seed: int = 1, **more: object) -> Callable[[], bytes]:
    """Requests with a body of so many bytes, each another."""
    dice = random.Random(seed)
    body = {"model": "m", "messages": [{"role": "user", "content": ""}], **more}
    body["messages"] = [{"role": "user", "content": "w" * (size - len(json.dumps(body)) - 12)}]
    whole = json.dumps(body, separators=(",", ":")).encode()
    return lambda: post(CHAT, whole.replace(b'"w', b'"%012d' % dice.randrange(10**12), 1), JSON, close=False)


def token_ids(count: int, prompts: int, *, is_told: bool, seed: int = 1) -> Callable[[], bytes]:
    """Requests with so many token ids; after ``prompts`` different ones, the first comes again."""
    dice = random.Random(seed)
    made: list[bytes] = []
    more = b',"user":"told"}' if is_told else b"}"

    def request() -> bytes:
        if len(made) < prompts:
            ids = dice.choices(range(128_000), k=count)
            body = json.dumps({"model": "m", "prompt": ids}).encode()[:-1] + more
            request = post(COMPLETIONS, body, JSON, close=False)
            if prompts < COLD:
                made.append(request)
            return request
        made.append(made.pop(0))
        return made[-1]

    return request
