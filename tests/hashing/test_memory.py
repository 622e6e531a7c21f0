"""``hashing/memory.py``: the bound holds, the oldest goes first, and no two strides share a name."""

import tracemalloc
from array import array

import pytest

from hashing.memory import STRIDE, ChainMemory

KEYS = list(range(STRIDE))
DIGEST = b"d" * 32


def name(memory: ChainMemory, number: int) -> bytes:
    return memory.name(b"i" * 32, b"p" * 32, memoryview(array("I", [number])))


def filled(memory: ChainMemory, count: int) -> ChainMemory:
    for number in range(count):
        memory.remember(name(memory, number), KEYS, DIGEST)
    return memory


@pytest.mark.parametrize("width", [16, 32])
def test_a_stride_comes_back_as_it_went_in(width: int) -> None:
    memory, keys = ChainMemory(), [(1 << 64) - 1 - key for key in KEYS]
    memory.remember(b"name", keys, b"d" * width)
    assert memory.recall(b"name") == (tuple(keys), b"d" * width)
    assert memory.recall(b"other") is None


def test_the_bound_holds_at_every_step() -> None:
    memory = ChainMemory(max_bytes=10_000)
    for number in range(100):
        memory.remember(name(memory, number), KEYS, DIGEST)
        assert 0 < memory.bytes_held <= 10_000
    assert 5 < len(memory) < 20


def test_the_bytes_it_counts_cover_the_bytes_it_takes() -> None:
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        memory = filled(ChainMemory(max_bytes=1 << 20), 5000)
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert taken <= 1 << 20
    assert memory.bytes_held < 2 * taken


def test_the_least_recently_used_stride_goes_first() -> None:
    memory = ChainMemory(max_bytes=10_000)
    held = len(filled(memory, 100))
    kept = name(memory, 100 - held)
    assert memory.recall(kept) is not None
    memory.remember(name(memory, 100), KEYS, DIGEST)
    assert memory.recall(kept) is not None
    assert memory.recall(name(memory, 101 - held)) is None


def test_remembering_again_renews_and_counts_once() -> None:
    memory = ChainMemory(max_bytes=10_000)
    held = len(filled(memory, 100))
    before, renewed = memory.bytes_held, name(memory, 100 - held)
    memory.remember(renewed, KEYS, DIGEST)
    assert memory.bytes_held == before
    memory.remember(name(memory, 100), KEYS, DIGEST)
    assert memory.recall(renewed) is not None


def test_a_bound_below_one_stride_keeps_nothing() -> None:
    memory = filled(ChainMemory(max_bytes=100), 3)
    assert len(memory) == memory.bytes_held == 0


def test_the_secret_changes_names_and_only_64_bits_of_it_count() -> None:
    secrets = [0, 1, 1 << 63, (1 << 64) - 1]
    assert len({name(ChainMemory(secret=secret), 7) for secret in secrets}) == len(secrets)
    assert name(ChainMemory(secret=1 << 64 | 5), 7) == name(ChainMemory(secret=5), 7)


def test_each_part_of_a_name_counts() -> None:
    memory, tokens, wide = ChainMemory(), memoryview(array("I", [1, 0])), memoryview(array("I", [1, 1]))
    a, b = b"a" * 32, b"b" * 32
    names = {memory.name(a, a, tokens), memory.name(a, b, tokens), memory.name(b, a, tokens), memory.name(a, a, wide)}
    assert len(names) == 4
