"""``simulations/hub.py``: what a place gives is divided among those that load, and nothing of it is lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulations.hub import Hub
from simulations.store import Reader


def ends(hub: Hub, loads: list[tuple[float, int, float]]) -> dict[int, float]:
    """When each of these has come: (when it is asked for, over which way, bytes), by its place in the list."""
    found: dict[int, float] = {}

    def until(now: float) -> None:
        while (due := hub.due()) is not None and due <= now:
            found.update(dict.fromkeys(hub.advance(due), due))
        hub.advance(now)

    for at, (when, way, size) in enumerate(loads):
        until(when)
        hub.load(when, (way, 0), size, at)
    until(1e18)
    assert hub.due() is None
    return found


@pytest.mark.parametrize(
    ("loads", "told"),
    [
        ([(0.0, 1, 100.0)], [11.0]),
        ([(0.0, 1, 100.0), (0.0, 2, 100.0)], [11.0, 11.0]),
        ([(0.0, 1, 100.0), (0.0, 2, 100.0), (0.0, 3, 100.0)], [16.0, 16.0, 16.0]),
        ([(0.0, 1, 100.0), (0.0, 2, 100.0), (0.0, 3, 50.0)], [13.5, 13.5, 8.5]),
        ([(0.0, 1, 100.0), (0.0, 1, 100.0)], [11.0, 22.0]),
        ([(5.0, 1, 0.0)], [6.0]),
    ],
    ids=["its own way", "two ways", "three share two", "the rest for the others", "one way", "nothing"],
)
def test_what_is_given_at_once_is_divided(loads: list[tuple[float, int, float]], told: list[float]) -> None:
    """A way carries 10 bytes a second, the place gives 20, and the first byte takes a second."""
    found = ends(Hub(10.0, 20.0, 1.0), loads)
    assert [found[at] for at in range(len(loads))] == pytest.approx(told)


def test_who_is_dropped_leaves_its_share_to_the_others() -> None:
    hub = Hub(10.0, 10.0, 0.0)
    hub.load(0.0, (1, 0), 100.0, "a")
    hub.load(0.0, (2, 0), 100.0, "b")
    assert hub.due() == 20.0
    assert hub.advance(10.0) == []
    hub.drop((1, 0))
    hub.drop((3, 0))
    assert hub.due() == 15.0
    assert hub.advance(15.0) == ["b"]
    assert hub.loading_seconds == {(1, 0): 10.0, (2, 0): 15.0}, "until it was dropped its way was taken"


LOADS = st.lists(st.tuples(st.floats(0, 50), st.integers(0, 3), st.floats(0, 1000)), min_size=1, max_size=12).map(
    lambda loads: sorted(loads, key=lambda each: each[0])
)


@given(LOADS, st.sampled_from([0.0, 0.5]))
def test_a_place_without_end_is_a_way_for_each(loads: list[tuple[float, int, float]], latency: float) -> None:
    found = ends(Hub(10.0, 40.0, latency), loads)
    readers = [Reader() for _ in range(4)]
    alone = [readers[way].load(when, latency + size / 10.0) for when, way, size in loads]
    assert [found[at] for at in range(len(loads))] == pytest.approx(alone)


@given(LOADS, st.floats(1, 40))
def test_nobody_is_quicker_than_alone_and_all_is_given_in_its_time(
    loads: list[tuple[float, int, float]], total: float
) -> None:
    found = ends(Hub(10.0, total, 0.0), loads)
    assert len(found) == len(loads)
    readers = [Reader() for _ in range(4)]
    for at, (when, way, size) in enumerate(loads):
        alone = readers[way].load(when, size / min(10.0, total))
        assert found[at] >= alone * (1 - 1e-9) - 1e-9
    last = max(found.values())
    given_in = sum(size for _, _, size in loads) / total
    assert last >= given_in * (1 - 1e-9)
    assert last <= 50 + sum(size for _, _, size in loads) / min(10.0, total) + 1e-6
