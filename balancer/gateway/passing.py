"""A replica's answer on its way to the client, and what it says of itself as it goes by.

Knows which answers are streams, and when a prompt has been computed. Changes no byte of a body; only where a stream breaks off
is something added, so that nobody takes it for whole.
"""

from collections.abc import Callable

import msgspec

from balancer.core import Decision, Truth
from balancer.decisions import Origin
from balancer.dialects import error_event
from balancer.errors import RequestError
from balancer.gateway import headers
from balancer.http.messages import Head
from balancer.http.relay import Relay
from balancer.http.reply import Reply
from balancer.sse import BodyWatch, StreamWatch


class Passing(Relay):
    """A ``Receiver`` of one attempt's answer; ``computed`` is called once, when the prompt has been."""

    def __init__(
        self, reply: Reply, decision: Decision, origin: Origin, computed: Callable[[], None], *, expose: bool
    ) -> None:
        super().__init__(reply)
        self._decision = decision
        self._origin = origin
        self._computed = computed
        self._expose = expose
        self._has_output = False
        self._is_stream = False
        self._watch: StreamWatch | BodyWatch
        self.truth: Truth | None = None
        """What the answer said of its request, once it has come to its end."""
        self.is_good = False
        """Whether it has come to its end as it should."""

    def head(self, head: Head) -> None:
        kind = head.header(b"content-type") or b""
        self._is_stream = kind.partition(b";")[0].strip().lower() == b"text/event-stream"
        self._watch = StreamWatch() if self._is_stream else BodyWatch()
        super().head(head)

    def lines(self, head: Head) -> bytes:
        return headers.to_client(head.headers, self._decision, self._origin.request_id, expose=self._expose)

    def received(self, body: bytes, *, is_last: bool) -> None:
        watch = self._watch
        if body:
            watch.feed(body)
        if is_last:  # before the client has it: who asks what came of a request has had its answer
            self.truth = msgspec.structs.replace(watch.truth(), status=self.reply.status)
            self.is_good = self.reply.status < 400 and watch.is_done and not watch.has_failed
        super().received(body, is_last=is_last)
        if not self._has_output and watch.has_output:
            self._has_output = True
            self._computed()

    def break_off(self, error: RequestError) -> None:
        """End what has begun, visibly without its end: ``error`` is told as the stream's own kind of error, where it is one."""
        if self._is_stream:
            self.reply.write(b"\n\n" + error_event(self._origin.path, error if self._expose else error.without_names()))
        self.reply.break_off()
