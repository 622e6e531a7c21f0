"""``balancer/siblings/report.py``: what is a report comes through whole, and what is none is refused with the reason."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.siblings import report as module
from balancer.siblings.report import ModelLoad, ReplicaLoad, Report, ReportError, decode, encode

GOOD: dict[str, Any] = {
    "gateway": "g1",
    "sequence": 7,
    "replicas": {"a:8000": {"in_flight": 3, "waiting": 1, "queued_tokens": 512, "active_tokens": 4096}, "b:8000#1": {}},
    "models": {"m": {"work": 0.5, "busy": 1.25}},
    "mark": 9,
    "sessions": {"18446744073709551615": "a:8000"},
}


def changed(**changes: Any) -> bytes:
    return json.dumps({**GOOD, **changes}).encode()


def test_what_is_written_is_read() -> None:
    report = Report(
        gateway="g1",
        sequence=7,
        replicas={
            "a:8000": ReplicaLoad(
                in_flight=3, waiting=1, queued_tokens=512, active_tokens=4096, given=40, written=9000
            ),
            "b:8000#1": ReplicaLoad(),
        },
        models={"m": ModelLoad(work=0.5, busy=1.25)},
        mark=9,
        sessions={2**64 - 1: "a:8000"},
    )
    assert decode(encode(report)) == report


def test_a_newer_gateway_may_tell_more() -> None:
    assert decode(changed(more={"than": "we know"})).sequence == 7
    assert decode(changed()).replicas["b:8000#1"] == ReplicaLoad()


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", "cannot be read"),
        (b"<html>", "cannot be read"),
        (b"[" * 100_000, "cannot be read"),
        (b'{"status": "ok"}', "gateway"),
        (changed(gateway=""), "gateway"),
        (changed(gateway="a\nb"), "control character"),
        (changed(sequence=-1), "sequence"),
        (changed(sequence=1.5), "sequence"),
        (changed(sequence=10**40), "sequence"),
        (changed(replicas=[]), "replicas"),
        (changed(replicas={"a\r": {}}), "control character"),
        (changed(replicas={"a": {"in_flight": -1}}), "in_flight"),
        (changed(replicas={"a": {"in_flight": "3"}}), "in_flight"),
        (changed(replicas={"a": {"in_flight": 10**9}}), "in_flight"),
        (changed(replicas={"a": {"in_flight": 1, "waiting": 2}}), "of 1 requests at a, 2 wait"),
        (changed(replicas={"a": {"queued_tokens": None}}), "queued_tokens"),
        (changed(models={"m": {"work": -0.1}}), "work"),
        (changed().replace(b"1.25", b"NaN"), "cannot be read"),
        (changed().replace(b"1.25", b"1e999"), "cannot be read"),
        (changed(sessions={"x": "a"}), "cannot be read"),
        (b" " * (module.MAX_BYTES + 1), "is longer than"),
    ],
)
def test_what_is_none_is_refused_with_the_reason(body: bytes, told: str) -> None:
    with pytest.raises(ReportError, match=told):
        decode(body)


@pytest.mark.parametrize(
    ("bound", "field", "many"),
    [("MAX_REPLICAS", "replicas", {"a": {}, "b": {}}), ("MAX_MODELS", "models", {"m": {}, "n": {}}),
     ("MAX_SESSIONS", "sessions", {"1": "a", "2": "a"})],
)  # fmt: skip
def test_so_much_is_not_kept(monkeypatch: pytest.MonkeyPatch, bound: str, field: str, many: dict[str, Any]) -> None:
    monkeypatch.setattr(module, bound, 1)
    with pytest.raises(ReportError, match="more than 1"):
        decode(changed(**{"replicas": {}, "models": {}, "sessions": {}, field: many}))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(sorted(GOOD)), json_values, max_size=6))
def test_whatever_comes_is_a_report_or_refused(changes: dict[str, Any]) -> None:
    with contextlib.suppress(ReportError):
        report = decode(json.dumps({**GOOD, **changes}).encode(errors="replace"))
        assert all(0 <= each.waiting <= each.in_flight for each in report.replicas.values())


@given(st.binary(max_size=200))
def test_bytes_are_refused_and_nothing_else_happens(body: bytes) -> None:
    with pytest.raises(ReportError):
        decode(body)
