"""``hashing/external.py``: both published forms of a hash meet under one key."""

from hypothesis import given
from hypothesis import strategies as st

from hashing.external import key_of


@given(st.binary(min_size=8, max_size=8), st.sampled_from([8, 24]))
def test_a_digest_and_its_published_integer_have_one_key(last: bytes, others: int) -> None:
    digest = b"\xff" * others + last
    published = int.from_bytes(digest, "big") & (1 << 64) - 1
    assert key_of(digest) == key_of(published) == published


def test_a_hash_read_as_signed_has_the_same_key() -> None:
    assert key_of(-1) == key_of((1 << 64) - 1) == (1 << 64) - 1


def test_the_recorded_bytes_of_an_engine_give_its_recorded_integer() -> None:
    digest = bytes.fromhex("2f310d760d759dff04c4d10761d61d07721dd5f28f17b0b2b1aca189072f77a2")
    assert key_of(digest) == 0xB1ACA189072F77A2
