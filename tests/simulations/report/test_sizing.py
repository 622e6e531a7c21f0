"""``simulations/report/sizing.py``: how many replicas, as runs of several numbers show it, and as one run lets guess."""

import re
from array import array
from typing import Any

import msgspec
import pytest

from simulations.detailed_fleet import Disaggregation, Restart
from simulations.report.document import Document
from simulations.report.finding import Certainty, Finding
from simulations.report.result import Result, result_of
from tests.support.runs import report, result, run


def found(topic: str, *results: Result, of: Document | None = None) -> Finding:
    return next(each for each in (of or report(*results)).findings if each.topic == topic)


@pytest.mark.parametrize(
    ("prompt_busy", "verdict"),
    [
        (0.97, "More than 4"),
        (0.8, "About 5"),
        (0.65, "About 4, as it is"),
        (0.3, "2 at least"),
        (0.0, "1 at least"),
    ],
)
def test_one_size_of_fleet_gives_an_estimate(prompt_busy: float, verdict: str) -> None:
    finding = found("replicas", result(prompt_busy=prompt_busy, cache_tokens=None))
    assert (finding.verdict, finding.certainty) == (verdict, Certainty.ESTIMATE)


@pytest.mark.parametrize(("have", "sweep"), [(4, "4,2"), (40, "40,20,12")])
def test_fewer_are_a_lower_bound_that_has_to_be_run(have: int, sweep: str) -> None:
    finding = found("replicas", result(prompt_busy=0.21, replicas=have, cache_tokens=None))
    assert f"That is a lower bound and was not run: {'fewer caches'}" in finding.answer
    assert f"(--sweep replicas={sweep})" in finding.answer
    assert "could do" not in finding.answer


@pytest.mark.parametrize(("cache_tokens", "verdict"), [(80, "4 at least"), (10_000, "3 at least")])
def test_what_smaller_caches_would_evict_counts_where_fewer_are_told(cache_tokens: int, verdict: str) -> None:
    """Three caches of 80 tokens hit a good deal less than eight of them; three of 10,000 hit all that there is."""
    made = report(result(prompt_busy=0.22, replicas=8, hit=0.66, cache_tokens=cache_tokens))
    assert found("replicas", of=made).verdict == verdict


def test_who_is_down_after_restarts_is_not_idle() -> None:
    def served_by_two(restarts: list[Restart]) -> Finding:
        made = run(requests=400, ttft=0.9, settings={"restarts": msgspec.json.encode(restarts).decode()})
        two = array("q", [3 * (at % 2) for at in range(400)])
        return found("replicas", result_of(msgspec.structs.replace(made, chosen=two)))

    assert served_by_two([]).verdict == "2 at least"
    down = served_by_two([Restart(at=0.0, replica=replica, down=1e6) for replica in (1, 2)])
    assert down.verdict == "3 at least"
    assert any("of the time that it is there (50.0 % they were down after restarts)" in each for each in down.because)


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


def test_a_target_may_be_held_by_fewer_under_another_policy() -> None:
    some = [result(policy, replicas=at, ttft=ttft) for policy, at, ttft in [
        ("cache_aware", 8, 2.0), ("session_sticky", 8, 1.5), ("cache_aware", 9, 1.0), ("cache_aware", 12, 0.9),
    ]]  # fmt: skip
    quicker = [*some, result("cache_aware", replicas=4, ttft=5.0), result("session_sticky", replicas=4, ttft=6.0)]
    finding = found("replicas", of=report(*reversed(quicker), ttft_target=2.3))
    assert finding.verdict == "8"
    assert "under session_sticky. Under cache_aware, whose mean is the shortest, it is 9." in finding.answer


def with_cache(replicas: int, cache_tokens: int, ttft: float, **others: Any) -> Result:
    return result(replicas=replicas, cache_tokens=cache_tokens, ttft=ttft, settings={"blocks": cache_tokens}, **others)


@pytest.mark.parametrize("turned", [False, True], ids=["the small one first", "the large one first"])
def test_a_target_may_be_held_with_another_cache_whatever_comes_first(turned: bool) -> None:
    some = [with_cache(8, 320, 2.0), with_cache(8, 640, 1.5), with_cache(8, 1280, 1.4), with_cache(4, 320, 4.0)]
    finding = found("replicas", of=report(*(reversed(some) if turned else some), ttft_target=2.3))
    assert finding.verdict == "8"
    words = "on 8 replicas with 640 tokens of cache each"
    if turned:  # others are compared with the fleet of 4
        assert f"{words}. Without that, under cache_aware, none of those tried holds it." in finding.answer
    else:
        assert words in finding.answer


def test_a_store_may_hold_a_target() -> None:
    store = msgspec.json.encode({"gbits": 22.5, "name": "25gbe"}).decode()
    plain, stored = result(ttft=2.0), result(ttft=1.0, settings={"store": store})
    finding = found("replicas", of=report(plain, stored, ttft_target=2.0))
    assert finding.verdict == "4"
    assert "(store=25gbe)" in finding.answer


def test_a_fleet_that_nobody_has_or_that_is_asked_less_holds_no_target() -> None:
    pooled, idle = result(ttft=0.5, settings={"pooled": True}), result(ttft=0.5, settings={"load": 0.1})
    assert found("replicas", of=report(result(ttft=2.0), pooled, idle, ttft_target=1.0)).verdict == "More than 4"


def test_a_time_that_is_missed_by_little_does_not_read_as_held() -> None:
    made = result(ttft=1.0)
    just = made.summary.ttft_p95 - 0.0001
    answer = found("replicas", of=report(made, ttft_target=just)).answer
    told = re.findall(r"\d[\d.]* s", answer)
    assert len(set(told)) == len(told) == 2, answer


def test_the_fleet_that_is_the_answer_is_the_one_whose_cache_and_sample_are_judged() -> None:
    some = [with_cache(4, 320, 9.0, evicted=0.2), with_cache(8, 320, 1.0, evicted=0.0, requests=30)]
    findings = {each.topic: each for each in report(*some, ttft_target=3.0).findings}
    assert findings["replicas"].verdict == "8"
    assert findings["cache"].verdict == "Enough as it is"
    assert findings["cache"].answer.startswith("8 replicas with 320 tokens of cache each: Eviction costs 0 points")
    assert findings["sample"].answer.startswith("8 replicas with 320 tokens of cache each: ")
    assert "8 replicas" not in {each.topic: each for each in report(*some[:1]).findings}["cache"].answer


def test_who_refuses_meets_no_target() -> None:
    made = report(*sweep((8, 1.0)), result(replicas=4, ttft=0.5, refused=0.3), ttft_target=3.0)
    finding = found("replicas", of=made)
    assert finding.verdict == "8"


def bounded(least: float | None, *sizes: tuple[int, float]) -> list[Result]:
    """Runs of fleets that no number of replicas makes quicker than ``least``."""
    return [msgspec.structs.replace(each, ttft_p95_least=least) for each in sweep(*sizes)]


def test_what_no_number_of_replicas_can_hold_is_not_a_matter_of_more() -> None:
    finding = found("replicas", of=report(*bounded(1.2, (4, 9.0), (8, 2.0), (256, 1.0)), ttft_target=0.5))
    assert (finding.verdict, finding.certainty) == ("Not by number", Certainty.ESTIMATE)
    assert finding.answer == (
        "95 % of first tokens within 0.500 s is held by no number of these replicas: it takes 1.20 s where nobody waits and "
        "nothing is forgotten. Take faster devices, or allow for more time."
    )


@pytest.mark.parametrize("least", [None, 0.3, 0.5, 99.0], ids=["not known", "less", "just that", "more than was seen"])
def test_what_more_replicas_may_hold_is_a_matter_of_more(least: float | None) -> None:
    finding = found("replicas", of=report(*bounded(least, (4, 9.0), (8, 2.0)), ttft_target=0.5))
    assert (finding.verdict, finding.certainty) == ("More than 8", Certainty.MEASURED)


def test_where_more_were_no_quicker_more_are_not_asked_for() -> None:
    finding = found(
        "replicas", of=report(*bounded(0.3, (4, 9.0), (128, 1.0), (160, 1.0), (256, 0.99)), ttft_target=0.5)
    )
    assert (finding.verdict, finding.certainty) == ("Not by number", Certainty.MEASURED)
    assert "more replicas do not help: it takes 1.45 s with 160, and 1.45 s with 256. Take faster" in finding.answer
    near = found("replicas", of=report(*bounded(0.3, (4, 9.0), (128, 1.0), (160, 1.0)), ttft_target=0.5))
    assert near.verdict == "More than 160", "so few more need not show"


@pytest.mark.parametrize("target", [None, 0.1, 9.0])
def test_requests_that_fit_into_no_replica_are_not_a_matter_of_more(target: float | None) -> None:
    some = [result(replicas=replicas, refused=0.3) for replicas in (4, 8)]
    finding = found("replicas", of=report(*some, ttft_target=target))
    assert (finding.verdict, finding.certainty) == ("Not by number", Certainty.MEASURED)
    assert finding.answer.endswith("of the requests were refused: first give replicas a cache that they fit into.")


def test_fewer_that_were_not_tried_are_mentioned() -> None:
    finding = found("replicas", of=report(result(), ttft_target=3.0))
    assert finding.verdict == "4"
    assert "Fewer were not tried" in finding.answer


def test_where_more_comes_than_can_be_computed_the_estimate_grows_with_it() -> None:
    busy = result(prompt_busy=1.0)
    finding = found("replicas", msgspec.structs.replace(busy, prompt_work=1.7))
    assert (finding.verdict, finding.certainty) == ("More than 4", Certainty.ESTIMATE)
    assert "1.7 times as much comes as 4 replicas can compute" in finding.answer
    assert "it would take about 10." in finding.answer
    assert any("At most 70 % would be 10 replicas" in each for each in finding.because)
    at_the_end = msgspec.structs.replace(result(prompt_busy=0.5, cache_tokens=None), prompt_work=1.7)
    assert found("replicas", at_the_end).verdict == "3 at least", "who is mostly idle may be late with the last ones"


def test_more_that_are_slower_are_told() -> None:
    finding = found("replicas", of=report(*sweep((8, 1.0), (4, 2.0), (6, 9.0)), ttft_target=3.5))
    assert finding.verdict == "4"
    assert "But it takes" in finding.answer
    assert "with 6: more replicas are not quicker in every run." in finding.answer


def test_numbers_that_serve_nobody_are_told() -> None:
    finding = found("replicas", *sweep((8, 1.0), (12, 0.9)), result(replicas=2, refused=1.0))
    assert "With 2 replicas nobody was served." in finding.because


def split(prefill: int, replicas: int, work: float, links: float, busy: float = 0.2) -> Result:
    settings: dict[str, Any] = {"disaggregation": msgspec.json.encode(Disaggregation(prefill=prefill)).decode()}
    made = result(replicas=replicas, settings=settings, prompt_busy=busy, pace=0.02)
    return msgspec.structs.replace(made, prompt_work=work, link_busy=links)


@pytest.mark.parametrize(
    ("work", "links", "verdict", "words"),
    [
        (0.6, 0.1, "About 6, as it is", "with 2 that compute prompts and 4 that answer"),
        (
            0.3,
            0.1,
            "5 at least",
            "the work alone takes 1 that compute prompts and 4 that answer. That is a lower bound, and",
        ),
        (0.01, 0.0, "5 at least", "was not run: run it before you take any away; now 95 % of first tokens come within"),
        (
            1.4,
            0.1,
            "About 8",
            "Those that compute prompts have too much to do: it would take about 4 that compute prompts",
        ),
        (0.6, 1.05, "About 8", "The links of those that answer have too much to do: it would take about 2"),
        (0.3, 1.05, "About 7", "1 that compute prompts and 6 that answer would do rather than 2 and 4"),
    ],
    ids=["enough", "less", "never too few", "prompts", "links", "other shares"],
)
def test_with_a_split_each_side_is_told_and_its_links(work: float, links: float, verdict: str, words: str) -> None:
    finding = found("replicas", split(2, 6, work, links))
    assert (finding.verdict, finding.certainty) == (verdict, Certainty.ESTIMATE)
    assert words in finding.answer
    assert any("of that of their links" in each for each in finding.because)
