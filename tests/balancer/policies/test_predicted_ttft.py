"""``policies/predicted_ttft.py``: the shortest time to the first token, with a price on computing."""

from math import exp, inf, nan

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.core import Asked, Knowledge
from balancer.errors import ConfigError
from balancer.policies.base import make
from balancer.policies.predicted_ttft import PredictedTtft
from balancer.speeds import PREFILL_SPEED
from tests.support.routing import candidate

ONCE = PredictedTtft(price=1.0)


def test_the_cost_is_the_predicted_time_to_the_first_token() -> None:
    candidates = [
        candidate("a", prompt=1000, wait=0.5, speed=100.0),
        candidate("b", prompt=1000, cached=900, wait=2.0, speed=100.0),
        candidate("c", prompt=1000, speed=50.0),
    ]
    assert ONCE.costs(candidates) == pytest.approx([10.5, 3.0, 20.0])
    assert ONCE.choose(candidates, 0.0).replica == "b"


def test_waiting_for_the_holder_is_weighed_against_computing_elsewhere() -> None:
    free = candidate("b", prompt=1000, speed=100.0)
    assert ONCE.choose([candidate("a", prompt=1000, cached=1000, wait=9.9, speed=100.0), free], 0.0).replica == "a"
    assert ONCE.choose([candidate("a", prompt=1000, cached=1000, wait=10.1, speed=100.0), free], 0.0) is free


def test_a_price_is_worth_that_much_more_waiting() -> None:
    holder, free = (
        candidate("a", prompt=1000, cached=1000, wait=25.0, speed=100.0),
        candidate("b", prompt=1000, speed=100.0),
    )
    assert PredictedTtft(price=3.0).choose([holder, free], 0.0) is holder
    assert PredictedTtft(price=2.0).choose([holder, free], 0.0) is free


@pytest.mark.parametrize(
    ("utilisation", "price"),
    [(0.0, 1.0), (0.5, 2.0), (0.75, 4.0), (0.9, 10.0), (0.99, 100.0), (1.0, 100.0), (3.0, 100.0)],
)
def test_without_a_number_the_price_is_what_the_fleet_has_no_room_for(utilisation: float, price: float) -> None:
    (cost,) = PredictedTtft().costs([candidate("a", speed=100.0)], Asked(utilisation=utilisation))
    assert cost == pytest.approx(price * 1.0)


def test_the_highest_price_can_be_set_and_a_given_one_is_no_other() -> None:
    (cost,) = PredictedTtft(max_price=3.0).costs([candidate("a", speed=100.0)], Asked(utilisation=0.9))
    assert cost == pytest.approx(3.0)
    (cost,) = PredictedTtft(price=20.0).costs([candidate("a", speed=100.0)], Asked(utilisation=0.5))
    assert cost == pytest.approx(20.0)


def test_a_price_without_a_number_decides_as_the_same_number_does() -> None:
    holder, free = (
        candidate("a", prompt=1000, cached=1000, wait=25.0, speed=100.0),
        candidate("b", prompt=1000, speed=100.0),
    )
    assert PredictedTtft().choose([holder, free], 0.0, Asked(utilisation=0.1)) is free
    assert PredictedTtft().choose([holder, free], 0.0, Asked(utilisation=0.8)) is holder


@pytest.mark.parametrize(("knowledge", "cost"), [("exact", 0.2), ("learned", 0.2), ("partial", 0.28), ("blind", 0.28)])
def test_of_what_is_guessed_a_share_is_not_believed(knowledge: str, cost: float) -> None:
    guessed = candidate("a", cached=80, speed=100.0, knowledge=Knowledge(knowledge))
    assert ONCE.costs([guessed]) == pytest.approx([cost])
    assert PredictedTtft(price=1.0, doubt=0.0).costs([guessed]) == pytest.approx([0.2])


def test_one_that_starts_slowly_costs_as_much_more() -> None:
    assert ONCE.costs([candidate("a", wait=1.0, speed=100.0, share=0.5)]) == pytest.approx([4.0])


def test_of_equals_the_fewest_in_flight_are_chosen_then_chance() -> None:
    busy, free, other = candidate("a", flight=3), candidate("b", flight=1), candidate("c", flight=1)
    assert [ONCE.choose([busy, free, other], draw).replica for draw in (0.0, 0.99)] == ["b", "c"]


@given(cached=st.integers(0, 100), wait=st.floats(0, 10))
def test_one_whose_speed_nobody_knows_is_taken_for_usual(cached: int, wait: float) -> None:
    (cost,) = ONCE.costs([candidate("a", cached=cached, wait=wait)])
    assert cost == pytest.approx(wait + (100 - cached) / PREFILL_SPEED)


def test_what_is_expected_counts_unless_asked_otherwise() -> None:
    assert PredictedTtft().counts_expected


def test_a_conversation_moves_for_more_than_nothing() -> None:
    at_home = candidate("a", prompt=1000, speed=10_000.0, wait=0.04, has_session=True)
    elsewhere = candidate("b", prompt=1000, speed=10_000.0)
    assert ONCE.choose([at_home, elsewhere], 0.0) is at_home
    assert ONCE.choose([msgspec.structs.replace(at_home, wait=0.06), elsewhere], 0.0) is elsewhere
    assert ONCE.choose([msgspec.structs.replace(at_home, has_session=False), elsewhere], 0.0) is elsewhere


def evicting(*turnovers: float, seconds: float = 10.0, reuse: float = 1.0) -> list[float]:
    """What caches that turn over in so many seconds cost, beyond computing there, by the seconds that this takes.

    Negative: of a cache whose size nobody knows.
    """
    candidates = [
        candidate("a", prompt=1000, speed=1000 / seconds, turnover=abs(each), room_tokens=100 if each > 0 else 0)
        for each in turnovers
    ]
    policy, asked = PredictedTtft(price=1.0, eviction_seconds=300.0), Asked(reuse=reuse)
    return [cost / seconds - 1 for cost in policy.costs(candidates, asked)]


def test_what_is_pushed_out_is_computed_again_unless_it_was_old() -> None:
    assert evicting(300.0) == pytest.approx([exp(-1)])
    assert evicting(3000.0) == pytest.approx([0.0], abs=1e-4)
    assert evicting(inf) == [0.0]
    assert evicting(300.0, 300.0, reuse=0.4) == pytest.approx([0.4 * exp(-1)] * 2), "as far as anything is ever reused"


def test_a_cache_whose_size_nobody_knows_is_no_empty_one() -> None:
    assert evicting(300.0, 3.0, -inf) == pytest.approx([exp(-1), exp(-0.01) / (1 - exp(-0.01) + exp(-1)), exp(-1)])
    assert evicting(-inf, -inf) == [0.0, 0.0]


def test_where_all_caches_are_equally_full_it_is_paid_for_once() -> None:
    assert evicting(3.0, 3.0) == pytest.approx([exp(-0.01)] * 2)


def test_where_another_one_has_room_it_is_paid_for_as_often_as_it_would_come_back() -> None:
    again = exp(-1)
    assert evicting(300.0, inf) == pytest.approx([again + again**2 / (1 - again), 0.0])
    assert evicting(1e-9, inf) == pytest.approx([10.0, 0.0]), "but not without end"


@pytest.mark.parametrize(("skipped", "cached", "goes"), [(10, 800, "b"), (9, 800, "a"), (10, 5000, "a")])
def test_one_that_was_skipped_for_long_is_tried_by_a_request_that_loses_little(
    skipped: int, cached: int, goes: str
) -> None:
    policy = PredictedTtft(trial_seconds=0.2, trial_after=5)
    holder = candidate("a", prompt=8000, cached=cached, speed=8000)
    unused = candidate("b", prompt=8000, speed=8000, skipped=skipped)
    assert policy.choose([holder, unused], 0.0).replica == goes
    assert msgspec.structs.replace(policy, trial_seconds=0.0).choose([holder, unused], 0.0) is holder


def test_a_conversation_is_nobodys_trial() -> None:
    holder, unused = candidate("a", cached=90), candidate("b", skipped=100)
    assert PredictedTtft().choose([holder, unused], 0.0) is unused
    assert PredictedTtft().choose([holder, unused], 0.0, Asked(goes_on=True)) is holder


def test_two_requests_with_long_contexts_are_more_to_do_than_six_short_ones() -> None:
    """All of them are being answered; nothing waits, and nobody knows how full the caches are."""
    long, short = (
        candidate("a", prompt=1000, flight=2, active_tokens=200_000),
        candidate("b", prompt=1000, flight=6, active_tokens=600),
    )
    assert PredictedTtft().choose([long, short], 0.0) is short
    assert PredictedTtft(context_share=0.0).choose([long, short], 0.0) is long, "by their number alone"
    assert PredictedTtft().choose([msgspec.structs.replace(long, in_flight=1), short], 0.0).replica == "a", (
        "one may have ended"
    )


def test_a_long_prefix_is_copied_before_its_holder_answers_all_who_want_it() -> None:
    def left_at(tokens: int, policy: PredictedTtft) -> int:
        free = candidate("b", prompt=tokens)
        for flight in range(1, 1000):
            holder = candidate("a", prompt=tokens, cached=tokens, flight=flight, active_tokens=flight * tokens)
            if policy.choose([holder, free], 0.0) is free:
                return flight
        raise AssertionError("never")

    assert left_at(16_000, PredictedTtft(context_share=0.0)) > 150
    assert left_at(16_000, PredictedTtft()) < 70


@pytest.mark.parametrize("turnover", [1.0, inf])
def test_what_nobody_holds_does_not_go_to_a_small_cache_behind_a_long_line(turnover: float) -> None:
    sick = candidate("a", prompt=2000, wait=30.0, flight=40, room_tokens=10_000)
    well = candidate("b", prompt=2000, room_tokens=1_000_000, turnover=turnover)
    assert PredictedTtft().choose([sick, well], 0.0, Asked(reuse=0.9, utilisation=0.5)) is well


def test_a_price_that_is_set_decides_where_hits_differ() -> None:
    """Each of these weights of what is computed has an effect of its own."""
    fleet = [
        candidate("a", prompt=10_000, cached=10_000, wait=20.0),
        candidate("b", prompt=10_000, cached=5_000, wait=2.0),
        candidate("c", prompt=10_000),
    ]
    chosen = [PredictedTtft(price=price).choose(fleet, 0.0).replica for price in (0.0, 1.0, 5.0, 100.0)]
    assert chosen == ["c", "c", "b", "a"]


def test_a_thrashed_cache_is_left_for_an_empty_one_before_the_prefix_is_worth_it_alone() -> None:
    full, empty = (
        candidate("a", prompt=5000, cached=4000, turnover=2.0, room_tokens=100),
        candidate("b", prompt=5000, room_tokens=100),
    )
    asked, also_full = Asked(reuse=0.9), msgspec.structs.replace(empty, turnover=2.0)
    assert PredictedTtft().choose([full, empty], 0.0, asked) is empty
    assert PredictedTtft().choose([full, also_full], 0.0, asked) is full


@pytest.mark.parametrize(
    "field",
    ["price", "max_price", "eviction", "request_tokens", "memory_seconds", "trial_seconds", "ageing", "feed_seconds"],
)
@pytest.mark.parametrize("value", [inf, -inf, nan, -1.0])
def test_what_is_no_number_to_reckon_with_is_refused(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=field):
        make("predicted_ttft", {field: value})


def test_the_largest_settings_make_costs_that_can_be_compared() -> None:
    largest = PredictedTtft(price=1e9, eviction=1e9, eviction_seconds=1e9, request_tokens=1e9, memory_seconds=1e9)
    candidates = [
        candidate("a", prompt=1000, cached=cached, in_flight=9, usage=1.0, room_tokens=10, turnover=0.0)
        for cached in (0, 1000)
    ]
    costs = largest.costs(candidates, Asked(0, utilisation=1.0, reuse=1.0))
    assert all(cost < inf for cost in costs)
    assert costs[1] < costs[0]
