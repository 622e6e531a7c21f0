"""A table of paths as an ``App``: a handler gets a whole ``Request`` and returns a ``Response``, at once or as an awaitable.

Knows which paths and methods are there, and counts answers by them. Never knows what they mean.
"""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeAlias

import msgspec

from balancer.errors import RequestError, UnknownPath
from balancer.http.messages import Request, Response
from balancer.http.reply import Reply

Handler: TypeAlias = Callable[[Request], Response | Awaitable[Response]]
Routes: TypeAlias = dict[str, dict[str, Handler]]
"""Path -> method -> handler. A path is matched as a whole."""

Served: TypeAlias = Counter[tuple[str, int]]
"""Requests answered, by path and status; a path that is not there is ``other``."""

Refuse: TypeAlias = Callable[[RequestError], Response]


class RouteTable:
    """The ``App``; HEAD is served where GET is."""

    def __init__(self, routes: Routes, refuse: Refuse, served: Served | None = None) -> None:
        self.served: Served = Counter() if served is None else served
        self._routes = routes
        self._refuse = refuse

    def __call__(self, request: Request, reply: Reply) -> Coroutine[Any, Any, None] | None:
        try:
            coming = self._handle(request)
        except RequestError as error:
            coming = self._refuse(error)
        except Exception:
            self._count(request, RequestError.status)
            raise
        if not isinstance(coming, Response) or not isinstance(coming.body, bytes):
            return self._answer_later(request, reply, coming)
        self._count(request, coming.status)
        reply.send(coming)
        return None

    def _handle(self, request: Request) -> Response | Awaitable[Response]:
        methods = self._routes.get(request.path)
        if methods is None:
            raise UnknownPath(f"there is no {request.path} here")
        handler = methods.get(request.method) or (methods.get("GET") if request.method == "HEAD" else None)
        if handler is None:
            return refuse_method(request, self._refuse, ", ".join(sorted(methods)))
        return handler(request)

    async def _answer_later(self, request: Request, reply: Reply, coming: Response | Awaitable[Response]) -> None:
        try:
            response = coming if isinstance(coming, Response) else await coming
        except RequestError as error:
            response = self._refuse(error)
        except Exception:
            self._count(request, RequestError.status)
            raise
        self._count(request, response.status)
        if isinstance(response.body, bytes):
            reply.send(response)
        else:
            await _write(reply, response, response.body)

    def _count(self, request: Request, status: int) -> None:
        self.served[request.path if request.path in self._routes else "other", status] += 1


def refuse_method(request: Request, refuse: Refuse, allowed: str) -> Response:
    """The answer to a method that a path has not."""
    refused = refuse(UnknownPath(f"{request.method} {request.path} is not served; use {allowed}"))
    return msgspec.structs.replace(refused, status=405, headers=(*refused.headers, ("Allow", allowed)))


async def _write(reply: Reply, response: Response, pieces: AsyncIterator[bytes]) -> None:
    """An answer in pieces, made as fast as the client reads them."""
    reply.start_response(response)
    if reply.request.method != "HEAD":
        async for piece in pieces:
            reply.write(piece)
            await reply.drained()
    reply.write(b"", is_last=True)
