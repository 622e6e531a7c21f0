"""``commands/descriptors.py``: as many open files as the system allows, and no more publishers than they are enough for."""

import resource

import pytest

from balancer.commands import descriptors

ENDLESS = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "asked_for", "left"),
    [
        (1_024, 4_096, 4_096, 4_096),
        (1_024, 1 << 30, 65_536, 65_536),
        (1_024, ENDLESS, 65_536, 65_536),
        (4_096, 4_096, None, 4_096),
        (100_000, 1 << 30, None, 100_000),
        (ENDLESS, ENDLESS, None, 65_536),
    ],
)
def test_the_limit_is_raised_as_far_as_it_may_be(
    soft: int, hard: int, asked_for: int | None, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: asked.append(limits))
    assert descriptors.raise_limit() == left
    assert asked == ([] if asked_for is None else [(asked_for, hard)])


def test_few_open_files_are_enough_for_few_publishers() -> None:
    assert [descriptors.publishers_within(limit) for limit in (64, 1_024, 65_536)] == [1, 128, 10_880]
