"""Payloads -> events: every form that vLLM has sent, and everything else costs no more than itself."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.errors import WireError
from indexer.events import MAX_HASHES, AllBlocksCleared, BlockRemoved, BlockStored, KVEvent
from indexer.wire import MAX_EVENTS, MAX_ODD_EVENTS, MAX_PAYLOAD, Batch, decode
from tests.indexer.samples import (
    CLEARED_ARRAY,
    CLEARED_MAP,
    TIMESTAMP,
    payload,
    removed_array,
    removed_map,
    stored_array,
    stored_map,
)

DIGEST = bytes.fromhex("2f310d760d759dff04c4d10761d61d07721dd5f28f17b0b2b1aca189072f77a2")
SHORT_DIGEST = bytes.fromhex("00112233445566778899aabbccddeeff")
GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "events_vllm_0.32.0.json").read_text())


def key(hash: Any) -> Any:
    """The key of a recorded hash: its last 8 bytes."""
    return int(hash["hex"][-16:], 16) if isinstance(hash, dict) else hash


def told(event: KVEvent) -> dict[str, Any]:
    """Everything an event says, decoded."""
    fields = msgspec.structs.asdict(event)
    if isinstance(event, BlockStored):
        fields |= {"token_ids": event.tokens(), "extra_keys": event.extras()}
    return {"type": type(event).__name__} | {name: value for name, value in fields.items() if value is not None}


# What engines sent ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: case["name"])
def test_bytes_recorded_from_vllm_0_32(case: dict[str, Any]) -> None:
    batch = decode(bytes.fromhex(case["payload"]))
    expected = []
    for event in case["events"]:
        fields = {name: value for name, value in event.items() if value is not None}
        for name in ("block_hashes", "parent_block_hash"):
            if name in fields:
                fields[name] = [key(one) for one in fields[name]] if name == "block_hashes" else key(fields[name])
        expected.append(fields)
    assert [told(event) for event in batch.events] == expected
    assert (batch.timestamp, batch.rank, batch.skipped) == (case["timestamp"], case["rank"], ())


HEAD = "93 cb41da492040100000"  # three elements; 1764000000.25 as float64
HAND_WRITTEN = {
    # {"type": "BlockStored", "block_hashes": [2**64 - 2], "parent_block_hash": 5, "token_ids": [1, 2], "block_size": 2,
    #  "lora_id": nil, "medium": "GPU", "lora_name": nil}, rank 0
    "map, as vLLM 0.32": (
        HEAD + "91 88 a474797065 ab426c6f636b53746f726564 ac626c6f636b5f686173686573 91 cffffffffffffffffe"
        "b1706172656e745f626c6f636b5f68617368 05 a9746f6b656e5f696473 92 01 02 aa626c6f636b5f73697a65 02"
        "a76c6f72615f6964 c0 a66d656469756d a3475055 a96c6f72615f6e616d65 c0 00"
    ),
    # ["BlockStored", [2**64 - 2], 5, [1, 2], 2, nil, "GPU", nil, nil], rank 0
    "array of 9, as vLLM 0.18": (
        HEAD + "91 99 ab426c6f636b53746f726564 91 cffffffffffffffffe 05 92 01 02 02 c0 a3475055 c0 c0 00"
    ),
    # ["BlockStored", [2**64 - 2], 5, [1, 2], 2, nil, "GPU"], rank 0
    "array of 7, as vLLM 0.11": HEAD
    + "91 97 ab426c6f636b53746f726564 91 cffffffffffffffffe 05 92 01 02 02 c0 a3475055 00",
}


@pytest.mark.parametrize("written", HAND_WRITTEN.values(), ids=HAND_WRITTEN)
def test_the_same_block_from_three_generations_of_vllm(written: str) -> None:
    batch = decode(bytes.fromhex(written))
    expected = {"token_ids": [1, 2], "block_hashes": [2**64 - 2], "parent_block_hash": 5}
    assert [told(event) for event in batch.events] == [
        {"type": "BlockStored", "block_size": 2, "medium": "GPU", **expected}
    ]
    assert batch == Batch(TIMESTAMP, batch.events, 0, digest=batch.digest)


@pytest.mark.parametrize("length", [12, 11, 10, 9, 8, 7, 6, 5])
def test_short_stored_arrays_of_old_publishers(length: int) -> None:
    (event,) = decode(payload(stored_array([1, 2], 3, length))).events
    assert isinstance(event, BlockStored)
    assert (event.block_hashes, event.parent_block_hash, event.tokens(), event.block_size) == (
        [1, 2],
        3,
        [1, 2, 3, 4],
        4,
    )
    assert event.medium == ("GPU" if length >= 7 else None)
    assert event.extras() == ([None, None] if length >= 9 else None)
    assert event.group_idx == (0 if length >= 10 else None)


@pytest.mark.parametrize("length", [4, 3, 2])
def test_short_removed_arrays_of_old_publishers(length: int) -> None:
    (event,) = decode(payload(removed_array([1, 2], length))).events
    assert event == BlockRemoved([1, 2], "GPU" if length >= 3 else None, 0 if length >= 4 else None)


def test_omitted_defaults_of_maps() -> None:
    bare = {"type": "BlockStored", "block_hashes": [1], "parent_block_hash": None, "token_ids": [], "block_size": 0}
    (stored, removed) = decode(payload(bare, {"type": "BlockRemoved", "block_hashes": [1]})).events
    assert told(stored) == {"type": "BlockStored", "block_hashes": [1], "token_ids": [], "block_size": 0}
    assert told(removed) == {"type": "BlockRemoved", "block_hashes": [1]}


@pytest.mark.parametrize("form", [CLEARED_MAP, CLEARED_ARRAY])
def test_a_clear_in_either_encoding(form: Any) -> None:
    assert decode(payload(form)).events == [AllBlocksCleared()]


# Hashes ---------------------------------------------------------------------------------------------------------------

FORMS = {
    "small": (7, 7),
    "largest": (2**64 - 1, 2**64 - 1),
    "above the signed range": (2**63, 2**63),
    "read as signed": (-2, 2**64 - 2),
    "sha256 digest": (DIGEST, 0xB1ACA189072F77A2),
    "xxhash digest": (SHORT_DIGEST, 0x8899AABBCCDDEEFF),
}


@pytest.mark.parametrize(("sent", "key"), FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("encoding", ["map", "array"])
def test_every_form_of_a_hash_gives_one_key(sent: Any, key: int, encoding: str) -> None:
    is_map = encoding == "map"
    stored = stored_map([sent], sent) if is_map else stored_array([sent], sent)
    first, second = decode(payload(stored, removed_map([sent]) if is_map else removed_array([sent]))).events
    assert isinstance(first, BlockStored)
    assert isinstance(second, BlockRemoved)
    assert (first.block_hashes, first.parent_block_hash, second.block_hashes) == ([key], key, [key])


def test_forms_of_hashes_may_mix_within_one_list() -> None:
    hashes, keys = zip(*FORMS.values(), strict=True)
    for stored in (stored_map(hashes), stored_array(hashes)):
        (event,) = decode(payload(stored)).events
        assert isinstance(event, BlockStored)
        assert event.block_hashes == list(keys)


# Counts of copies -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [7, DIGEST])
def test_a_removal_may_say_how_many_copies_are_left(sent: Any) -> None:
    """Both ways of decoding maps: with hashes as integers and as bytes."""
    told_counts = removed_map([sent, sent], remaining_copy_counts=[1, 0])
    for event in decode(payload(told_counts)).events:
        assert isinstance(event, BlockRemoved)
        assert event.remaining_copy_counts == [1, 0]


@pytest.mark.parametrize("form", [removed_map([7]), removed_map([DIGEST]), removed_array([7]), removed_array([DIGEST])])
def test_a_removal_that_does_not_say_how_many_says_nothing(form: Any) -> None:
    (event,) = decode(payload(form)).events
    assert isinstance(event, BlockRemoved)
    assert event.remaining_copy_counts is None


# One bad event --------------------------------------------------------------------------------------------------------


def test_both_encodings_may_mix_within_one_batch() -> None:
    for events in ([stored_map([1]), stored_array([2])], [stored_array([1]), stored_map([2])]):
        batch = decode(payload(*events, CLEARED_MAP, removed_array([3])))
        assert [type(event) for event in batch.events] == [BlockStored, BlockStored, AllBlocksCleared, BlockRemoved]
        assert batch.skipped == ()


GARBAGE: dict[str, Any] = {
    "nil": None,
    "number": 7,
    "text": "BlockStored",
    "empty map": {},
    "empty array": [],
    "unknown type": {"type": "BlockPromoted", "block_hashes": [1]},
    "unknown tag": ["BlockPromoted", [1]],
    "no type": {"block_hashes": [1]},
    "type is no text": {"type": 3, "block_hashes": [1]},
    "hash is text": stored_map(["a"]),  # type: ignore[list-item]
    "hash is nil": removed_map([None]),  # type: ignore[list-item]
    "hashes are no list": stored_map([1], block_hashes=1),
    "no hashes": {"type": "BlockRemoved", "medium": "GPU"},
    "array without hashes": ["BlockRemoved"],
    "array that ends too early": stored_array([1], length=4),
    "group is text": removed_map([1], group_idx="0"),
    "copies below zero": removed_map([1], remaining_copy_counts=[-1]),
    "keys are no text": {1: 2},
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
@pytest.mark.parametrize("make", [stored_map, stored_array])
def test_one_bad_event_costs_that_event(garbage: Any, make: Any) -> None:
    batch = decode(payload(make([1]), garbage, CLEARED_MAP, make([2]), rank=3))
    assert [told(event).get("block_hashes") for event in batch.events] == [[1], None, [2]]
    assert len(batch.skipped) == 1
    assert batch.skipped[0]
    assert (batch.timestamp, batch.rank) == (TIMESTAMP, 3)


def test_a_bad_event_may_come_first_or_alone() -> None:
    assert [told(event)["block_hashes"] for event in decode(payload(7, stored_array([1]))).events] == [[1]]
    assert decode(payload({})).events == []


def test_an_unknown_field_or_element_is_ignored() -> None:
    batch = decode(
        payload(stored_map([1], from_the_future=[1, {"a": None}]), [*stored_array([2]), None, None, None, 3, "more"])
    )
    assert [told(event)["block_hashes"] for event in batch.events] == [[1], [2]]
    assert batch.skipped == ()


# The batch ------------------------------------------------------------------------------------------------------------


def test_a_batch_without_a_rank() -> None:
    for events in ([], [stored_map([1])], [stored_array([1])], [7]):
        assert decode(msgspec.msgpack.encode([TIMESTAMP, events])).rank is None


@pytest.mark.parametrize("rank", [None, "0", 1.5, [0]])
def test_a_rank_that_is_no_integer_costs_the_rank(rank: Any) -> None:
    batch = decode(payload(stored_map([1]), rank=rank))
    assert (batch.rank, len(batch.events), batch.skipped) == (None, 1, ())


def test_a_longer_batch_of_a_later_version() -> None:
    batch = decode(msgspec.msgpack.encode([TIMESTAMP, [stored_array([1])], 2, "trace", {}]))
    assert (batch.rank, len(batch.events)) == (2, 1)


@pytest.mark.parametrize("count", [0, 1, 15, 16, 70_000])
@pytest.mark.parametrize("event", [CLEARED_MAP, CLEARED_ARRAY])
def test_every_width_of_the_list_of_events(count: int, event: Any) -> None:
    """msgpack has three headers for lists; the encoding is guessed from what follows."""
    assert decode(payload(*[event] * count)).events == [AllBlocksCleared()] * count


def test_a_timestamp_in_whole_seconds() -> None:
    batch = decode(msgspec.msgpack.encode([1_764_000_000, [stored_array([1]), stored_map([2])], 0]))
    assert (batch.timestamp, len(batch.events)) == (1_764_000_000.0, 2)


UNREADABLE = {
    "nothing": b"",
    "nil": b"\xc0",
    "reserved byte": b"\xc1garbage",
    "a map": msgspec.msgpack.encode({"ts": 1.0, "events": []}),
    "empty": msgspec.msgpack.encode([]),
    "timestamp alone": msgspec.msgpack.encode([1.0]),
    "timestamp is text": msgspec.msgpack.encode(["now", [], 0]),
    "events are no list": msgspec.msgpack.encode([1.0, {"type": "AllBlocksCleared"}, 0]),
    "two payloads": payload(CLEARED_MAP) * 2,
    "a list longer than memory": payload()[:10] + b"\xdd\xff\xff\xff\xff",
    "nested without end": payload()[:10] + b"\x91" * 100_000,
}


@pytest.mark.parametrize("data", UNREADABLE.values(), ids=UNREADABLE)
def test_what_is_no_batch_raises(data: bytes) -> None:
    with pytest.raises(WireError, match="not a batch of KV events"):
        decode(data)


@pytest.mark.parametrize("make", [stored_map, stored_array])
def test_every_truncation_raises(make: Any) -> None:
    whole = payload(make([1, DIGEST]), make([2]))
    for end in range(len(whole)):
        with pytest.raises(WireError):
            decode(whole[:end])


def test_a_payload_longer_than_any_is_not_even_looked_at() -> None:
    with pytest.raises(WireError, match="33,554,433 bytes"):
        decode(bytes(MAX_PAYLOAD + 1))


@pytest.mark.parametrize("item", [b"\x01", b"\x80", b"\x90", b"\xc0"])
def test_a_batch_of_countless_things_takes_no_time_and_no_memory(item: bytes) -> None:
    count = MAX_ODD_EVENTS + 1
    data = payload()[:10] + b"\xdd" + count.to_bytes(4, "big") + item * count
    with pytest.raises(WireError, match="more than 250,000"):
        decode(data + b"\x00")


@pytest.mark.parametrize("make", [removed_map, removed_array])
def test_an_event_of_countless_hashes_costs_that_event(make: Any) -> None:
    batch = decode(payload(make([1] * (MAX_HASHES + 1)), make([2] * MAX_HASHES)))
    assert [len(event.block_hashes) for event in batch.events if isinstance(event, BlockRemoved)] == [MAX_HASHES]
    assert len(batch.skipped) == 1


# Fuzz -----------------------------------------------------------------------------------------------------------------

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.text(max_size=12),
    st.binary(max_size=40),
    st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared", "GPU", "type", "block_hashes"]),
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=8) | st.integers(0, 3), inner, max_size=4)
    ),
    max_leaves=12,
)
HASHES = st.lists(st.integers(0, 2**64 - 1) | st.binary(min_size=16, max_size=32), max_size=4)
GOOD = st.one_of(
    st.builds(stored_map, HASHES),
    st.builds(stored_array, HASHES, length=st.integers(5, 12)),
    st.builds(removed_map, HASHES),
    st.builds(removed_array, HASHES, length=st.integers(2, 4)),
    st.sampled_from([CLEARED_MAP, CLEARED_ARRAY]),
)


def is_usable(batch: Batch) -> bool:
    for event in batch.events:
        match event:
            case BlockStored() | BlockRemoved():
                if not all(0 <= hash < 2**64 for hash in event.block_hashes):
                    return False
    return isinstance(batch.timestamp, float)


@given(st.binary(max_size=200))
def test_bytes_of_any_kind_raise_nothing_but_wire_error(data: bytes) -> None:
    try:
        batch = decode(data)
    except WireError:
        return
    assert is_usable(batch)


@given(st.lists(ANYTHING | GOOD, max_size=5), ANYTHING)
def test_a_list_of_anything_is_a_batch(events: list[Any], rank: Any) -> None:
    """Each item is an event or a reason: nothing disappears without a word."""
    batch = decode(payload(*events, rank=rank))
    assert len(batch.events) + len(batch.skipped) == len(events)
    assert is_usable(batch)


@given(st.lists(GOOD, max_size=6))
def test_good_events_come_through_in_order_and_complete(events: list[Any]) -> None:
    batch = decode(payload(*events))
    sent = [event.get("type") if isinstance(event, dict) else event[0] for event in events]
    assert [type(event).__name__ for event in batch.events] == sent
    assert batch.skipped == ()


@given(st.lists(GOOD, min_size=1, max_size=4), st.data())
def test_a_damaged_payload_raises_nothing_but_wire_error(events: list[Any], data: st.DataObject) -> None:
    damaged = bytearray(payload(*events))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        batch = decode(bytes(damaged))
    except WireError:
        return
    assert is_usable(batch)


@pytest.mark.parametrize("field", ["medium", "lora_name", "kv_cache_spec_kind", "locality", "ownership", "session_id"])
def test_names_without_end_cost_their_event(field: str) -> None:
    good, bad = stored_map([1]), {**stored_map([2]), field: "x" * 1025}
    batch = decode(payload(good, bad))
    assert [event.block_hashes for event in batch.events if isinstance(event, BlockStored)] == [[1]]
    assert len(batch.skipped) == 1


def test_counts_beyond_all_blocks_cost_their_event() -> None:
    bad = {"type": "BlockRemoved", "block_hashes": [1], "medium": "GPU", "remaining_copy_counts": [2**40]}
    assert (decode(payload(bad)).events, len(decode(payload(bad)).skipped)) == ([], 1)


@pytest.mark.parametrize(
    ("count", "each", "kept"), [(MAX_EVENTS + 5, 1, MAX_EVENTS), (40, MAX_HASHES // 32, 32)], ids=["events", "blocks"]
)
def test_a_batch_that_would_hold_up_everybody_is_cut(count: int, each: int, kept: int) -> None:
    event = {"type": "BlockRemoved", "block_hashes": [2**60] * each, "medium": "GPU"}
    batch = decode(payload(*[event] * count))
    assert len(batch.events) == kept
    assert batch.skipped[0].startswith(
        f"{count - kept:,} events: a batch of more than 262,144 blocks or 131,072 events"
    )
