"""Events: what stays undecoded can be decoded on demand, and values are values."""

import msgspec
import pytest

from indexer.events import EMPTY, NIL, AllBlocksCleared, BlockRemoved, BlockStored
from tests.indexer.samples import payload, stored_map


def event(token_ids: bytes = b"\x90", extra_keys: bytes = b"\xc0") -> BlockStored:
    return BlockStored([1], None, msgspec.Raw(token_ids), 4, extra_keys=msgspec.Raw(extra_keys))


def test_tokens_are_decoded_on_demand() -> None:
    tokens = [0, 1, 65_536, 2**32 - 1]
    assert event(token_ids=msgspec.msgpack.encode(tokens)).tokens() == tokens


def test_a_placeholder_of_an_offload_tier_has_no_tokens() -> None:
    assert BlockStored([1], None, EMPTY, 0, medium="CPU").tokens() == []


@pytest.mark.parametrize("garbage", [b"\xc0", b"\x91\xa1a", b"\x92\x01", b"\x91\xcb" + bytes(8)])
def test_tokens_that_are_no_integers_raise(garbage: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        event(token_ids=garbage).tokens()


def test_extras_keep_one_entry_per_hash() -> None:
    extras = [["adapter", ["f" * 64, -29], "salt"], None]
    assert event(extra_keys=msgspec.msgpack.encode(extras)).extras() == extras


def test_extras_that_were_not_sent_are_none() -> None:
    assert BlockStored([1], None, EMPTY, 4).extras() is None
    assert event(extra_keys=bytes(NIL)).extras() is None


@pytest.mark.parametrize("garbage", [b"\x01", b"\x91\x01", b"\xa1a"])
def test_extras_of_another_shape_raise(garbage: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        event(extra_keys=garbage).extras()


def test_events_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        BlockRemoved([1]).medium = "CPU"  # type: ignore[misc]


def test_an_event_survives_its_own_encoding() -> None:
    """The names and tags are vLLM's own, so what we write is what vLLM would have written."""
    sent = stored_map([1, 2**64 - 1], 7, group_idx=1, session_id="s")
    batch = msgspec.msgpack.decode(payload(sent), type=tuple[float, list[BlockStored], int])
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(batch[1][0]))
    assert again == {name: value for name, value in sent.items() if value is not None or name == "parent_block_hash"}
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(AllBlocksCleared())) == {"type": "AllBlocksCleared"}
