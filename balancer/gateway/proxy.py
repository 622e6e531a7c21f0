"""One inference request, from its bytes to the end of its answer.

Knows the order of things: read, route, forward, watch, release. Whatever happens, each lease is released exactly once. Another
replica is tried only while no byte of an answer has come; after that the answer, good or bad, is the client's.
"""

import asyncio
import contextlib
import logging

import aiohttp
import msgspec
from aiohttp import web
from yarl import URL

from balancer import openai
from balancer.core import Decision, Outcome, RouteRequest, Truth
from balancer.decisions import Origin
from balancer.errors import (
    NoReplica,
    RequestError,
    UpstreamFailed,
    UpstreamTimeout,
)
from balancer.gateway import headers
from balancer.gateway.body import read
from balancer.gateway.reading import read_request
from balancer.metrics import Metrics
from balancer.service import RouterService
from balancer.sse import BodyWatch, StreamWatch
from balancer.upstream import payload
from indexer.index import ReplicaId

log = logging.getLogger(__name__)


class Proxy:
    """Forwards inference requests. Holds no state of its own between them."""

    def __init__(self, service: RouterService, metrics: Metrics) -> None:
        self._service = service
        self._metrics = metrics
        self._settings = service.settings

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """The handler of every path in ``openai.PATHS``."""
        path = canonical(request.path)
        started = asyncio.get_running_loop().time()
        request_id = headers.request_id(request.headers)
        try:
            body = await read(request, self._settings.server.max_body_bytes)
            content_type, questions = request.headers.get("Content-Type", ""), headers.for_questions(request.headers)
            asked = await read_request(self._service, path, content_type, body, questions)
            origin = Origin(request_id, path, asked.salt)
            response = await self._forward(request, origin, asked.request, asked.body, started)
        except RequestError as error:
            self._metrics.refused(path, error)
            refused = error_response(error)
            headers.named(refused.headers, request_id)
            return refused
        return response

    async def _forward(
        self, request: web.Request, origin: Origin, wanted: RouteRequest, body: bytes, started: float
    ) -> web.StreamResponse:
        failure: RequestError | None = None
        for _ in range(self._settings.upstream.attempts):
            try:
                decision = await self._service.route(wanted, origin)
            except NoReplica:
                if failure is None:
                    raise
                break
            attempt = _Attempt(self._service, self._metrics, decision, wanted.model, origin)
            try:
                return await attempt.run(request, body, started)
            except _Unreachable as error:
                failure = UpstreamFailed(f"replica {decision.replica.id} cannot be reached: {error}", retry_after=2)
                wanted = msgspec.structs.replace(wanted, excluded=wanted.excluded | self._siblings(decision))
        assert failure is not None
        raise failure

    def _siblings(self, decision: Decision) -> frozenset[ReplicaId]:
        """All ranks behind the endpoint that could not be reached."""
        return frozenset(
            live.replica.id for live in self._service.router.fleet if live.replica.endpoint == decision.replica.endpoint
        )


class _Unreachable(Exception):
    """No byte of an answer came: another replica may be tried."""


class _BrokenOff(Exception):
    """An answer ended before its end."""


class _Attempt:
    """One request at one replica, from its lease to its release."""

    def __init__(
        self, service: RouterService, metrics: Metrics, decision: Decision, model: str, origin: Origin
    ) -> None:
        self._service = service
        self._metrics = metrics
        self._decision = decision
        self._model = model
        self._path = origin.path
        self._request_id = origin.request_id
        self._outcome = Outcome.ERROR
        self._truth: Truth | None = None

    async def run(self, request: web.Request, body: bytes, started: float) -> web.StreamResponse:
        try:
            return await self._exchange(request, body, started)
        except asyncio.CancelledError:
            self._outcome = Outcome.CANCELLED
            raise
        finally:
            self._metrics.finished(self._model, self._path, self._decision, self._outcome)
            await self._service.release(self._decision.lease, self._outcome, self._truth)

    async def _exchange(self, request: web.Request, body: bytes, started: float) -> web.StreamResponse:
        query = request.rel_url.raw_query_string
        url = URL(self._decision.replica.endpoint + self._path + (f"?{query}" if query else ""), encoded=True)
        try:
            upstream = await self._service.session.post(
                url,
                data=payload(body),
                headers=headers.named(headers.to_replica(request.headers, self._decision), self._request_id),
                allow_redirects=False,
            )
        except aiohttp.SocketTimeoutError as error:
            if isinstance(error, aiohttp.ConnectionTimeoutError):
                raise self._unreachable(error) from error
            seconds = self._service.settings.upstream.read_timeout_seconds
            raise UpstreamTimeout(f"replica {self._decision.replica.id} sent nothing for {seconds:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise self._unreachable(error) from error
        try:
            return await self._relay(request, upstream, started)
        finally:
            # Closed, not returned to the pool, unless it was read to its end: the engine notices, and stops computing.
            upstream.close() if not upstream.content.at_eof() else upstream.release()

    def _unreachable(self, error: Exception) -> _Unreachable:
        self._outcome = Outcome.UNREACHABLE
        endpoint = self._decision.replica.endpoint
        if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
            self._service.unreachable(endpoint)
        else:  # somebody is there, and did not answer this request; whether it answers others is for a probe to say
            self._service.broke_off(endpoint)
        return _Unreachable(str(error) or type(error).__name__)

    async def _relay(
        self, request: web.Request, upstream: aiohttp.ClientResponse, started: float
    ) -> web.StreamResponse:
        expose = self._service.settings.server.expose_decisions
        response = web.StreamResponse(
            status=upstream.status,
            reason=upstream.reason,
            headers=headers.named(headers.to_client(upstream.headers, self._decision, expose=expose), self._request_id),
        )
        is_stream = upstream.content_type == "text/event-stream"
        watch = StreamWatch() if is_stream else BodyWatch()
        has_started = False
        try:
            await response.prepare(request)
            while chunk := await _next_chunk(upstream):
                watch.feed(chunk)
                if watch.has_output and not has_started:
                    has_started = True
                    await self._service.started(self._decision.lease)
                    self._metrics.first_byte(self._model, asyncio.get_running_loop().time() - started)
                await response.write(chunk)
            await response.write_eof()
        except _BrokenOff as error:
            await self._broken_off(request, response, error, is_stream=is_stream)
            return response
        except ConnectionResetError:
            self._outcome = Outcome.CANCELLED  # the client went away between two chunks
            return response
        self._truth = watch.truth()
        is_whole = watch.is_done and not watch.has_failed
        self._outcome = Outcome.OK if upstream.status < 400 and is_whole else Outcome.ERROR
        return response

    async def _broken_off(
        self, request: web.Request, response: web.StreamResponse, error: Exception, *, is_stream: bool
    ) -> None:
        """The replica broke off in the middle: the client must not take what it has for the whole."""
        log.warning("%s: broke off in the middle of an answer: %s", self._decision.replica.id, error)
        self._service.broke_off(self._decision.replica.endpoint)
        if is_stream:
            told = UpstreamFailed(f"replica {self._decision.replica.id} broke off in the middle of the answer")
            with contextlib.suppress(ConnectionResetError):
                await response.write(b"\n\ndata: " + openai.error_body(told) + b"\n\n")
        if request.transport is not None:
            request.transport.close()


async def _next_chunk(upstream: aiohttp.ClientResponse) -> bytes:
    """What has come of the answer; empty at its end.

    Raises:
        _BrokenOff: the replica, or the connection to it. An error of the client's connection is never taken for that.
    """
    try:
        return await upstream.content.readany()
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise _BrokenOff(repr(error)) from error


def canonical(path: str) -> str:
    """One trailing slash makes no other path."""
    return path[:-1] if len(path) > 1 and path.endswith("/") else path


def error_response(error: RequestError) -> web.Response:
    """The error as an OpenAI client expects it."""
    extra = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
    return web.Response(
        status=error.status, body=openai.error_body(error), content_type="application/json", headers=extra
    )
