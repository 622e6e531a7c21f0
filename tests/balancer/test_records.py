"""``records.py``: a line says what there is to say of a request, of whatever ended it, and never more than is bounded."""

import json

import msgspec

from balancer.core import Decision, Outcome, Truth
from balancer.records import MAX_TEXT, Record, Tried
from balancer.stages import Stage, Stages
from balancer.trace_context import TraceContext
from tests.support.routing import replica


def decision(**changes: object) -> Decision:
    plain = Decision(
        lease=1,
        replica=replica("a"),
        prompt_tokens=100,
        cached_tokens=64,
        is_predicted=True,
        knows_tokens=True,
        policy="cache_aware",
        candidates=(),
    )
    return msgspec.structs.replace(plain, **changes)


def record(**changes: object) -> Record:
    """Of a request that took 5 ms, 2 of them to read it."""
    times = iter([1_000, 2_001_000])
    stages = Stages(lambda: next(times))
    stages.passed(Stage.READ)
    made = Record("r1", "POST", "/v1/completions", 0.0, stages, end=5_001_000)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def line(made: Record) -> dict[str, object]:
    told: dict[str, object] = json.loads(msgspec.json.encode(made.line("then")))
    return told


def test_a_request_that_never_got_far_has_a_short_line() -> None:
    assert line(record(status=400, error="the body is not JSON")) == {
        "time": "then",
        "request_id": "r1",
        "method": "POST",
        "path": "/v1/completions",
        "status": 400,
        "seconds": 0.005,
        "error": "the body is not JSON",
        "stages": {"read": 2.0},
    }


def test_a_line_says_what_the_engine_said() -> None:
    lost = Tried(decision(), 0, outcome=Outcome.UNREACHABLE)
    truth = Truth(prompt_tokens=101, cached_tokens=80, completion_tokens=7, finish_reason="stop")
    last = Tried(decision(replica=replica("b")), 0, outcome=Outcome.OK, truth=truth)
    told = line(record(status=200, attempts=[lost, last], span=TraceContext(255, 1, 1), client="10.0.0.9", tenant="t"))
    assert {name: told[name] for name in told if name not in {"time", "method", "path", "seconds", "stages"}} == {
        "request_id": "r1",
        "status": 200,
        "client": "10.0.0.9",
        "tenant": "t",
        "trace_id": f"{255:032x}",
        "replica": "b",
        "attempts": 2,
        "outcome": "ok",
        "prompt_tokens": 101,
        "predicted_cached_tokens": 64,
        "cached_tokens": 80,
        "completion_tokens": 7,
        "finish_reason": "stop",
    }


def test_a_guess_is_no_count_of_tokens() -> None:
    assert "prompt_tokens" not in line(record(attempts=[Tried(decision(knows_tokens=False), 0)]))
    assert line(record(attempts=[Tried(decision(), 0)]))["prompt_tokens"] == 100


def test_what_clients_choose_is_cut() -> None:
    long = "x" * 10_000
    told = line(record(request_id=long, model=long, error=long, tenant=long))
    assert {len(str(told[name])) for name in ("request_id", "model", "error", "tenant")} == {MAX_TEXT}


def test_records_share_nothing() -> None:
    one, other = record(), record()
    one.attempts.append(Tried(decision(), 0))
    assert other.attempts == []
