import pytest

from simulations.report.comparison import (
    alike,
    base,
    cache_settings,
    cells,
    is_faster,
    kind_name,
    ranked,
    spread,
    varied_settings,
)
from tests.support.runs import result


def test_runs_that_differ_in_their_seed_are_one_cell() -> None:
    (cell,) = cells([result(seed=1, hit=0.4), result(seed=2, hit=0.5), result(seed=3, hit=0.6)])
    assert cell.seeds == 3
    assert cell.hit.mean == pytest.approx(0.5, abs=0.001)
    assert cell.hit.high - cell.hit.mean == pytest.approx(
        4.303 * 0.1 / 3**0.5, abs=0.001
    )  # Student's t, 2 degrees of freedom


def test_one_seed_has_no_width() -> None:
    assert spread([2.0]) == spread([2.0, 2.0])
    assert spread([]).mean == 0
    assert spread([0.0] * 40 + [1.0] * 40).high > 0.5


def test_policies_are_compared_on_the_fleet_that_most_ran_on() -> None:
    every = cells(
        [result("a", replicas=2), result("a"), result("b"), result("c", settings={"pooled": True}, replicas=4)]
    )
    assert [(cell.policy, cell.fleet.replicas) for cell in base(every)] == [("a", 4), ("b", 4)]
    assert base([]) == []


def test_pooled_fleets_are_compared_only_where_there_is_no_other() -> None:
    pooled = [result(name, settings={"pooled": True}) for name in "abc"]
    assert [cell.policy for cell in base(cells([*pooled, result("a", settings={"pooled": False})]))] == ["a"]
    assert len(base(cells(pooled))) == 3


def test_the_best_refuses_least_and_then_is_fastest() -> None:
    some = cells(
        [
            result("slow", ttft=2.0),
            result("refusing", ttft=0.1, refused=0.3),
            result("fast"),
            result("none", refused=1.0),
        ]
    )
    assert [cell.policy for cell in ranked(some)] == ["fast", "slow", "refusing", "none"]


def test_a_sweep_of_the_cache_is_found_by_what_it_is_called() -> None:
    small, large = (result(cache_tokens=16 * blocks, settings={"blocks": blocks, "speed": 1}) for blocks in (10, 20))
    every = cells([small, large, result(cache_tokens=160, settings={"blocks": 10, "speed": 2})])
    assert cache_settings(every[:2]) == ["blocks"]
    assert len(alike(every[0], every, "cache_tokens", "blocks")) == 2


def test_larger_fleets_are_comparable_if_as_much_came() -> None:
    four = result(replicas=4, settings={"load": 0.9})
    same, more = result(replicas=6, settings={"load": 0.6}), result(replicas=6, settings={"load": 0.9})
    every = cells([four, same, more])
    assert alike(every[0], every, "replicas") == every[:2]


def test_settings_in_which_runs_differ() -> None:
    some = [
        result(replicas=2, cache_tokens=16, settings={"blocks": 1, "speed": 1, "lag": 0.0, "n": 2}),
        result(replicas=4, cache_tokens=32, settings={"blocks": 2, "speed": 1, "lag": 0.5, "n": 4}),
        result(replicas=4, cache_tokens=32, settings={"blocks": 2, "speed": 1, "lag": 0.0, "n": 4}),
    ]
    assert varied_settings(some) == ["lag"]


def test_chance_makes_no_difference() -> None:
    one, other, slower = cells([result("a", ttft=1.0), result("b", ttft=1.02), result("c", ttft=1.3)])
    assert not is_faster(one, other)
    assert is_faster(one, slower)
    assert not is_faster(slower, one)
    wide = cells([result("a", seed=1, ttft=0.5), result("a", seed=2, ttft=1.5), result("b", seed=1, ttft=1.5)])
    assert not is_faster(wide[0], wide[1])


@pytest.mark.parametrize(
    ("policy", "name"),
    [
        ("cache_aware(queue_weight=2)", "cache_aware"),
        ("my.module:Policy x=1", "my.module:Policy"),
        ("", ""),
        ("<x>", "<x>"),
    ],
)
def test_policies_have_a_name_and_settings(policy: str, name: str) -> None:
    assert kind_name(policy) == name
