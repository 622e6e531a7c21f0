"""The ext_proc service: streams of bytes over gRPC, each of them run by an ``Exchange``.

Knows sockets, certificates, how large a message may be, and how the service ends. Never knows what is said: bytes become
messages in ``balancer.epp.messages``, and orders come from ``balancer.epp.stream``.

A stream costs two tasks, one that reads and one that waits for a decision; no message costs one. While a reply cannot be
written, nothing is read: what Envoy sends is bounded by HTTP/2's windows then.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import grpc

from balancer.brain import Brain
from balancer.disaggregation import plan
from balancer.epp.health import Health
from balancer.epp.messages import read
from balancer.epp.picker import Pick, Picker, Refusal
from balancer.epp.settings import EppSettings
from balancer.epp.stream import Ask, Close, End, Exchange, Give, Moved, Order, Rules, Send, Started, Unask
from balancer.epp.wire import WireError
from balancer.errors import ConfigError
from balancer.gateway.access import Access
from balancer.gateway.asking import ending
from balancer.gateway.refusals import refuse
from balancer.gateway.serving import Stopping
from balancer.http.messages import Response
from balancer.key_source import Watched
from balancer.observer import Observer
from balancer.request_counts import RequestCounts
from balancer.tls import check_chain

log = logging.getLogger(__name__)

SERVICE: Final = "envoy.service.ext_proc.v3.ExternalProcessor"

HEAD_BYTES: Final = 1024 * 1024
"""What a message may have besides its body."""

SPARE_BYTES: Final = 32 * 1024 * 1024
"""How much larger than any body a message may be: it takes a reading to refuse one, and Envoy sends what its buffers hold."""

KEEPALIVE_MS: Final = 20_000
"""After so much silence a proxy is asked whether it is there, and given as long again: one whose host has gone says nothing."""

SPARE_SECONDS: Final = 2.0
"""For streams to end that are told to."""

LONGEST_TIMER: Final = 86_400.0
"""Seconds; a request that may take longer has no limit."""

_END: Final = grpc.aio.EOF
_Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
_PROBLEM: Final = grpc.StatusCode.INVALID_ARGUMENT


class EppServer:
    """``start`` it in a running loop, ``drain`` it, ``close`` it."""

    def __init__(self, service: Brain, counts: RequestCounts, access: Access, observer: Observer) -> None:
        settings = service.settings
        self.settings = settings.epp
        self._service = service
        connector = plan.make(settings.disaggregation.name, settings.disaggregation.settings)
        self._picker = Picker(service, counts, access, observer, connector)
        self._rules = Rules(
            watches=self.settings.response == "watch",
            max_body_bytes=settings.server.max_body_bytes,
            subset_header=self.settings.subset_header,
            expose=settings.server.expose_decisions,
        )
        self._health = Health(lambda: service.is_ready, lambda: self._is_ending)
        self._is_ending = False
        self._certificate = Certificate(self.settings) if self.settings.cert_file is not None else None
        self._servers: list[grpc.aio.Server] = []
        self._streams: set[_Stream] = set()
        self.port = 0
        """Where it listens, once it does."""
        self.health_port: int | None = None

    @property
    def open_streams(self) -> int:
        return len(self._streams)

    async def start(self) -> None:
        """Listen.

        Raises:
            ConfigError: an address cannot be bound.
        """
        settings = self.settings
        largest = self._service.settings.server.max_body_bytes + SPARE_BYTES
        handler = grpc.method_handlers_generic_handler(
            SERVICE, {"Process": grpc.stream_stream_rpc_method_handler(self._process)}
        )
        self.port = await self._listen(
            settings.port, self._certificate, [handler, self._health.handler()], largest, "port"
        )
        if settings.health_port is not None:
            self.health_port = await self._listen(
                settings.health_port, None, [self._health.handler()], HEAD_BYTES, "health_port"
            )
        how = "TLS" if self._certificate else "no TLS"
        log.info("picks endpoints at %s:%d (ext_proc, %s)", settings.host, self.port, how)

    async def _listen(
        self, port: int, certificate: "Certificate | None", handlers: Sequence[Any], largest: int, setting: str
    ) -> int:
        server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", largest),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", int(self._service.settings.server.processes > 1)),
                ("grpc.keepalive_time_ms", KEEPALIVE_MS),
                ("grpc.keepalive_timeout_ms", KEEPALIVE_MS),
                ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
            ]
        )
        server.add_generic_rpc_handlers(tuple(handlers))
        host = self.settings.host
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if certificate is None:
                bound = server.add_insecure_port(address)
            else:
                bound = server.add_secure_port(address, certificate.credentials)
        except RuntimeError as error:
            bound, reason = 0, str(error)
        else:
            reason = "it is in use, or none of this machine"
        if not bound:
            raise ConfigError(f"epp.{setting}: cannot listen on {address}: {reason}; name another one")
        await server.start()
        self._servers.append(server)
        return bound

    def watched(self) -> list[Watched]:
        """What is read again when it changes."""
        certificate = self._certificate
        return [] if certificate is None else [Watched(certificate.paths, certificate.reload, "epp.cert_file")]

    async def drain(self, stop: Stopping | None) -> None:
        """End what is under way: health says no, then nobody new is let in, at last every stream ends in peace.

        A proxy whose stream has ended in peace goes on alone with what it has; its lease is over.
        """
        settings = self._service.settings.server
        self._is_ending = True
        if stop is not None and stop.asked.is_set() and not stop.soon.is_set() and self._service.is_ready:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(settings.drain_grace_seconds):
                    await stop.soon.wait()
        stopping = asyncio.create_task(self._stop(settings.drain_timeout_seconds + SPARE_SECONDS))
        hurry = asyncio.create_task(self._in_a_hurry(stop))
        await asyncio.wait(
            [hurry, stopping], timeout=settings.drain_timeout_seconds, return_when=asyncio.FIRST_COMPLETED
        )
        told = refuse(ending())
        await asyncio.gather(*[stream.dismiss(told) for stream in list(self._streams)])
        await asyncio.wait([hurry, stopping], timeout=SPARE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        await self.close()
        await asyncio.gather(hurry, stopping, return_exceptions=True)

    async def _stop(self, seconds: float | None) -> None:
        await asyncio.gather(*[server.stop(seconds) for server in self._servers])

    async def _in_a_hurry(self, stop: Stopping | None) -> None:
        await (stop.now if stop is not None else asyncio.Event()).wait()

    async def close(self) -> None:
        """End it now."""
        self._is_ending = True
        await self._stop(None)
        self._servers = []
        for stream in list(self._streams):
            stream.ended()
        await self._picker.places.close()

    async def _process(self, requests: AsyncIterator[bytes], context: _Context) -> None:
        stream = _Stream(self._picker, self._rules, self.settings.piece_bytes, context)
        self._streams.add(stream)
        try:
            await stream.run()
        finally:
            stream.ended()
            self._streams.discard(stream)


class _Stream:
    """One HTTP request of a proxy."""

    def __init__(self, picker: Picker, rules: Rules, piece_bytes: int, context: _Context) -> None:
        self._picker = picker
        self._piece_bytes = piece_bytes
        self._context = context
        self._exchange = Exchange(rules)
        self._pick: Pick | None = None
        self._asking: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._writes = asyncio.Lock()
        self._reader: asyncio.Task[Any] | None = None
        self._is_over = False  # by our own will
        self._problem = ""

    async def run(self) -> None:
        """Read until the proxy has nothing more to say, or nothing more is to be said to it."""
        context, exchange = self._context, self._exchange
        self._reader = asyncio.current_task()
        try:
            while not self._is_over:
                data = await context.read()
                if data is _END:
                    break
                try:
                    message = read(data)
                except WireError as error:
                    await self._obey(exchange.broken(str(error)))
                else:
                    await self._obey(exchange.receive(message))
        except asyncio.CancelledError:
            if not self._is_over:
                raise
        except _GONE:
            pass
        async with self._writes:  # gRPC takes no status while a message goes out
            pass
        if self._problem:
            await context.abort(_PROBLEM, self._problem)

    def ended(self) -> None:
        """Whatever was under way is over."""
        for order in self._exchange.closed():
            self._note(order)
        if self._asking is not None:  # it may be giving a body back
            self._asking.cancel()
        if self._timer is not None:
            self._timer.cancel()

    async def dismiss(self, told: Response) -> None:
        """End it: who still waits for a decision is ``told`` that there will be none."""
        assert isinstance(told.body, bytes)
        lines = [("content-type", told.content_type), *told.headers]
        headers = [(name.lower().encode(), value.encode()) for name, value in lines]
        with contextlib.suppress(*_GONE):
            orders = self._exchange.refused(told.status, headers, told.body, "draining")
            if orders and self._asking is not None:
                self._asking.cancel()
            await self._obey(orders)
        self._expire()

    async def _obey(self, orders: Sequence[Order]) -> None:
        for at, order in enumerate(orders):
            if isinstance(order, Send):
                await self._write(order.data, orders[at + 1 :])
            elif isinstance(order, Give):
                for piece in order.pieces(self._piece_bytes):
                    await self._write(piece, orders[at + 1 :])
            else:
                self._note(order)

    async def _write(self, data: bytes, rest: Sequence[Order]) -> None:
        """Send it; if that cannot be, what else was ordered still counts but for what was to be sent."""
        try:
            async with self._writes:
                await self._context.write(data)
        except BaseException:
            for order in rest:
                if not isinstance(order, Send | Give):
                    self._note(order)
            raise

    def _note(self, order: Order) -> None:
        """What has nothing to be sent."""
        pick = self._pick
        match order:
            case Started():
                assert pick is not None
                pick.started()
            case End():
                assert pick is not None
                pick.end(order)
                if self._timer is not None:
                    self._timer.cancel()
            case Ask():
                self._pick = self._picker.pick(order, self._exchange)
                self._asking = asyncio.create_task(self._ask(self._pick))
            case Moved():
                assert pick is not None
                pick.moved(order.place)
            case Unask():
                if self._asking is not None:
                    self._asking.cancel()
            case Close():
                self._is_over, self._problem = True, order.problem

    async def _ask(self, pick: Pick) -> None:
        try:
            found = await pick.run()
            if isinstance(found, Refusal):
                await self._obey(self._exchange.refused(found.status, found.headers, found.body, found.why))
                return
            loop = asyncio.get_running_loop()
            if pick.deadline - loop.time() < LONGEST_TIMER:
                self._timer = loop.call_at(pick.deadline, self._expire)
            await self._obey(self._exchange.decided(found))
        except _GONE:  # whoever reads finds out, too
            return
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("a request could not be given a replica")
            self._fail()

    def _expire(self) -> None:
        self._leave(self._exchange.expired())

    def _fail(self) -> None:
        self._leave(self._exchange.broken("kvlb itself has failed; its log says where"))

    def _leave(self, orders: Sequence[Order]) -> None:
        """End the stream, although nothing has come."""
        for order in orders:
            self._note(order)
        if self._reader is not None and self._is_over:
            self._reader.cancel()


_GONE: Final = (
    grpc.RpcError,
    grpc.aio.AbortError,
    grpc.aio.UsageError,
    grpc.aio.InternalError,
    asyncio.InvalidStateError,
)
"""What grpc.aio raises where a stream is no more."""


class Certificate:
    """The server's own, for handshakes; ``reload`` changes what those after it are shown.

    Raises:
        ConfigError: a file cannot be used.
    """

    def __init__(self, settings: EppSettings) -> None:
        assert settings.cert_file is not None
        self.paths = [path for path in (settings.cert_file, settings.key_file) if path is not None]
        self._current = self._read()
        self.credentials = grpc.dynamic_ssl_server_credentials(self._current, self._fetch)

    def reload(self) -> None:
        """Read the files again.

        Raises:
            ConfigError: they cannot be used; those of before stay in use.
        """
        self._current = self._read()

    def _read(self) -> grpc.ServerCertificateConfiguration:
        check_chain("epp", self.paths[0], self.paths[1] if len(self.paths) > 1 else None)
        chain, key = Path(self.paths[0]).read_bytes(), Path(self.paths[-1]).read_bytes()
        return grpc.ssl_server_certificate_configuration([(key, chain)])

    def _fetch(self) -> grpc.ServerCertificateConfiguration:
        """Asked before each handshake, in a thread of gRPC's own."""
        return self._current
