"""``gateway/body.py``: what was packed comes out, within the limit, or with a reason."""

import contextlib
import gzip
import random
import time
import tracemalloc
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.errors import BadRequest, BodyTooLarge
from balancer.gateway.body import MAX_MEMBERS, unpack


def deflate_raw(body: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(body) + packer.flush()


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "raw deflate": deflate_raw,
}


@pytest.mark.parametrize("name", PACKERS)
@given(st.binary(max_size=2000))
def test_what_was_packed_comes_out(name: str, body: bytes) -> None:
    assert unpack(PACKERS[name](body), len(body)) == body


def test_several_members_are_one_body() -> None:
    assert unpack(gzip.compress(b"one") + gzip.compress(b"two"), 6) == b"onetwo"


def test_members_longer_than_a_slice_are_joined() -> None:
    bodies = [random.Random(seed).randbytes(300_000) for seed in range(4)]
    assert unpack(b"".join(map(gzip.compress, bodies)), 1_200_000) == b"".join(bodies)
    with pytest.raises(BodyTooLarge):
        unpack(b"".join(map(gzip.compress, bodies)), 1_199_999)


def test_endless_members_are_refused_at_once() -> None:
    """Each that was looked at used to cost a copy of all that came after it."""
    one = gzip.compress(b"x")
    assert unpack(one * MAX_MEMBERS, 1000) == b"x" * MAX_MEMBERS
    began = time.perf_counter()
    with pytest.raises(BadRequest, match="more than 64 members"):
        unpack(gzip.compress(b"") * 100_000, 1000)
    assert time.perf_counter() - began < 1.0


@pytest.mark.parametrize("name", PACKERS)
def test_one_byte_over_the_limit_is_too_much(name: str) -> None:
    packed = PACKERS[name](b"x" * 1001)
    assert len(unpack(packed, 1001)) == 1001
    with pytest.raises(BodyTooLarge, match=r"larger than 1,000 bytes; the limit is server\.max_body_bytes"):
        unpack(packed, 1000)


def test_no_more_than_the_limit_is_ever_unpacked() -> None:
    bomb = gzip.compress(b"x" * 20_000_000)
    tracemalloc.start()
    try:
        with pytest.raises(BodyTooLarge):
            unpack(bomb, 100_000)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", PACKERS)
def test_a_body_cut_short_is_refused(name: str) -> None:
    packed = PACKERS[name](bytes(range(256)) * 8)
    for length in range(len(packed)):
        with pytest.raises(BadRequest):
            unpack(packed[:length], 10_000)


@given(st.binary())
def test_no_bytes_give_anything_but_a_refusal(body: bytes) -> None:
    with contextlib.suppress(BadRequest, BodyTooLarge):
        assert len(unpack(body, 1000)) <= 1000
