"""``balancer/economics/shape.py``: bytes of a stretch of a prompt."""

import pytest

from balancer.economics.shape import CacheShape, Layers

HYBRID = CacheShape((Layers(10.0), Layers(3.0, window=100), Layers(state_bytes=7.0)))


def test_full_attention_keeps_every_token() -> None:
    shape = CacheShape.uniform(131_072)
    assert shape.bytes_per_token == 131_072
    assert shape.size(8000) == 8000 * 131_072
    assert shape.moved(1600, 8000, 8000) == 6400 * 131_072


def test_a_window_keeps_its_last_tokens_and_a_state_weighs_the_same_at_any_length() -> None:
    assert HYBRID.windows == (100,)
    assert HYBRID.bytes_per_token == 10
    assert HYBRID.size(60) == 60 * 13 + 7
    assert HYBRID.size(1000) == 1000 * 10 + 100 * 3 + 7


def test_what_is_moved_in_parts_weighs_what_it_weighs_as_one() -> None:
    parts = [(200, 850), (850, 920), (920, 1000)]
    assert sum(HYBRID.moved(start, end, 1000) for start, end in parts) == HYBRID.moved(200, 1000, 1000)
    assert HYBRID.moved(200, 850, 1000) == 6500, "nobody sees that far back"
    assert HYBRID.moved(850, 920, 1000) == 700 + 20 * 3
    assert HYBRID.moved(920, 1000, 1000) == 800 + 80 * 3 + 7, "the state is that of the end"


@pytest.mark.parametrize("end", [100, 99, 0])
def test_nothing_is_moved_where_there_is_nothing(end: int) -> None:
    assert HYBRID.moved(100, end, 200) == 0
