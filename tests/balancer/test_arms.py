"""``balancer/arms.py``: each request has one arm, a conversation keeps its own, and the settings name both."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.arms import Arm, Arms, arm, chosen, in_words, lot
from balancer.core import RouteRequest
from balancer.errors import ConfigError
from balancer.leaning import mixed
from balancer.policies.base import Policy, make
from balancer.settings import convert

FIRST, SECOND = arm("first", make("random")), arm("second", make("least_load"), 0.25)
BOTH = Arms(FIRST, SECOND)


def request(number: int = 0, *, session: int = 0) -> RouteRequest:
    return RouteRequest("m", session=session, request_id=f"r{number}" if number else "")


@pytest.mark.parametrize("of", ["id", "session", "chance"])
def test_each_arm_has_its_share(of: str) -> None:
    count = 0
    for at in range(1, 8_001):
        draw = mixed(at) / 2**64 if of == "chance" else 0.5
        asked = {"id": request(at), "session": request(7, session=at), "chance": request()}[of]
        count += BOTH.of(asked, draw) is SECOND
    assert 1_850 < count < 2_150


@given(st.integers(1, 2**64 - 1), st.integers(1, 99), st.integers(1, 99), st.floats(0, 0.999))
def test_a_conversation_stays_in_its_arm(session: int, one: int, other: int, draw: float) -> None:
    assert BOTH.of(request(one, session=session), draw) is BOTH.of(request(other, session=session), 0.0)


@given(st.text(min_size=1, max_size=9), st.floats(0, 0.999))
def test_an_attempt_that_is_made_again_is_in_the_same_arm(name: str, draw: float) -> None:
    asked = RouteRequest("m", request_id=name)
    assert BOTH.of(asked, draw) is BOTH.of(asked, 0.0)


@pytest.mark.parametrize(("share", "expected"), [(0.0, FIRST), (1.0, None)])
def test_a_share_of_nothing_is_nobody_and_one_of_all_is_everybody(share: float, expected: object) -> None:
    arms = Arms(FIRST, arm("second", make("least_load"), share))
    assert {id(arms.of(request(at), 0.0)) for at in range(200)} == {id(expected or arms.second)}


def test_without_a_second_policy_the_first_has_everything() -> None:
    assert Arms(FIRST).of(request(1), 0.0) is FIRST


def test_lots_for_two_purposes_have_nothing_to_do_with_each_other() -> None:
    pairs = {(lot(request(at), 0.0, "arms") < 0.5, lot(request(at), 0.0, "shadow") < 0.5) for at in range(1, 60)}
    assert len(pairs) == 4
    assert lot(request(1, session=5), 0.0, "x", by_session=False) == lot(request(1), 0.0, "x")


def test_decisions_name_their_policy() -> None:
    assert BOTH.named("second") is SECOND.policy
    assert BOTH.named("first") is BOTH.named("fallback") is FIRST.policy
    assert repr(BOTH) == "<Arms first, second for 0.25>"


def test_each_arm_is_as_its_policy_says() -> None:
    assert (arm("a", make("like_dualmap")).reads_prompt, arm("a", make("like_dualmap")).counts_expected) == (
        True,
        False,
    )
    assert (arm("a", make("cache_aware")).reads_prompt, arm("a", make("cache_aware")).counts_expected) == (False, True)


def test_all_that_are_held_go_in_one_order() -> None:
    fifo, fair = make("predicted_ttft", {"ageing": 1.0}), make("predicted_ttft", {"ageing": 0.1})
    unordered = arm("unordered", make("cache_aware"))
    both = Arms(arm("fifo", fifo), arm("fair", fair, 0.5))
    assert both.second is not None
    assert both.first.rank(1.0, 50_000.0) == both.second.rank(1.0, 50_000.0) == 50_001.0
    with_one = Arms(unordered, arm("fair", fair, 0.5))
    assert with_one.second is not None
    assert with_one.first.rank(1.0, 10.0) is None
    assert with_one.second.rank(1.0, 10.0) == 2.0
    other_way = Arms(arm("fair", fair), unordered)
    assert other_way.second is not None
    assert (other_way.first.rank(1.0, 10.0), other_way.second.rank(1.0, 10.0)) == (2.0, None)


# Settings


def of(**policy: Any) -> Any:
    return chosen(convert({"policy": {"name": "cache_aware", **policy}}).policy)


def parts(arm: Arm) -> tuple[str, Policy, float]:
    return arm.name, arm.policy, arm.share


def test_settings_of_each_are_its_own() -> None:
    made = of(
        name="cache_aware",
        queue_weight=3.0,
        ab={"name": "predicted_ttft", "share": 0.3, "price": 2.0},
        shadow={"name": "like_dualmap", "prefix_tokens": 64},
    )
    assert parts(made.first) == ("cache_aware", make("cache_aware", {"queue_weight": 3.0}), 1.0)
    assert parts(made.second) == ("predicted_ttft", make("predicted_ttft", {"price": 2.0}), 0.3)
    assert parts(made.shadow) == ("like_dualmap", make("like_dualmap", {"prefix_tokens": 64}), 1.0)
    assert (made.first.orders, made.second.orders, made.shadow.orders) == (False, True, False)


def test_the_same_policy_with_other_settings_is_told_apart() -> None:
    made = of(ab={"name": "cache_aware", "queue_weight": 2, "doubt": 0.5}, shadow={"name": "cache_aware"})
    assert (made.first.name, made.second.name) == ("cache_aware", "cache_aware(queue_weight=2, doubt=0.5)")
    assert made.shadow.name == "cache_aware()"
    assert made.second.share == 0.1


def test_all_that_decide_are_told_with_what_is_set_of_them() -> None:
    assert in_words(convert({}).policy) == "predicted_ttft"
    told = {
        "name": "predicted_ttft",
        "ageing": "off",
        "ab": {"name": "cache_aware", "share": 0.025},
        "shadow": {"name": "cache_aware", "queue_weight": 2, "doubt": 0.5},
    }
    assert in_words(convert({"policy": told}).policy) == (
        'predicted_ttft(ageing="off"), cache_aware for 2.5 % of requests, '
        "cache_aware(queue_weight=2, doubt=0.5) on paper for 100 %"
    )


def test_without_these_there_is_one_policy() -> None:
    assert (of().second, of().shadow) == (None, None)


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        ({"ab": {"share": 0.5}}, r"policy.ab.name: missing; name the policy that is tried, or leave out \[policy.ab\]"),
        ({"shadow": {}}, "policy.shadow.name: missing; name the policy"),
        ({"ab": 5}, "policy.ab: expected `object`, got `int`"),
        ({"ab": {"name": "randm"}}, "policy.ab.name: there is no policy 'randm'; there are: cache_aware"),
        (
            {"shadow": {"name": "random", "pric": 1}},
            "policy.shadow.pric: random has no such setting; its settings are: none",
        ),
        ({"ab": {"name": "predicted_ttft", "price": -1}}, "policy.ab.predicted_ttft: .*; its settings are: price"),
        ({"ab": {"name": "random", "share": 1.5}}, "policy.ab.share: 1.5 is not a share; give a number from 0 to 1"),
        ({"shadow": {"name": "random", "share": -0.1}}, "policy.shadow.share: -0.1 is not a share"),
        ({"shadow": {"name": "random", "share": float("nan")}}, "policy.shadow.share: nan is not a share"),
        ({"ab": {"name": "random", "share": "half"}}, "policy.ab.share: expected `float`, got `str`"),
        ({"ab": {"name": "cache_aware"}}, r"policy.ab: cache_aware with these settings is what \[policy\] says"),
        ({"ab": {"name": "cache_aware", "queue_weight": 1.0}}, "name another, or set what differs"),
        ({"shadow": {"name": "my_module:Nothing"}}, "policy.shadow.name: cannot load 'my_module:Nothing'"),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_name(policy: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        of(**policy)
