"""What a publisher's event stream orders, and how far orders have been obeyed.

Values alone: whoever keeps an index obeys them, in their order (``indexer.stream``). Never knows how they were found out.
"""

from typing import TypeAlias

import msgspec

from indexer.events import AllBlocksCleared
from indexer.wire import Batch


class Apply(msgspec.Struct, frozen=True):
    """These batches come next, in this order."""

    batches: list[Batch]


class Replay(msgspec.Struct, frozen=True):
    """Ask the publisher for its batches from ``start`` on."""

    start: int


class Forget(msgspec.Struct, frozen=True):
    """A new incarnation: the engine's cache began empty, nothing known so far holds."""

    reason: str


class Lost(msgspec.Struct, frozen=True):
    """The batches ``first`` to ``last`` cannot be had any more: what is known of this replica has a hole."""

    first: int
    last: int


class Standing(msgspec.Struct, frozen=True):
    """How the subscription stands from here on; said by whoever reads the sockets, whenever it changes.

    ``is_complete`` is about the steps before this one: with them, nothing of this incarnation is missing. ``is_restored``:
    what came before them is from a snapshot, and the publisher has not shown yet that it is still in that life. ``problem`` is
    why nothing comes live though it is connected, or what comes is in doubt, in words for an operator.
    """

    is_connected: bool = False
    is_complete: bool = False
    is_restored: bool = False
    problem: str = ""


Step: TypeAlias = Apply | Replay | Forget | Lost | Standing


class Position(msgspec.Struct, frozen=True, array_like=True):
    """How far one publisher's steps have been obeyed: enough for another stream to go on from there.

    ``digest`` is that of the batch below ``next_sequence``, by which the incarnation is known again; None where it is not.
    """

    next_sequence: int = 0
    digest: int | None = None
    lost_batches: int = 0
    """Lost for good, or not wholly readable, since the cache was last known to be empty."""

    def after(self, step: Step) -> "Position":
        """Where this step leads to. The batches of an ``Apply`` follow those before it without a gap."""
        match step:
            case Apply(batches):
                lost = self.lost_batches
                for batch in batches:
                    if lost and clears(batch):
                        lost = 0
                    lost += bool(batch.skipped)
                return Position(self.next_sequence + len(batches), batches[-1].digest, lost)
            case Lost(first, last):
                return Position(last + 1, None, self.lost_batches + last - first + 1)
            case Forget():
                return Position()
        return self

    @property
    def can_be_resumed(self) -> bool:
        """Whether a publisher can be asked if this is still its life."""
        return self.next_sequence > 0 and self.digest is not None


def clears(batch: Batch) -> bool:
    """Whether the GPU cache was empty at some moment of this batch."""
    return any(isinstance(event, AllBlocksCleared) for event in batch.events)
