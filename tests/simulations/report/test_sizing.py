import pytest

from simulations.report.document import Document
from simulations.report.finding import Certainty, Finding
from simulations.report.result import Result
from tests.support.runs import report, result


def found(topic: str, *results: Result, of: Document | None = None) -> Finding:
    return next(each for each in (of or report(*results)).findings if each.topic == topic)


# How much cache


def test_little_evicted_is_enough_cache() -> None:
    finding = found("cache", result(evicted=0.004))
    assert finding.verdict == "Enough as it is"
    assert "0.4 points" in finding.answer


def test_less_cache_may_do_as_well() -> None:
    finding = found(
        "cache",
        result(evicted=0.0, cache_tokens=640, settings={"blocks": 40}),
        result("round_robin", evicted=0.0, cache_tokens=640, settings={"blocks": 40}),
        result(evicted=0.001, cache_tokens=320, settings={"blocks": 20}),
    )
    assert finding.verdict == "Less would do"
    assert "320 tokens per replica do as well" in finding.answer


def test_what_more_cache_brings_is_measured_where_it_was_run() -> None:
    base = [
        result(name, evicted=0.19, elsewhere=0.02, settings={"blocks": 40}) for name in ("cache_aware", "round_robin")
    ]
    finding = found(
        "cache", *base, result(hit=0.65, evicted=0.04, ttft=0.7, cache_tokens=1280, settings={"blocks": 80})
    )
    assert (finding.verdict, finding.certainty) == ("More would pay", Certainty.MEASURED)
    assert "Eviction costs 19 points of hit, routing 2 points." in finding.answer
    assert "bring 15 points of it back" in finding.answer


def test_more_cache_that_makes_nothing_faster_does_not_pay() -> None:
    base = [result(name, evicted=0.19, settings={"blocks": 40}) for name in ("cache_aware", "round_robin")]
    finding = found("cache", *base, result(hit=0.52, evicted=0.17, cache_tokens=1280, settings={"blocks": 80}))
    assert finding.verdict == "More would not pay"


def test_what_was_not_run_is_estimated_by_the_curve() -> None:
    finding = found("cache", result(evicted=0.19, elsewhere=0.02, cache_tokens=64, prompt_busy=0.9))
    assert finding.certainty is Certainty.ESTIMATE
    assert finding.verdict == "More would pay"
    assert "Double it before you add replicas" in finding.answer
    assert any("One LRU cache as large as all of them together (256 tokens)" in each for each in finding.because)


def test_twice_the_cache_may_change_nothing() -> None:
    finding = found("cache", result(evicted=0.19, cache_tokens=10**9))
    assert finding.verdict == "Twice is not enough"


@pytest.mark.parametrize("with_bounds", [True, False])
def test_caches_of_unknown_size_can_be_too_small(with_bounds: bool) -> None:
    made = report(result(evicted=0.19, cache_tokens=None), with_bounds=with_bounds)
    assert found("cache", of=made).verdict == "More would help"


def test_what_the_order_of_eviction_costs_is_named() -> None:
    finding = found("cache", result(cache_tokens=640))  # 160 blocks together
    assert any("the order of eviction" in each for each in finding.because)


# How many replicas


@pytest.mark.parametrize(
    ("prompt_busy", "verdict"),
    [
        (0.97, "More than 4"),
        (0.8, "About 5"),
        (0.65, "About 4, as it is"),
        (0.3, "About 2 could do"),
        (0.0, "About 1 could do"),
    ],
)
def test_one_size_of_fleet_gives_an_estimate(prompt_busy: float, verdict: str) -> None:
    finding = found("replicas", result(prompt_busy=prompt_busy))
    assert (finding.verdict, finding.certainty) == (verdict, Certainty.ESTIMATE)


def sweep(*sizes: tuple[int, float]) -> list[Result]:
    """The first size is the one that policies are compared on."""
    some = [result(replicas=replicas, ttft=ttft) for replicas, ttft in sizes]
    return [*some[:1], result("round_robin", replicas=sizes[0][0], ttft=99.0), *some[1:]]


def test_of_several_sizes_the_last_that_made_a_difference() -> None:
    finding = found("replicas", *sweep((8, 1.0), (4, 9.0), (6, 2.0), (12, 0.95)))
    assert (finding.verdict, finding.certainty) == ("8", Certainty.MEASURED)
    assert "12 replicas make that" in finding.answer
    assert "6 make it" in finding.answer


def test_the_largest_that_was_tried_may_be_too_small() -> None:
    assert found("replicas", *sweep((8, 1.0), (4, 9.0))).verdict == "8 or more"


def test_the_smallest_that_was_tried_may_be_enough() -> None:
    finding = found("replicas", *sweep((8, 1.0), (4, 1.05)))
    assert finding.verdict == "4"
    assert "make it" not in finding.answer


def test_a_target_is_met_by_the_fewest() -> None:
    some = sweep((8, 1.0), (4, 9.0), (6, 2.0), (12, 0.95))
    made = report(*some, ttft_target=3.5)
    assert found("replicas", of=made).verdict == "6"
    made = report(*some, ttft_target=0.5)
    assert found("replicas", of=made).verdict == "More than 12"


def test_who_refuses_meets_no_target() -> None:
    made = report(*sweep((8, 1.0)), result(replicas=4, ttft=0.5, refused=0.3), ttft_target=3.0)
    finding = found("replicas", of=made)
    assert finding.verdict == "8"


def test_fewer_that_were_not_tried_are_mentioned() -> None:
    finding = found("replicas", of=report(result(), ttft_target=3.0))
    assert finding.verdict == "4"
    assert "Fewer were not tried" in finding.answer
