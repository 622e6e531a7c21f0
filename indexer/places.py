"""What is said of places where blocks lie: replicas, tiers, and a table's content at one moment.

Values alone, and the form in which a prompt's keys are asked for. Never knows how a table is kept.
"""

from array import array
from collections import deque
from collections.abc import Sequence
from typing import Final, NewType, Protocol

import msgspec

from indexer.events import BlockRemoved, BlockStored

ReplicaId = NewType("ReplicaId", str)
"""Names one KV cache: an endpoint and a data-parallel rank of it."""

GPU: Final = "GPU"


class Keys(Protocol):
    """A prompt's block keys, computed as far as they are asked for (``hashing.chain.Chain``)."""

    def keys(self, count: int, /) -> Sequence[int]:
        """The keys of at least the first ``count`` blocks, or of all when there are fewer."""
        ...


class Tier(msgspec.Struct, frozen=True):
    """Where blocks lie: the medium (``GPU``, ``CPU``, ``STORAGE``), and whose it is when it is a shared store's."""

    medium: str = GPU
    ownership: str = ""
    locality: str = ""

    @property
    def label(self) -> str:
        """Its name in metrics: the medium, and what else tells it from tiers of the same medium."""
        return "/".join(part for part in (self.medium, self.locality, self.ownership) if part)


def tier_of(event: BlockStored | BlockRemoved) -> Tier:
    """Where the event's blocks lie, however its publisher spells it; without a medium on the GPU.

    A GPU is always the replica's own: that it is ``LOCAL`` too says nothing new (field since vLLM 0.26).
    """
    medium = (event.medium or GPU).upper()
    locality = event.locality or ""
    return Tier(medium, event.ownership or "", "" if medium == GPU and locality == "LOCAL" else locality)


def is_on_gpu(event: BlockStored | BlockRemoved) -> bool:
    """Whether they lie in the cache that prompts are matched against first."""
    if event.medium == GPU and event.locality is None and event.ownership is None:  # as vLLM says it
        return True
    return tier_of(event) == Tier()


class SlotImage(msgspec.Struct, frozen=True):
    """One replica in a ``TierImage``: its bit, group -> key -> copies beyond the first, and blocks that were let go."""

    bit: int
    copies: dict[int, dict[int, int]]
    let_go: int = 0


class Piece(msgspec.Struct, frozen=True):
    """Some keys of one group, each with the number of its bit set among ``sets``.

    Arrays, for Python's garbage collector would walk over lists, and keep the loop for a tenth of a second at 5 M keys.
    """

    keys: "array[int]"
    sets: tuple[int, ...]
    which: "array[int]"


class TierImage(msgspec.Struct, frozen=True):
    """A copy of one tier's table at one moment: for each group its pieces, in the table's order.

    Bits that belong to none of ``replicas`` mean nothing. Whoever reads it may take the pieces out, to have their memory back.
    """

    groups: dict[int, deque[Piece]]
    replicas: dict[ReplicaId, SlotImage]
