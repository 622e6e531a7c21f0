"""An answer on its way from whoever gives it to the client that it is for.

Knows the two connections, which of them is told to wait, and that headers of one connection are not those of the other. Never
knows what passes. The body's bytes go through unchanged; framing is said anew, by the piece that came at once, so that nothing
passes that two readers could cut differently (chunk extensions, trailers), and so that something can be said at any time.
"""

from typing import Final

from balancer.http.fields import HOP_BY_HOP, end_to_end, lines
from balancer.http.messages import Head
from balancer.http.reply import Reply, Source

FRAMING: Final = HOP_BY_HOP | {b"content-length"}


class Relay:
    """A ``Receiver`` that passes an answer on."""

    def __init__(self, reply: Reply) -> None:
        self.reply = reply
        self.is_opening = False
        self._awaits_body = False

    def opened(self, connection: Source) -> None:
        self.reply.comes_from(connection)

    def head(self, head: Head) -> None:
        self.reply.start(head.status, head.reason, self.lines(head), head.length)
        self._awaits_body = bool(head.length)

    def received(self, body: bytes, *, is_last: bool) -> None:
        if (
            body or is_last or not self._awaits_body
        ):  # a head whose body is on its way can wait for it: one packet, not two
            self.reply.write(body, is_last=is_last)

    def lines(self, head: Head) -> bytes:
        """The header lines that the client gets, but for those of connection and framing."""
        return lines(end_to_end(head.headers, FRAMING))
