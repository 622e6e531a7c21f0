"""Which request goes where: those for inference to the proxy, all others to the control plane.

Knows the list of paths that are forwarded, and the control plane's address. No path that is not on the list can reach an
engine: the engines' own administration is not for clients.
"""

from collections.abc import Coroutine
from typing import Any, Final

from balancer import openai
from balancer.errors import RequestError, UnknownPath
from balancer.gateway.proxy import Proxy
from balancer.gateway.refusals import refuse
from balancer.http.client import HttpClient
from balancer.http.exchange import BrokenOff, ExchangeFailed
from balancer.http.fields import end_to_end, lines
from balancer.http.messages import Outgoing, Request
from balancer.http.relay import FRAMING, Relay
from balancer.http.reply import Reply
from balancer.http.routes import refuse_method

NOT_TO_CONTROL: Final = FRAMING | {b"host", b"expect"}


class Front:
    """The ``App`` that listens."""

    def __init__(self, proxy: Proxy, client: HttpClient, control: str) -> None:
        self._proxy = proxy
        self._client = client
        self._control = control

    def __call__(self, request: Request, reply: Reply) -> Coroutine[Any, Any, None] | None:
        path = canonical(request.path)
        if path not in openai.PATHS:
            return self._to_control(request, reply)
        if request.method != "POST":
            reply.send(refuse_method(request, refuse, "POST"))
            return None
        return self._proxy.handle(request, path, reply)

    async def _to_control(self, request: Request, reply: Reply) -> None:
        if not request.path.startswith("/"):
            asked = request.path or request.method  # CONNECT has no path
            raise UnknownPath(f"there is no {asked} here; the paths that are forwarded are listed in docs/api.md")
        target = f"{request.path}?{request.query}" if request.query else request.path
        outgoing = Outgoing(
            request.method.encode(),
            target.encode("latin-1"),
            lines(end_to_end(request.headers, NOT_TO_CONTROL)),
            request.body,
        )
        try:
            await self._client.exchange(self._control, outgoing, Relay(reply))
        except BrokenOff:
            reply.break_off()
        except ExchangeFailed as error:
            raise RequestError(f"kvlb's own control plane does not answer: {error}") from error


def canonical(path: str) -> str:
    """One trailing slash makes no other path."""
    return path[:-1] if len(path) > 1 and path.endswith("/") else path
