"""``balancer/economics/verdict.py``: move or compute, and from which length on."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from balancer.economics.links import LINKS, Link
from balancer.economics.prefill import Prefill
from balancer.economics.shape import CacheShape, Layers
from balancer.economics.verdict import LONGEST, break_even, judge

SHAPE = CacheShape.uniform(131_072)


def test_both_ways_compute_the_last_token() -> None:
    prefill, link = Prefill(request=0.003, token=1e-4), Link(12.5e9, 0.001, 0.004)
    verdict = judge(8000, link, SHAPE, prefill)
    assert verdict.size == 8000 * 131_072
    assert verdict.move_seconds == pytest.approx(0.005 + 8000 * 131_072 / 12.5e9 + 0.0031)
    assert verdict.compute_seconds == pytest.approx(0.803)
    assert verdict.moves


def test_the_bandwidth_that_breaks_even_does() -> None:
    prefill = Prefill(token=3e-5, pair=1e-9)
    needed = judge(8000, LINKS["10gbe"], SHAPE, prefill).break_even_bandwidth
    assert needed is not None
    fixed = LINKS["10gbe"].fixed
    assert judge(8000, Link(needed * 1.001, fixed), SHAPE, prefill).moves
    assert not judge(8000, Link(needed * 0.999, fixed), SHAPE, prefill).moves


def test_no_bandwidth_makes_up_for_a_setup_that_takes_longer_than_computing() -> None:
    assert judge(8000, Link(1e12, setup=1.0), SHAPE, Prefill(token=1e-5)).break_even_bandwidth is None


def test_a_link_slower_than_computing_breaks_even_only_where_attention_is_long() -> None:
    link = Link(1e9)
    assert break_even(link, SHAPE, Prefill(token=1e-4)) is None
    turn = break_even(link, SHAPE, Prefill(token=1e-4, pair=1e-9))
    assert turn == pytest.approx(2 * (131_072e-9 - 1e-4) / 1e-9, rel=0.01)


def test_the_setup_decides_from_which_length_on_a_fast_link_pays() -> None:
    prefill, fast = Prefill(token=1e-4), 131_072 / 1e-5  # ten times as fast as computing
    assert break_even(Link(fast), SHAPE, prefill) == 2, "of one token nothing is saved: it is computed either way"
    assert break_even(Link(fast, setup=0.09), SHAPE, prefill) == 1002


costs = st.sampled_from([0.0, 1e-6, 1e-3, 0.1])
windows = st.sampled_from([None, 1, 30, 150])
layers = st.lists(
    st.builds(Layers, st.sampled_from([0.5, 4.0]), windows, st.sampled_from([0.0, 20.0])), min_size=1, max_size=2
)


@settings(max_examples=400)
@given(
    st.builds(Link, st.sampled_from([1.0, 5.0, 40.0]), st.sampled_from([0.0, 3.0, 30.0])),
    st.builds(CacheShape, layers.map(tuple)),
    st.builds(
        Prefill, st.sampled_from([0.0, 1.0]), st.sampled_from([0.0, 0.1, 0.4, 1.0]), costs, st.sampled_from([0.0, 7.0])
    ),
)
@example(Link(10.0), CacheShape((Layers(5.0, 30),)), Prefill(token=0.4))
@example(Link(1.0), CacheShape.uniform(1.0), Prefill(token=0.5, pair=0.01))
def test_from_the_break_even_on_moving_is_quicker_and_just_before_it_is_not(
    link: Link, shape: CacheShape, prefill: Prefill
) -> None:
    def saved(tokens: int) -> float:
        """As a share of what moving takes, so that what is equal but for rounding is."""
        moved = link.seconds(shape.size(tokens)) + prefill.seconds(1, tokens - 1)
        return (prefill.seconds(tokens, 0) - moved) / moved

    tiny = 1e-12
    turn = break_even(link, shape, prefill)
    if turn is None:
        assert saved(LONGEST) <= tiny
        return
    assert all(saved(tokens) > -tiny for tokens in (turn, turn + 1, turn + 40, 2 * turn + 500, LONGEST))
    assert turn == 1 or saved(turn - 1) <= tiny
