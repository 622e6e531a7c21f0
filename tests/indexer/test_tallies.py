"""``indexer/tallies.py``: sets added at once are counted like bits one by one."""

from hypothesis import given
from hypothesis import strategies as st

from indexer.tallies import tally


@given(st.lists(st.tuples(st.integers(0, 2**70), st.integers(0, 20_000))))
def test_bits_are_counted(weighted: list[tuple[int, int]]) -> None:
    planes = tally(weighted)
    for bit in range(71):
        counted = sum((plane >> bit & 1) << at for at, plane in enumerate(planes))
        assert counted == sum(count for bits, count in weighted if bits >> bit & 1)
