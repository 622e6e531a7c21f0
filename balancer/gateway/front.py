"""Which request goes where: those for inference to the proxy, all others to the control plane, if they may.

Knows the list of paths that are forwarded, and the control plane's address. No path that is not on the list can reach an
engine: the engines' own administration is not for clients. What browsers ask before they send anything is answered here. Every
answer has the request's id, and none says what it was made with.
"""

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, Final

import msgspec

from balancer import cors, openai, recording
from balancer.errors import NoBrain, RequestError, UnknownPath
from balancer.gateway import headers
from balancer.gateway.access import Access
from balancer.gateway.proxy import Proxy
from balancer.gateway.refusals import refuse
from balancer.header_names import REQUEST_ID
from balancer.http.client import HttpClient
from balancer.http.exchange import BrokenOff, ExchangeFailed
from balancer.http.fields import end_to_end, lines
from balancer.http.messages import Head, Outgoing, Request, Response
from balancer.http.relay import FRAMING, Relay
from balancer.http.reply import Reply
from balancer.http.routes import refuse_method
from balancer.security import CorsSettings

NOT_TO_CONTROL: Final = FRAMING | {b"host", b"expect"}
NOT_FROM_CONTROL: Final = FRAMING | {b"server", REQUEST_ID}


class Front:
    """The ``App`` that listens."""

    def __init__(self, proxy: Proxy, client: HttpClient, control: str, access: Access, browsers: CorsSettings) -> None:
        self._proxy = proxy
        self._client = client
        self._control = control
        self._access = access
        self._browsers = browsers
        self._endless: set[asyncio.Task[None]] = set()
        """Answers that last as long as somebody reads them."""

    def end(self) -> None:
        """No answer may go on for ever from now on."""
        for answer in self._endless:
            answer.cancel()

    def __call__(self, request: Request, reply: Reply) -> Coroutine[Any, Any, None] | None:
        path = canonical(request.path)
        if self._browsers.origins:
            reply.lines = _lines(cors.headers(self._browsers, headers.text(request.named, b"origin") or None))
        is_proxied = path in openai.PATHS
        if is_proxied and request.method == "POST":
            return self._proxy.handle(request, path, reply)
        if request.method == "OPTIONS":
            reply.send(named(self._allowed(request, path), request))
            return None
        if is_proxied:
            reply.send(named(refuse_method(request, refuse, "POST"), request))
            return None
        try:
            if not self._access.is_open(path):
                self._access.check_path(self._access.caller(request.headers), path)
            if not request.path.startswith("/"):
                asked = request.path or request.method  # CONNECT has no path
                raise UnknownPath(f"there is no {asked} here; the paths that are forwarded are listed in docs/api.md")
        except RequestError as error:
            reply.send(named(refuse(error), request))
            return None
        return self._without_end(request, reply) if path == recording.PATH else self._to_control(request, reply)

    def _allowed(self, request: Request, path: str) -> Response:
        """What may be sent to a path: asked by browsers without a key, before anything else."""
        named = request.named
        asked = cors.preflight(
            self._browsers,
            headers.text(named, b"origin") or None,
            headers.text(named, b"access-control-request-method") or None,
            headers.text(named, b"access-control-request-headers") or None,
        )
        allow = "POST, OPTIONS" if path in openai.PATHS else "GET, HEAD, POST, OPTIONS"
        return Response(status=204, headers=(("Allow", allow), *asked.items()))

    async def _without_end(self, request: Request, reply: Reply) -> None:
        answer = asyncio.create_task(self._to_control(request, reply))
        self._endless.add(answer)
        try:
            await asyncio.wait({answer})
            if answer.cancelled():
                reply.break_off()
            else:
                answer.result()
        finally:
            self._endless.discard(answer)
            answer.cancel()

    async def _to_control(self, request: Request, reply: Reply) -> None:
        target = f"{request.path}?{request.query}" if request.query else request.path
        outgoing = Outgoing(
            request.method.encode(),
            target.encode("latin-1"),
            lines(end_to_end(request.headers, NOT_TO_CONTROL)),
            request.body,
        )
        try:
            await self._client.exchange(self._control, outgoing, _FromControl(reply))
        except BrokenOff:
            reply.break_off()
        except ExchangeFailed as error:
            away = NoBrain(f"kvlb's own control plane does not answer ({error}); ask again", retry_after=1)
            reply.send(named(refuse(away), request))


class _FromControl(Relay):
    """An answer of the control plane, without what names its parts."""

    def lines(self, head: Head) -> bytes:
        told = headers.request_id(self.reply.request.named).encode()
        return lines([*end_to_end(head.headers, NOT_FROM_CONTROL), (REQUEST_ID, told)])


def named(response: Response, request: Request) -> Response:
    """The same with the id of the request that it answers."""
    told = (REQUEST_ID.decode(), headers.request_id(request.named))
    return msgspec.structs.replace(response, headers=(*response.headers, told))


def _lines(told: Mapping[str, str]) -> bytes:
    return b"".join(f"{name}: {value}\r\n".encode() for name, value in told.items())


def canonical(path: str) -> str:
    """One trailing slash makes no other path."""
    return path[:-1] if len(path) > 1 and path.endswith("/") else path
