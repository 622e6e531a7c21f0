"""``tracing.py``: traces of clients go on, others begin, and a collector that fails costs spans and nothing else."""

import asyncio
import logging
import random
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from balancer import tracing
from balancer.errors import ConfigError
from balancer.records import Record
from balancer.settings import TracingSettings
from balancer.spans import Span
from balancer.trace_context import TraceContext, read
from balancer.tracing import OtlpTracer, Tracer, open_tracer
from tests.balancer.test_records import record
from tests.support.upstream import Received, upstream
from tests.support.waiting import run

PARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UNSAMPLED = PARENT[:-1] + b"0"

Told = Sequence[tuple[Record, list[Span]]]


class Collector:
    """Takes what it is given, unless it is told not to."""

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.refuses = False

    def __call__(self, told: Told) -> bool:
        assert threading.current_thread() is not threading.main_thread()
        if self.refuses:
            return False
        self.taken += [each.request_id for each, _ in told]
        return True


def tracer(collector: Collector, **settings: Any) -> OtlpTracer:
    return OtlpTracer(TracingSettings(endpoint="http://collector:4318", **settings), collector, random.Random(1))


def begun(each: Tracer, traceparent: bytes | None = None, name: str = "r1") -> Record:
    made = record(request_id=name)
    each.begin(made, traceparent)
    return made


def test_a_clients_trace_goes_on() -> None:
    each = tracer(Collector(), sample_ratio=0)
    made = begun(each, PARENT)
    assert made.parent == read(PARENT)
    assert made.span is not None
    attempt = each.attempted(made)
    assert attempt is not None
    assert made.parent is not None
    assert made.parent.trace_id == made.span.trace_id == attempt.trace_id
    assert len({made.parent.span_id, made.span.span_id, attempt.span_id}) == 3
    assert attempt.is_sampled


@pytest.mark.parametrize(("ratio", "share"), [(0, 0), (1, 100), (0.5, 50)])
def test_of_others_a_share_is_traced(ratio: float, share: int) -> None:
    each = tracer(Collector(), sample_ratio=ratio)
    spans = [made.span for _ in range(100) if (made := begun(each)).parent is None]
    assert all(span is not None for span in spans)
    assert sum(span is not None and span.is_sampled for span in spans) == pytest.approx(share, abs=15)
    assert len({span.trace_id for span in spans if span is not None}) == 100


def test_what_is_not_sampled_is_not_sent_and_still_passed_on() -> None:
    async def check() -> None:
        collector = Collector()
        each = tracer(collector)
        made = begun(each, UNSAMPLED)
        attempt = each.attempted(made)
        assert attempt is not None
        assert attempt.header().endswith(b"-00")
        each.finished(made)
        await each.flush()
        assert (collector.taken, each.counts) == ([], {"sent": 0, "dropped": 0})

    run(check())


def test_finished_requests_are_sent_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "MAX_BATCH", 2)

    async def check() -> None:
        collector = Collector()
        each = tracer(collector)
        for name in ("a", "b", "c"):
            each.finished(begun(each, name=name))
        await each.flush()
        assert collector.taken == ["a", "b", "c"]
        assert each.counts == {"sent": 3, "dropped": 0}

    run(check())


def test_a_collector_that_fails_is_told_once_and_costs_spans(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)

    async def check() -> None:
        collector = Collector()
        each = tracer(collector)
        collector.refuses = True
        for _ in range(3):
            each.finished(begun(each))
            await each.flush()
        collector.refuses = False
        each.finished(begun(each, name="last"))
        await each.flush()
        assert collector.taken == ["last"]
        assert each.counts == {"sent": 1, "dropped": 3}

    run(check())
    assert caplog.messages == [
        "tracing: http://collector:4318 does not take spans; they are dropped until it does",
        "tracing: http://collector:4318 takes spans again",
    ]


def test_no_more_waits_than_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "MAX_WAITING", 2)

    async def check() -> None:
        collector = Collector()
        each = tracer(collector)
        for name in ("a", "b", "c"):
            each.finished(begun(each, name=name))
        await each.flush()
        assert (collector.taken, each.counts) == (["b", "c"], {"sent": 2, "dropped": 1})

    run(check())


def test_without_a_collector_nothing_is_traced() -> None:
    async def check() -> None:
        each = open_tracer(TracingSettings())
        made = begun(each, PARENT)
        assert (made.span, each.attempted(made)) == (None, None)
        each.finished(made)
        await each.run()
        await each.flush()

    run(check())


def test_a_collector_without_its_library_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"tracing\.endpoint: needs OpenTelemetry; install kvlb\[otlp\]"):
        open_tracer(TracingSettings(endpoint="http://collector:4318"))


def test_spans_reach_a_collector_as_opentelemetry_writes_them() -> None:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    async def check() -> None:
        async with upstream() as collector:
            bodies: list[bytes] = []

            async def take(request: Received) -> None:
                assert (request.path, request.values("Content-Type")) == ("/v1/traces", ["application/x-protobuf"])
                bodies.append(request.body)
                request.answer(b"")

            collector.answer = take
            each = open_tracer(TracingSettings(endpoint=collector.url, service_name="gateway"))
            made = begun(each, PARENT)
            made.status = 200
            each.finished(made)
            await each.flush()
            assert each.counts == {"sent": 1, "dropped": 0}
            sent = ExportTraceServiceRequest.FromString(bodies[0])
            (resource,) = sent.resource_spans
            assert ("service.name", "gateway") in [
                (each.key, each.value.string_value) for each in resource.resource.attributes
            ]
            whole = resource.scope_spans[0].spans[0]
            assert whole.trace_id.hex() == PARENT[3:35].decode()
            assert whole.parent_span_id.hex() == PARENT[36:52].decode()
            assert made.span == TraceContext(int.from_bytes(whole.trace_id), int.from_bytes(whole.span_id), 1)
            assert whole.name == "POST /v1/completions"

    run(check())


def test_a_collector_that_is_not_there_holds_nobody_up(caplog: pytest.LogCaptureFixture) -> None:
    async def check() -> None:
        each = open_tracer(TracingSettings(endpoint="http://127.0.0.1:9"))
        each.finished(begun(each))
        sending = asyncio.create_task(each.flush())
        turns = 0
        while not sending.done():
            await asyncio.sleep(0.01)
            turns += 1
        assert turns > 1
        assert each.counts == {"sent": 0, "dropped": 1}

    run(check())
    assert [record.levelname for record in caplog.records if record.name.startswith("balancer")] == ["WARNING"]
