"""``balancer/slow_start.py``: who is new gets little at first, and nobody is held back where all are new."""

import pytest

from balancer.errors import ConfigError
from balancer.slow_start import SlowStart, SlowStartSettings, check
from indexer.index import ReplicaId

A, B = ReplicaId("a"), ReplicaId("b")


def old_and_new() -> SlowStart:
    """``A`` for an hour, ``B`` since 3,600 s."""
    owner = SlowStart(SlowStartSettings(seconds=10.0, least_share=0.2))
    owner.see([A], 0.0)
    owner.see([A, B], 3600.0)
    return owner


@pytest.mark.parametrize(("after", "share"), [(0, 0.2), (1, 0.2), (5, 0.5), (9, 0.9)])
def test_the_share_grows_with_time(after: float, share: float) -> None:
    assert old_and_new().shares([A, B], 3600.0 + after) == [1.0, pytest.approx(share)]


def test_it_ends() -> None:
    assert old_and_new().shares([A, B], 3610.0) is None


def test_who_was_away_begins_anew() -> None:
    owner = old_and_new()
    owner.see([B], 4000.0)
    owner.see([A, B], 4100.0)
    assert owner.shares([A, B], 4100.0) == [0.2, 1.0]


def test_where_all_are_new_nobody_is_held_back() -> None:
    owner = SlowStart(SlowStartSettings())
    assert owner.shares([A, B], 7.0) == [1.0, 1.0]


def test_one_that_is_first_seen_by_a_request_is_new() -> None:
    owner = old_and_new()
    assert owner.shares([A, ReplicaId("c")], 5000.0) == [1.0, 0.2]


def test_it_can_be_turned_off() -> None:
    owner = SlowStart(SlowStartSettings(seconds=0))
    owner.see([A], 0.0)
    assert owner.shares([A, B], 3600.0) is None


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        (SlowStartSettings(seconds=-1), "slow_start.seconds"),
        (SlowStartSettings(least_share=0), "slow_start.least_share"),
    ],
)
def test_settings_that_cannot_be_used_are_named(settings: SlowStartSettings, name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        check(settings)
