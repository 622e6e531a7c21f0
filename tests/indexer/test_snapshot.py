"""``indexer/snapshot.py``: an index that was written and read again knows the same; anything damaged is refused as a whole."""

import random
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hashing.own import LearnedKeys
from indexer import snapshot
from indexer.errors import SnapshotError
from indexer.events import NIL, AllBlocksCleared, BlockRemoved, BlockStored, KVEvent
from indexer.groups import GroupsImage
from indexer.hybrid import GroupSpec
from indexer.index import CacheIndex, ReplicaId, Tier
from indexer.learned import NamesImage
from indexer.recognition import KeyState, Recognition, RecognitionImage
from indexer.slices import at_once
from indexer.snapshot import MAGIC, Image, ReplicaImage, Restoration, write
from indexer.stream import Position
from tests.support.routing import RANDOM, RECIPE, told

A, B, C = (ReplicaId(name) for name in ("a", "b", "c"))
CPU = Tier("CPU")
CREATED = 1_000_000.0
POSITION = Position(7, 35)
GROUPS = GroupsImage((GroupSpec(0, "full_attention", 4), GroupSpec(1, "sliding_window", 4, 8)), (0,))

Held = dict[tuple[ReplicaId, Tier, int], Counter[int]]


def about(replica: ReplicaId, position: Position = POSITION) -> ReplicaImage:
    return ReplicaImage(replica, b"notes", position, RecognitionImage("why", RECIPE, groups=GROUPS))


def image(index: CacheIndex, *replicas: ReplicaImage) -> Image:
    return Image(CREATED, replicas, {}, {tier: at_once(table.export()) for tier, table in index.tiers.items()})


def filled(blocks: Mapping[ReplicaId, Sequence[int]]) -> CacheIndex:
    index = CacheIndex()
    for replica, keys in blocks.items():
        index.add(replica)
        index.gpu.store(replica, 0, keys)
    return index


def restored(
    pieces: Iterable[bytes], wanted: Iterable[ReplicaId] = (A, B, C), **options: Any
) -> tuple[CacheIndex, list[ReplicaImage]]:
    index = CacheIndex(**options)
    restoration = Restoration(index, lambda replica: replica in wanted, oldest=0)
    for piece in pieces:
        restoration.feed(piece)
    found = restoration.finish()
    index.check()
    return index, [each.image for each in found]


def held(index: CacheIndex, replicas: Iterable[ReplicaId] = (A, B, C)) -> Held:
    return {
        (replica, tier, group): blocks
        for replica in replicas
        for tier, table in index.tiers.items()
        for group in table.groups
        if (blocks := table.held(replica, group))
    }


KEYS = st.one_of(st.integers(0, 12), st.integers(0, 2**64 - 1))
CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["store", "store", "store", "remove", "clear"]),
        st.sampled_from([A, B, C]),
        st.sampled_from([Tier(), CPU, Tier("STORAGE", "store", "remote")]),
        st.sampled_from([0, 3]),
        st.lists(KEYS, min_size=1, max_size=20),
    ),
    max_size=30,
)


def changed(changes: Iterable[tuple[str, ReplicaId, Tier, int, list[int]]]) -> CacheIndex:
    index = CacheIndex()
    for replica in (A, B, C):
        index.add(replica)
    for what, replica, name, group, keys in changes:
        table = index.tier(name)
        assert table is not None
        if what == "clear":
            table.clear(replica)
        else:
            getattr(table, what)(replica, group, keys)
    return index


@given(CHANGES, st.integers(1, 200), st.data())
def test_what_is_restored_is_what_was_known(changes: Any, piece: int, data: st.DataObject) -> None:
    index = changed(changes)
    told = data.draw(st.lists(st.sampled_from([A, B, C]), unique=True))
    wanted = data.draw(st.lists(st.sampled_from([A, B, C]), unique=True))
    parts = [about(each, Position(at + 1, at, at)) for at, each in enumerate(told)]
    whole = b"".join(write(image(index, *parts)))
    pieces = [whole[at : at + piece] for at in range(0, len(whole), piece)]
    again, found = restored(pieces, wanted)
    assert held(again) == held(index, [each for each in told if each in wanted])
    assert found == [part for part in parts if part.replica in wanted]


def test_restored_copies_are_removed_one_by_one() -> None:
    index = filled({A: [1, 1, 1, 2], B: [1]})
    again, _ = restored(write(image(index, about(A), about(B))))
    again.gpu.remove(A, 0, [1, 1])
    assert held(again) == {(A, Tier(), 0): Counter({1: 1, 2: 1}), (B, Tier(), 0): Counter({1: 1})}
    again.gpu.remove(A, 0, [1])
    assert not again.gpu.holds(A, 0, 1)


def test_the_oldest_block_is_still_the_oldest() -> None:
    index = filled({A: range(1_000), B: range(500, 1_500)})
    again, _ = restored(write(image(index, about(A), about(B))))
    assert list(again.gpu.groups[0])[:500] == list(range(500))


def test_what_had_been_let_go_is_still_missing() -> None:
    index = CacheIndex(max_blocks=50)
    index.add(A)
    index.gpu.store(A, 0, range(80))
    missing = index.let_go(A)
    assert missing
    again, _ = restored(write(image(index, about(A))))
    assert again.let_go(A) == missing


def test_a_smaller_index_takes_what_it_can_and_says_so() -> None:
    index = filled({A: range(100_000)})
    again, _ = restored(write(image(index, about(A))), max_blocks=1_000)
    assert again.gpu.blocks(A) <= 1_000
    assert again.let_go(A) == 100_000 - again.gpu.blocks(A)


def test_a_block_takes_less_than_fifteen_bytes_a_replica() -> None:
    chance = random.Random(1)
    unique = {ReplicaId(f"10.0.0.{at}:8000"): [chance.getrandbits(64) for _ in range(20_000)] for at in range(8)}
    index = filled({})
    for start in range(0, 20_000, 50):  # as it comes about: by turns
        for replica, keys in unique.items():
            index.add(replica)
            index.gpu.store(replica, 0, keys[start : start + 50])
    size = sum(map(len, write(image(index, *map(about, unique)))))
    assert size / 160_000 < 9

    shared = filled({replica: unique[ReplicaId("10.0.0.0:8000")] for replica in unique})
    size = sum(map(len, write(image(shared, *map(about, unique)))))
    assert size / 160_000 < 1.5


# Learned keys ---------------------------------------------------------------------------------------------------------


def learned(replica: ReplicaId, *events: KVEvent) -> tuple[CacheIndex, Recognition, Image]:
    """The index of a replica whose keys are learned from these events, and its image."""
    index, recognition = CacheIndex(), Recognition(RECIPE)
    index.add(replica)
    for event in events:
        index.apply(replica, recognition.read([event])[0])
    assert recognition.state is KeyState.LEARNED
    known = recognition.export()
    assert known is not None
    part = ReplicaImage(replica, b"", POSITION, known)
    tables = {tier: at_once(table.export()) for tier, table in index.tiers.items()}
    return index, recognition, Image(CREATED, [part], {replica: at_once(recognition.learned.export())}, tables)


def taken_over(image: Image) -> tuple[CacheIndex, Recognition]:
    index, recognition = CacheIndex(), Recognition(RECIPE)
    restoration = Restoration(index, lambda _: True, oldest=0)
    for piece in write(image):
        restoration.feed(piece)
    [found] = restoration.finish()
    recognition.restore(found.image.recognition, found.learned)
    index.check()
    return index, recognition


TOKENS = list(range(40))
FIRST = told(TOKENS, RANDOM)
SALTED = told(TOKENS, RANDOM, salt="pepper")


def on_cpu(event: BlockStored) -> BlockStored:
    return msgspec.structs.replace(event, medium="CPU")


@pytest.mark.parametrize(
    "events",
    [
        [FIRST],
        [FIRST, FIRST, SALTED],
        [FIRST, on_cpu(FIRST), BlockRemoved(FIRST.block_hashes[3:])],
        [FIRST, told(list(range(500, 900)), RANDOM), BlockRemoved(FIRST.block_hashes)],
    ],
)
def test_learned_keys_are_restored_with_their_names(events: list[KVEvent]) -> None:
    index, before, known = learned(A, *events)
    again, after = taken_over(known)
    assert held(again) == held(index)
    assert (after.state, after.recipe, after.reason) == (before.state, before.recipe, before.reason)
    assert after.learned.held() == before.learned.held()
    # What comes next is read the same way: children of what is known, and removals by name.
    grown = told([*TOKENS, 7, 7, 7, 7], RANDOM)
    child = msgspec.structs.replace(
        grown,
        block_hashes=grown.block_hashes[-1:],
        parent_block_hash=FIRST.block_hashes[-1],
        token_ids=msgspec.Raw(msgspec.msgpack.encode([7, 7, 7, 7])),
        extra_keys=NIL,
    )
    for event in (child, BlockRemoved(FIRST.block_hashes[:2]), on_cpu(FIRST), AllBlocksCleared()):
        index.apply(A, before.read([event])[0])
        again.apply(A, after.read([event])[0])
        assert held(again) == held(index)


def test_two_names_of_one_key_are_two_copies() -> None:
    def silent(event: BlockStored) -> BlockStored:
        return msgspec.structs.replace(event, extra_keys=NIL)  # as before vLLM 0.18: a salt is not told

    index, _, known = learned(A, FIRST, silent(SALTED))
    assert set(held(index)[A, Tier(), 0].values()) == {2}
    again, after = taken_over(known)
    assert held(again) == held(index)
    again.apply(A, after.read([BlockRemoved(SALTED.block_hashes)])[0])
    assert set(held(again)[A, Tier(), 0].values()) == {1}


def test_blocks_without_a_place_are_still_missing() -> None:
    orphan = msgspec.structs.replace(told([9] * 8, RANDOM), parent_block_hash=77)
    _, before, known = learned(A, FIRST, orphan)
    _, after = taken_over(known)
    assert after.unplaced == before.unplaced == 2
    after.read([AllBlocksCleared()])
    assert after.unplaced == 0


def test_a_learned_block_takes_less_than_fifteen_bytes_a_replica() -> None:
    chance = random.Random(1)
    index, names = CacheIndex(), {}
    parts = []
    for at in range(8):
        replica = ReplicaId(f"10.0.0.{at}:8000")
        index.add(replica)
        keys = [chance.getrandbits(64) for _ in range(20_000)]
        index.gpu.store(replica, 0, keys)
        names[replica] = deque(
            NamesImage(Tier(), 0, [chance.getrandbits(64) for _ in range(10_000)], keys[at : at + 10_000], {})
            for at in (0, 10_000)
        )
        parts.append(ReplicaImage(replica, b"", POSITION, RecognitionImage("", learned=LearnedKeys(16))))
    size = sum(map(len, write(Image(CREATED, parts, names, {Tier(): at_once(index.gpu.export())}))))
    assert size / 160_000 < 15


def test_it_is_written_in_small_pieces() -> None:
    index = filled({A: range(200_000)})
    assert max(map(len, write(image(index, about(A))))) < 200_000


# Refused --------------------------------------------------------------------------------------------------------------

WHOLE = b"".join(
    write(
        Image(
            CREATED,
            [about(A), about(B), ReplicaImage(C, b"", POSITION, RecognitionImage("", learned=LearnedKeys(4)))],
            {C: deque([NamesImage(CPU, 1, [2**64 - 1, 5], [8, 9], {5: 1})])},
            image(changed([("store", A, Tier(), 0, [1, 2, 2]), ("store", B, CPU, 1, [2, 3])])).tiers,
        )
    )
)


@given(st.integers(0, len(WHOLE) - 1), st.integers(1, 255))
@settings(max_examples=1_000)
def test_a_changed_byte_is_refused_wherever_it_is(at: int, change: int) -> None:
    damaged = bytearray(WHOLE)
    damaged[at] ^= change
    with pytest.raises(SnapshotError):
        restored([bytes(damaged)])


@given(st.integers(0, len(WHOLE) - 1))
@settings(max_examples=300)
def test_a_part_is_refused_wherever_it_ends(end: int) -> None:
    with pytest.raises(SnapshotError):
        restored([WHOLE[:end]])


@given(st.integers(0, len(WHOLE)), st.integers(0, len(WHOLE)), st.binary(max_size=30))
@settings(max_examples=300)
def test_bytes_taken_out_or_put_in_are_refused(one: int, other: int, between: bytes) -> None:
    damaged = WHOLE[: min(one, other)] + between + WHOLE[max(one, other) :]
    if damaged != WHOLE:
        with pytest.raises(SnapshotError):
            restored([damaged])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "it is empty"),
        (b"<html><body>404</body></html>", "no snapshot of kvlb"),
        (WHOLE[:-1], "its end is missing"),
        (WHOLE + b"\0" * 4, "something follows its end"),
        (MAGIC + b"\2\0" + WHOLE[10:], "it is of format 2, and this kvlb reads format 1"),
        (WHOLE[:10] + b"\xff" * 4, "impossible length"),
    ],
)
def test_the_reason_is_told(data: bytes, reason: str) -> None:
    with pytest.raises(SnapshotError, match=reason):
        restored([data])


def test_one_that_is_too_old_is_refused_before_anything_is_restored() -> None:
    index = CacheIndex()
    restoration = Restoration(index, lambda _: True, oldest=CREATED + 60)
    with pytest.raises(SnapshotError, match="60 s older than"):
        restoration.feed(WHOLE)
    assert not index.replicas


def test_it_says_when_it_was_made() -> None:
    restoration = Restoration(CacheIndex(), lambda _: False, oldest=CREATED)
    restoration.feed(WHOLE)
    assert (restoration.created, restoration.finish(), restoration.size) == (CREATED, [], len(WHOLE))


@pytest.mark.parametrize("created", [CREATED + 61, 1e300, float("inf"), float("nan")])
def test_one_from_the_future_is_refused(created: float) -> None:
    restoration = Restoration(CacheIndex(), lambda _: True, oldest=CREATED - 60, newest=CREATED + 60)
    with pytest.raises(SnapshotError, match="has not come yet"):
        restoration.feed(b"".join(write(Image(created, [], {}, {}))))


@pytest.mark.parametrize(
    "changes",
    [
        {"position": Position(0, 1)},
        {"position": Position(-7, 1)},
        {"position": Position(5, None)},
        {"position": Position(2**64 - 1, 1)},
        {"position": Position(5, 1, -1)},
        {"recognition": RecognitionImage("", learned=LearnedKeys(0))},
        {"recognition": RecognitionImage("", learned=LearnedKeys(-1))},
        {"recognition": RecognitionImage("", learned=LearnedKeys(4), unplaced=-1)},
        {"recognition": RecognitionImage("", RECIPE, groups=GroupsImage((GroupSpec(0, "mamba", -4),)))},
    ],
)
def test_values_that_no_kvlb_writes_are_refused(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    part = msgspec.structs.replace(about(A), **changes)
    with monkeypatch.context() as unguarded:
        unguarded.setattr(snapshot, "check", lambda _: None)
        written = list(write(Image(CREATED, [part], {}, {})))
    with pytest.raises(SnapshotError, match="it is damaged"):
        restored(written)


def test_a_replica_whose_values_would_be_refused_is_left_out_and_costs_the_others_nothing() -> None:
    index = filled({A: [1, 2], B: [2, 3]})
    made = image(index, about(A, Position(2**64 - 1, 1)), about(B))
    again, replicas = restored(write(made))
    assert [each.replica for each in replicas] == [B]
    assert again.gpu.held(B) == Counter({2: 1, 3: 1})


def test_two_bits_of_one_replica_are_one() -> None:
    """No kvlb writes that; whoever does must not name other holders."""
    bits = snapshot._Bits({0: 4, 1: 4})
    assert bits.translated(b"\x03") == 4


def test_a_negative_number_of_blocks_let_go_is_refused() -> None:
    known = image(filled({A: [1]}), about(A))
    slot = known.tiers[Tier()].replicas[A]
    known.tiers[Tier()].replicas[A] = msgspec.structs.replace(slot, let_go=-5)
    with pytest.raises(SnapshotError, match="it is damaged"):
        restored(write(known))


def test_what_a_snapshot_tells_twice_is_no_copy() -> None:
    table = at_once(filled({A: [1, 2], B: [2]}).gpu.export())
    twice = msgspec.structs.replace(table, groups={0: deque([*table.groups[0], *table.groups[0]])})
    again, _ = restored(write(Image(CREATED, [about(A), about(B)], {}, {Tier(): twice})))
    assert held(again) == {(A, Tier(), 0): Counter([1, 2]), (B, Tier(), 0): Counter([2])}
