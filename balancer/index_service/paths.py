"""The index service's paths: which body leads to which answer.

Knows paths and status codes. Never knows sockets or frameworks: a handler takes a whole request and returns a whole answer.
"""

from typing import Any

import msgspec

from balancer.errors import RequestError
from balancer.http.messages import Request, Response
from balancer.http.routes import Routes, Served
from balancer.index_service import bodies
from balancer.index_service.page import MetricsPage
from balancer.index_service.service import IndexService
from balancer.index_tables import read_query

_encode = msgspec.json.Encoder().encode


class IndexPaths:
    """Handlers round one service; ``served`` is what the server counts."""

    def __init__(self, service: IndexService, served: Served) -> None:
        self._service = service
        self._page = MetricsPage(service, served)

    def routes(self) -> Routes:
        return {
            "/": {"GET": self.paths},
            "/register": {"POST": self.register},
            "/unregister": {"POST": self.unregister},
            "/query": {"POST": self.query},
            "/query_by_hash": {"POST": self.query_by_hash},
            "/workers": {"GET": self.workers},
            "/dump": {"GET": self.dump},
            "/peers": {"GET": self.peers},
            "/health": {"GET": self.health},
            "/metrics": {"GET": self.metrics},
            "/index/query": {"POST": self.index_query},
            "/index/replicas": {"GET": self.replicas},
            "/index/dump": {"GET": self.dump},
        }

    def paths(self, request: Request) -> Response:
        """What there is, for whoever looks by hand."""
        paths = {path: " ".join(methods) for path, methods in self.routes().items()}
        return _json({"kvlb": "index", "paths": paths, "see": bodies.DOCUMENT})

    def register(self, request: Request) -> Response:
        registration, warnings = bodies.registration(request.body)
        self._service.register(registration)
        return _json(_done(warnings), 201)

    def unregister(self, request: Request) -> Response:
        wanted, warnings = bodies.unregistration(request.body)
        self._service.unregister(wanted)
        return _json(_done(warnings))

    def query(self, request: Request) -> Response:
        return _json(self._service.by_tokens(bodies.token_query(request.body)))

    def query_by_hash(self, request: Request) -> Response:
        return _json(self._service.by_local_hashes(bodies.hash_query(request.body)))

    def workers(self, request: Request) -> Response:
        return _json(self._service.listing())

    def peers(self, request: Request) -> Response:
        """None: a second service subscribes to the engines itself."""
        return _json([])

    def index_query(self, request: Request) -> Response:
        return _json(self._service.asked(read_query(request.body)))

    def replicas(self, request: Request) -> Response:
        return _json(self._service.replicas())

    def dump(self, request: Request) -> Response:
        return Response(self._service.dump(), content_type="application/x-ndjson")

    def metrics(self, request: Request) -> Response:
        return Response(self._page.text(), content_type="text/plain; version=0.0.4; charset=utf-8")

    def health(self, request: Request) -> Response:
        return _json({"status": "ok"})


def refuse(error: RequestError) -> Response:
    """An error in the peers' shape: one sentence under ``error``."""
    body = {"error": error.message, "type": error.type, "param": error.param, "code": error.code}
    return _json(body, error.status)


def _done(warnings: tuple[str, ...]) -> dict[str, Any]:
    return {"status": "ok", "warnings": warnings} if warnings else {"status": "ok"}


def _json(value: Any, status: int = 200) -> Response:
    return Response(_encode(value), status)
