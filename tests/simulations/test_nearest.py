"""``simulations/nearest.py``: where no fleet holds, what comes nearest, and whether more replicas would help."""

from collections.abc import Mapping

import pytest

from simulations.hardware.estimate import Hardware
from simulations.nearest import more_help, nearest
from simulations.planning import Plan, Tried
from simulations.results import Summary

SUMMARY = Summary("p", 10, 0, 0.5, 0, 0, 0, 0, 0, 0, 0, 1.0, 0.5)


def tried(distances: Mapping[int, float]) -> tuple[Tried, ...]:
    """Of a target of 2 s."""
    return tuple(Tried(replicas, "ttft_p95", 2 * far, far) for replicas, far in sorted(distances.items()))


def plan(distances: Mapping[int, float], replicas: int, gpu: str = "h100") -> Plan:
    return Plan(Hardware("m", gpu), "random", replicas, replicas, float(replicas), SUMMARY, tried=tried(distances))


@pytest.mark.parametrize(
    ("distances", "helps"),
    [
        ({4: 4.0, 16: 1.30, 32: 1.27}, True),
        ({4: 4.0, 16: 1.30, 32: 1.28}, False),
        ({4: 4.0, 16: 1.27, 32: 1.30}, False),
        ({16: 1.27, 24: 1.2, 25: 1.2}, True),
        ({32: 9.0}, True),
        ({32: float("inf")}, False),
    ],
    ids=["brings more", "brings less", "slower", "too near to compare", "alone", "refused"],
)
def test_more_replicas_help_where_the_last_that_came_brought_something(
    distances: Mapping[int, float], helps: bool
) -> None:
    assert more_help(tried(distances)) is helps


def test_a_policy_that_still_gains_is_a_reason_for_more_though_another_is_nearer() -> None:
    stuck, gaining = plan({16: 1.28, 32: 1.27}, 32), plan({16: 8.0, 32: 4.0}, 32, "l40s")
    said = "The nearest is 1 x h100 with random, and more replicas do not help it: ttft_p95 is 2.56 s with 16, and 2.54 s with "
    said += "32."
    found = nearest([stuck, gaining])
    assert found is not None
    assert (found.plan, found.more_help) == (stuck, True)
    assert found.why == f"{said} They still bring 1 x l40s with random nearer, where ttft_p95 is 8.00 s with 32."
    found = nearest([stuck])
    assert found is not None
    assert (found.more_help, found.why) == (False, said)
    found = nearest([gaining, stuck])
    assert found is not None
    assert found.more_help
    assert found.why == "The nearest is 1 x l40s with random: ttft_p95 is 8.00 s with 32, the most there may be."
    assert nearest([]) is None
