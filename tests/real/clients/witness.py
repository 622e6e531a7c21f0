"""One engine, asked directly and through a gateway of its own, with everything that is said on the way recorded.

Knows which headers and fields may differ, and says of all others that they do not. Two things are held against each other:

- what the gateway's client and the gateway's engine have said and heard of one and the same request: byte for byte;
- what the engine says when it is asked directly and when it is asked through the gateway, the same client making the same call:
  byte for byte but for times and for names that are made by chance.
"""

import asyncio
import copy
import itertools
import re
import signal
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from tests.real.clients.wire import Exchange, Fields, Tap, value
from tests.real.engines import RealEngine
from tests.real.gateway import POLL_SECONDS, Gateway, wait_for

T = TypeVar("T")

HOPS: Final = frozenset(b"host connection keep-alive transfer-encoding".split())
"""Of one connection each."""

REQUEST_ID: Final = b"x-request-id"
NOT_PASSED: Final = HOPS | {b"content-length", b"expect", b"content-encoding", REQUEST_ID}
NOT_ANSWERED: Final = HOPS | {b"content-length", REQUEST_ID}
TOLD_BY_KVLB: Final = b"x-kvlb-"

_TIMES: Final = re.compile(rb'"((?:created|completed)(?:_at)?)":\d+(?:\.\d+)?')
_NAMES: Final = re.compile(rb'"((?:[a-z]+[-_])+)([0-9a-f]{16,32})"')

TRIES: Final = 10
"""Tokens that are ready at the same time come in one event, so streams of the same tokens may be cut differently."""

END_SECONDS: Final = 10.0


class Both(msgspec.Struct, Generic[T], frozen=True):
    """What came of one call: of the client that asked the engine, and of the one that asked the gateway; what that one and the
    gateway have said to each other, and what the gateway and the engine have, if it was asked.
    """

    direct: T
    through: T
    exchange: Exchange
    told: Exchange | None


class Witness:
    """Three taps: before the engine, before the gateway, and between the two. ``gateway`` is the process."""

    def __init__(self, engine: RealEngine, log: Path) -> None:
        self.engine = engine
        self.direct, self.behind = Tap(port(engine.url)), Tap(port(engine.url))
        tapped = copy.copy(engine)
        tapped.url = self.behind.url
        self.gateway = Gateway([tapped], log)
        self.front = Tap(port(self.gateway.url))
        self._numbers = itertools.count(1)
        asyncio.run(self._is_ready())

    async def _is_ready(self) -> None:
        async with self.gateway.session():
            pass

    def stop(self) -> None:
        self.gateway.process.send_signal(signal.SIGINT)  # which is quicker than how a gateway is drained
        self.gateway.process.wait(30)
        for tap in (self.direct, self.behind, self.front):
            tap.stop()

    def ask(self, call: Callable[[str, str], T], *, is_ours: bool = False) -> Both[T]:
        """Make one call of one request, directly and through the gateway, and hold the answers against each other.

        Args:
            call: of a client, given the URL of a server and the request's id.
            is_ours: kvlb itself is to answer, and no engine is to be asked; only the status is the engine's then.
        """
        seen: tuple[set[bytes], set[bytes]] = (set(), set())
        for _ in range(TRIES):
            name = f"conformance-{next(self._numbers)}"
            call(self.direct.url, name)  # from here on the prompt is cached: the other two find the same
            direct, through = call(self.direct.url, name), call(self.front.url, name)
            (_, theirs), (ours,) = self._named(self.direct, name), self._named(self.front, name)
            if is_ours:
                assert not self._named(self.behind, name), "the engine was asked"
                assert (ours.status, ours.is_whole) == (theirs.status, True)
                return Both(direct, through, ours, None)
            (told,) = self._named(self.behind, name)
            assert_passed(ours, told)
            seen[0].add(alike(ours))
            seen[1].add(alike(theirs))
            if seen[0] & seen[1] or not is_stream(ours):
                break
        assert_alike(ours, theirs, is_cut_alike=bool(seen[0] & seen[1]))
        return Both(direct, through, ours, told)

    def _named(self, tap: Tap, name: str) -> list[Exchange]:
        """The requests with this id that a client has made; kvlb's own questions for their tokens are not among them."""
        own = ("/render", "/tokenize")
        return _ended(tap, lambda each: value(each.asked, REQUEST_ID) == name.encode() and not each.path.endswith(own))

    def assert_all_passed(self, count: int) -> None:
        """Every request of the last ``count`` at the gateway is the one that the engine got, and so is its answer."""
        front = _ended(self.front, lambda each: each.method == b"POST")[-count:]
        assert len(front) == count
        behind = {value(each.asked, REQUEST_ID): each for each in _ended(self.behind, lambda each: True)}
        for each in front:
            assert_passed(each, behind[value(each.answered, REQUEST_ID)])

    def is_idle(self) -> bool:
        """Whether neither the engine nor the gateway has a request."""
        return self.leases() == 0 and self.running() == 0

    def leases(self) -> int:
        """Requests that the gateway has at replicas."""
        with urllib.request.urlopen(self.gateway.url + "/kvlb/status", timeout=10) as response:
            found: int = msgspec.json.decode(response.read())["open_leases"]
            return found

    def outcomes(self) -> Counter[str]:
        """What came of the gateway's requests so far."""
        with urllib.request.urlopen(self.gateway.url + "/metrics", timeout=10) as response:
            page = response.read().decode()
        families = [each for each in text_string_to_metric_families(page) if each.name == "kvlb_requests"]
        found: Counter[str] = Counter()
        for sample in families[0].samples if families else []:
            found[sample.labels["outcome"]] += int(sample.value)
        return found

    def running(self) -> float:
        """Requests that the engine computes or will compute."""
        return self.metric("vllm:num_requests_running") + self.metric("vllm:num_requests_waiting")

    def metric(self, name: str) -> float:
        """A metric of the engine, asked directly."""
        families = text_string_to_metric_families(self.engine.get("/metrics").decode())
        return sum(sample.value for family in families for sample in family.samples if sample.name == name)

    def wait(self, what: str, condition: Callable[[], bool], seconds: float) -> None:
        """Return when it holds."""

        async def holds() -> bool:
            return await asyncio.to_thread(condition)

        asyncio.run(wait_for(what, holds, seconds))


def _ended(tap: Tap, pick: Callable[[Exchange], bool]) -> list[Exchange]:
    """The exchanges that are meant, as soon as all of them are at their end: a client may have it before it is noted."""
    deadline = time.monotonic() + END_SECONDS
    while True:
        found = [each for each in tap.exchanges() if pick(each)]
        if all(each.is_whole or each.is_left for each in found):
            return found
        assert time.monotonic() < deadline, f"no end: {found}"
        time.sleep(POLL_SECONDS)


def port(url: str) -> int:
    return int(url.rpartition(":")[2])


def is_stream(exchange: Exchange) -> bool:
    return (value(exchange.answered, b"content-type") or b"").startswith(b"text/event-stream")


def assert_passed(front: Exchange, behind: Exchange) -> None:
    """The client's request is what the engine got, and the engine's answer what the client got."""
    assert_same("request", (front.method, front.target, front.sent), (behind.method, behind.target, behind.sent))
    assert_same("request's headers", kept(front.asked, NOT_PASSED), kept(behind.asked, NOT_PASSED))
    assert_same("status", (front.status, front.reason), (behind.status, behind.reason))
    assert_same("answer's headers", kept(front.answered, NOT_ANSWERED), kept(behind.answered, NOT_ANSWERED))
    assert_same("answer", front.received, behind.received)
    assert front.is_left or front.is_whole == behind.is_whole, "the gateway takes another end for the end"
    assert_same("id", value(front.answered, REQUEST_ID), value(behind.asked, REQUEST_ID))
    assert value(front.asked, REQUEST_ID) in {None, value(behind.asked, REQUEST_ID)}, "the client's id is changed"


def kept(fields: Fields, dropped: frozenset[bytes]) -> list[tuple[bytes, bytes]]:
    """The headers that are to be on both sides, in their order."""
    return [
        field for field in fields if field[0].lower() not in dropped and not field[0].lower().startswith(TOLD_BY_KVLB)
    ]


def assert_alike(ours: Exchange, theirs: Exchange, *, is_cut_alike: bool) -> None:
    """The engine's answer is the same, whether it is asked directly or through the gateway."""
    assert_same("request", ours.sent, theirs.sent)
    assert_same("status", (ours.status, ours.reason), (theirs.status, theirs.reason))
    assert ours.is_whole or ours.is_left, "the answer breaks off"
    dated = NOT_ANSWERED | {b"date"}
    assert_same("headers", kept(ours.answered, dated), kept(theirs.answered, dated))
    if not is_cut_alike:
        assert_same("answer", alike(ours), alike(theirs))


def assert_same(what: str, ours: object, theirs: object) -> None:
    assert ours == theirs, f"{what}: through the gateway\n{ours!r}\nand at the engine\n{theirs!r}"


def alike(exchange: Exchange) -> bytes:
    """The body without the request's id, with every time the same, and names that chance has made numbered in their order."""
    numbers: dict[bytes, int] = {}

    def number(found: "re.Match[bytes]") -> bytes:
        return b'"%s%d"' % (found[1], numbers.setdefault(found[2], len(numbers)))

    own = value(exchange.asked, REQUEST_ID) or b"nothing"
    return _NAMES.sub(number, _TIMES.sub(rb'"\1":0', exchange.received.replace(own, b"request")))


def events(exchange: Exchange) -> list[dict[str, Any]]:
    """What the events of a stream say, ``[DONE]`` apart."""
    lines = [line[6:] for line in exchange.received.split(b"\n") if line.startswith(b"data: ")]
    return [msgspec.json.decode(line) for line in lines if line != b"[DONE]"]
