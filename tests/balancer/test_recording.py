"""``balancer/recording.py``: what is told of requests, and what can never be told."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from balancer.core import Decision, Outcome, Replica, Truth
from balancer.recording import MAX_WAITING, Recorder, hidden
from indexer.index import ReplicaId

SECRET, OTHER = bytes(range(32)), bytes(range(1, 33))
REPLICA = Replica(ReplicaId("one"), "http://one")


class Keys:
    def __init__(self, keys: Sequence[int]) -> None:
        self._keys = keys

    def keys(self, count: int, /) -> Sequence[int]:
        return self._keys


def decision(lease: int, length: int = 64, *, cached: int = 16, model: str = "m", knows: bool = True) -> Decision:
    return Decision(lease, REPLICA, length, cached, True, knows, "p", (), model)


def told(recorder: Recorder) -> list[dict[str, Any]]:
    return [json.loads(line) for line in recorder.take().splitlines()]


def record(recorder: Recorder, lease: int, keys: Sequence[int], length: int = 64, **changes: Any) -> None:
    recorder.sent(decision(lease, length, **changes), (length,), [Keys(keys)], 16, 100.0)
    recorder.ended(lease, Outcome.OK, Truth(length, 32, 7), 103.5)


def test_a_request_is_told_when_it_has_ended() -> None:
    recorder = Recorder(16, SECRET)
    recorder.sent(decision(5), (64,), [Keys([1, 2, 3, 4])], 16, 100.25)
    assert told(recorder) == []
    recorder.started(5, 101.0)
    recorder.started(5, 102.0)
    recorder.started(6, 102.0)
    recorder.ended(5, Outcome.OK, Truth(64, 32, 7), 103.5)
    (line,) = told(recorder)
    ids = line.pop("hash_ids")
    assert len(set(ids)) == 4
    assert all(0 <= each < 2**53 for each in ids)
    assert line == {
        "kvlb_recording": 1,
        "timestamp": 100.25,
        "input_length": 64,
        "output_length": 7,
        "block_size": 16,
        "model": "m",
        "replica": "one",
        "predicted_cached_tokens": 16,
        "cached_tokens": 32,
        "outcome": "ok",
        "ttft": 0.75,
        "seconds": 3.25,
    }
    assert told(recorder) == []


def test_what_begins_alike_stays_alike_within_one_recording_and_model() -> None:
    first, second = Recorder(16, SECRET), Recorder(16, OTHER)
    for recorder in (first, second):
        record(recorder, 1, [1, 2, 3, 4])
        record(recorder, 2, [1, 2, 8, 9])
        record(recorder, 3, [1, 2, 3, 4], model="n")
    one, two, other = (line["hash_ids"] for line in told(first))
    assert [mine == theirs for mine, theirs in zip(one, two, strict=True)] == [True, True, False, False]
    assert not set(one) & set(other)
    assert not set(one) & {each for line in told(second) for each in line["hash_ids"]}
    assert not set(one) & {1, 2, 3, 4, *[hidden(key, SECRET) for key in range(5)]}  # nor is the secret used as it is


def test_nothing_of_the_secret_or_the_keys_is_shown() -> None:
    recorder = Recorder(16, SECRET)
    record(recorder, 1, [0xDEADBEEF] * 4)
    shown = repr(recorder) + recorder.take().decode()
    assert str(0xDEADBEEF) not in shown
    assert SECRET.hex() not in shown
    with pytest.raises(ValueError, match="32 bytes"):
        Recorder(16, b"short")


@pytest.mark.parametrize(
    ("wanted", "size", "blocks", "places"),
    [
        (16, 16, 16, [0, 1, 2, 3]),
        (32, 16, 32, [1, 3]),
        (33, 16, 48, [2]),
        (1, 16, 16, [0, 1, 2, 3]),
        (100, 16, 112, []),
    ],
)
def test_blocks_are_told_as_coarse_as_is_wanted(wanted: int, size: int, blocks: int, places: list[int]) -> None:
    exact, coarse = Recorder(16, SECRET), Recorder(wanted, SECRET)
    for recorder in (exact, coarse):
        recorder.sent(decision(1, 79), (79,), [Keys([1, 2, 3, 4, 5, 6])], size, 0)
        recorder.ended(1, Outcome.OK, None, 1)
    (all_,), (line,) = told(exact), told(coarse)
    assert len(all_["hash_ids"]) == 4
    assert line["block_size"] == blocks
    assert line["hash_ids"] == [all_["hash_ids"][at] for at in places]


@pytest.mark.parametrize("outcome", Outcome)
def test_attempts_that_failed_are_not_told(outcome: Outcome) -> None:
    recorder = Recorder(16, SECRET)
    recorder.sent(decision(1), (64,), [], 16, 0)
    recorder.ended(1, outcome, None, 1)
    recorder.ended(1, outcome, None, 1)
    assert [line["outcome"] for line in told(recorder)] == ([outcome] if outcome in {"ok", "cancelled"} else [])
    assert "0 under way" in repr(recorder)


def test_several_prompts_are_several_requests() -> None:
    recorder = Recorder(16, SECRET)
    recorder.sent(decision(1, 48), (32, 16), [Keys([1, 2]), Keys([3])], 16, 0)
    recorder.ended(1, Outcome.OK, Truth(48, 16, 8), 1)
    lines = told(recorder)
    assert [(line["input_length"], line["output_length"], len(line["hash_ids"])) for line in lines] == [
        (32, 4, 2),
        (16, 4, 1),
    ]
    assert all(line["cached_tokens"] is None for line in lines)


def test_lengths_that_nobody_knew_are_the_engines() -> None:
    recorder = Recorder(16, SECRET)
    for lease, truth in ((1, Truth(70)), (2, None)):
        recorder.sent(decision(lease, 50, knows=False), (), [], 16, 0)
        recorder.ended(lease, Outcome.CANCELLED, truth, 1)
    assert [(line["input_length"], line["output_length"], line["hash_ids"]) for line in told(recorder)] == [
        (70, None, []),
        (50, None, []),
    ]


def test_who_reads_too_slowly_is_told_what_is_missing() -> None:
    recorder = Recorder(16, SECRET)
    for lease in range(MAX_WAITING + 3):
        recorder.sent(decision(lease), (64,), [], 16, lease)
        recorder.ended(lease, Outcome.OK, None, lease)
    lines = told(recorder)
    assert lines[0] == {"kvlb_recording": 1, "lost": 3}
    assert len(lines) == 1 + MAX_WAITING
    assert lines[1]["timestamp"] == 3
