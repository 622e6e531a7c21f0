"""``indexer.stream`` against a model of a publisher that restarts, forgets, loses live batches and drops frames of replays.

The stream itself is replaced, too: by one that resumes where it was, or where it had been some time ago.

Whatever happened: what was applied since the last ``Forget`` is what one engine has sent, in order, each once; what is missing
was reported ``Lost``; and once things have settled, a stream that calls itself complete has everything.
"""

from collections import deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from indexer.stream import Apply, EventStream, Forget, Lost, Position, Replay, Step
from indexer.wire import Batch


class Publisher:
    """One engine after another behind one address. Batches carry (life, sequence) in their timestamps."""

    def __init__(self, buffer: int) -> None:
        self.buffer = buffer
        self.life = 0
        self.sent = 0

    def restart(self) -> None:
        self.life += 1
        self.sent = 0

    def publish(self) -> tuple[int, Batch]:
        self.sent += 1
        return self.sent - 1, self.batch(self.sent - 1)

    def batch(self, sequence: int) -> Batch:
        return Batch(self.life * 10_000.0 + sequence, [], digest=self.life * 10_000 + sequence)

    def answer(self, start: int) -> list[tuple[int, Batch]]:
        oldest = max(start, self.sent - self.buffer)
        return [(sequence, self.batch(sequence)) for sequence in range(oldest, self.sent)]


class PublisherMachine(RuleBasedStateMachine):
    has_replay = True

    @initialize(buffer=st.sampled_from([3, 8, 10_000]))
    def start(self, buffer: int) -> None:
        self.publisher = Publisher(buffer)
        self.stream = EventStream(has_replay=self.has_replay)
        self.is_connected = False
        self.wire: deque[tuple[int, Batch]] = deque()  # live, on its way
        self.asked: int | None = None
        self.answer: deque[tuple[int, Batch] | None] = deque()  # None is the end marker
        self.applied: dict[int, float] = {}  # since the last Forget
        self.lost: set[int] = set()
        self.has_timed_out = False
        self.position = Position()
        self.saved: tuple[Position, dict[int, float], set[int], bool] | None = None
        self.connect()

    def obey(self, steps: list[Step]) -> None:
        for step in steps:
            self.position = self.position.after(step)
            match step:
                case Apply(batches):
                    for batch in batches:
                        sequence = int(batch.timestamp % 10_000)
                        assert sequence not in self.applied, "applied twice"
                        assert sequence > max(self.applied, default=-1), "out of order"
                        self.applied[sequence] = batch.timestamp
                case Replay(start):
                    assert self.has_replay
                    self.asked = start
                    self.answer.clear()
                case Forget():
                    self.applied.clear()
                    self.lost.clear()
                    self.has_timed_out = False
                case Lost(first, last):
                    assert first <= last
                    gone = set(range(first, last + 1))
                    assert not gone & (self.lost | set(self.applied)), "lost what was applied, or lost it twice"
                    self.lost |= gone

    # The engine

    @rule(count=st.integers(1, 4), arrives=st.booleans())
    def publish(self, count: int, arrives: bool) -> None:
        for _ in range(count):
            message = self.publisher.publish()
            if arrives and self.is_connected:
                self.wire.append(message)

    @precondition(lambda self: self.is_connected)
    @rule(delivered=st.booleans())
    def break_connection(self, delivered: bool) -> None:
        if delivered:
            self.deliver(len(self.wire))
        self.wire.clear()
        self.is_connected = False
        self.asked = None
        self.answer.clear()
        self.obey(self.stream.disconnected())

    @precondition(lambda self: not self.is_connected)
    @rule(unseen=st.integers(0, 12))
    def restart(self, unseen: int) -> None:
        self.publisher.restart()
        for _ in range(unseen):
            self.publisher.publish()

    @precondition(lambda self: not self.is_connected)
    @rule()
    def connect(self) -> None:
        self.is_connected = True
        self.obey(self.stream.connected())

    # The stream's own lives

    @precondition(lambda self: self.position.can_be_resumed)
    @rule()
    def save(self) -> None:
        self.saved = self.position, dict(self.applied), set(self.lost), self.has_timed_out

    @precondition(lambda self: self.has_replay and self.saved is not None)
    @rule()
    def resume(self) -> None:
        """Another gateway, with what this one had saved; whatever has happened since then."""
        assert self.saved is not None
        if self.is_connected:
            self.break_connection(delivered=False)
        self.position, applied, lost, self.has_timed_out = self.saved
        self.applied, self.lost = dict(applied), set(lost)
        self.stream = EventStream(has_replay=True, resume=self.position)
        assert self.stream.is_restored
        assert not self.stream.is_complete

    # The wire

    @rule(count=st.integers(1, 6))
    def deliver(self, count: int) -> None:
        for _ in range(min(count, len(self.wire))):
            self.obey(self.stream.receive(*self.wire.popleft()))

    @precondition(lambda self: self.asked is not None)
    @rule(drops=st.lists(st.booleans(), max_size=12), has_end=st.booleans())
    def serve_replay(self, drops: list[bool], has_end: bool) -> None:
        """The first frame finds an empty pipe and always gets through; of the others any may be dropped, quietly."""
        assert self.asked is not None
        frames = self.publisher.answer(self.asked)
        self.asked = None
        for at, frame in enumerate(frames):
            if at == 0 or not (at <= len(drops) and drops[at - 1]):
                self.answer.append(frame)
        if has_end:
            self.answer.append(None)

    @rule(count=st.integers(1, 6))
    def deliver_answer(self, count: int) -> None:
        for _ in range(count):
            if not self.answer:
                return
            frame = self.answer.popleft()
            if frame is None:
                self.answer.clear()
                self.obey(self.stream.replay_ended())
            else:
                self.obey(self.stream.replayed(*frame))

    @precondition(lambda self: self.stream.is_replaying and not self.answer)
    @rule()
    def time_out(self) -> None:
        self.has_timed_out = True
        self.asked = None
        self.obey(self.stream.replay_ended(answered=False))

    @precondition(lambda self: self.stream.is_replaying)
    @rule()
    def give_up(self) -> None:
        self.has_timed_out = True
        self.asked = None
        self.answer.clear()
        self.obey(self.stream.replay_given_up())

    @precondition(lambda self: self.is_connected)
    @rule()
    def recheck(self) -> None:
        self.obey(self.stream.recheck())

    # What holds

    @invariant()
    def one_life_in_order_and_nothing_unaccounted_for(self) -> None:
        if not hasattr(self, "stream"):
            return
        assert len({timestamp // 10_000 for timestamp in self.applied.values()}) <= 1, "two lives in one index"
        known = set(self.applied) | self.lost
        assert known == set(range(self.stream.next_sequence or 0))
        if self.stream.is_complete:
            assert not self.lost
            assert not self.stream.is_restored

    @invariant()
    def a_position_says_how_far_it_is(self) -> None:
        if not hasattr(self, "stream"):
            return
        assert self.position.next_sequence == (self.stream.next_sequence or 0)
        assert self.position.lost_batches == len(self.lost)
        if self.position.can_be_resumed:
            assert self.position.digest == self.applied[self.position.next_sequence - 1]

    @rule()
    def settle(self) -> None:
        """The engine falls idle, the network is well, and the reader asks once more."""
        if not self.is_connected:
            self.connect()
        self.deliver(len(self.wire))
        self._finish_replays()
        self.obey(self.stream.recheck())
        self._finish_replays()
        assert not self.stream.pending
        assert not self.stream.is_restored, "confirmed or forgotten"
        sent = {sequence: self.publisher.batch(sequence).timestamp for sequence in range(self.publisher.sent)}
        if self.has_replay:
            assert set(self.applied) | self.lost == set(sent)
            assert self.stream.is_complete == (not self.lost)
        if self.stream.is_complete and self.has_replay:
            assert self.applied == sent
        assert self.applied.items() <= sent.items()
        if self.has_replay and self.publisher.sent <= self.publisher.buffer and not self.has_timed_out:
            assert self.stream.is_complete, "everything was there to be had"

    def _finish_replays(self) -> None:
        while self.stream.is_replaying:
            if self.asked is not None:
                self.serve_replay([], has_end=True)
            elif not self.answer:
                self.time_out()
            self.deliver_answer(len(self.answer))

    def teardown(self) -> None:
        if hasattr(self, "stream"):
            self.settle()


class PublisherWithoutReplayMachine(PublisherMachine):
    """The same without a replay socket: holes stay, and are told."""

    has_replay = False


@pytest.mark.parametrize("machine", [PublisherMachine, PublisherWithoutReplayMachine])
def test_the_stream_follows_a_publisher_through_everything(machine: type[PublisherMachine]) -> None:
    run_state_machine_as_test(machine, settings=settings(max_examples=300, stateful_step_count=40))
