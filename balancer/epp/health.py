"""gRPC health (grpc.health.v1): whether the picker lives, and whether it can choose anybody.

Knows the two messages of that protocol and the names that are asked for. Asks the brain anew each time: nothing is kept.
"""

import asyncio
from collections.abc import Callable
from enum import IntEnum
from typing import Any, Final

import grpc

from balancer.epp.wire import LENGTH, WireError, encoded_varint, fields

SERVICE: Final = "grpc.health.v1.Health"

ALIVE: Final = frozenset({"", "liveness"})
"""Names of the process itself."""

READY: Final = frozenset({"readiness", "envoy.service.ext_proc.v3.ExternalProcessor", "inference-extension"})
"""Names of what it is there for: Envoy's own health check asks for the second, manifests of the Gateway API Inference Extension
for the third."""

LOOK_SECONDS: Final = 0.5
"""Between two looks for whoever watches."""


class Status(IntEnum):
    """As grpc.health.v1 numbers them."""

    SERVING = 1
    NOT_SERVING = 2
    SERVICE_UNKNOWN = 3


class Health:
    """``is_ready`` says whether a request would find a replica, ``is_ending`` whether nothing new is to be sent here."""

    def __init__(self, is_ready: Callable[[], bool], is_ending: Callable[[], bool]) -> None:
        self._is_ready = is_ready
        self._is_ending = is_ending

    def status(self, service: str) -> Status:
        if service in ALIVE:
            return Status.SERVING
        if service in READY:
            return Status.SERVING if self._is_ready() and not self._is_ending() else Status.NOT_SERVING
        return Status.SERVICE_UNKNOWN

    def handler(self) -> grpc.GenericRpcHandler:
        """For a server that gives and takes bytes."""
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Check": grpc.unary_unary_rpc_method_handler(self._check),
                "Watch": grpc.unary_stream_rpc_method_handler(self._watch),
            },
        )

    async def _check(self, request: bytes, context: "grpc.aio.ServicerContext[Any, Any]") -> bytes:
        status = self.status(await _service(request, context))
        if status is Status.SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no service of this name is known here")
        return _encoded(status)

    async def _watch(self, request: bytes, context: "grpc.aio.ServicerContext[Any, Any]") -> None:
        service, told = await _service(request, context), None
        while True:
            status = self.status(service)
            if status is not told:
                told = status
                await context.write(_encoded(status))
            if self._is_ending():
                return
            await asyncio.sleep(LOOK_SECONDS)


async def _service(request: bytes, context: "grpc.aio.ServicerContext[Any, Any]") -> str:
    """The name that is asked for (``HealthCheckRequest``)."""
    try:
        names = [value for number, kind, value in fields(request) if number == 1 and kind == LENGTH]
    except WireError as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
    assert all(isinstance(name, bytes) for name in names)
    return bytes(names[-1]).decode(errors="replace") if names else ""


def _encoded(status: Status) -> bytes:
    """A ``HealthCheckResponse``."""
    return b"\x08" + encoded_varint(status)
