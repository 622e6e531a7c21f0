"""``timings.py``: each stage of each request is in the bucket that it belongs to."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.stages import Stage, Stages
from balancer.timings import BOUNDS, StageTimings


def took(seconds: float) -> Stages:
    times = iter([0, int(seconds * 1e9)])
    stages = Stages(lambda: next(times))
    stages.passed(Stage.TOKENIZE)
    return stages


@given(st.lists(st.floats(0, 1000), max_size=20))
def test_a_bucket_counts_who_took_no_longer(seconds: list[float]) -> None:
    timings = StageTimings()
    for each in seconds:
        timings.add(took(each))
    buckets = timings.buckets(Stage.TOKENIZE)
    assert [bound for bound, _ in buckets] == [*map(str, BOUNDS), "+Inf"]
    counts = [count for _, count in buckets]
    assert counts == [
        *(sum(int(each * 1e9) <= int(bound * 1e9) for each in seconds) for bound in BOUNDS), len(seconds)
    ]  # fmt: skip
    assert all(a <= b for a, b in pairwise(counts))
    assert timings.seconds(Stage.TOKENIZE) == pytest.approx(sum(seconds), abs=1e-6)
    assert timings.seconds(Stage.READ) == 0


def test_what_was_taken_is_counted_where_it_is_added_and_nowhere_else() -> None:
    here, there, whole = StageTimings(), StageTimings(), StageTimings()
    for at, seconds in enumerate((0.001, 0.2, 0.2, 700.0)):
        here.add(took(seconds))
        whole.add(took(seconds))
        if at % 2:
            there.add_all(here.take())
    assert (here.take().counts, here.seconds(Stage.TOKENIZE)) == ({}, 0)
    for stage in Stage:
        assert there.buckets(stage) == whole.buckets(stage)
        assert there.seconds(stage) == whole.seconds(stage)
