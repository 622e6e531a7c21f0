"""Requests as spans of a trace, for whoever collects them (OTLP over HTTP; the extra ``kvlb[otlp]``).

Knows the collector and draws ids; what a span says is ``balancer.spans``'. Never holds up a request and never fails one: a
finished request is one more in a queue, of which a thread makes spans; what cannot be delivered is dropped and counted.
"""

import asyncio
import importlib.util
import logging
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from balancer import trace_context
from balancer.errors import ConfigError
from balancer.records import Record
from balancer.settings import TracingSettings
from balancer.spans import Span, spans_of
from balancer.trace_context import TraceContext

log = logging.getLogger(__name__)

EXTRA: Final = "kvlb[otlp]"

SEND_SECONDS: Final = 1.0
"""Between two deliveries."""

MAX_WAITING: Final = 4096
"""Requests that wait to be delivered; the oldest go first."""

MAX_BATCH: Final = 512
"""Requests in one delivery."""

DELIVERY_SECONDS: Final = 5.0
"""For one delivery, repetitions included."""

Deliver = Callable[[Sequence[tuple[Record, list[Span]]]], bool]


class Tracer:
    """Traces nothing: ``traceparent`` passes as it came. For each request ``begin`` comes first and ``finished`` last."""

    def __init__(self) -> None:
        self.counts = {"sent": 0, "dropped": 0}
        """Requests by what became of their spans."""

    def begin(self, record: Record, traceparent: bytes | None) -> None:
        """A request has come: set its ``span`` and ``parent`` if it is part of a trace."""

    def attempted(self, record: Record) -> TraceContext | None:
        """A replica is asked: the span that it is asked within. None leaves it the client's own header."""
        return None

    def finished(self, record: Record) -> None:
        """It has been answered, or will not be."""

    async def run(self) -> None:
        """Deliver now and then, until cancelled."""

    async def flush(self) -> None:
        """Deliver what waits."""


class OtlpTracer(Tracer):
    """Goes on with the traces of clients, begins those of others, and sends its part to a collector.

    ``deliver`` is called in a thread, and says whether it has taken what it was given.
    """

    def __init__(self, settings: TracingSettings, deliver: Deliver, draw: random.Random | None = None) -> None:
        super().__init__()
        self._settings = settings
        self._deliver = deliver
        self._draw = draw or random.Random()  # ids must differ, and need not be secret
        self._waiting: deque[Record] = deque(maxlen=MAX_WAITING)
        self._sending = asyncio.Lock()
        self._has_failed = False

    def begin(self, record: Record, traceparent: bytes | None) -> None:
        record.parent = trace_context.read(traceparent)
        if record.parent is not None:
            record.span = record.parent.child(self._new_id())
        else:
            is_sampled = self._draw.random() < self._settings.sample_ratio
            record.span = trace_context.begin(self._new_id(128), self._new_id(), is_sampled=is_sampled)

    def attempted(self, record: Record) -> TraceContext | None:
        return None if record.span is None else record.span.child(self._new_id())

    def finished(self, record: Record) -> None:
        if record.span is not None and record.span.is_sampled:
            self.counts["dropped"] += len(self._waiting) == MAX_WAITING
            self._waiting.append(record)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(SEND_SECONDS)
            await self.flush()

    async def flush(self) -> None:
        async with self._sending:
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(MAX_BATCH, len(self._waiting)))]
                is_taken = await asyncio.to_thread(self._send, batch)
                self.counts["sent" if is_taken else "dropped"] += len(batch)
                if is_taken == self._has_failed:
                    self._has_failed = not is_taken
                    told = "takes spans again" if is_taken else "does not take spans; they are dropped until it does"
                    log.warning("tracing: %s %s", self._settings.endpoint, told)
                if not is_taken:
                    return

    def _send(self, batch: list[Record]) -> bool:
        try:
            return self._deliver([(record, spans_of(record, self._new_id)) for record in batch])
        except Exception:  # whatever the library does, requests go on
            log.exception("tracing: spans could not be delivered, in a way that was not foreseen")
            return False

    def _new_id(self, bits: int = 64) -> int:
        return self._draw.getrandbits(bits) or 1


def open_tracer(settings: TracingSettings) -> Tracer:
    """The tracer that the settings ask for.

    Raises:
        ConfigError: what it needs is not installed.
    """
    if settings.endpoint is None:
        return Tracer()
    if importlib.util.find_spec("opentelemetry") is None:
        raise ConfigError(f"tracing.endpoint: needs OpenTelemetry; install {EXTRA}, or leave it out")
    return OtlpTracer(settings, _collector(settings.endpoint, settings.service_name))


def _collector(endpoint: str, service_name: str) -> Deliver:
    """A collector, asked by OpenTelemetry's own exporter; its variables (OTEL_EXPORTER_OTLP_HEADERS ...) count, too."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - optional
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import ReadableSpan  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import SpanExportResult  # noqa: PLC0415
    from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags  # noqa: PLC0415

    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # the tracer tells once what it would tell each time
    exporter = OTLPSpanExporter(endpoint=f"{endpoint}/v1/traces", timeout=DELIVERY_SECONDS)
    resource = Resource.create({"service.name": service_name})
    sampled = TraceFlags(TraceFlags.SAMPLED)

    def readable(trace_id: int, span: Span) -> ReadableSpan:
        kind = SpanKind.SERVER if span.is_server else SpanKind.CLIENT if span.is_client else SpanKind.INTERNAL
        return ReadableSpan(
            name=span.name,
            context=SpanContext(trace_id, span.span_id, is_remote=False, trace_flags=sampled),
            parent=None
            if span.parent is None
            else SpanContext(trace_id, span.parent, is_remote=span.is_server, trace_flags=sampled),
            resource=resource,
            attributes=span.attributes,
            kind=kind,
            status=Status(StatusCode.ERROR if span.has_failed else StatusCode.UNSET),
            start_time=span.begin,
            end_time=span.end,
        )

    def deliver(told: Sequence[tuple[Record, list[Span]]]) -> bool:
        spans = [
            readable(record.span.trace_id, span) for record, spans in told if record.span is not None for span in spans
        ]
        return exporter.export(spans) is SpanExportResult.SUCCESS

    return deliver
