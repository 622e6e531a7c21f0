"""One replica's blocks by the engine's own names, translated to keys that a prompt's tokens give.

Knows what events tell of each block: name, parent, tokens, extras. Never knows how the engine hashes, proofs or what the index
holds. Between calls: a name is known exactly as long as a copy of its block is left, whichever tier it lies in, and has the key
of the one prefix that it names; a block that cannot be placed waits until its parent or its own name becomes known
(``orphans.py``).

Keys follow each other at the engine's hash block size: a cache group with larger blocks uses every second, third ... of them,
as it does with the engine's own hashes.
"""

from array import array
from collections import Counter, deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from itertools import islice
from math import gcd
from typing import Final

import msgspec

from hashing.extras import Lora
from hashing.own import follow
from indexer.described import describe
from indexer.events import EMPTY, AllBlocksCleared, BlockRemoved, BlockStored, KVEvent
from indexer.orphans import Orphans
from indexer.places import Tier, is_on_gpu, tier_of

MAX_NAMES: Final = 2_000_000
"""Blocks known of one replica, some 100 bytes each beside the index; more than any has, if no removal of it is lost."""

LET_GO_AT_ONCE: Final = 20_000
"""Names that go when there are too many, the first stored first."""

MAX_PLACES: Final = 256
"""Pairs of a tier and a cache group: their names are whatever a publisher says."""

EXPORTED_AT_ONCE: Final = 8_192
"""Names copied, and then sorted and written, without a pause: 5 ms at most."""

RESTATED_AT_ONCE: Final = 4_096
"""Blocks in one event of ``restate``."""


class NamesImage(msgspec.Struct, frozen=True):
    """Blocks of one cache group in one tier: names and keys, and copies beyond the first by name."""

    tier: Tier
    group: int
    names: Sequence[int]
    keys: Sequence[int]
    copies: Mapping[int, int]


class _Place:
    """The blocks of one cache group in one tier. Changes with ``add``, ``take``, ``leave`` and ``clear``."""

    __slots__ = ("copies", "group", "keys", "tier")

    def __init__(self, tier: Tier, group: int) -> None:
        self.tier = tier
        self.group = group
        self.keys: dict[int, int] = {}  # the engine's name -> our key
        self.copies: dict[int, int] = {}  # name -> copies beyond the first

    def add(self, names: Sequence[int], keys: Sequence[int]) -> None:
        """One more copy of each."""
        known = self.keys
        for name, key in zip(names, keys, strict=True):
            if name in known:
                self.copies[name] = self.copies.get(name, 0) + 1
            else:
                known[name] = key

    def take(self, name: int) -> int | None:
        """One copy less; the key stays known as long as a copy is left."""
        if not self.copies or name not in self.copies:
            return self.keys.pop(name, None)
        self.copies[name] -= 1
        if not self.copies[name]:
            del self.copies[name]
        return self.keys[name]

    def leave(self, name: int, copies: int) -> int | None:
        """No more copies than these."""
        self.copies.pop(name, None)
        if copies <= 0:
            return self.keys.pop(name, None)
        if copies > 1 and name in self.keys:
            self.copies[name] = copies - 1
        return self.keys.get(name)

    def clear(self) -> None:
        self.keys.clear()
        self.copies.clear()

    def stored(self, keys: list[int]) -> BlockStored:
        """An event that stores these keys here."""
        medium, ownership, locality = self._fields
        return BlockStored(
            keys, None, EMPTY, 0, medium=medium, group_idx=self.group, locality=locality, ownership=ownership
        )

    def removed(self, keys: list[int], left: list[int]) -> BlockRemoved:
        """An event that leaves so many copies of each here."""
        medium, ownership, locality = self._fields
        return BlockRemoved(keys, medium, self.group, locality, ownership, left)

    @property
    def _fields(self) -> tuple[str, str | None, str | None]:
        return self.tier.medium, self.tier.ownership or None, self.tier.locality or None


class LearnedBlocks:
    """The blocks whose keys are learned. Changes with ``read`` and ``restore``.

    ``adapters`` are those that the engine has declared, by name: a path is told by no event.
    """

    def __init__(self, adapters: Mapping[str, Lora] | None = None) -> None:
        self.adapters = adapters or {}
        self.hash_block_size = 0
        """Tokens from key to key: the greatest common divisor of the block sizes in the first batch; 0 before that."""
        self.removal_means_gone = False
        """Whether a removal takes all copies (``CacheIndex.removal_means_gone``), until the next clear."""
        self.strangers = 0
        """Blocks that were removed from the GPU and had never been stored there."""
        self.orphans: Orphans[_Place] = Orphans()
        self._places: dict[tuple[Tier, int], _Place] = {}
        self._by_fields: dict[tuple[str | None, str | None, str | None, int | None], _Place] = {}
        self._let_go: Counter[Tier] = Counter()  # copies that are there and not known: there was no room for them
        self._room = MAX_NAMES  # names that may come before they are counted again

    def __repr__(self) -> str:
        return f"<LearnedBlocks {self._known_names():,} known, {self.orphans!r}>"

    @property
    def unplaced(self) -> int:
        """Blocks that are there and not known: those that wait, and those that had to be let go."""
        return len(self.orphans) + self._let_go.total()

    def held(self) -> Counter[int]:
        """Names with their copies, over all tiers and groups. Looks at everything: for tests and dumps."""
        held: Counter[int] = Counter()
        for place in self._places.values():
            held += Counter(place.keys.keys()) + Counter(place.copies)
        return held

    def read(self, events: Sequence[KVEvent]) -> list[KVEvent]:
        """The events with keys in place of names, in the same order, and of what waited that which got its place."""
        if not self.hash_block_size:
            stored = (event for event in events if isinstance(event, BlockStored))
            self.hash_block_size = gcd(*(max(0, event.block_size) for event in stored if is_on_gpu(event)))
        found: list[KVEvent] = []
        for event in events:
            match event:
                case BlockStored():
                    self._store(event, found)
                case BlockRemoved():
                    found.append(self._remove(event))
                case AllBlocksCleared():
                    self._clear()
                    found.append(event)
        return found

    def export(self) -> Generator[None, None, deque[NamesImage]]:
        """A copy of what is known, made in slices of a millisecond or two, between which nothing is read.

        What waits is left out, and has to be told as ``unplaced``.
        """
        images: deque[NamesImage] = deque()
        for place in list(self._places.values()):
            names, keys = iter(place.keys), iter(place.keys.values())
            while some := array("Q", islice(names, EXPORTED_AT_ONCE)):
                copies = {name: place.copies[name] for name in some if name in place.copies} if place.copies else {}
                some_keys = array("Q", islice(keys, EXPORTED_AT_ONCE))
                images.append(NamesImage(place.tier, place.group, some, some_keys, copies))
                yield
        return images

    def restore(self, image: NamesImage) -> None:
        """Know these again."""
        name = (image.tier, image.group)
        place = self._places.setdefault(name, _Place(*name))
        place.keys.update(zip(image.names, image.keys, strict=True))
        place.copies.update(image.copies)
        self._room -= len(image.names)

    def restore_unplaced(self, blocks: int) -> None:
        """So many blocks were there and not known."""
        if blocks:
            self._let_go[Tier()] += blocks

    def restate(self) -> Iterator[BlockStored | BlockRemoved]:
        """Events that tell all that is known, as if it had just come."""
        for place in self._places.values():
            every = iter(place.keys.values())
            while keys := list(islice(every, RESTATED_AT_ONCE)):
                yield place.stored(keys)
            if place.copies and not self.removal_means_gone:  # a number each, however many a publisher says there are
                left = [1 + copies for copies in place.copies.values()]
                yield place.removed([place.keys[name] for name in place.copies], left)

    # Stored

    def _store(self, event: BlockStored, found: list[KVEvent]) -> None:
        place = self._place(event)
        if place is None:
            self._let_go[tier_of(event)] += len(event.block_hashes)
            return
        names = event.block_hashes
        keys = self._keys(event)
        if keys is None:
            names, keys = self._place_one_by_one(event, place)
        place.add(names, keys)
        found.append(
            BlockStored(
                keys,
                None,
                event.token_ids,
                event.block_size,
                event.lora_id,
                event.medium,
                event.lora_name,
                event.extra_keys,
                event.group_idx,
                event.kv_cache_spec_kind,
                event.kv_cache_spec_sliding_window,
                event.locality,
                event.ownership,
                event.session_id,
            )
        )
        if self.orphans:
            found += self._place_orphans(zip(names, keys, strict=True))
        self._room -= len(names)
        if self._room < 0:
            found += self._make_room()

    def _keys(self, event: BlockStored) -> list[int] | None:
        """Of all the event's blocks: known ones again, else hashed from their tokens; None where any has no place."""
        names = event.block_hashes
        # Events of offload tiers may come without tokens or extras, for blocks that GPU events have described.
        if names and self._known(names[0]) is not None:
            keys = [key for name in names if (key := self._known(name)) is not None]
            if len(keys) == len(names):
                return keys
        told = describe(event, self.hash_block_size, self.adapters)
        if told is None:
            return None
        parent = told.root if event.parent_block_hash is None else self._known(event.parent_block_hash)
        if parent is None:
            return None
        step = event.block_size // self.hash_block_size
        return follow(parent, told.links)[step - 1 :: step]

    def _place_one_by_one(self, event: BlockStored, place: _Place) -> tuple[list[int], list[int]]:
        """Names and keys of those blocks that have a place; the others wait."""
        told = describe(event, self.hash_block_size, self.adapters)
        links = told.links if told else []
        step = len(links) // max(1, len(event.block_hashes))
        names: list[int] = []
        keys: list[int] = []
        parent, parent_key = event.parent_block_hash, None
        for at, name in enumerate(event.block_hashes):
            own = tuple(links[at * step : (at + 1) * step])
            key = self._known(name)
            if key is None and own and parent_key is not None:
                key = follow(parent_key, own)[-1]
            if key is None:
                self._wait(name, place, parent, own)
            else:
                names.append(name)
                keys.append(key)
            parent, parent_key = name, key
        return names, keys

    def _known(self, name: int) -> int | None:
        """A hash names the same prefix in every tier and group."""
        for place in self._places.values():
            key = place.keys.get(name)
            if key is not None:
                return key
        return None

    # What has no place, and what no room

    def _wait(
        self, name: int, place: _Place, parent: int | None = None, links: tuple[bytes, ...] = (), copies: int = 1
    ) -> None:
        for at, let_go in self.orphans.wait(name, place, parent, links, copies).items():
            self._let_go[at.tier] += let_go

    def _place_orphans(self, known: Iterator[tuple[int, int]]) -> Iterator[BlockStored]:
        placed: dict[_Place, list[int]] = {}
        for name, key, at in self.orphans.place(known):
            for place, copies in at.items():
                place.add([name] * copies, [key] * copies)
                placed.setdefault(place, []).extend([key] * copies)
        return (place.stored(keys) for place, keys in placed.items())

    def _known_names(self) -> int:
        return sum(len(place.keys) for place in self._places.values())

    def _make_room(self) -> Iterator[BlockRemoved]:
        """Names whose removal was lost would stay for ever: the index must not promise what nothing can take back."""
        self._room = MAX_NAMES - self._known_names()
        if self._room < 0:
            place = max(self._places.values(), key=lambda each: len(each.keys))
            names = list(islice(place.keys, LET_GO_AT_ONCE))
            self._let_go[place.tier] += sum(1 + place.copies.get(name, 0) for name in names)
            self._room += len(names)
            keys = [key for name in names if (key := place.leave(name, 0)) is not None]
            yield place.removed(keys, [0] * len(keys))

    # Removed

    def _remove(self, event: BlockRemoved) -> BlockRemoved:
        place = self._place(event)
        told = event.remaining_copy_counts
        if self.removal_means_gone:
            told = [0] * len(event.block_hashes)
        left: list[int] | None = None
        if place is None:
            keys = []
        elif told is None or len(told) != len(event.block_hashes):
            keys = [key for name in event.block_hashes if (key := self._take(name, place)) is not None]
        else:
            counted = zip(event.block_hashes, told, strict=True)
            kept = [(key, count) for name, count in counted if (key := self._take(name, place, count)) is not None]
            keys, left = [key for key, _ in kept], [count for _, count in kept]
        return BlockRemoved(keys, event.medium, event.group_idx, event.locality, event.ownership, left)

    def _take(self, name: int, place: _Place, left: int | None = None) -> int | None:
        key = place.take(name) if left is None else place.leave(name, left)
        if key is None and name in self.orphans:
            self.orphans.take(name, place, left)
        elif key is None and not left and place.tier == Tier() and not self._let_go[Tier()]:
            self.strangers += 1
        return key

    def _clear(self) -> None:
        """As in the index: of the GPU alone. What lies in other tiers can still be removed from there."""
        gone = [place for place in self._places.values() if place.tier == Tier()]
        for place in gone:
            place.clear()
        self.orphans.drop(gone)
        self.removal_means_gone = False
        del self._let_go[Tier()]

    def _place(self, event: BlockStored | BlockRemoved) -> _Place | None:
        fields = (event.medium, event.ownership, event.locality, event.group_idx)
        place = self._by_fields.get(fields)
        if place is None:
            name = (tier_of(event), event.group_idx or 0)
            place = self._places.get(name)
            if place is None:
                if len(self._places) >= MAX_PLACES:
                    return None
                place = self._places[name] = _Place(*name)
            if len(self._by_fields) < 4 * MAX_PLACES:
                self._by_fields[fields] = place
        return place
