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
- a replay that starts above what was asked for means that the publisher has thrown the older batches away;
- a forwarder keeps our connection while the engine behind it restarts: what a gap hides is asked for from the last batch before
  it, and an engine that has another one under that number is in another life;
- a replay endpoint may be another engine's: where it contradicts what comes live, and again after all was begun anew, it is
  not asked any more until the connection is renewed.

A batch is known again by a digest of its bytes: the clock in it may stand still.

A stream that goes on where another one ended, in a gateway before, trusts that one no more than it would a renewed connection.
"""

from array import array
from typing import Final

from indexer.steps import Apply, Forget, Lost, Position, Replay, Standing, Step, clears
from indexer.wire import Batch

__all__ = ["Apply", "EventStream", "Forget", "Lost", "Position", "Replay", "Standing", "Step"]

MAX_PENDING: Final = 200_000
"""Batches kept while a gap is being filled; twice the publisher's own queue (vLLM 0.32: hwm 100,000)."""

MAX_FRUITLESS_REPLAYS: Final = 3
"""Replays in a row that bring nothing before a gap is given up: the first may have met a publisher that is busy."""

MAX_CONTRADICTIONS: Final = 2
"""Between live batches and replays: the first one may be a restart that nothing else has told of."""

MAX_AHEAD: Final = 16_384
"""Digests kept of what was applied before it came live, 8 bytes each: more than the publisher's buffer (vLLM 0.32: 10,000)."""


class EventStream:
    """The state of one publisher's sequence. Changes with every call.

    ``has_replay`` says whether the publisher has a replay socket; without one every gap is lost, and a renewed connection is
    taken for a new incarnation. Only one replay is under way at a time: a later ``Replay`` step replaces the earlier one.
    ``problem`` is why the replay socket is not believed, in words for an operator.

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
        self.problem = ""
        self._contradictions = 0
        self._start_over(resume)

    def _start_over(self, resume: Position | None = None) -> None:
        self.is_restored = resume is not None
        """Whether what came before is another stream's, and the publisher has not shown yet that it is still in that life."""
        resume = resume or Position()
        self.next_sequence: int | None = resume.next_sequence if self._can_ask else None
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
        self._last_digest = resume.digest  # of the batch below next_sequence: the incarnation's fingerprint
        self._asked_digest: int | None = None  # of the batch that the replay under way was asked from
        self._keeps_last = False  # its buffer has had the last batch that was applied, so that it is one that keeps it
        self._has_replayed = self.is_restored  # not everything that was applied has come live
        self._ahead = array("Q")  # digests of the last batches that were applied before they came live

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
    def _can_ask(self) -> bool:
        return self.has_replay and not self.problem

    @property
    def is_replaying(self) -> bool:
        return self._replay_start is not None

    def connected(self) -> list[Step]:
        """The subscription stands, for the first time or again."""
        self._live = None
        self._is_caught_up = False  # what was read after the connection broke had come before that
        self._fruitless = 0
        if self.problem:
            self.problem, self._contradictions = "", 0
            self.next_sequence = self.next_sequence or 0
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
        elif self._lost is not None and self._lost.first <= sequence <= self._lost.last:
            # Given up on the word of a replay that began above it, and yet here it is: that replay cannot be believed.
            steps += self._begin_incarnation(f"batch {sequence} comes live after a replay had it lost")
        else:
            steps += self._compare(sequence, batch, self._ahead_at(sequence), has_come_live=True)
        self._live = sequence
        if self.next_sequence is None:
            self.next_sequence = 0
            self.pending[sequence] = batch
            steps += [self._lose_hole()] if sequence else []
        if sequence < self.next_sequence:
            self.duplicates += 1
        else:
            self.pending.setdefault(sequence, batch)
            steps += self._drain()
        self._is_caught_up = self._verifying is None
        return steps + self._mind_gap()

    def recheck(self) -> list[Step]:
        """Nothing has come for a while: ask whether there is more. The last batch before a pause leaves no gap when lost.

        Asked from the last one that was applied: a restart behind a forwarder, which leaves the connection standing, shows
        there.
        """
        if not self._can_ask or self.is_replaying or self.next_sequence is None:
            return []
        return [self._ask_from_known()]

    def replayed(self, sequence: int, batch: Batch) -> list[Step]:
        """A batch out of the publisher's buffer."""
        if self._replay_start is None or self.next_sequence is None:
            return []  # a late answer to a replay that was given up
        is_first, self._replay_is_fresh = self._replay_is_fresh, False
        if self._verifying is not None:
            return self._verify(sequence, batch)
        if sequence == self._replay_start and self._asked_digest is not None:
            return self._prove(sequence, batch)
        known = self._last_digest if sequence == self.next_sequence - 1 else None
        if steps := self._compare(sequence, batch, known, has_come_live=sequence == self._live):
            return steps
        if sequence < self.next_sequence or sequence in self.pending:
            self.duplicates += 1
        elif is_first or sequence == self.next_sequence or len(self.pending) < MAX_PENDING:
            self.pending[sequence] = batch
            self._replay_was_fruitful = self._has_replayed = True
        was_thrown_away = is_first and sequence > self.next_sequence
        return [*([self._lose_hole()] if was_thrown_away else []), *self._drain()]

    def replay_ended(self, *, answered: bool = True) -> list[Step]:
        """The end marker came, or (not ``answered``) nothing came for too long. Neither proves that all is there."""
        if self._replay_start is None:
            return []
        self._replay_start = None
        if answered and self._replay_is_fresh and self._asked_digest is not None and self._keeps_last:
            return self._begin_incarnation("the engine was restarted: it has our last batch no more")
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
        if sequence != self._verifying or batch.digest != self._last_digest:
            return self._begin_incarnation("the engine was restarted: its batches are other ones")
        self._verifying = None
        self.is_restored = False
        self._replay_was_fruitful = True
        return self._drain()

    def _prove(self, sequence: int, batch: Batch) -> list[Step]:
        """The last batch that was applied before a gap has come again."""
        if batch.digest != self._asked_digest:
            return self._begin_incarnation(f"the engine was restarted: its batch {sequence} is another one")
        self._replay_was_fruitful = True  # and none of the missing ones, perhaps: only first frames are never dropped
        self._keeps_last = True
        return []

    def _ahead_at(self, sequence: int) -> int | None:
        """The digest under which this batch was applied before it came live; those up to it are of no use any more."""
        at = sequence - ((self.next_sequence or 0) - len(self._ahead))
        digest = self._ahead[at] if 0 <= at < len(self._ahead) else None
        del self._ahead[: max(0, at + 1)]
        return digest

    def _compare(self, sequence: int, batch: Batch, known: int | None, *, has_come_live: bool) -> list[Step]:
        """A batch that has come before, ``known`` by its digest or pending, must come again as the same."""
        if (pending := self.pending.get(sequence)) is not None:
            known = pending.digest
        if known is None:
            return []
        if known != batch.digest:
            return self._contradict(sequence)
        if has_come_live:
            self._contradictions = 0
        return []

    def _contradict(self, sequence: int) -> list[Step]:
        self._contradictions += 1
        if self._contradictions < MAX_CONTRADICTIONS:
            return self._begin_incarnation(f"batch {sequence} came again as another one")
        self.problem = "its replay socket answers with batches that it does not publish; is it another engine's?"
        if self._has_replayed:
            return self._begin_incarnation(self.problem)
        self._replay_start = None
        return self._give_up_hole() if self.pending else []

    def _begin_incarnation(self, reason: str) -> list[Step]:
        # Pending batches may be of either life; the publisher's buffer has those of the new one.
        self._start_over()
        self.incarnation += 1
        return [Forget(reason), *([self._ask(0)] if self._can_ask else [])]

    def _ask(self, start: int, digest: int | None = None) -> Replay:
        self.replays += 1
        self._asked_digest = digest
        self._replay_start = start
        self._replay_is_fresh = True
        self._replay_was_fruitful = False
        return Replay(start)

    def _ask_on(self) -> Replay:
        """Ask from the first batch that is missing; while the engine is in doubt, from the one that identifies it."""
        assert self.next_sequence is not None
        return self._ask(self.next_sequence if self._verifying is None else self._verifying)

    def _ask_from_known(self) -> Replay:
        """The same for a gap that has opened, but for the batch before it, which must come again as it was."""
        if self._verifying is not None or self.next_sequence is None or self._last_digest is None:
            return self._ask_on()
        return self._ask(self.next_sequence - 1, self._last_digest)

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
        return [self._ask_from_known()] if self._can_ask else self._give_up_hole()

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
        self._last_digest = ready[-1].digest
        is_ahead = self._live is None or self._live < self.next_sequence - 1
        if is_ahead and self.has_replay:
            self._ahead.extend(batch.digest for batch in ready)
            del self._ahead[:-MAX_AHEAD]
        if self._has_lost and any(map(clears, ready)):
            self._has_lost = False  # whatever the lost batches said of the cache, it began empty again after them
        return [Apply(ready)]

    def _lose_hole(self) -> Lost:
        assert self.next_sequence is not None
        until = min(self.pending)
        lost = Lost(self.next_sequence, until - 1)
        self.lost_batches += until - self.next_sequence
        self._has_lost = True
        self._lost = lost
        del self._ahead[:]
        self.next_sequence = until
        return lost

    def _give_up_hole(self) -> list[Step]:
        """Go on behind the first hole; ask at once for what a second one hides."""
        steps: list[Step] = [self._lose_hole(), *self._drain()]
        if self.pending and not self.is_replaying:
            steps += [self._ask_on()] if self._can_ask else self._give_up_hole()
        return steps
