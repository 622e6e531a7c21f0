"""Replicas that have work and give nothing: their process lives, so that probes find no fault, and their engine stands still.

Knows which answers are under way, how much of each has come, and moved time (seconds, any monotonic clock). Never counts
bytes itself. A sign of life is a byte of any answer or a KV event; with neither for too long, while answers are owed, a replica
has stalled.
"""

from collections.abc import Collection
from typing import Final, Protocol

from indexer.index import ReplicaId

SLOW_TOKEN: Final = 0.2
"""Seconds; slower than this nobody decodes who serves anybody."""

LARGEST_BLOCK: Final = 4096
"""Tokens; more is believed of nobody. Hybrid models have blocks of a thousand and more."""


class Answer(Protocol):
    """An answer under way, as whoever relays it keeps it."""

    @property
    def arrived(self) -> int:
        """Bytes that have come of it."""
        ...

    def leave(self) -> None:
        """Its replica stands still: have another one answer, as long as that is possible, and wait on where it is not."""
        ...


class _UnderWay:
    """One request at one replica; ``seen`` are the bytes at the last look."""

    __slots__ = ("answer", "replica", "seen", "waits")

    def __init__(self, replica: ReplicaId, answer: Answer, *, waits: bool) -> None:
        self.replica = replica
        self.answer = answer
        self.waits = waits
        self.seen = 0


class Stalls:
    """Watches for signs of life. Changes with every call; times never go back.

    An answer that has begun goes on with every step of the engine, and a prompt that is computed is told block by block where
    events come. Where none do, the silence of a long prefill says nothing. An answer that is not streamed is told block by
    block, too, while it is computed: a block of many tokens takes longer than ``seconds``, and is given ``SLOW_TOKEN`` for
    each.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._open: dict[int, _UnderWay] = {}
        self._since: dict[
            ReplicaId, float
        ] = {}  # last sign of life of those that have work, or when they were given it
        self._stalled: set[ReplicaId] = set()  # and no sign of life since
        self._heard: set[ReplicaId] = set()
        self._telling: dict[ReplicaId, int] = {}  # and the tokens of its largest block

    def sent(self, lease: int, replica: ReplicaId, answer: Answer, *, waits: bool = False) -> None:
        """A request has been sent there; with ``waits``, its silence until the first byte is another replica's.

        Such a one waits for a prompt that is computed elsewhere, and has nothing to tell meanwhile.
        """
        self._open[lease] = _UnderWay(replica, answer, waits=waits)

    def ended(self, lease: int, *, is_good: bool) -> None:
        """It has ended; a good end is a sign of life, and a client that leaves is none."""
        ended = self._open.pop(lease, None)
        if ended is not None and is_good:
            self._heard.add(ended.replica)

    def told(self, replica: ReplicaId, block_tokens: int = 0) -> None:
        """A KV event has come, of blocks of so many tokens: from now on its silence says something."""
        self._telling[replica] = max(self._telling.get(replica, 0), min(block_tokens, LARGEST_BLOCK))
        self._heard.add(replica)

    def unheard(self, replica: ReplicaId) -> None:
        """Its events cannot be heard any more, or another engine has begun there."""
        self._telling.pop(replica, None)
        self._stalled.discard(replica)

    def look(self, now: float) -> tuple[dict[ReplicaId, float], set[ReplicaId]]:
        """Those that have stalled, with the seconds since their last sign of life; and those that have given one just now."""
        alive, self._heard = self._heard, set()
        working: set[ReplicaId] = set()
        owing: dict[ReplicaId, float] = {}  # and for how long it may be silent
        for each in self._open.values():
            arrived = each.answer.arrived
            if each.waits and not arrived:
                continue
            working.add(each.replica)
            if arrived > each.seen:
                each.seen = arrived
                alive.add(each.replica)
            if arrived:
                owing[each.replica] = self._seconds
            elif each.replica in self._telling:
                owing.setdefault(each.replica, max(self._seconds, SLOW_TOKEN * self._telling[each.replica]))
        self._since = {replica: now if replica in alive else self._since.get(replica, now) for replica in working}
        self._stalled -= alive
        for replica in self._stalled:  # whatever it is tried with: it has shown that its silence means something
            owing[replica] = self._seconds
        stalled = {
            replica: silence for replica, limit in owing.items() if (silence := self._silence(replica, now)) >= limit
        }
        self._stalled |= stalled.keys()
        return stalled, alive

    def _silence(self, replica: ReplicaId, now: float) -> float:
        """Seconds; 0 of one that has nothing to do."""
        return now - self._since.get(replica, now)

    def silent(self, replicas: Collection[ReplicaId], seconds: float, now: float) -> set[ReplicaId]:
        """Those of them that have work and have given no sign of life for so long, as of the last look.

        For replicas of which something else says that they do not live; of others the silence may be a long prefill.
        """
        return {replica for replica in replicas if replica in self._since and self._silence(replica, now) >= seconds}

    def waiting_at(self, replicas: Collection[ReplicaId]) -> list[Answer]:
        """The answers that are under way there."""
        return [each.answer for each in self._open.values() if each.replica in replicas]
