"""One publisher's batches, put back in order.

Knows sequence numbers, gaps, replays and incarnations. Never knows sockets or clocks: whoever reads the sockets says what
came (``receive``, ``replayed``), what happened (``connected``, ``disconnected``, ``replay_ended``) and obeys the steps that
come back, in their order. Between calls: every batch below ``next_sequence`` was applied once or reported ``Lost``; batches
above it wait in ``pending``.

What vLLM (0.11 - 0.32) makes of it, and why this is not a plain counter:

- the sequence starts at 0 with each engine process, and the first batches after a restart are lost while the subscriber
  reconnects, so a series can look contiguous across a restart: a reconnect is verified by asking for the last batch again;
- the replay socket drops frames when its pipe is full, even in the middle, and still sends its end marker: contiguity is
  checked here, and a replay is over only when it brings nothing new;
- a replay that starts above what was asked for means that the publisher has thrown the older batches away.

A stream that goes on where another one ended, in a gateway before, trusts that one no more than it would a renewed connection.
"""

from typing import Final, TypeAlias

import msgspec

from indexer.events import AllBlocksCleared
from indexer.wire import Batch

MAX_PENDING: Final = 200_000
"""Batches kept while a gap is being filled; twice the publisher's own queue (vLLM 0.32: hwm 100,000)."""

MAX_FRUITLESS_REPLAYS: Final = 3
"""Replays in a row that bring nothing before a gap is given up: the first may have met a publisher that is busy."""


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
    why nothing comes live though it is connected, in words for an operator.
    """

    is_connected: bool = False
    is_complete: bool = False
    is_restored: bool = False
    problem: str = ""


Step: TypeAlias = Apply | Replay | Forget | Lost | Standing


class Position(msgspec.Struct, frozen=True, array_like=True):
    """How far one publisher's steps have been obeyed: enough for another stream to go on from there.

    ``timestamp`` is that of the batch below ``next_sequence``, by which the incarnation is known again; None where it is not.
    """

    next_sequence: int = 0
    timestamp: float | None = None
    lost_batches: int = 0
    """Lost for good, or not wholly readable, since the cache was last known to be empty."""

    def after(self, step: Step) -> "Position":
        """Where this step leads to. The batches of an ``Apply`` follow those before it without a gap."""
        match step:
            case Apply(batches):
                lost = self.lost_batches
                for batch in batches:
                    if lost and _clears(batch):
                        lost = 0
                    lost += bool(batch.skipped)
                return Position(self.next_sequence + len(batches), batches[-1].timestamp, lost)
            case Lost(first, last):
                return Position(last + 1, None, self.lost_batches + last - first + 1)
            case Forget():
                return Position()
        return self

    @property
    def can_be_resumed(self) -> bool:
        """Whether a publisher can be asked if this is still its life."""
        return self.next_sequence > 0 and self.timestamp is not None


class EventStream:
    """The state of one publisher's sequence. Changes with every call.

    ``has_replay`` says whether the publisher has a replay socket; without one every gap is lost, and a renewed connection is
    taken for a new incarnation. Only one replay is under way at a time: a later ``Replay`` step replaces the earlier one.

    ``resume`` is where another stream of this publisher had come to; what it had delivered is believed to be known. Needs a
    replay socket: the publisher is asked for the batch before, as after a renewed connection.
    """

    def __init__(self, *, has_replay: bool, resume: Position | None = None) -> None:
        assert resume is None or (has_replay and resume.can_be_resumed), f"{resume} cannot be resumed"
        self.has_replay = has_replay
        self.incarnation = 0
        self.gaps = 0
        self.replays = 0
        self.lost_batches = 0
        self.duplicates = 0
        self._start_over(resume)

    def _start_over(self, resume: Position | None = None) -> None:
        self.is_restored = resume is not None
        """Whether what came before is another stream's, and the publisher has not shown yet that it is still in that life."""
        resume = resume or Position()
        self.next_sequence: int | None = resume.next_sequence if self.has_replay else None
        self.pending: dict[int, Batch] = {}
        self._has_lost = resume.lost_batches > 0
        self._lost: Lost | None = None  # the last hole given up
        self._is_caught_up = False  # a live batch or the end of a replay has told how far the publisher is
        self._live: int | None = None  # last sequence seen live on this connection
        self._replay_start: int | None = None
        self._replay_is_fresh = False  # no batch of the replay under way has come yet
        self._replay_was_fruitful = False  # it has brought a batch that we did not have
        self._fruitless = 0
        self._verifying: int | None = None  # the sequence that tells whether the engine is still the same
        self._last_timestamp = resume.timestamp  # of the batch below next_sequence: the incarnation's fingerprint

    def __repr__(self) -> str:
        state = "complete" if self.is_complete else "partial"
        return (
            f"<EventStream next {self.next_sequence}, {state}, {len(self.pending)} pending, "
            f"incarnation {self.incarnation}>"
        )

    @property
    def is_complete(self) -> bool:
        """Whether every batch that counts, to the last one known of, was applied: all since sequence 0, or since a clear."""
        return self._is_caught_up and not self._has_lost and not self.pending

    @property
    def is_replaying(self) -> bool:
        return self._replay_start is not None

    def connected(self) -> list[Step]:
        """The subscription stands, for the first time or again."""
        self._live = None
        self._is_caught_up = False  # what was read after the connection broke had come before that
        self._fruitless = 0
        if self.next_sequence is None:
            return []
        if not self.has_replay:
            return self._begin_incarnation("the connection was renewed, and no replay socket can tell by whom")
        self.pending.clear()  # of the connection before, perhaps of another engine: a replay brings them again
        self._verifying = self.next_sequence - 1 if self.next_sequence else None
        return [self._ask_on()]

    def disconnected(self) -> list[Step]:
        """The transport is gone; whether the engine is, too, is asked when it is back."""
        self._live = None
        self._is_caught_up = False
        self._replay_start = None
        return []

    def receive(self, sequence: int, batch: Batch) -> list[Step]:
        """A live batch."""
        steps: list[Step] = []
        if self._live is not None and sequence <= self._live:
            steps += self._begin_incarnation(f"the sequence went back from {self._live} to {sequence}")
        elif self._verifying is not None and sequence <= self._verifying:
            steps += self._begin_incarnation(f"the engine was restarted: it is at batch {sequence} again, behind ours")
        self._live = sequence
        if self.next_sequence is None:
            self.next_sequence = 0
            self.pending[sequence] = batch
            steps += [self._lose_hole()] if sequence else []
        if self._lost is not None and self._lost.first <= sequence <= self._lost.last:
            # Given up on the word of a replay that began above it, and yet here it is: that replay cannot be believed.
            steps += self._begin_incarnation(f"batch {sequence} comes live after a replay had it lost")
        if sequence < self.next_sequence:
            self.duplicates += 1
        else:
            self.pending.setdefault(sequence, batch)
            steps += self._drain()
        self._is_caught_up = self._verifying is None
        return steps + self._mind_gap()

    def recheck(self) -> list[Step]:
        """Nothing has come for a while: ask whether there is more. The last batch before a pause leaves no gap when lost."""
        if not self.has_replay or self.is_replaying or self.next_sequence is None:
            return []
        return [self._ask_on()]

    def replayed(self, sequence: int, batch: Batch) -> list[Step]:
        """A batch out of the publisher's buffer."""
        if self._replay_start is None or self.next_sequence is None:
            return []  # a late answer to a replay that was given up
        is_first, self._replay_is_fresh = self._replay_is_fresh, False
        if self._verifying is not None:
            return self._verify(sequence, batch)
        if sequence < self.next_sequence or sequence in self.pending:
            self.duplicates += 1
        elif is_first or sequence == self.next_sequence or len(self.pending) < MAX_PENDING:
            self.pending[sequence] = batch
            self._replay_was_fruitful = True
        was_thrown_away = is_first and sequence > self.next_sequence
        return [*([self._lose_hole()] if was_thrown_away else []), *self._drain()]

    def replay_ended(self, *, answered: bool = True) -> list[Step]:
        """The end marker came, or (not ``answered``) nothing came for too long. Neither proves that all is there."""
        if self._replay_start is None:
            return []
        self._replay_start = None
        # Not "if more has been applied": a busy engine answers after its next batch, and would be asked again for ever.
        if self._replay_was_fruitful:
            self._fruitless = 0
            return [self._ask_on()]
        if answered and self._verifying is None and not self.pending:
            self._fruitless = 0
            self._is_caught_up = True
            return []
        return self._ask_again_or_give_up(answered)

    def replay_given_up(self) -> list[Step]:
        """The replay lasts too long, whatever it brings: go on without what it has not brought."""
        if self._verifying is not None or self._replay_start is None:
            return self.replay_ended(answered=False)
        self._replay_start = None
        self._fruitless = 0
        self._is_caught_up = False
        return self._give_up_hole() if self.pending else []

    def _ask_again_or_give_up(self, answered: bool) -> list[Step]:
        self._fruitless += 1
        has_denied = answered and self._verifying is not None
        if self._fruitless < MAX_FRUITLESS_REPLAYS and not has_denied:
            return [self._ask_on()]
        self._fruitless = 0
        if self._verifying is not None:
            return self._begin_incarnation("the engine was restarted, or its replay buffer has moved on")
        self._is_caught_up = False
        return self._give_up_hole() if self.pending else []

    def _verify(self, sequence: int, batch: Batch) -> list[Step]:
        if sequence != self._verifying or batch.timestamp != self._last_timestamp:
            return self._begin_incarnation("the engine was restarted: its batches are other ones")
        self._verifying = None
        self.is_restored = False
        self._replay_was_fruitful = True
        return self._drain()

    def _begin_incarnation(self, reason: str) -> list[Step]:
        # Pending batches may be of either life; the publisher's buffer has those of the new one.
        self._start_over()
        self.incarnation += 1
        return [Forget(reason), *([self._ask(0)] if self.has_replay else [])]

    def _ask(self, start: int) -> Replay:
        self.replays += 1
        self._replay_start = start
        self._replay_is_fresh = True
        self._replay_was_fruitful = False
        return Replay(start)

    def _ask_on(self) -> Replay:
        """Ask from the first batch that is missing; while the engine is in doubt, from the one that identifies it."""
        assert self.next_sequence is not None
        return self._ask(self.next_sequence if self._verifying is None else self._verifying)

    def _mind_gap(self) -> list[Step]:
        """Ask for what is missing below ``pending``, unless an answer is already on its way."""
        if not self.pending:
            return []
        if len(self.pending) > MAX_PENDING:
            if self._verifying is None:
                return self._give_up_hole()
            self.pending.clear()  # the replays that follow the verification bring them again
        if self.is_replaying:
            return []
        self.gaps += 1
        return [self._ask_on()] if self.has_replay else self._give_up_hole()

    def _drain(self) -> list[Step]:
        """Apply what is contiguous from ``next_sequence`` on."""
        if self._verifying is not None or self.next_sequence is None:
            return []
        ready: list[Batch] = []
        while (batch := self.pending.pop(self.next_sequence, None)) is not None:
            ready.append(batch)
            self.next_sequence += 1
        if not ready:
            return []
        self._last_timestamp = ready[-1].timestamp
        if self._has_lost and any(map(_clears, ready)):
            self._has_lost = False  # whatever the lost batches said of the cache, it began empty again after them
        return [Apply(ready)]

    def _lose_hole(self) -> Lost:
        assert self.next_sequence is not None
        until = min(self.pending)
        lost = Lost(self.next_sequence, until - 1)
        self.lost_batches += until - self.next_sequence
        self._has_lost = True
        self._lost = lost
        self.next_sequence = until
        return lost

    def _give_up_hole(self) -> list[Step]:
        """Go on behind the first hole; ask at once for what a second one hides."""
        steps: list[Step] = [self._lose_hole(), *self._drain()]
        if self.pending and not self.is_replaying:
            steps += [self._ask_on()] if self.has_replay else self._give_up_hole()
        return steps


def _clears(batch: Batch) -> bool:
    return any(isinstance(event, AllBlocksCleared) for event in batch.events)
