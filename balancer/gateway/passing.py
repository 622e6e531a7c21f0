"""A replica's answer on its way to the client, and what it says of itself as it goes by.

Knows which answers are streams, and when a prompt has been computed. Changes no byte of a body; only where a stream breaks off
is something added, so that nobody takes it for whole.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from balancer.core import Decision, Failure, Fault, Truth
from balancer.decisions import Origin
from balancer.dialects import error_event
from balancer.errors import RequestError
from balancer.gateway import headers
from balancer.http.messages import Head
from balancer.http.relay import Relay
from balancer.http.reply import Reply
from balancer.opening import Opening, of_body, of_stream
from balancer.sse import BodyWatch, StreamWatch

MAX_DIGITS: Final = 9
"""Of a ``Retry-After`` that is believed; a date is not."""


class GivenUp(Exception):
    """The answer is a failure, and has not been given to the client: another replica is to be tried."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(f"answered {failure.status}" if failure.status else "was stopped before it computed anything")
        self.failure = failure


class Passing(Relay):
    """A ``Receiver`` of one attempt's answer; ``computed`` is called once, when the prompt has been.

    ``gives_up`` is asked of an answer that is a failure of the replica, before the client has any of it; where it says yes,
    nothing of it is given, and ``GivenUp`` is raised. ``arrived`` counts the bytes that have come.
    """

    def __init__(
        self,
        reply: Reply,
        decision: Decision,
        origin: Origin,
        computed: Callable[[], None],
        gives_up: Callable[[Failure], bool],
        *,
        expose: bool,
    ) -> None:
        super().__init__(reply)
        self._decision = decision
        self._origin = origin
        self._computed = computed
        self._gives_up = gives_up
        self._expose = expose
        self._has_output = False
        self._is_stream = False
        self._watch: StreamWatch | BodyWatch
        self._held: bytes | None = None  # of an answer that has not said yet whether it is one
        self.arrived = 0
        self.failure: Failure | None = None
        """What was wrong with an answer that was given all the same."""
        self.truth: Truth | None = None
        """What the answer said of its request, once it has come to its end."""
        self.is_good = False
        """Whether it has come to its end as it should."""

    def head(self, head: Head) -> None:
        kind = head.header(b"content-type") or b""
        kind = kind.partition(b";")[0].strip().lower()
        self._is_stream = kind == b"text/event-stream"
        self._watch = StreamWatch() if self._is_stream else BodyWatch()
        if head.status >= 500:
            self._failed(Failure(Fault.STATUS, head.status, _retry_after(head)))
        elif head.status == 200 and (self._is_stream or kind == b"application/json"):
            self._held = b""
        super().head(head)

    def lines(self, head: Head) -> bytes:
        return headers.to_client(head.headers, self._decision, self._origin.request_id, expose=self._expose)

    def received(self, body: bytes, *, is_last: bool) -> None:
        watch = self._watch
        self.arrived += len(body)
        if body:
            watch.feed(body)
        if self._held is not None:
            self._held = held = self._held + body
            match (of_stream if self._is_stream else of_body)(held, is_whole=is_last):
                case Opening.UNSAID:
                    return
                case Opening.ABORTED:
                    self._failed(Failure(Fault.ABORT))
            body, self._held = held, None
        if is_last:  # before the client has it: who asks what came of a request has had its answer
            self.truth = msgspec.structs.replace(watch.truth(), status=self.reply.status)
            self.is_good = self.reply.status < 400 and watch.is_done and not watch.has_failed
            if self.truth.finish_reason == "abort":
                self.is_good, self.failure = False, Failure(Fault.ABORT)
        super().received(body, is_last=is_last)
        if not self._has_output and watch.has_output:
            self._has_output = True
            self._computed()

    def _failed(self, failure: Failure) -> None:
        if self._gives_up(failure):
            raise GivenUp(failure)
        self.failure = failure

    def break_off(self, error: RequestError) -> None:
        """End what has begun, visibly without its end: ``error`` is told as the stream's own kind of error, where it is one."""
        if self._is_stream:
            self.reply.write(b"\n\n" + error_event(self._origin.path, error if self._expose else error.without_names()))
        self.reply.break_off()


def _retry_after(head: Head) -> float | None:
    """When the replica may be asked again, in seconds: only 503 says that of the replica, and not of the client."""
    told = head.header(b"retry-after") if head.status == 503 else None
    return float(told) if told is not None and told.isdigit() and len(told) <= MAX_DIGITS else None
