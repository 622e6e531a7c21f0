"""One vLLM publisher's sockets: a SUB, its monitor, and a DEALER while a replay is under way.

Knows sockets, time-outs and frames (vLLM 0.11 - 0.32); what they mean is decided by ``indexer.stream``. Never knows threads or
other publishers: whoever owns a ``Subscription`` calls it from one thread, and reads when its sockets have news. What is not
read yet waits here, not at the publisher: twice what that would keep by itself.
"""

import contextlib
import logging
from collections import Counter
from typing import Final, TypeAlias

import zmq
from zmq.utils.monitor import parse_monitor_message

from indexer.errors import WireError
from indexer.sources.publisher import COUNTED, COUNTED_BY_STREAM, Publisher, PublisherStatus, ReaderSettings
from indexer.stream import MAX_PENDING, EventStream, Forget, Position, Replay, Standing, Step
from indexer.wire import Batch, decode, digest_of

log = logging.getLogger(__name__)

END_MARKER: Final = b"\xff" * 8
MAX_FIRST_BYTE: Final = 0x3F
"""Of a sequence number: no engine has published 2**62 batches, and there must be room for the next ones."""

READ_AT_ONCE: Final = 2_000
"""Messages taken from one publisher before the others have their turn."""

MAX_UNREADABLE: Final = 1_000
"""Messages in a row that cannot be read before the publisher is left alone for a while."""

TICK: Final = 0.1
"""Seconds between looks at what is due by time alone."""

LIVES_AT_ONCE: Final = 30
"""Restarts of one engine that are believed one after the other; one more is with every second."""

MAX_MESSAGE: Final = 256 * 1024 * 1024
"""Bytes; ZMQ closes the connection on a longer one. Shorter ones that are too long to decode cost themselves alone."""

REPLAYS_AT_ONCE: Final = 20
"""Replays that may follow each other without a pause; one more is allowed with every tick."""

Socket: TypeAlias = zmq.Socket[bytes]

MONITORED: Final = zmq.Event.ACCEPTED | zmq.Event.HANDSHAKE_SUCCEEDED | zmq.Event.DISCONNECTED


class Subscription:
    """One publisher's sockets and stream. Lives in the reader's thread."""

    def __init__(
        self,
        context: zmq.Context[Socket],
        publisher: Publisher,
        settings: ReaderSettings,
        resume: Position | None = None,
    ) -> None:
        self.publisher = publisher
        self.settings = settings
        self.stream = EventStream(has_replay=publisher.replay is not None, resume=resume)
        self.counters: Counter[str] = Counter(dict.fromkeys(COUNTED, 0))
        self.is_connected = False
        self._topic_problem = ""
        self._rank_problem = ""
        self.told = Standing()
        self.last_live: float | None = None
        self._context = context
        self._open: set[int] = set()  # file descriptors of whoever has dialled in
        self._engines = 0  # of these, such as speak ZMTP; two of them would be two series of numbers in one
        self._unreadable = 0  # in a row
        self._lives_allowed = float(LIVES_AT_ONCE)
        self._replay_deadline: float | None = None
        self._replay_until = 0.0
        self._replay_waits: int | None = None  # the start of a replay that is put off
        self._replays_allowed = REPLAYS_AT_ONCE
        self._recheck_at: float | None = None
        self.dealer: Socket | None = None
        self.sub = self._socket(zmq.SUB)
        # A flood must not fill our memory: what is dropped beyond this is missed by its number, and asked for again.
        self.sub.setsockopt(zmq.RCVHWM, MAX_PENDING)
        patience = round(2_000 * settings.heartbeat)
        self.sub.setsockopt(zmq.HEARTBEAT_IVL, patience // 2)
        # A host that is gone without a word must cost no more on the way back than it did on the way out.
        for option in (zmq.HEARTBEAT_TIMEOUT, zmq.HANDSHAKE_IVL, zmq.CONNECT_TIMEOUT):
            self.sub.setsockopt(option, patience)
        self.sub.setsockopt(zmq.RECONNECT_IVL_MAX, 2_000)
        self.monitor: Socket = self.sub.get_monitor_socket(MONITORED)
        self.sub.setsockopt(zmq.SUBSCRIBE, publisher.topic.encode())
        if publisher.is_dialling and publisher.senders is not None:
            self.sub.setsockopt(zmq.ZAP_DOMAIN, publisher.replica.encode())  # so that the guard is asked
        try:
            (self.sub.bind if publisher.is_dialling else self.sub.connect)(publisher.events)
        except zmq.ZMQError:
            self.close()
            raise
        if publisher.told_topic is not None:
            self._compare_topic(publisher.told_topic)

    def _compare_topic(self, published: str) -> None:
        """ZMQ passes nothing on that does not begin with what was subscribed to; only a replay still brings it."""
        topic, known = self.publisher.topic, self._topic_problem
        is_heard = published.startswith(topic)
        self._topic_problem = "" if is_heard else f"publishes under topic '{published}', subscribed to '{topic}'"
        if self._topic_problem and self._topic_problem != known:
            log.warning("%s: %s: no live events will come", self.publisher.replica, self._topic_problem)

    def _compare_rank(self, said: int | None) -> None:
        """Whoever publishes other ranks' events is another engine, or several at once: in doubt until it connects anew."""
        ranks = self.publisher.ranks
        if said is None or ranks is None or said in ranks or self._rank_problem:
            return
        self._rank_problem = (
            f"its events are those of rank {said}, and it is rank {ranks[0]}: is {self.publisher.events} another rank's, or "
            "do several share it?"
        )
        log.warning("%s: %s", self.publisher.replica, self._rank_problem)

    def _socket(self, kind: int) -> Socket:
        new = self._context.socket(kind)
        new.setsockopt(zmq.RCVHWM, 0)
        new.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE)
        new.setsockopt(zmq.LINGER, 0)
        new.setsockopt(zmq.IPV6, 1)
        return new

    def sockets(self) -> list[Socket]:
        return [sock for sock in (self.sub, self.monitor, self.dealer) if sock is not None]

    def close(self) -> None:
        self.sub.disable_monitor()
        self.monitor.close(0)
        self.sub.close(0)
        self._end_replay()

    def read(self, now: float) -> list[Step]:
        """Everything that has arrived, as steps."""
        live = receive_all(self.sub)
        connections = self.counters["connections"]
        # After the messages, not before: a reconnect that lies between two of them must not be seen later than both.
        steps = self._read_monitor(now)
        if self.counters["connections"] > max(1, connections):
            # These may be of either life, and nothing says which. A replay brings those of the present one again.
            self.counters["messages_of_two_connections"] += len(live) + len(receive_all(self.sub, at_most=None))
            live = []
        if self._engines > 1:
            live = []
        for frames in live:
            steps += self._live(frames, now)
        return [*self._obey(steps, now), *self._read_replay(now)]

    def _read_replay(self, now: float) -> list[Step]:
        """The answer to the last replay asked for: when the stream asks anew, the rest answers the old question."""
        steps: list[Step] = []
        dealer = self.dealer
        if dealer is None:
            return steps
        for frames in receive_all(dealer):
            steps += self._obey(self._replayed(frames, now), now)
            if self.dealer is not dealer:
                break
        return steps

    def tick(self, now: float) -> list[Step]:
        """What is due by time alone."""
        steps: list[Step] = []
        self._replays_allowed = min(REPLAYS_AT_ONCE, self._replays_allowed + 1)
        self._lives_allowed = min(LIVES_AT_ONCE, self._lives_allowed + TICK)
        if self._replay_waits is not None:
            self._begin_replay(self._replay_waits, now)
        if self._replay_deadline is not None and now >= self._replay_deadline:
            self.counters["replays_unanswered"] += 1
            self._end_replay()
            steps += self.stream.replay_ended(answered=False)
        elif self.stream.is_replaying and self._replay_waits is None and now >= self._replay_until:
            self.counters["replays_unanswered"] += 1
            self._end_replay()
            steps += self.stream.replay_given_up()
        if self.is_connected and self._recheck_at is not None and now >= self._recheck_at:
            self._recheck_at = now + self.settings.recheck_idle
            steps += self.stream.recheck()
        return self._obey(steps, now)

    def recheck(self, now: float) -> list[Step]:
        """Ask whether there is more, out of turn."""
        return self._obey(self.stream.recheck(), now)

    def news(self, steps: list[Step]) -> list[Step]:
        """The steps, and how the subscription stands if they have changed that."""
        standing = Standing(self.is_connected, self._is_complete, self.stream.is_restored, self.problem)
        if standing == self.told:
            return steps
        if self.stream.problem and standing.problem != self.told.problem:
            log.warning("%s: %s", self.publisher.replica, standing.problem)
        self.told = standing
        return [*steps, standing]

    @property
    def problem(self) -> str:
        """Why nothing comes live, or what does is in doubt; in words for an operator."""
        return self._topic_problem or self._rank_problem or self.stream.problem

    @property
    def _is_complete(self) -> bool:
        return self.stream.is_complete and not self.problem

    def status(self, now: float) -> PublisherStatus:
        stream = self.stream
        return PublisherStatus(
            is_connected=self.is_connected,
            is_complete=self._is_complete,
            is_replaying=stream.is_replaying,
            incarnation=stream.incarnation,
            next_sequence=stream.next_sequence,
            last_event_age=None if self.last_live is None else now - self.last_live,
            counters={
                **self.counters,
                **{name: getattr(stream, name) for name in COUNTED_BY_STREAM},
            },
            problem=self.problem,
        )

    def _read_monitor(self, now: float) -> list[Step]:
        steps: list[Step] = []
        for frames in receive_all(self.monitor):
            event = parse_monitor_message(frames)
            match event["event"]:
                case zmq.Event.ACCEPTED:
                    self._open.add(event["value"])
                case zmq.Event.HANDSHAKE_SUCCEEDED:
                    self._engines += 1
                    steps += self._disconnected() if self._engines > 1 else self._connected(now)
                case zmq.Event.DISCONNECTED:
                    self._open.discard(event["value"])
                    # Whoever dials in and speaks no ZMTP disconnects, too, without ever having been an engine.
                    before, self._engines = self._engines, min(self._engines, len(self._open))
                    if not self._engines:
                        steps += self._disconnected()
                    elif self._engines == 1 < before:
                        steps += self._connected(now)
        return steps

    def _connected(self, now: float) -> list[Step]:
        self.is_connected = True
        self._rank_problem = ""
        self.counters["connections"] += 1
        self._recheck_at = now + self.settings.recheck_first
        return self.stream.connected()

    def _disconnected(self) -> list[Step]:
        if self._engines > 1:
            # Counted as a connection, so that what has been read together with it is dropped.
            self.counters["connections"] += 1
            log.warning(
                "%s: %d engines connect to %s, and nothing tells their events apart; give each a port of its own",
                self.publisher.replica,
                self._engines,
                self.publisher.events,
            )
        if not self.is_connected:
            return []
        self.is_connected = False
        self._end_replay()
        return self.stream.disconnected()

    def _live(self, frames: list[bytes], now: float) -> list[Step]:
        if len(frames) != 3 or len(frames[1]) != 8 or frames[1][0] > MAX_FIRST_BYTE:
            return self._malformed()
        if self._topic_problem:  # so the engine has told something else than it does
            self._compare_topic(frames[0].decode(errors="replace"))
        self.last_live = now
        self._recheck_at = now + self.settings.recheck_idle
        return self.stream.receive(int.from_bytes(frames[1], "big"), self._batch(frames[2]))

    def _replayed(self, frames: list[bytes], now: float) -> list[Step]:
        # vLLM <= 0.24 answers [b"", seq, payload], >= 0.26 [b"", topic, seq, payload]: read from the end.
        is_bare_end = frames[1:] == [END_MARKER]  # without a payload
        if not is_bare_end and (len(frames) < 3 or len(frames[-2]) != 8):
            return self._malformed()
        if is_bare_end or frames[-2] == END_MARKER:
            self._end_replay()
            return self.stream.replay_ended()
        if frames[-2][0] > MAX_FIRST_BYTE:
            return self._malformed()
        if len(frames) > 3:
            self._compare_topic(frames[-3].decode(errors="replace"))
            self.counters["foreign_topics"] += bool(self._topic_problem)
        self._replay_deadline = now + self.settings.replay_timeout
        return self.stream.replayed(int.from_bytes(frames[-2], "big"), self._batch(frames[-1]))

    def _malformed(self) -> list[Step]:
        self.counters["malformed_messages"] += 1
        self._count_unreadable()
        return []

    def _count_unreadable(self) -> None:
        self._unreadable += 1
        if self._unreadable >= MAX_UNREADABLE:
            raise UselessPublisher(
                f"{MAX_UNREADABLE} messages in a row cannot be read; is {self.publisher.events} a vLLM publisher of KV events?"
            )

    def _batch(self, payload: bytes) -> Batch:
        try:
            batch = decode(payload)
            self._unreadable = 0
            self._compare_rank(batch.rank)
        except WireError as error:
            batch = Batch(0.0, [], None, (str(error),), digest_of(payload))
            self._count_unreadable()
        self.counters["batches"] += 1
        if batch.skipped:
            self.counters["events_skipped"] += len(batch.skipped)
            log.debug("%s: event skipped: %s", self.publisher.replica, batch.skipped[0])
        return batch

    def _obey(self, steps: list[Step], now: float) -> list[Step]:
        """Ask for the replay that the steps end with; the rest is for whoever keeps the index."""
        self._lives_allowed -= sum(isinstance(step, Forget) for step in steps)
        if self._lives_allowed < 0:
            raise UselessPublisher(
                f"its sequence has begun anew more than {LIVES_AT_ONCE} times; do several engines share it?"
            )
        asked = [step for step in steps if isinstance(step, Replay)]
        if asked and self.stream.is_replaying:
            self._begin_replay(asked[-1].start, now)
        return [step for step in steps if not isinstance(step, Replay)]

    def _begin_replay(self, start: int, now: float) -> None:
        # A new socket each time: answers to an earlier request must not be taken for answers to this one.
        self._end_replay()
        assert self.publisher.replay is not None
        if not self._replays_allowed:  # a publisher that answers with nonsense is asked again, but at leisure
            self._replay_waits = start
            return
        self._replays_allowed -= 1
        self._replay_deadline = now + self.settings.replay_timeout
        self._replay_until = now + self.settings.replay_limit
        try:
            self.dealer = self._socket(zmq.DEALER)
            self.dealer.connect(self.publisher.replay)
            self.dealer.send_multipart([b"", start.to_bytes(8, "big")])
        except zmq.ZMQError as error:  # the deadline passes, as if nobody had answered
            log.error("%s: no replay from %s: %s", self.publisher.replica, self.publisher.replay, error)  # noqa: TRY400

    def _end_replay(self) -> None:
        self._replay_deadline = self._replay_waits = None
        if self.dealer is not None:
            self.dealer.close(0)
            self.dealer = None


class UselessPublisher(Exception):
    """Whatever it is that publishes there, it takes time from those that can be read."""


def receive_all(sock: Socket, at_most: int | None = READ_AT_ONCE) -> list[list[bytes]]:
    messages: list[list[bytes]] = []
    with contextlib.suppress(zmq.Again):
        while at_most is None or len(messages) < at_most:
            messages.append(sock.recv_multipart(zmq.NOBLOCK))
    return messages
