"""How the picker is opened beside the control plane, in whichever process that is.

Knows that gRPC is an extra, and which paths the HTTP port of a picker has not. Never knows a stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from balancer import openai
from balancer.errors import ConfigError, UnknownPath
from balancer.gateway.front import canonical, named
from balancer.gateway.refusals import refuse

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from balancer.brain import Brain
    from balancer.epp.server import EppServer
    from balancer.gateway.access import Access
    from balancer.http.messages import Request
    from balancer.http.reply import Reply
    from balancer.http.server import App
    from balancer.observer import Observer
    from balancer.request_counts import RequestCounts


def open_picker(service: Brain, counts: RequestCounts, access: Access, observer: Observer) -> EppServer:
    """The service, not yet listening. Call it in a running loop.

    Raises:
        ConfigError: gRPC is not installed, or a certificate cannot be used.
    """
    try:
        from balancer.epp.server import EppServer  # noqa: PLC0415 - gRPC is optional
    except ModuleNotFoundError as error:
        if error.name != "grpc":
            raise
        raise ConfigError("kvlb epp needs gRPC: install it with pip install 'kvlb[epp]'") from None
    return EppServer(service, counts, access, observer)


class NotForwarding:
    """An ``App`` round the front of a picker: requests for inference go by the proxy, who asks where."""

    def __init__(self, front: App) -> None:
        self._front = front

    def __call__(self, request: Request, reply: Reply) -> Coroutine[Any, Any, None] | None:
        if canonical(request.path) not in openai.PATHS:
            return self._front(request, reply)
        told = UnknownPath("this is the control plane of an endpoint picker, which forwards nothing; ask its proxy")
        reply.send(named(refuse(told), request))
        return None
