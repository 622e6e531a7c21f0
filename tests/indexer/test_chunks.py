"""``indexer/chunks.py``: how many blocks a tier keeps together, from events of either form."""

from collections.abc import Sequence

from indexer.chunks import MAX_PLACES, Chunks
from indexer.events import EMPTY, BlockRemoved, BlockStored, KVEvent
from indexer.places import Tier

CPU = Tier("CPU")


def on_gpu(*names: int, parent: int | None = None) -> BlockStored:
    return BlockStored(list(names), parent, EMPTY, 16, medium="GPU")


def placeholder(*names: int, medium: str = "CPU") -> BlockStored:
    return BlockStored(list(names), None, EMPTY, 0, medium=medium)


def described(*names: int) -> BlockStored:
    return BlockStored(list(names), None, EMPTY, 16, medium="CPU")


def size(*events: KVEvent) -> int:
    chunks = Chunks()
    chunks.read(events)
    return chunks.size(CPU)


def test_a_tier_that_nobody_has_spoken_of_keeps_single_blocks() -> None:
    assert size() == size(on_gpu(1, 2, 3), BlockRemoved([1], "CPU")) == 1


def test_placeholders_show_it_by_the_places_of_their_blocks() -> None:
    first: Sequence[KVEvent] = [placeholder(99), on_gpu(1, 2, 3, 4), on_gpu(5, 6, 7, 8, parent=4)]
    assert size(*first, placeholder(4)) == 4
    assert size(*first, placeholder(8)) == 8  # until a shorter one comes
    assert size(*first, placeholder(8), placeholder(4)) == 4
    assert size(*first, placeholder(2), placeholder(4), placeholder(6)) == 2
    assert size(*first, placeholder(3), placeholder(4)) == 1


def test_blocks_whose_beginning_was_never_seen_show_nothing() -> None:
    assert size(placeholder(99), on_gpu(5, 6, parent=4), placeholder(6)) == 1


def test_places_are_kept_from_the_first_placeholder_on() -> None:
    assert size(on_gpu(1, 2), placeholder(2)) == 1
    assert size(on_gpu(1, 2), placeholder(2), on_gpu(11, 12), placeholder(12)) == 2


def test_an_event_that_describes_itself_names_a_chunk() -> None:
    assert size(described(1, 2, 3, 4)) == 4
    assert size(described(1, 2, 3, 4), described(5, 6)) == 2
    assert size(described(1)) == 1


def test_other_tiers_and_lives_are_apart() -> None:
    chunks = Chunks()
    chunks.read([described(1, 2), placeholder(9, medium="STORAGE"), on_gpu(1, 2, 3), placeholder(3, medium="STORAGE")])
    assert (chunks.size(CPU), chunks.size(Tier("STORAGE"))) == (2, 3)
    chunks.forget()
    assert (chunks.size(CPU), chunks.size(Tier("STORAGE"))) == (1, 1)


def test_what_is_remembered_is_bounded() -> None:
    chunks = Chunks()
    chunks.read([placeholder(0), *(on_gpu(at) for at in range(1, MAX_PLACES + 10))])
    assert len(chunks._places) <= MAX_PLACES
    chunks.read([on_gpu(1, 2), on_gpu(7, 8, parent=2), placeholder(8)])
    assert chunks.size(CPU) == 4
