"""``simulations/report/worth.py``: a fleet with a store or a split beside the same one without, and what is said of it."""

from typing import Any

import msgspec
import pytest

from simulations.detailed_fleet import Disaggregation
from simulations.report.finding import Certainty, Finding
from simulations.report.result import Result
from simulations.store import StoreSettings
from tests.support.runs import report, result


def store(**fields: Any) -> dict[str, Any]:
    return {"store": msgspec.json.encode(StoreSettings(**fields)).decode()}


def split(**fields: Any) -> dict[str, Any]:
    return {"disaggregation": msgspec.json.encode(Disaggregation(**fields)).decode()}


def found(topic: str, *results: Result, target: float | None = None) -> Finding | None:
    return next((each for each in report(*results, ttft_target=target).findings if each.topic == topic), None)


def of_store(*results: Result, target: float | None = None) -> Finding:
    finding = found("store", *results, target=target)
    assert finding is not None
    return finding


def of_split(*results: Result, target: float | None = None) -> Finding:
    finding = found("disaggregation", *results, target=target)
    assert finding is not None
    return finding


@pytest.mark.parametrize(
    "results",
    [
        [result(), result("round_robin")],
        [result(settings=store()), result(settings=store(gbits=10.0))],
        [result(), result(settings=store(loads="never"))],
        [result(), result("round_robin", settings=store())],
        [result(), result(replicas=8, settings=store())],
        [result(), result(settings={"store": "a word"})],
    ],
    ids=["neither", "always with", "nobody reads it", "another policy", "another fleet", "no table"],
)
def test_where_both_were_not_run_nothing_is_said(results: list[Result]) -> None:
    assert found("store", *results) is None
    assert found("disaggregation", *results) is None


def test_a_store_that_makes_first_tokens_quicker_is_worth_it() -> None:
    finding = of_store(
        result(ttft=1.0, hit=0.5), result("round_robin", ttft=3.0), result(ttft=0.5, hit=0.75, settings=store())
    )
    assert finding.verdict == "Yes"
    assert finding.answer == (
        "With a store (gbits=100) cache_aware takes 0.496 s to the first token on average instead of 0.992 s. 75.0 % of prompt "
        "tokens are not computed instead of 50.0 %."
    )
    assert any("kvlb plan --store-price" in each for each in finding.because)
    assert any("One seed" in each for each in finding.because)


@pytest.mark.parametrize(("ttft", "verdict"), [(0.94, "It helps a little"), (1.0, "No"), (1.5, "No")])
def test_a_store_may_help_little_or_not(ttft: float, verdict: str) -> None:
    assert of_store(result(ttft=1.0), result(ttft=ttft, settings=store())).verdict == verdict


def test_what_is_the_same_is_said_once() -> None:
    finding = of_store(result(), result(settings=store()))
    assert "0.992 s to the first token on average, as without it. 50.0 % of prompt tokens" in finding.answer


def test_of_several_stores_the_quickest_is_told_and_all_are_shown() -> None:
    finding = of_store(
        result(ttft=1.0),
        result(ttft=0.9, settings=store(gbits=10.0)),
        result(ttft=0.6, settings=store(gbits=25.0, loads="always")),
    )
    assert "With a store (gbits=25, loads=always) cache_aware" in finding.answer
    assert [each.split(":")[0] for each in finding.because[:3]] == [
        "Without",
        "gbits=10, loads=mixed",
        "gbits=25, loads=always",
    ]


def test_who_is_best_there_may_be_another_policy() -> None:
    finding = of_store(
        *(result(ttft=1.0), result("round_robin", ttft=3.0)),
        *(result(ttft=0.6, settings=store()), result("round_robin", ttft=0.4, settings=store())),
    )
    assert any("There round_robin is the best policy: 0.397 s" in each for each in finding.because)


def test_the_fleet_without_may_come_last() -> None:
    assert of_store(result(ttft=0.5, settings=store()), result(ttft=1.0)).verdict == "Yes"


def test_who_refuses_less_is_better_whatever_it_takes() -> None:
    finding = of_store(result(ttft=1.0, refused=0.3), result(ttft=2.0, settings=store()))
    assert finding.verdict == "Yes"
    assert finding.answer.endswith("; 0.0 % of requests are refused instead of 38.0 %.")
    assert of_store(result(ttft=1.0), result(ttft=0.5, refused=0.3, settings=store())).verdict == "No"


@pytest.mark.parametrize(
    ("ttft", "pace", "verdict"),
    [
        (1.0, 0.05, "Yes"),
        (0.5, 0.1, "Yes"),
        (1.2, 0.05, "For whole answers"),
        (0.8, 0.15, "For first tokens"),
        (1.2, 0.1, "No"),
        (1.0, 0.1, "No"),
    ],
)
def test_a_split_is_weighed_by_first_tokens_and_by_whole_answers(ttft: float, pace: float, verdict: str) -> None:
    together = result(ttft=1.0, pace=0.1)
    finding = of_split(together, result(ttft=ttft, pace=pace, settings=split(prefill=1)))
    assert finding.verdict == verdict


def test_a_split_is_told_with_the_time_of_answers_and_of_their_tokens() -> None:
    finding = of_split(
        result(ttft=1.0, pace=0.1),
        result(ttft=0.9, pace=0.09, settings=split(prefill=1)),
        result(ttft=1.0, pace=0.05, settings=split(prefill=2)),
    )
    assert finding.answer == (
        "With a split (prefill=2) cache_aware takes 0.992 s to the first token on average, as without it; 1.49 s to the end of "
        "the answer instead of 1.99 s; 50 ms for each token of it instead of 0.100 s. 50.0 % of prompt tokens are not "
        "computed, as without it."
    )


def test_intervals_that_meet_are_no_difference() -> None:
    some = [result(ttft=ttft, seed=at) for at, ttft in enumerate((0.8, 1.6))]
    some += [result(ttft=ttft, seed=at, settings=store()) for at, ttft in enumerate((0.79, 1.59))]
    assert of_store(*some).verdict == "No"


def test_a_store_that_serves_nobody_is_not_worth_it_and_one_without_which_nobody_is_served_is() -> None:
    finding = of_store(result(), result(refused=1.0, settings=store()))
    assert finding.verdict == "No"
    assert "With a store (gbits=100) cache_aware serves nobody; without it: 0.992 s" in finding.answer
    assert "gbits=100: nobody is served." in finding.because
    finding = of_store(result(refused=1.0), result(settings=store()))
    assert finding.verdict == "Yes"
    assert finding.answer.startswith("Without a store nobody is served. With it (gbits=100) cache_aware takes 0.992 s")


def test_of_stores_that_are_as_quick_the_first_token_decides_and_then_who_needs_least() -> None:
    some = [
        result(ttft=3.0, pace=0.1),
        result(ttft=0.61, pace=0.1, settings=store(gbits=100.0)),
        result(ttft=0.60, pace=0.1, settings=store(gbits=400.0)),
        result(ttft=0.62, pace=0.1, settings=store(gbits=10.0)),
        result(ttft=0.60, pace=0.1, settings=store(gbits=100.0, tokens=10**9)),
    ]
    assert "With a store (gbits=100, tokens=1000000000)" in of_store(*some).answer, "a bound is less than none"
    assert "With a store (gbits=100)" in of_store(*some[:3]).answer
    slow = result(ttft=0.68, pace=0.098, settings=store(gbits=1.0))
    assert "With a store (gbits=100)" in of_store(*some[:3], slow).answer, "as quick in all, but for the first token"


def test_a_store_whose_worth_chance_hides_is_neither_worth_it_nor_not() -> None:
    some = [result(ttft=ttft, seed=at) for at, ttft in enumerate((40.0, 46.0))]
    some += [result(ttft=ttft, seed=at, settings=store()) for at, ttft in enumerate((10.0, 22.0))]
    finding = of_store(*some)
    assert (finding.verdict, finding.certainty) == ("Not known", Certainty.UNKNOWN)
    assert "--seeds" in finding.answer


@pytest.mark.parametrize(
    ("ttft", "pace", "target", "verdict", "words"),
    [
        (1.2, 0.05, None, "For whole answers", ""),
        (
            1.2,
            0.05,
            1.6,
            "No",
            "with it they come within 1.76 s, without it they come within 1.47 s; with it that is not held.",
        ),
        (1.0, 0.05, 1.6, "Yes", "95 % of first tokens are to come within 1.60 s: with it they come within 1.47 s"),
        (1.2, 0.05, 2.0, "For whole answers", "both hold that."),
        (0.8, 0.15, 1.3, "Yes", "without it they come within 1.47 s; only with it that is held."),
        (0.8, 0.15, 1.0, "Not by itself", "neither holds that."),
        (1.2, 0.1, 1.0, "No", "neither holds that."),
    ],
)
def test_a_split_is_advised_where_it_holds_the_goal_alone_and_never_where_it_breaks_it(
    ttft: float, pace: float, target: float | None, verdict: str, words: str
) -> None:
    together = result(ttft=1.0, pace=0.1)
    finding = of_split(together, result(ttft=ttft, pace=pace, settings=split(prefill=1)), target=target)
    assert (finding.verdict, finding.certainty) == (verdict, Certainty.MEASURED)
    assert words in finding.answer
    assert ("are to come within" in finding.answer) is (target is not None)


def test_of_several_splits_one_that_holds_the_goal_is_told_though_another_is_quicker() -> None:
    some = [
        result(ttft=1.0, pace=0.1),
        result(ttft=1.2, pace=0.02, settings=split(prefill=1)),
        result(ttft=0.8, pace=0.09, settings=split(prefill=2)),
    ]
    assert "With a split (prefill=1)" in of_split(*some).answer
    finding = of_split(*some, target=1.3)
    assert finding.verdict == "Yes"
    assert "With a split (prefill=2)" in finding.answer


def test_a_store_is_weighed_by_the_goal_too_and_who_refuses_holds_none() -> None:
    assert of_store(result(ttft=1.0), result(ttft=0.95, settings=store()), target=1.45).verdict == "Yes"
    finding = of_store(result(ttft=1.0), result(ttft=0.5, refused=0.3, settings=store()), target=1.6)
    assert finding.verdict == "No"
    assert "with it they come within 0.737 s, and 38.0 % of requests are refused, without it" in finding.answer
    finding = of_store(result(refused=1.0), result(settings=store()), target=1.0)
    assert finding.verdict == "Not by itself"
    assert finding.answer.endswith("without it nobody is served; neither holds that.")


def test_a_goal_that_chance_may_hold_or_break_decides_nothing() -> None:
    some = [result(ttft=ttft, seed=at, pace=0.1) for at, ttft in enumerate((0.9, 1.3))]
    some += [result(ttft=ttft, seed=at, pace=0.1, settings=split(prefill=1)) for at, ttft in enumerate((0.8, 1.2))]
    middle = [1.5 * ttft for ttft in (1.0, 1.1)]
    finding = of_split(*some, target=sum(middle) / 2)
    assert (finding.verdict, finding.certainty) == ("Not known", Certainty.UNKNOWN)
    assert "--seeds" in finding.answer
