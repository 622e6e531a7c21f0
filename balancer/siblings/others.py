"""What others have at one replica, as far as anybody here knows at the moment: a value that a fleet adds to its own.

Knows counts, and how they follow what this gateway does itself. Never knows siblings, reports or clocks
(``balancer.siblings.book``).
"""

from typing import Final

import msgspec

from indexer.index import ReplicaId


class Others(msgspec.Struct, frozen=True, gc=False):
    """Requests and tokens of all other gateways together at one replica.

    Each count is that of some moment ago, less ``echo`` times what this gateway had there itself at that moment; so it is added
    to ``echo`` times what this gateway has there now (``beside``). Those who were counted see what this gateway sees, and do
    what it does: a replica that it has filled since is filled by them, too, and what is through here is through there.
    """

    in_flight: float = 0.0
    waiting: float = 0.0
    queued_tokens: float = 0.0
    active_tokens: float = 0.0
    echo: float = 0.0

    def requests(self, own: int) -> int:
        """In flight, where this gateway has ``own`` now."""
        return _beside(self.in_flight, self.echo, own)

    def unanswered(self, own: int) -> int:
        return _beside(self.waiting, self.echo, own)

    def queued(self, own: int) -> int:
        """Uncached tokens to be computed still."""
        return _beside(self.queued_tokens, self.echo, own)

    def active(self, own: int) -> int:
        """Tokens of the prompts of all that is in flight."""
        return _beside(self.active_tokens, self.echo, own)


def _beside(counted: float, echo: float, own: int) -> int:
    now = counted + echo * own
    return int(now + 0.5) if now > 0 else 0


NOBODY: Final = Others()


class OthersWork(msgspec.Struct, frozen=True):
    """What others give all replicas of one model: seconds of computing prompts a second, of all of them together, and how many
    replicas each of them keeps busy.
    """

    work: float = 0.0
    busy: tuple[float, ...] = ()


IDLE: Final = OthersWork()


class Grown(msgspec.Struct, frozen=True):
    """What a sibling has sent to a replica between two of its reports."""

    replica: ReplicaId
    requests: int
    tokens: int
