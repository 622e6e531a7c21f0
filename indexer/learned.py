"""One replica's blocks by the engine's own names, translated to keys that a prompt's tokens give.

Knows what events tell of each block: name, parent, tokens, extras. Never knows recipes of the engine, proofs or what the index
holds. Between calls: a name is known exactly as long as a copy of its block is left, and a child is never placed without its
parent.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

import msgspec

from hashing.chain import hash_blocks
from hashing.errors import UnhashableError
from hashing.external import key_of
from hashing.extras import Lora, from_event
from hashing.recipes import Recipe
from hashing.serialize import BlockExtra
from indexer.events import AllBlocksCleared, BlockRemoved, BlockStored, KVEvent
from indexer.index import GPU, Tier

OWN: Final = Recipe(
    algorithm="xxhash",
    seed="kvlb learned keys",
    lora_form="name",
    multimodal_form="offset",
    salt_form="tagged",
    embeds_form="plain",
)
"""For learned keys: the fastest algorithm, our own root, and of the extras what events of every release tell.

An adapter is its name, for no event tells its path; a salt has its tag, so that it is never taken for an adapter.
"""

_Place: TypeAlias = tuple[Tier, int]
"""A tier and a cache group. Groups of different block sizes use the same hash for different ranges of tokens."""


class _Names:
    """The blocks of one place, by the engine's names for them. Changes with ``add`` and ``take``."""

    __slots__ = ("copies", "digests", "unplaced")

    def __init__(self) -> None:
        self.digests: dict[int, bytes] = {}
        self.copies: dict[int, int] = {}  # copies beyond the first
        self.unplaced = 0

    def add(self, name: int, digest: bytes) -> None:
        """One more copy."""
        if name in self.digests:
            self.copies[name] = self.copies.get(name, 0) + 1
        self.digests[name] = digest

    def take(self, name: int) -> bytes | None:
        """One copy less; the digest stays known as long as a copy is left."""
        others = self.copies.get(name, 0)
        if not others:
            return self.digests.pop(name, None)
        if others > 1:
            self.copies[name] = others - 1
        else:
            del self.copies[name]
        return self.digests[name]


class LearnedBlocks:
    """The blocks whose keys are learned. Changes with ``read``."""

    def __init__(self) -> None:
        self._names: dict[_Place, _Names] = {}

    def held(self) -> Counter[int]:
        """Names with their copies, over all tiers and groups. Looks at everything: for tests and dumps."""
        held: Counter[int] = Counter()
        for names in self._names.values():
            held += Counter(names.digests.keys()) + Counter(names.copies)
        return held

    @property
    def unplaced(self) -> int:
        """Blocks that could not be translated: their parent was never seen, or they came without tokens."""
        return sum(names.unplaced for names in self._names.values())

    def read(self, events: Sequence[KVEvent]) -> Iterator[KVEvent]:
        """The events with keys in place of names, in the same order."""
        for event in events:
            match event:
                case BlockStored():
                    yield self._stored(event)
                case BlockRemoved():
                    yield self._removed(event)
                case AllBlocksCleared():
                    self._clear()
                    yield event

    def _stored(self, event: BlockStored) -> BlockStored:
        names, digests = self._names_at(event), self._digests(event)
        for name, digest in zip(event.block_hashes, digests, strict=False):
            names.add(name, digest)
        placed = min(len(digests), len(event.block_hashes))
        names.unplaced += len(event.block_hashes) - placed
        keys = [key_of(digest) for digest in digests[:placed]]
        return msgspec.structs.replace(event, block_hashes=keys, parent_block_hash=None)

    def _removed(self, event: BlockRemoved) -> BlockRemoved:
        names = self._names_at(event)
        taken = [names.take(name) for name in event.block_hashes]
        return msgspec.structs.replace(event, block_hashes=[key_of(digest) for digest in taken if digest is not None])

    def _clear(self) -> None:
        """As in the index: of the GPU alone. What lies in other tiers can still be removed from there."""
        self._names = {place: names for place, names in self._names.items() if place[0] != Tier()}

    def _digests(self, event: BlockStored) -> Sequence[bytes]:
        """Ours of the event's blocks: known ones again, else hashed from their tokens; none where they have no place."""
        group = event.group_idx or 0
        # Events of offload tiers may come without tokens or extras, for blocks that GPU events have described.
        known = [digest for name in event.block_hashes if (digest := self._known(group, name)) is not None]
        if len(known) == len(event.block_hashes):
            return known
        try:
            tokens = dense_tokens(event)
            recipe = msgspec.structs.replace(OWN, block_size=max(1, event.block_size))
            first = event.parent_block_hash
            parent = recipe.none_hash() if first is None else self._known(group, first)
            if tokens is None or parent is None:
                return []
            return hash_blocks(recipe, parent, tokens, _extras(recipe, event))
        except (UnhashableError, msgspec.MsgspecError):
            return []

    def _known(self, group: int, name: int) -> bytes | None:
        """A hash names the same prefix in every tier."""
        for (_, each), names in self._names.items():
            if each == group and name in names.digests:
                return names.digests[name]
        return None

    def _names_at(self, event: BlockStored | BlockRemoved) -> _Names:
        tier = Tier((event.medium or GPU).upper(), event.ownership or "", event.locality or "")
        return self._names.setdefault((tier, event.group_idx or 0), _Names())


def dense_tokens(event: BlockStored) -> list[int] | None:
    """The tokens if they are exactly those of the hashed blocks: sparse groups and placeholders send more or none.

    Raises:
        msgspec.MsgspecError: they are not a list of integers.
    """
    tokens = event.tokens()
    is_dense = event.block_size > 0 and len(tokens) == len(event.block_hashes) * event.block_size
    return tokens if is_dense else None


def _extras(recipe: Recipe, event: BlockStored) -> Sequence[BlockExtra]:
    """What we hash for each block.

    Raises:
        UnhashableError: an extra of unknown shape, or an adapter without a name.
        msgspec.MsgspecError: the extras are not a list of lists.
    """
    lora = None if event.lora_name is None else Lora(event.lora_name)
    published = event.extras()
    if published is not None:
        return [from_event(recipe, entry, lora) for entry in published]
    if lora is None and event.lora_id is not None:  # vLLM 0.11: a number that no request and no listing names
        raise UnhashableError(f"lora_id: {event.lora_id} has no name")
    return [from_event(recipe, None if lora is None else [lora.name], lora)] * len(event.block_hashes)
