"""The ext_proc service: streams of bytes over gRPC, each of them a ``Conversation``.

Knows sockets, how large a message may be, and how the service ends. Never knows what is said.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import grpc

from balancer.brain import Brain
from balancer.disaggregation import plan
from balancer.epp.certificate import Certificate
from balancer.epp.conversation import Context, Conversation
from balancer.epp.health import Health
from balancer.epp.picker import Picker
from balancer.epp.stream import Rules
from balancer.errors import ConfigError
from balancer.gateway.access import Access
from balancer.gateway.asking import ending
from balancer.gateway.refusals import refuse
from balancer.gateway.serving import Stopping
from balancer.key_source import Watched
from balancer.observer import Observer
from balancer.request_counts import RequestCounts

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
        self._streams: set[Conversation] = set()
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

    async def _process(self, requests: AsyncIterator[bytes], context: Context) -> None:
        stream = Conversation(self._picker, self._rules, self.settings.piece_bytes, context)
        self._streams.add(stream)
        try:
            await stream.run()
        finally:
            stream.ended()
            self._streams.discard(stream)
