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
