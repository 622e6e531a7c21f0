"""One ext_proc stream, which is one HTTP request: messages in, orders out.

Knows in which order messages may come, in each mode in which bodies are sent, and what each has to be answered with. Never
waits, sends or decides where a request goes: whoever runs it obeys the orders in their turn, and says what has come of them.

Between calls: a request that was decided is a lease, and exactly one ``End`` is ordered for it, however the stream ends; a
decision that comes too late is ended at once.
"""

from collections.abc import Sequence
from enum import Enum, auto
from typing import Any, Final

import msgspec

from balancer.answered import failure_of, judge
from balancer.core import Failure, Outcome, Truth
from balancer.epp import destinations, mutations
from balancer.epp.destinations import DESTINATION
from balancer.epp.messages import (
    BodyMode,
    Kind,
    Message,
    Modes,
    Mutation,
    body_reply,
    headers_reply,
    immediate,
    trailers_reply,
)
from balancer.epp.orders import Ask, Close, End, Give, Moved, Order, Placed, Send, Started, Unask
from balancer.sse import BodyWatch, StreamWatch


class Rules(msgspec.Struct, frozen=True):
    """How every stream of a picker is treated. ``watches`` answers to their end; sizes are bytes."""

    watches: bool = True
    max_body_bytes: int = 64 * 1024 * 1024
    subset_header: bool = True
    expose: bool = False


class _Phase(Enum):
    NEW = auto()
    GATHERING = auto()  # of the request's body
    ASKING = auto()
    ROUTED = auto()  # and so a lease
    OVER = auto()  # no lease, or none any more; what the proxy sends is still answered


_TWO_WAYS: Final = BodyMode.FULL_DUPLEX_STREAMED
_WHOLE: Final = frozenset({BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL})
_UNASK: Final = Unask()
_STARTED: Final = Started()
_CLOSE: Final = Close()


class _Disorder(Exception):
    """The proxy has sent what may not come now."""


class Exchange:
    """Give it each message that comes; it is the ``Answer`` that watchers of stalls look at (``balancer.stalls``)."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._phase = _Phase.NEW
        self._modes = Modes()
        self._request: Message
        self._pieces: list[bytes] = []
        self._size = 0
        self._has_whole_request = False  # nothing more may come of it but trailers
        self._has_trailers = False
        self._answers_body = False  # the decision is told in reply to the body, not to the headers
        self._owed: list[Order] = []  # replies that have to wait for the decision's
        self._placed: Placed
        self._has_answer = False
        self._has_whole_answer = False
        self._status = 0
        self._watch: StreamWatch | BodyWatch | None = None
        self._has_output = False
        self._failure: Failure | None = None
        self._is_closed = False
        self.arrived = 0
        """Bytes that have come of the answer's body."""

    def __repr__(self) -> str:
        return f"<Exchange {self._phase.name}{' closed' if self._is_closed else ''}>"

    def leave(self) -> None:
        """A replica stands still: what is there to be done is the proxy's, who has the request."""

    # What comes

    def receive(self, message: Message) -> Sequence[Order]:
        """A message has come."""
        if self._is_closed:
            return ()
        try:
            orders: Sequence[Order] = self._DOES[message.kind](self, message)
            return orders
        except _Disorder as disorder:
            return self.broken(str(disorder))

    def decided(self, placed: Placed) -> Sequence[Order]:
        """What was asked for."""
        if self._phase is not _Phase.ASKING:
            return [End(Outcome.CANCELLED)]
        self._phase, self._placed = _Phase.ROUTED, placed
        chosen = {DESTINATION: placed.destination}
        orders: list[Order] = []
        if self._answers_body:
            body, mutation = None, placed.mutation
            if placed.is_changed and placed.body is not None:  # Envoy (1.40) refuses it with the length of another one
                body = placed.body
                mutation = Mutation([*mutation.set, (b"content-length", b"%d" % len(body))], mutation.remove)
            orders.append(Send(body_reply(Kind.REQUEST_BODY, mutation, chosen, body)))
        else:
            orders.append(Send(headers_reply(Kind.REQUEST_HEADERS, placed.mutation, chosen)))
            if self._modes.request is _TWO_WAYS and not self._request.is_last:
                assert placed.body is not None
                orders.append(Give(Kind.REQUEST_BODY, placed.body, not self._has_trailers))
        orders += self._owed
        self._owed = []
        return orders

    def refused(
        self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes, why: str = ""
    ) -> Sequence[Order]:
        """It goes nowhere: this is the client's answer; ``why`` is for the proxy's log."""
        if self._phase is not _Phase.ASKING:
            return ()
        self._phase = _Phase.OVER
        return [Send(immediate(status, headers, body, why))]

    def closed(self) -> Sequence[Order]:
        """The stream is no more, by whoever's will."""
        if self._is_closed:
            return ()
        self._is_closed = True
        was, self._phase = self._phase, _Phase.OVER
        if was is _Phase.ASKING:
            return [_UNASK]
        return [self._ended_early()] if was is _Phase.ROUTED else ()

    def expired(self) -> Sequence[Order]:
        """It has had all the time that a request may have: the proxy goes on alone."""
        return () if self._is_closed else [*self.closed(), _CLOSE]

    def broken(self, problem: str) -> Sequence[Order]:
        """What has come cannot be understood."""
        return () if self._is_closed else [*self.closed(), Close(problem)]

    # The request

    def _request_headers(self, message: Message) -> Sequence[Order]:
        if self._phase is not _Phase.NEW or self._has_answer:
            raise _Disorder("request_headers, twice")
        if message.is_observed:
            raise _Disorder("observability_mode is on: nobody could hear where the request goes; turn it off")
        self._request = message
        self._modes = message.modes or self._modes
        if not message.is_last and self._modes.request is _TWO_WAYS:
            self._phase = _Phase.GATHERING
            return ()
        if not message.is_last and self._modes.request in _WHOLE:
            self._phase, self._answers_body = _Phase.GATHERING, True
            return [Send(headers_reply(Kind.REQUEST_HEADERS))]
        self._has_whole_request = message.is_last
        return self._ask(b"" if message.is_last else None)

    def _request_body(self, message: Message) -> Sequence[Order]:
        if self._phase is _Phase.OVER:  # refused, or answered by somebody else
            return () if self._modes.request is _TWO_WAYS else [Send(body_reply(Kind.REQUEST_BODY))]
        if self._phase is _Phase.NEW or self._has_whole_request:
            raise _Disorder("request_body, where none may come")
        self._has_whole_request = message.is_last
        if self._phase is not _Phase.GATHERING:  # it was routed without
            return self._in_turn(Send(body_reply(Kind.REQUEST_BODY)))
        self._pieces.append(message.body)
        self._size += len(message.body)
        if self._size > self._rules.max_body_bytes:
            self._pieces = []
            return self._ask(b"", is_too_large=True)
        if self._answers_body:
            is_whole = message.is_last or self._modes.request is BodyMode.BUFFERED
            self._has_whole_request = True
            return self._ask(self._gathered() if is_whole else None)
        return self._ask(self._gathered()) if message.is_last else ()

    def _request_trailers(self, message: Message) -> Sequence[Order]:
        reply = Send(trailers_reply(Kind.REQUEST_TRAILERS))
        if self._phase is _Phase.OVER:
            return [reply]
        if self._phase is _Phase.NEW or self._has_trailers:
            raise _Disorder("request_trailers, where none may come")
        self._has_trailers = self._has_whole_request = True
        if self._phase is not _Phase.GATHERING:
            return self._in_turn(reply)
        if self._answers_body:
            raise _Disorder("request_trailers before the body that they follow")
        self._owed.append(reply)
        return self._ask(self._gathered())

    def _gathered(self) -> bytes:
        pieces, self._pieces = self._pieces, []
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _in_turn(self, reply: Send) -> Sequence[Order]:
        if self._phase is _Phase.ASKING:
            self._owed.append(reply)
            return ()
        return [reply]

    def _ask(self, body: bytes | None, *, is_too_large: bool = False) -> Sequence[Order]:
        self._phase = _Phase.ASKING
        request = self._request
        pseudo = dict(field for field in request.fields if field[0][:1] == b":")
        fields = [field for field in request.fields if field[0][:1] != b":"]
        return [
            Ask(
                pseudo.get(b":method", b"").decode("latin-1"),
                pseudo.get(b":path", b"").decode("latin-1"),
                fields,
                body,
                destinations.subset(request.metadata, fields, with_header=self._rules.subset_header),
                is_too_large,
            )
        ]

    # The answer

    def _response_headers(self, message: Message) -> Sequence[Order]:
        if self._has_answer:
            raise _Disorder("response_headers, twice")
        self._has_answer = True
        self._has_whole_answer = message.is_last
        was = self._phase
        if was is not _Phase.ROUTED:  # the proxy answers by itself, before anybody was asked
            self._phase = _Phase.OVER
            reply = Send(headers_reply(Kind.RESPONSE_HEADERS))
            return [_UNASK, reply] if was is _Phase.ASKING else [reply]
        named = dict(reversed(message.fields))
        told = named.get(b":status", b"")
        self._status = int(told) if told.isdigit() and len(told) == 3 else 0
        if self._status >= 500:
            self._failure = failure_of(self._status, named)
        placed = self._placed
        orders: list[Order] = []
        served = destinations.served(message.metadata, message.fields)
        if served is not None and served != placed.place:
            orders.append(Moved(served))
        mutation = mutations.of_answer(message.fields, placed.request_id, placed.told, expose=self._rules.expose)
        orders.append(Send(headers_reply(Kind.RESPONSE_HEADERS, mutation)))
        kind = named.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if message.is_last:
            self._watch = BodyWatch()
            orders.append(self._ended())
        elif not self._rules.watches:
            orders += [self._ended_early(), _CLOSE]
            self._phase, self._is_closed = _Phase.OVER, True
        elif self._modes.response is not BodyMode.NONE:
            self._watch = StreamWatch() if kind == b"text/event-stream" else BodyWatch()
        return orders

    def _response_body(self, message: Message) -> Sequence[Order]:
        if not self._has_answer or self._has_whole_answer:
            raise _Disorder("response_body, where none may come")
        self._has_whole_answer = message.is_last
        orders: list[Order] = []
        if self._modes.response is _TWO_WAYS:
            orders.append(Give(Kind.RESPONSE_BODY, message.body, message.is_last))
        else:
            orders.append(Send(body_reply(Kind.RESPONSE_BODY)))
        watch = self._watch
        if self._phase is not _Phase.ROUTED or watch is None:
            return orders
        if message.body:
            self.arrived += len(message.body)
            watch.feed(message.body)
            if not self._has_output and watch.has_output:
                self._has_output = True
                orders.append(_STARTED)
        if message.is_last:
            orders.append(self._ended())
        return orders

    def _response_trailers(self, message: Message) -> Sequence[Order]:
        if not self._has_answer or self._has_whole_answer:
            raise _Disorder("response_trailers, where none may come")
        self._has_whole_answer = True
        orders: list[Order] = [Send(trailers_reply(Kind.RESPONSE_TRAILERS))]
        if self._phase is _Phase.ROUTED and self._watch is not None:
            orders.append(self._ended())
        return orders

    def _ended(self) -> End:
        """The answer has come to its end."""
        assert self._watch is not None
        self._phase = _Phase.OVER
        answered = judge(self._watch, self._status)
        return End(answered.outcome, answered.truth, answered.failure or self._failure, self._status)

    def _ended_early(self) -> End:
        """What can be said of an answer whose end was not seen."""
        watch, status = self._watch, self._status
        if isinstance(watch, StreamWatch) and watch.has_ended:  # nothing lacks but how HTTP ends it
            return self._ended()
        if watch is not None or not self._has_answer:
            return End(Outcome.CANCELLED, None, self._failure, status)
        return End(Outcome.OK if 0 < status < 400 else Outcome.ERROR, Truth(status=status), self._failure, status)

    _DOES: Final[dict[Kind, Any]] = {
        Kind.REQUEST_HEADERS: _request_headers,
        Kind.REQUEST_BODY: _request_body,
        Kind.REQUEST_TRAILERS: _request_trailers,
        Kind.RESPONSE_HEADERS: _response_headers,
        Kind.RESPONSE_BODY: _response_body,
        Kind.RESPONSE_TRAILERS: _response_trailers,
    }
