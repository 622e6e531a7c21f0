"""Paths that a gateway answers itself: the brain cannot say of it what is asked there.

Knows two questions: whether this process lives, and whether it is to be sent requests. All else is the front's, and why nobody
can be sent any is the brain's to tell. A brain that is away is no reason to go elsewhere: whoever comes is served.
"""

from collections.abc import Coroutine
from typing import Any, Final

from balancer.brain import Brain
from balancer.errors import NoReplica
from balancer.gateway.access import Access
from balancer.gateway.front import named
from balancer.gateway.refusals import refuse
from balancer.http.messages import Request, Response
from balancer.http.reply import Reply
from balancer.http.server import App
from balancer.processes.remote import RemoteBrain

ALIVE: Final = frozenset({"/health", "/ping"})
READY: Final = "/ready"


class OwnPaths:
    """An ``App`` round the front."""

    def __init__(self, front: App, brain: RemoteBrain, access: Access) -> None:
        self._front = front
        self._brain = brain
        self._access = access

    def __call__(self, request: Request, reply: Reply) -> Coroutine[Any, Any, None] | None:
        path = request.path
        is_own = path in ALIVE or path == READY
        if is_own and request.method in {"GET", "HEAD"} and self._access.is_open(path):
            answer = self._answer(path)
            if answer is not None:
                reply.send(named(answer, request))
                return None
        return self._front(request, reply)

    def _answer(self, path: str) -> Response | None:
        brain: Brain = self._brain
        if path in ALIVE:
            return Response(b'{"status": "ok"}')
        if brain.is_draining:
            return refuse(NoReplica("kvlb is shutting down", retry_after=2))
        if brain.is_ready:
            return Response(b'{"status": "ready"}')
        return None if self._brain.is_asked else refuse(NoReplica("no replica can be used", retry_after=2))
