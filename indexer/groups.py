"""The cache groups of one replica, as far as its events have told of them.

Knows kind, block size and window of each group. Never knows recipes, or which blocks are held. Between calls: ``is_hybrid`` is
false exactly as long as all that was told is one cache of full attention, which needs no rule beyond its length.

A ``BlockRemoved`` tells no kind: what it is about was told when its block was stored.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from indexer.events import BlockStored, KVEvent
from indexer.hybrid import CHUNKED_LOCAL, FULL_ATTENTION, MAMBA, GroupSpec, HitRule, hit_rule, is_known, why_unknown
from indexer.places import is_on_gpu

MAX_GROUPS: Final = 64
"""More than any model has kinds of layers; a group's number is whatever a publisher says."""

_PLAIN: Final = FULL_ATTENTION | {None}


class Untold(msgspec.Struct, frozen=True):
    """What no event tells of the groups, and whoever runs the engine knows.

    ``has_eagle``: a draft model has the last block of every hit computed anew. ``attention_chunk``: the chunk of chunked local
    attention, in tokens.
    """

    has_eagle: bool = False
    attention_chunk: int | None = None


NOTHING: Final = Untold()


class GroupsImage(msgspec.Struct, frozen=True):
    """What events have told of the groups; ``whole`` are those whose block size is certain."""

    specs: tuple[GroupSpec, ...] = ()
    whole: tuple[int, ...] = ()
    has_too_many: bool = False


class CacheGroups:
    """Changes with ``read``; ``untold`` may be set at any time."""

    def __init__(self, untold: Untold = NOTHING) -> None:
        self.untold = untold
        self.specs: dict[int, GroupSpec] = {}
        """As events tell."""
        self.is_hybrid = False
        self.has_too_many = False
        self._whole: set[int] = set()  # groups that have shown a block which is certainly not part of a longer one

    def __repr__(self) -> str:
        return f"<CacheGroups {list(self.specs.values())}>"

    def read(self, events: Sequence[KVEvent]) -> bool:
        """Whether the events tell anything of the groups that was not known."""
        is_news = False
        for event in events:
            if (
                isinstance(event, BlockStored)
                and (self.is_hybrid or event.group_idx or event.kv_cache_spec_kind not in _PLAIN or not self.specs)
                and is_on_gpu(event)
            ):
                is_news = self._learn(event) or is_news
        return is_news

    def _learn(self, event: BlockStored) -> bool:
        group = event.group_idx or 0
        known = self.specs.get(group)
        if known is None and len(self.specs) >= MAX_GROUPS:
            is_news, self.has_too_many = not self.has_too_many, True
            return is_news
        spec = GroupSpec(
            group,
            event.kv_cache_spec_kind or "full_attention",
            # The end of a prompt may be stored as a part of its block, with the length of that part (vLLM 0.32).
            max(event.block_size, known.block_size if known else 0),
            event.kv_cache_spec_sliding_window,
        )
        is_news = spec != known
        self.specs[group] = spec
        if group not in self._whole and event.block_size == spec.block_size and _is_of_several_blocks(event):
            self._whole.add(group)
            is_news = True
        elif is_news:
            self._whole.discard(group)
        self.is_hybrid = self._are_several()
        return is_news

    def _are_several(self) -> bool:
        return any(spec.group or spec.kind not in FULL_ATTENTION for spec in self.specs.values())

    def export(self) -> GroupsImage:
        """What the events of this incarnation have told so far."""
        return GroupsImage(tuple(self.specs.values()), tuple(self._whole), self.has_too_many)

    def restore(self, image: GroupsImage) -> None:
        """The same, in another process: as if the events had been read here."""
        self.specs = {spec.group: spec for spec in image.specs}
        self._whole, self.has_too_many = set(image.whole), image.has_too_many
        self.is_hybrid = self._are_several()

    def _whole_specs(self) -> list[GroupSpec]:
        """With what events do not tell."""
        chunk, has_eagle = self.untold.attention_chunk, self.untold.has_eagle
        return [
            msgspec.structs.replace(
                spec, window=chunk if spec.kind == CHUNKED_LOCAL else spec.window, is_eagle=has_eagle
            )
            for spec in self.specs.values()
        ]

    def rule(self, hash_size: int) -> HitRule | None:
        """The hit rule of those groups that have one; None where none has, or where one cache of full attention is all."""
        specs = tuple(spec for spec in self._whole_specs() if is_known(spec) and not spec.block_size % hash_size)
        return hit_rule(specs, hash_size) if self.is_hybrid and specs else None

    def doubt(self, hash_size: int) -> str:
        """Why ``rule`` may be wrong, in words for an operator; empty where it is not."""
        specs = self._whole_specs()
        if self.has_too_many:
            return f"it tells of more than {MAX_GROUPS} cache groups"
        if reason := why_unknown(specs):
            return reason
        if self.untold.has_eagle and len(specs) > 1:
            return "which of its cache groups its draft model reads is not known; events do not tell"
        for spec in specs:
            if spec.block_size % hash_size:
                return f"the blocks of its cache group {spec.group} are no multiple of what it hashes"
            may_be_part = spec.block_size == hash_size and (spec.kind in FULL_ATTENTION or spec.kind == MAMBA)
            if may_be_part and spec.group not in self._whole:
                return f"its cache group {spec.group} has shown no whole block yet"
        return ""


def _is_of_several_blocks(event: BlockStored) -> bool:
    if len(event.block_hashes) > 1:
        return True
    try:
        return event.block_size > 0 and len(event.tokens()) >= 2 * event.block_size
    except msgspec.MsgspecError:
        return False
