"""``simulations/results.py``: the figures of a run, and what counts in which of them."""

from array import array

import msgspec
import pytest

from simulations.results import REFUSED, summarise
from tests.support.runs import run


def test_whole_answers_and_their_tokens_are_timed() -> None:
    """Four answers: of 11 tokens, of one (which has no second), one that was cut off, and one that nobody took."""
    some = msgspec.structs.replace(
        run(requests=4),
        chosen=array("q", [0, 0, 1, REFUSED]),
        ttfts=array("d", [1.0, 2.0, 3.0, 0.0]),
        latencies=array("d", [1.5, 2.0, 3.1, 0.0]),
        outputs=array("q", [11, 1, 0, 0]),
    )
    summary = summarise(some)
    assert summary.ttft_mean == 2.0
    assert summary.latency_mean == 1.75
    assert summary.latency_p95 == 2.0
    assert [summary.tpot_mean, summary.tpot_p95] == pytest.approx([0.05, 0.05])


def test_the_95th_percentile_of_tokens_is_over_answers() -> None:
    some = run(requests=100, ttft=0.0)
    paces = [0.01] * 94 + [0.5] * 6
    slow = msgspec.structs.replace(
        some,
        latencies=array("d", [10 * each for each in paces]),
        ttfts=array("d", [0.0] * 100),
        outputs=array("q", [11] * 100),
    )
    summary = summarise(slow)
    assert [summary.tpot_p95, summary.latency_p95] == pytest.approx([0.5, 5.0])
    assert summary.tpot_mean == pytest.approx(0.0394)


def test_without_tokens_one_by_one_nothing_is_known_of_them() -> None:
    summary = summarise(run())
    assert (summary.tpot_mean, summary.tpot_p95) == (None, None)
    assert summary.latency_p95 == pytest.approx(summary.ttft_p95 + 0.2)
