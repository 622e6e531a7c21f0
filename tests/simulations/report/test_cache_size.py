"""``simulations/report/cache_size.py``: how much cache, as runs show it, and as the curve lets guess."""

import msgspec
import pytest

from simulations.report.document import Document
from simulations.report.finding import Certainty, Finding
from simulations.report.result import Result
from tests.support.runs import report, result


def found(topic: str, *results: Result, of: Document | None = None) -> Finding:
    return next(each for each in (of or report(*results)).findings if each.topic == topic)


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


def test_less_cache_does_not_do_where_it_misses_the_target() -> None:
    larger = result(evicted=0.0, ttft=1.0, cache_tokens=640, settings={"blocks": 40})
    smaller = result(evicted=0.001, ttft=1.02, cache_tokens=320, settings={"blocks": 20})
    between = (larger.summary.ttft_p95 + smaller.summary.ttft_p95) / 2
    assert found("cache", larger, smaller).verdict == "Less would do"
    assert found("cache", of=report(larger, smaller, ttft_target=between)).verdict == "Enough as it is"


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


def test_what_restarts_have_thrown_away_is_no_want_of_cache() -> None:
    made = result(evicted=0.1)
    restarted = report(msgspec.structs.replace(made, forgotten=int(0.96 * made.misses.evicted)))
    assert found("cache", of=report(made)).verdict == "More would pay"
    finding = found("cache", of=restarted)
    assert finding.verdict == "Enough as it is"
    assert "Restarts cost 9.6 points: what they throw away no cache would have had." in finding.because
    assert "0.4 had been evicted (the cache), 9.6 were lost in restarts" in found("tokens", of=restarted).answer
