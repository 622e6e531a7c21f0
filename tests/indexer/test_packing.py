"""``indexer/packing.py``: what comes back is what went in, or an error."""

import contextlib
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.errors import SnapshotError
from indexer.packing import pack_small, pack_sorted, pack_words, unpack_small, unpack_sorted, unpack_words

WORDS = st.lists(st.integers(0, 2**64 - 1))
SMALL = st.lists(st.one_of(st.integers(0, 3), st.integers(0, 70_000), st.integers(0, 2**64 - 1)))


@given(WORDS)
def test_words_come_back(values: list[int]) -> None:
    packed = pack_words(values)
    assert len(packed) == 8 * len(values)
    assert list(unpack_words(packed)) == values


def test_words_are_little_endian_wherever_they_were_written() -> None:
    assert pack_words([1, 2**56]) == bytes([1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1])


@given(SMALL)
def test_small_numbers_come_back(values: list[int]) -> None:
    assert list(unpack_small(pack_small(values), len(values))) == values


def test_small_numbers_take_little() -> None:
    chance = random.Random(1)
    assert pack_small([0] * 1000) == []
    assert sum(map(len, pack_small([chance.randrange(8) for _ in range(1000)]))) < 500
    assert sum(map(len, pack_small([chance.randrange(1 << 16) for _ in range(1000)]))) <= 2000


@given(WORDS)
def test_sorted_numbers_come_back(values: list[int]) -> None:
    values.sort()
    assert unpack_sorted(pack_sorted(values), len(values)) == values


def test_sorted_hashes_take_less_than_seven_bytes() -> None:
    chance = random.Random(1)
    hashes = sorted(chance.getrandbits(64) for _ in range(16_384))
    assert sum(map(len, pack_sorted(hashes))) / len(hashes) < 6.7


def test_sums_beyond_64_bits_are_refused() -> None:
    with pytest.raises(SnapshotError, match="beyond 64 bits"):
        unpack_sorted(pack_small([2**63, 2**63]), 2)


@pytest.mark.parametrize(
    ("planes", "count"),
    [
        ([b"\1\2\3"], 2),
        ([b""], 2),
        ([b"\1\1"] * 9, 2),
        ([pack_small([7] * 100)[0]], 99),
        ([pack_small([7] * 100)[0]], 101),
        ([pack_small([7] * 100)[0][:-1]], 100),
    ],
)
def test_what_is_not_so_many_numbers_is_refused(planes: list[bytes], count: int) -> None:
    with pytest.raises(SnapshotError):
        unpack_small(planes, count)


def test_a_broken_word_is_refused() -> None:
    with pytest.raises(SnapshotError):
        unpack_words(b"1234567")


@given(st.lists(st.binary(max_size=40), max_size=9), st.integers(0, 40))
def test_nothing_else_ever_comes_out(planes: list[bytes], count: int) -> None:
    with contextlib.suppress(SnapshotError):
        assert len(unpack_small(planes, count)) == count
