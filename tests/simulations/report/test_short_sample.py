"""``simulations/report/short_sample.py``: what is too short is said, and why, and nothing where it is long enough."""

import msgspec
import pytest

from simulations.report.finding import Certainty
from simulations.report.short_sample import shortness, unsteadiness
from simulations.sample import Sample
from tests.support.runs import report, result

LONG = Sample(requests=10_000, filled=9.0, halves=(1.0, 1.1), between=(0.95, 1.05))


def changed(**fields: object) -> Sample:
    return msgspec.structs.replace(LONG, **fields)


def test_a_long_sample_is_not_talked_about() -> None:
    assert shortness(LONG) == []
    assert shortness(changed(filled=None)) == []
    assert unsteadiness(LONG) == unsteadiness(LONG, 1.1) == ""


@pytest.mark.parametrize(
    ("sample", "percentile", "told"),
    [
        (changed(filled=0.3), 95, "Caches were not yet full: all that was computed is 30.0 % of what they hold"),
        (
            changed(filled=1.5),
            95,
            "Caches were full in the second half only: all that was computed fills them 1.5 times.",
        ),
        (changed(requests=150), 95, "Of 150 requests 7 are beyond the 95th percentile."),
        (changed(requests=900), 99, "Of 900 requests 9 are beyond the 99th percentile."),
        (changed(between=(0.8, 1.2)), 95, "Chance alone puts the 95th percentile anywhere from 0.800 s to 1.20 s."),
    ],
)
def test_what_is_short_is_told_with_why(sample: Sample, percentile: int, told: str) -> None:
    (found,) = shortness(sample, percentile)
    assert found.startswith(told)


@pytest.mark.parametrize("halves", [(1.0, 1.3), (1.3, 1.0)])
def test_halves_that_differ_are_told(halves: tuple[float, float]) -> None:
    assert f"within {halves[0]:.2f} s in the first half" in unsteadiness(changed(halves=halves))


def test_a_half_that_does_not_hold_is_told() -> None:
    assert unsteadiness(LONG, 1.05).endswith("within 1.10 s in the second.")
    assert unsteadiness(changed(requests=1, halves=(0.0, 5.0))) == ""


def test_the_report_says_so_only_where_there_is_something_to_say() -> None:
    assert [each for each in report(result()).findings if each.topic == "sample"] == []
    few = report(result(requests=60, cache_tokens=100_000))
    (finding,) = [each for each in few.findings if each.topic == "sample"]
    assert (finding.verdict, finding.certainty) == ("Too short", Certainty.MEASURED)
    assert "Caches were not yet full" in finding.answer
    assert "Of 60 requests 3 are beyond the 95th percentile." in finding.answer
    slower = result()
    assert slower.summary.sample is not None
    sample = msgspec.structs.replace(slower.summary.sample, halves=(1.0, 2.0))
    slower = msgspec.structs.replace(slower, summary=msgspec.structs.replace(slower.summary, sample=sample))
    (finding,) = [each for each in report(slower).findings if each.topic == "sample"]
    assert finding.verdict == "Its halves differ"
