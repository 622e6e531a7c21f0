"""One replica's blocks by the engine's own names, translated to keys that a prompt's tokens give.

Knows what events tell of each block: name, parent, tokens, extras. Never knows how the engine hashes, proofs or what the index
holds. Between calls: a name is known exactly as long as a copy of its block is left, whichever tier it lies in, and has the key
of the one prefix that it names; a block that cannot be placed waits until its parent or its own name becomes known.

Keys follow each other at the engine's hash block size: a cache group with larger blocks uses every second, third ... of them,
as it does with the engine's own hashes.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from itertools import chain, islice
from math import gcd
from typing import Final

import msgspec

from hashing.chain import pack
from hashing.errors import UnhashableError
from hashing.extras import Lora, from_event
from hashing.own import EXTRAS_FORM, follow, link, local_hashes, root
from hashing.serialize import BlockExtra
from indexer.events import EMPTY, NIL, AllBlocksCleared, BlockRemoved, BlockStored, KVEvent
from indexer.index import GPU, Tier

MAX_WAITING: Final = 32_768
"""Blocks that are kept without a place, some 400 bytes each; beyond that the least recently stored go."""

MAX_PLACES: Final = 256
"""Pairs of a tier and a cache group: their names are whatever a publisher says."""

EXPORTED_AT_ONCE: Final = 65_536
"""Names copied without a pause."""

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
    """The blocks of one cache group in one tier. Changes with ``add`` and ``take``."""

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

    def clear(self) -> None:
        self.keys.clear()
        self.copies.clear()

    def stored(self, keys: list[int]) -> BlockStored:
        """An event that stores these keys here."""
        tier = self.tier
        return BlockStored(
            keys,
            None,
            EMPTY,
            0,
            medium=tier.medium,
            group_idx=self.group,
            locality=tier.locality or None,
            ownership=tier.ownership or None,
        )


class _Orphan:
    """A block without a key: what it takes to compute one (nothing for a placeholder), and where its copies lie."""

    __slots__ = ("copies", "links", "parent")

    def __init__(self) -> None:
        self.parent: int | None = None
        self.links: tuple[bytes, ...] = ()
        self.copies: Counter[_Place] = Counter()


class LearnedBlocks:
    """The blocks whose keys are learned. Changes with ``read`` and ``restore``.

    ``adapters`` are those that the engine has declared, by name: a path is told by no event.
    """

    def __init__(self, adapters: Mapping[str, Lora] | None = None) -> None:
        self.adapters = adapters or {}
        self.hash_block_size = 0
        """Tokens from key to key: the greatest common divisor of the block sizes in the first batch; 0 before that."""
        self.placed_late = 0
        """Blocks that waited and got their place."""
        self._places: dict[tuple[Tier, int], _Place] = {}
        self._by_fields: dict[tuple[str | None, str | None, str | None, int | None], _Place] = {}
        self._waiting: OrderedDict[int, _Orphan] = OrderedDict()
        self._children: dict[int, set[int]] = {}  # parent -> those that wait for it
        self._let_go: Counter[Tier] = Counter()  # copies of blocks that waited for too long, or had no room at all

    def __repr__(self) -> str:
        known = sum(len(place.keys) for place in self._places.values())
        return f"<LearnedBlocks {known:,} known, {len(self._waiting):,} waiting>"

    @property
    def waiting(self) -> int:
        """Blocks that wait for a place."""
        return len(self._waiting)

    @property
    def unplaced(self) -> int:
        """Blocks that are there and not known: those that wait, and those that had to be let go."""
        return len(self._waiting) + self._let_go.total()

    def held(self) -> Counter[int]:
        """Names with their copies, over all tiers and groups. Looks at everything: for tests and dumps."""
        held: Counter[int] = Counter()
        for place in self._places.values():
            held += Counter(place.keys.keys()) + Counter(place.copies)
        return held

    def read(self, events: Sequence[KVEvent]) -> list[KVEvent]:
        """The events with keys in place of names, in the same order, and of what waited that which got its place."""
        if not self.hash_block_size:
            self.hash_block_size = gcd(*_gpu_block_sizes(events))
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
        """A copy of what is known, made in slices of some 3 ms, between which nothing is read.

        What waits is left out, and has to be told as ``unplaced``.
        """
        images: deque[NamesImage] = deque()
        for place in list(self._places.values()):
            names, keys = iter(place.keys), iter(place.keys.values())
            while some := tuple(islice(names, EXPORTED_AT_ONCE)):
                copies = {name: place.copies[name] for name in some if name in place.copies} if place.copies else {}
                images.append(NamesImage(place.tier, place.group, some, tuple(islice(keys, EXPORTED_AT_ONCE)), copies))
                yield
        return images

    def restore(self, image: NamesImage) -> None:
        """Know these again."""
        name = (image.tier, image.group)
        place = self._places.setdefault(name, _Place(*name))
        place.keys.update(zip(image.names, image.keys, strict=True))
        place.copies.update(image.copies)

    def restore_unplaced(self, blocks: int) -> None:
        """So many blocks were there and not known."""
        if blocks:
            self._let_go[Tier()] += blocks

    def restate(self) -> Iterator[BlockStored]:
        """Events that store all that is known, as if it had just come."""
        for place in self._places.values():
            copies = Counter(place.copies)
            keys = list(chain(place.keys.values(), (place.keys[name] for name in copies.elements())))
            for at in range(0, len(keys), RESTATED_AT_ONCE):
                yield place.stored(keys[at : at + RESTATED_AT_ONCE])

    # Stored

    def _store(self, event: BlockStored, found: list[KVEvent]) -> None:
        place = self._place(event)
        if place is None:
            self._let_go[_tier(event)] += len(event.block_hashes)
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
        if self._waiting:
            found += self._place_waiting(zip(names, keys, strict=True))

    def _keys(self, event: BlockStored) -> list[int] | None:
        """Of all the event's blocks: known ones again, else hashed from their tokens; None where any has no place."""
        names = event.block_hashes
        # Events of offload tiers may come without tokens or extras, for blocks that GPU events have described.
        if names and self._known(names[0]) is not None:
            keys = [key for name in names if (key := self._known(name)) is not None]
            if len(keys) == len(names):
                return keys
        described = self._describe(event)
        if described is None:
            return None
        first, links = described
        parent = first if event.parent_block_hash is None else self._known(event.parent_block_hash)
        if parent is None:
            return None
        step = event.block_size // self.hash_block_size
        return follow(parent, links)[step - 1 :: step]

    def _place_one_by_one(self, event: BlockStored, place: _Place) -> tuple[list[int], list[int]]:
        """Names and keys of those blocks that have a place; the others wait."""
        described = self._describe(event)
        links = described[1] if described else []
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
                self._wait(name, parent, own, place)
            else:
                names.append(name)
                keys.append(key)
            parent, parent_key = name, key
        return names, keys

    def _describe(self, event: BlockStored) -> tuple[int | None, list[bytes]] | None:
        """The key before the event's first block if that begins a prompt, and the links of its blocks.

        None when its tokens are not exactly those of the hashed blocks (sparse groups and placeholders send more or none), or
        when its blocks hold something that has no known shape.
        """
        try:
            tokens = dense_tokens(event)
            if tokens is None or not self.hash_block_size or event.block_size % self.hash_block_size:
                return None
            locals_ = local_hashes(pack(tokens), self.hash_block_size)
            is_first = event.parent_block_hash is None
            salt, extras = _extras(event)
            if is_first and event.extra_keys == NIL and not _is_on_gpu(event):
                return None  # offload tiers leave the salt out; the GPU's event of the same name has it
            begin = root(self._lora(event), salt) if is_first else None
            if extras is None:
                return begin, list(locals_)
            if event.block_size != self.hash_block_size:
                return None
            return begin, list(map(link, locals_, extras))
        except (UnhashableError, msgspec.MsgspecError):
            return None

    def _lora(self, event: BlockStored) -> Lora | None:
        if event.lora_name is not None:
            return self.adapters.get(event.lora_name) or Lora(event.lora_name)
        if event.lora_id is not None:  # vLLM 0.11: a number that no request and no listing names
            raise UnhashableError(f"lora_id: {event.lora_id} has no name")
        return None

    def _known(self, name: int) -> int | None:
        """A hash names the same prefix in every tier and group."""
        for place in self._places.values():
            key = place.keys.get(name)
            if key is not None:
                return key
        return None

    # What waits

    def _wait(self, name: int, parent: int | None, links: tuple[bytes, ...], place: _Place) -> None:
        orphan = self._waiting.get(name)
        if orphan is None:
            orphan = self._waiting[name] = _Orphan()
        self._waiting.move_to_end(name)
        orphan.copies[place] += 1
        if links and not orphan.links and parent is not None:
            orphan.parent, orphan.links = parent, links
            self._children.setdefault(parent, set()).add(name)
        if len(self._waiting) > MAX_WAITING:
            for at, copies in self._leave(next(iter(self._waiting))).copies.items():
                self._let_go[at.tier] += copies

    def _leave(self, name: int) -> _Orphan:
        orphan = self._waiting.pop(name)
        siblings = None if orphan.parent is None else self._children.get(orphan.parent)
        if siblings is not None and orphan.parent is not None:
            siblings.discard(name)
            if not siblings:
                del self._children[orphan.parent]
        return orphan

    def _place_waiting(self, known: Iterator[tuple[int, int]]) -> Iterator[BlockStored]:
        """Those that have waited for one of these names, and those that have waited for them."""
        placed: dict[_Place, list[int]] = {}
        pending = list(known)
        while pending:
            name, key = pending.pop()
            if name in self._waiting:
                self.placed_late += 1
                for place, copies in self._leave(name).copies.items():
                    place.add([name] * copies, [key] * copies)
                    placed.setdefault(place, []).extend([key] * copies)
            children = self._children.get(name, ())
            pending += [(child, follow(key, self._waiting[child].links)[-1]) for child in children]
        return (place.stored(keys) for place, keys in placed.items())

    # Removed

    def _remove(self, event: BlockRemoved) -> BlockRemoved:
        place = self._place(event)
        keys: list[int] = []
        if place is not None:
            for name in event.block_hashes:
                key = place.take(name)
                if key is not None:
                    keys.append(key)
                elif name in self._waiting:
                    self._take_waiting(name, place)
        return BlockRemoved(keys, event.medium, event.group_idx, event.locality, event.ownership)

    def _take_waiting(self, name: int, place: _Place) -> None:
        orphan = self._waiting[name]
        orphan.copies[place] -= 1
        orphan.copies += Counter()
        if not orphan.copies:
            self._leave(name)

    def _clear(self) -> None:
        """As in the index: of the GPU alone. What lies in other tiers can still be removed from there."""
        for place in self._places.values():
            if place.tier == Tier():
                place.clear()
        for name, orphan in list(self._waiting.items()):
            orphan.copies = Counter({place: count for place, count in orphan.copies.items() if place.tier != Tier()})
            if not orphan.copies:
                self._leave(name)
        del self._let_go[Tier()]

    def _place(self, event: BlockStored | BlockRemoved) -> _Place | None:
        fields = (event.medium, event.ownership, event.locality, event.group_idx)
        place = self._by_fields.get(fields)
        if place is None:
            name = (_tier(event), event.group_idx or 0)
            place = self._places.get(name)
            if place is None:
                if len(self._places) >= MAX_PLACES:
                    return None
                place = self._places[name] = _Place(*name)
            if len(self._by_fields) < 4 * MAX_PLACES:
                self._by_fields[fields] = place
        return place


def _tier(event: BlockStored | BlockRemoved) -> Tier:
    return Tier((event.medium or GPU).upper(), event.ownership or "", event.locality or "")


def _is_on_gpu(event: BlockStored) -> bool:
    return (event.medium or GPU).upper() == GPU


def _gpu_block_sizes(events: Sequence[KVEvent]) -> Iterator[int]:
    for event in events:
        if isinstance(event, BlockStored) and event.block_size > 0 and _is_on_gpu(event):
            yield event.block_size


def dense_tokens(event: BlockStored) -> list[int] | None:
    """The tokens if they are exactly those of the hashed blocks: sparse groups and placeholders send more or none.

    Raises:
        msgspec.MsgspecError: they are not a list of integers.
    """
    if event.block_size <= 0:
        return None
    tokens = event.tokens()
    return tokens if len(tokens) == len(event.block_hashes) * event.block_size else None


def _extras(event: BlockStored) -> tuple[str | None, list[BlockExtra] | None]:
    """The salt that the event tells, and what lies in each block; None where nothing lies in any.

    Raises:
        UnhashableError: an extra of unknown shape, or in a block where it cannot be.
        msgspec.MsgspecError: the extras are not a list of lists.
    """
    published = event.extras()
    if not published:
        return None, None
    if len(published) != len(event.block_hashes):
        raise UnhashableError(f"extra_keys: {len(published)} entries for {len(event.block_hashes)} blocks")
    if not any(published):
        return None, None
    salt: str | None = None
    extras: list[BlockExtra] = []
    for at, entry in enumerate(published):
        rest = entry[1:] if entry and event.lora_name is not None and entry[0] == event.lora_name else entry
        told = from_event(EXTRAS_FORM, rest, None) or ()
        for text in (each for each in told if isinstance(each, str)):
            # A salt stands in the first block alone; up to vLLM 0.21 a bare text may be an image, whose offset is not told.
            if at or salt is not None or event.parent_block_hash is not None:
                raise UnhashableError(f"extra_keys: {text!r} is no salt of a first block")
            salt = text
        extras.append(tuple(each for each in told if not isinstance(each, str)) or None)
    return salt, extras if any(extras) else None
