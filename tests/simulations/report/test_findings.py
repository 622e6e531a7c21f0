import msgspec
import pytest

from simulations.report.document import Document, document
from simulations.report.finding import Certainty, Finding
from simulations.report.result import Result
from tests.support import runs
from tests.support.runs import report, result


def found(topic: str, *results: Result, of: Document | None = None) -> Finding:
    return next(each for each in (of or report(*results)).findings if each.topic == topic)


def routing(*results: Result) -> Finding:
    return found("routing", *results)


def test_where_tokens_come_from_is_counted_in_a_hundred() -> None:
    finding = found("tokens", result(hit=0.34, evicted=0.19, elsewhere=0.0004))
    assert "34 came from a cache" in finding.answer
    assert "19 had been evicted" in finding.answer
    assert "less than 0.1 lay on another replica" in finding.answer
    assert finding.verdict.startswith("34.0 % from a cache, of ")


def test_cache_aware_routing_is_needed_where_it_is_faster() -> None:
    finding = routing(result("cache_aware", ttft=1.0), result("least_load", ttft=3.0), result("round_robin", ttft=4.0))
    assert finding.verdict == "Yes"
    assert "least_load, the best of those run that look at load alone, takes 3.0 times as long" in finding.answer
    assert any("cache_aware and round_robin" in each for each in finding.because)
    assert any("One seed" in each for each in finding.because)


def test_a_small_gain_is_called_one() -> None:
    assert routing(result("cache_aware", ttft=1.0), result("round_robin", ttft=1.06)).verdict == "It helps a little"


def test_round_robin_may_be_as_good() -> None:
    finding = routing(result("cache_aware", ttft=1.0, hit=0.6), result("round_robin", ttft=1.02, hit=0.5))
    assert finding.verdict == "No"
    assert "round_robin is as good here" in finding.answer
    assert "10 points" in finding.answer


def test_affinity_may_be_enough() -> None:
    some = [result("cache_aware", ttft=1.0), result("session_sticky", ttft=1.01), result("round_robin", ttft=4.0)]
    assert routing(*some).verdict == "Affinity is enough"
    assert "as good" in routing(*some).answer
    best = [result("cache_aware", ttft=1.5), result("session_sticky", ttft=1.0), result("round_robin", ttft=4.0)]
    assert "is the best of all" in routing(*best).answer
    worse = [result("cache_aware", ttft=1.0), result("session_sticky", ttft=1.5), result("round_robin", ttft=4.0)]
    assert routing(*worse).verdict == "Yes"


def test_fewer_refusals_are_a_gain_too() -> None:
    finding = routing(result("cache_aware", ttft=1.0), result("round_robin", ttft=0.9, refused=0.2))
    assert finding.verdict == "Yes"
    assert "refuses" in finding.answer


def test_bounds_of_all_requests_say_nothing_where_some_were_refused() -> None:
    def made(refused: float) -> Document:
        some = [
            result("cache_aware", ttft=1.0, hit=0.6, refused=refused),
            result("round_robin", ttft=3.0, refused=refused),
        ]
        return report(*some, of=runs.trace(1))  # of which nothing can be had

    assert found("routing", of=made(0.0)).verdict == "No"
    assert found("routing", of=made(0.1)).verdict == "Yes"
    assert found("tokens", of=made(0.1)).verdict == "60.0 % from a cache"


def test_overlapping_intervals_are_no_difference() -> None:
    some = [result("cache_aware", ttft=ttft, seed=at) for at, ttft in enumerate((0.5, 1.5))]
    some += [result("round_robin", ttft=ttft, seed=at) for at, ttft in enumerate((0.51, 1.51))]
    assert routing(*some).verdict == "No"
    assert any("2 seeds" in each for each in routing(*some).because)


def test_means_that_are_apart_where_chance_is_large_are_neither_a_yes_nor_a_no() -> None:
    some = [result("cache_aware", ttft=ttft, seed=at) for at, ttft in enumerate((1.2, 1.7))]
    some += [result("random", ttft=ttft, seed=at) for at, ttft in enumerate((2.8, 3.4))]
    finding = routing(*some)
    assert (finding.verdict, finding.certainty) == ("Not known", Certainty.UNKNOWN)
    assert "--seeds" in finding.answer
    some += [result(name, ttft=ttft, seed=2) for name, ttft in (("cache_aware", 1.45), ("random", 3.1))]
    assert routing(*some).verdict == "Yes"


def test_a_fleet_that_is_named_twice_is_no_second_seed() -> None:
    some = [result(name, ttft=ttft) for name, ttft in (("cache_aware", 1.0), ("round_robin", 3.0)) for _ in range(2)]
    assert any(each.startswith("One seed") for each in routing(*some).because)


@pytest.mark.parametrize(
    ("policies", "missing"), [(["cache_aware"], "looks at load alone"), (["round_robin", "least_load"], "knows caches")]
)
def test_what_was_not_run_is_not_known(policies: list[str], missing: str) -> None:
    finding = routing(*(result(policy) for policy in policies))
    assert (finding.verdict, finding.certainty) == ("Not known", Certainty.UNKNOWN)
    assert missing in finding.answer


def test_prompts_that_share_nothing_need_no_cache() -> None:
    alone = runs.trace(1)
    made = report(result("cache_aware", ttft=1.0), result("round_robin", ttft=4.0), of=alone)
    finding = found("routing", of=made)
    assert finding.verdict == "No"
    assert "0.0 %" in finding.answer


def test_a_trace_without_blocks_says_nothing_of_routing_or_cache() -> None:
    made = report(result(), of=runs.trace(has_blocks=False))
    assert [each.topic for each in made.findings] == ["tokens", "routing", "replicas"]
    assert found("routing", of=made).certainty is Certainty.UNKNOWN


def test_without_runs_nothing_is_said() -> None:
    assert [each.verdict for each in report().findings] == ["Nothing"]
    assert report(result(refused=1.0)).findings[0].answer == "Every request was refused."


def test_other_names_can_be_told_apart() -> None:
    results = [result("mine", ttft=1.0), result("theirs", ttft=3.0)]
    made = document(runs.trace(), results, None, versions={}, blind=frozenset({"theirs"}))
    assert found("routing", of=made).verdict == "Yes"


def test_a_fleet_that_serves_nobody_is_not_what_policies_are_compared_on() -> None:
    small = [result(name, refused=1.0, replicas=1) for name in ("cache_aware", "round_robin")]
    large = [result(name, ttft=ttft, replicas=4) for name, ttft in (("cache_aware", 1.0), ("round_robin", 3.0))]
    made = report(*small, *large)
    assert found("tokens", of=made).verdict != "Nothing"
    assert found("routing", of=made).verdict == "Yes"
    assert "With 1 replica nobody was served." in found("replicas", of=made).because


def test_seeds_that_bring_the_same_are_no_interval() -> None:
    some = [
        msgspec.structs.replace(result(name, ttft=ttft), seed=seed)
        for name, ttft in (("cache_aware", 1.0), ("round_robin", 3.0))
        for seed in (1, 2)
    ]
    assert any("2 seeds brought the same: none of it was left to chance." in each for each in routing(*some).because)
    assert not any("±" in each for each in routing(*some).because)
