"""One connection to somebody who answers, and the exchange that is under way on it.

Knows one request's bytes, the reading of its answer, and its time limits. Never knows addresses or why anything is asked: what
comes is given to a ``Receiver``, in the transport's own callback, without a task or a queue in between.
"""

import asyncio
import math
from typing import Protocol

import msgspec

from balancer.http.messages import Head
from balancer.http.parsing import AnswerReader, BadAnswer
from balancer.http.reply import Source


class Limits(msgspec.Struct, frozen=True):
    """Times in seconds: until the connection stands, until an answer begins, between two pieces of it, and for all of it."""

    connect: float = 3.0
    first_byte: float = 600.0
    idle: float = 600.0
    total: float = math.inf


class ExchangeFailed(Exception):
    """An exchange has not come to its end; the message says why."""


class NotConnected(ExchangeFailed):
    """Nobody is there. Nothing was sent."""


class NotConnectedInTime(NotConnected):
    """Nobody has taken the connection."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"no connection within {seconds:g} s")
        self.seconds = seconds


class Unanswered(ExchangeFailed):
    """The connection was closed before any byte of an answer."""


class TimedOut(ExchangeFailed):
    """Nothing came for too long, or the whole took too long."""

    def __init__(self, seconds: float, what: str) -> None:
        super().__init__(f"{what} for {seconds:g} s")
        self.seconds = seconds


class BrokenOff(ExchangeFailed):
    """The answer is none, or ended before its end."""


class Receiver(Protocol):
    """Gets an answer as it comes. What a method raises ends the exchange, and is raised by it."""

    is_opening: bool
    """Whether what has come of the answer says nothing yet: then the time until it begins goes on."""

    def opened(self, connection: Source) -> None:
        """The request goes out by this connection, which may be told to ``pause``, to ``resume`` and to ``give_up``."""
        ...

    def head(self, head: Head) -> None: ...

    def received(self, body: bytes, *, is_last: bool) -> None:
        """What came at once of the body; empty when only its head, or its end, came."""
        ...


class Pool(Protocol):
    """Where a connection goes between two exchanges."""

    def idle(self, connection: "UpstreamConnection") -> None: ...

    def closed(self, connection: "UpstreamConnection") -> None: ...


class UpstreamConnection(asyncio.Protocol):
    """Speaks HTTP/1.1; one exchange at a time."""

    __slots__ = (
        "_deadline",
        "_done",
        "_ends_at",
        "_has_head",
        "_is_opening",
        "_is_paused",
        "_is_unanswered",
        "_limits",
        "_loop",
        "_pool",
        "_reader",
        "_receiver",
        "_rings_at",
        "_timer",
        "_transport",
        "idle_since",
        "is_closed",
    )

    def __init__(self, pool: Pool, loop: asyncio.AbstractEventLoop) -> None:
        self._pool = pool
        self._loop = loop
        self._reader = AnswerReader()
        self._transport: asyncio.Transport
        self._receiver: Receiver | None = None
        self._done: asyncio.Future[None]
        self._has_head = False
        self._is_opening = True  # until the answer has begun, by the receiver's account
        self._limits = Limits()
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at = 0.0
        self._deadline = 0.0
        self._ends_at = math.inf
        self._is_unanswered = True
        self._is_paused = False
        self.idle_since = 0.0
        self.is_closed = False

    def send(
        self, head: bytes, body: bytes, receiver: Receiver, limits: Limits, ends_at: float, *, is_head: bool
    ) -> "asyncio.Future[None]":
        """Send a request. The future is done when its answer has been received to the end, or raises ``ExchangeFailed``.

        ``ends_at``, on the loop's clock, is when all of it has to be over: connecting has had its part of ``limits.total``.
        Whoever gives it up closes the connection (``abort``).
        """
        self._reader.begin(to_head=is_head)
        self._receiver = receiver
        self._limits = limits
        self._has_head = False
        self._is_opening = True
        self._is_unanswered = True
        self._done = done = self._loop.create_future()
        self._ends_at = ends_at
        self._wait_until(self._loop.time() + limits.first_byte)
        receiver.opened(self)
        if len(body) < 16384:
            # Behind all that is ready now: a write may wake up the replica on this very CPU, and whoever comes next here would
            # find its caches cold. Under load a request costs a tenth less so.
            self._loop.call_soon(self._write, head + body)
        else:
            self._transport.write(head)
            self._transport.write(body)
        return done

    def _write(self, data: bytes) -> None:
        if not (self.is_closed or self._transport.is_closing()):
            self._transport.write(data)

    # The transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop's are of no class of asyncio's

    def data_received(self, data: bytes) -> None:
        receiver = self._receiver
        if receiver is None:  # nobody has asked
            self.abort()
            return
        self._is_unanswered = False
        reader = self._reader
        try:
            reader.feed(data)
            self._give(receiver, reader)
        except BadAnswer as error:
            self._fail(BrokenOff(str(error)))
        except Exception as error:
            self._fail(error)

    def _give(self, receiver: Receiver, reader: AnswerReader) -> None:
        if not self._has_head:
            if reader.head is None:
                return
            self._has_head = True
            receiver.head(reader.head)
        pieces = reader.pieces
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        receiver.received(body, is_last=reader.is_complete)
        if reader.is_complete:
            self._finish(is_reusable=reader.is_reusable)
        elif not self._is_opening:
            self._deadline = self._loop.time() + self._limits.idle
        elif not receiver.is_opening:
            self._is_opening = False
            self._wait_until(self._loop.time() + self._limits.idle)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True
        self._pool.closed(self)
        if self._timer is not None:
            self._timer.cancel()
        receiver = self._receiver
        if receiver is None:
            return
        if self._is_unanswered:
            self._fail(Unanswered(str(exc or "the connection was closed")))
        elif exc is not None or not self._has_head or not self._reader.ends_with_connection:
            self._fail(BrokenOff(str(exc or "the connection was closed in the middle of the answer")))
        else:
            try:
                receiver.received(b"", is_last=True)
            except Exception as error:
                self._fail(error)
            else:
                self._finish(is_reusable=False)

    # Back-pressure

    def pause(self) -> None:
        """Read no more for now: whoever gets the answer does not keep up."""
        if self._receiver is not None and not self._is_paused and not self.is_closed:
            self._is_paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self._is_paused:
            self._is_paused = False
            if not self.is_closed:
                self._deadline = self._loop.time() + self._patience
                self._transport.resume_reading()

    # Endings

    def _finish(self, *, is_reusable: bool) -> None:
        self._receiver = None
        if not self._done.done():
            self._done.set_result(None)
        if self.is_closed:
            return
        self.resume()
        if is_reusable and not self._transport.is_closing() and not self._transport.get_write_buffer_size():
            self._pool.idle(self)
        else:
            self._transport.close()

    def give_up(self, error: Exception) -> None:
        """The exchange under way ends with this error."""
        if self._receiver is not None:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._receiver = None
        if not self._done.done():
            self._done.set_exception(error)
        self._transport.abort()

    def abort(self) -> None:
        """Close at once, whatever is under way."""
        self._receiver = None
        self._transport.abort()

    # Time

    @property
    def _patience(self) -> float:
        """Seconds that may pass before the next thing comes."""
        return self._limits.first_byte if self._is_opening else self._limits.idle

    def _wait_until(self, deadline: float) -> None:
        """One timer, which looks at the deadline when it rings: moving it with every piece would cost more."""
        self._deadline = deadline
        rings_at = min(deadline, self._ends_at)
        if self._timer is None or self._rings_at > rings_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer, self._rings_at = self._loop.call_at(rings_at, self._ring), rings_at

    def _ring(self) -> None:
        self._timer = None
        if self._receiver is None:
            return
        now = self._loop.time()
        if now >= self._ends_at:
            self._fail(TimedOut(self._limits.total, "the answer has not come to its end"))
        elif self._is_paused:  # the time is not the replica's
            self._wait_until(now + self._patience)
        elif now >= self._deadline:
            self._fail(TimedOut(self._patience, "nothing came"))
        else:
            self._wait_until(self._deadline)
