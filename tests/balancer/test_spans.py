"""``spans.py``: a request, its stages and its attempts are spans of one trace that fit into each other."""

from itertools import count

from balancer.core import Outcome, Truth
from balancer.records import Record, Tried
from balancer.spans import Span, spans_of
from balancer.stages import Stage, Stages
from balancer.trace_context import TraceContext
from tests.balancer.test_records import decision

OWN, CALLER = TraceContext(7, 100, 1), TraceContext(7, 99, 1)


def traced(*outcomes: Outcome, status: int = 200, parent: TraceContext | None = CALLER) -> Record:
    """A request that was read in 10 ns, and each attempt at which took 5 to connect and 20 more to its first byte."""
    now = 1_000

    def clock() -> int:
        return now

    stages = Stages(clock)
    made = Record("r1", "POST", "/v1/completions", 2.0, stages, parent=parent, span=OWN, model="m", status=status)
    now += 10
    stages.passed(Stage.READ)
    for at, outcome in enumerate(outcomes):
        attempt = Tried(decision(), now, TraceContext(7, 200 + at, 1), outcome=outcome)
        now += 5
        stages.passed(Stage.CONNECT)
        if outcome is Outcome.OK:
            now += 20
            stages.passed(Stage.FIRST_BYTE)
            attempt.truth = Truth(prompt_tokens=101, cached_tokens=80, completion_tokens=7)
        attempt.end = now
        made.attempts.append(attempt)
    made.end = now
    return made


def told(record: Record) -> list[Span]:
    ids = count(300)
    return spans_of(record, lambda: next(ids))


def test_spans_fit_into_each_other() -> None:
    whole, read, lost, good = told(traced(Outcome.UNREACHABLE, Outcome.OK))
    assert (whole.name, whole.span_id, whole.parent, whole.is_server) == ("POST /v1/completions", 100, 99, True)
    assert (read.name, read.span_id, read.parent) == ("read", 300, 100)
    assert [(each.name, each.span_id, each.parent, each.is_client) for each in (lost, good)] == [
        ("attempt", 200, 100, True),
        ("attempt", 201, 100, True),
    ]
    assert (whole.begin, whole.end) == (2_000_000_000, 2_000_000_040)
    assert (read.begin, read.end, lost.begin, lost.end, good.begin) == tuple(
        2_000_000_000 + at for at in (0, 10, 10, 15, 15)
    )
    assert whole.end == good.end


def test_an_attempt_has_its_own_times_and_tokens() -> None:
    _, _, lost, good = told(traced(Outcome.UNREACHABLE, Outcome.OK))
    assert lost.has_failed
    assert "kvlb.first_byte_ms" not in lost.attributes
    assert not good.has_failed
    assert good.attributes["kvlb.first_byte_ms"] == 20 / 1e6
    assert (good.attributes["kvlb.predicted_cached_tokens"], good.attributes["kvlb.cached_tokens"]) == (64, 80)
    assert good.attributes["server.address"] == "http://a:8000"


def test_who_begins_a_trace_has_no_parent() -> None:
    assert told(traced(parent=None))[0].parent is None


def test_what_clients_did_wrong_is_no_failure_of_the_server() -> None:
    assert not told(traced(status=404))[0].has_failed
    assert told(traced(status=404))[0].attributes["error.type"] == "404"
    assert told(traced(status=503))[0].has_failed
    assert told(traced(Outcome.ERROR))[0].has_failed, "a stream that broke off had begun with 200"


def test_nothing_unknown_is_told() -> None:
    for span in told(traced(Outcome.OK)):
        assert None not in span.attributes.values()
