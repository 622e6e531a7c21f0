"""vLLM's ZMQ publishers: one SUB socket each, and a DEALER while a replay is under way, all read by one thread of its own.

Knows sockets, time-outs and frames (vLLM 0.11 - 0.32); what they mean is decided by ``indexer.stream``. The thread does
nothing but read, so a slow gateway never makes a publisher drop: RCVHWM is 0 on every socket, and decoded steps are handed
over through ``deliver``, which must not block. Identity comes from the connection that was configured, never from the topic.
"""

import contextlib
import logging
import selectors
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec
import zmq
from zmq.utils.monitor import parse_monitor_message

from indexer.errors import WireError
from indexer.index import ReplicaId
from indexer.stream import EventStream, Forget, Position, Replay, Standing, Step
from indexer.wire import Batch, decode

log = logging.getLogger(__name__)

END_MARKER: Final = b"\xff" * 8
READ_AT_ONCE: Final = 2_000
"""Messages taken from one publisher before the others have their turn."""

MAX_UNREADABLE: Final = 1_000
"""Messages in a row that cannot be read before the publisher is left alone for ``QUARANTINE`` seconds."""

QUARANTINE: Final = 10.0

LIVES_AT_ONCE: Final = 30
"""Restarts of one engine that are believed one after the other; one more is with every second."""

MAX_MESSAGE: Final = 256 * 1024 * 1024
"""Bytes; ZMQ closes the connection on a longer one. Shorter ones that are too long to decode cost themselves alone."""

REPLAYS_AT_ONCE: Final = 20
"""Replays that may follow each other without a pause; one more is allowed with every tick."""

TICK: Final = 0.1
"""Seconds between looks at what is due by time alone."""

RESTART_DELAY: Final = 1.0
"""Seconds before a subscription that failed begins anew: a fault that repeats must not keep the thread busy."""

COUNTED: Final = (
    "batches",
    "connections",
    "events_skipped",
    "foreign_topics",
    "malformed_messages",
    "messages_of_two_connections",
    "replays_unanswered",
)
"""What is counted here; the stream counts the rest."""

_Socket: TypeAlias = zmq.Socket[bytes]

MONITORED: Final = zmq.Event.ACCEPTED | zmq.Event.HANDSHAKE_SUCCEEDED | zmq.Event.DISCONNECTED


class Publisher(msgspec.Struct, frozen=True):
    """Where one replica publishes its KV events.

    ``replay`` is the publisher's replay endpoint, or None when it has none (vLLM's default). ``topic`` is the prefix to
    subscribe to; empty means everything. ``is_dialling``: it connects to ``events``, an address of ours, instead of
    listening there (vLLM 0.11 - 0.32: an ``endpoint`` without a wildcard); nobody else may use that address.
    """

    replica: ReplicaId
    events: str
    replay: str | None = None
    topic: str = ""
    is_dialling: bool = False


class ReaderSettings(msgspec.Struct, frozen=True):
    """Time-outs of the reader, in seconds."""

    replay_timeout: float = 5.0
    """Silence after which a replay is taken for unanswered; an idle vLLM answers after at most 0.1 s."""
    replay_limit: float = 60.0
    """A replay that lasts longer is given up, whatever it brings: meanwhile no live batch behind the gap is applied."""
    recheck_first: float = 1.0
    """After a connection was made: long enough that the subscription has certainly reached the publisher."""
    recheck_idle: float = 30.0
    """A publisher silent for this long is asked whether we have its last batch."""
    heartbeat: float = 5.0
    """ZMTP ping interval; a peer silent for twice as long is a broken connection, even if TCP has not noticed."""


class PublisherStatus(msgspec.Struct, frozen=True):
    """What an operator wants to know of one subscription."""

    is_connected: bool
    is_complete: bool
    is_replaying: bool
    incarnation: int
    next_sequence: int | None
    last_event_age: float | None
    """Seconds since the last live batch; None before the first."""
    counters: dict[str, int]


class _Subscription:
    """One publisher's sockets and stream. Lives in the reader's thread."""

    def __init__(
        self,
        context: zmq.Context[_Socket],
        publisher: Publisher,
        settings: ReaderSettings,
        resume: Position | None = None,
    ) -> None:
        self.publisher = publisher
        self.settings = settings
        self.stream = EventStream(has_replay=publisher.replay is not None, resume=resume)
        self.counters: Counter[str] = Counter(dict.fromkeys(COUNTED, 0))
        self.is_connected = False
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
        self.dealer: _Socket | None = None
        self.sub = self._socket(zmq.SUB)
        patience = round(2_000 * settings.heartbeat)
        self.sub.setsockopt(zmq.HEARTBEAT_IVL, patience // 2)
        # A host that is gone without a word must cost no more on the way back than it did on the way out.
        for option in (zmq.HEARTBEAT_TIMEOUT, zmq.HANDSHAKE_IVL, zmq.CONNECT_TIMEOUT):
            self.sub.setsockopt(option, patience)
        self.sub.setsockopt(zmq.RECONNECT_IVL_MAX, 2_000)
        self.monitor: _Socket = self.sub.get_monitor_socket(MONITORED)
        self.sub.setsockopt(zmq.SUBSCRIBE, publisher.topic.encode())
        try:
            (self.sub.bind if publisher.is_dialling else self.sub.connect)(publisher.events)
        except zmq.ZMQError:
            self.close()
            raise

    def _socket(self, kind: int) -> _Socket:
        new = self._context.socket(kind)
        new.setsockopt(zmq.RCVHWM, 0)
        new.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE)
        new.setsockopt(zmq.LINGER, 0)
        new.setsockopt(zmq.IPV6, 1)
        return new

    def sockets(self) -> list[_Socket]:
        return [sock for sock in (self.sub, self.monitor, self.dealer) if sock is not None]

    def close(self) -> None:
        self.sub.disable_monitor()
        self.monitor.close(0)
        self.sub.close(0)
        self._end_replay()

    def read(self, now: float) -> list[Step]:
        """Everything that has arrived, as steps."""
        live = _receive_all(self.sub)
        connections = self.counters["connections"]
        # After the messages, not before: a reconnect that lies between two of them must not be seen later than both.
        steps = self._read_monitor(now)
        if connections and self.counters["connections"] > connections:
            # These may be of either life, and nothing says which. A replay brings those of the present one again.
            self.counters["messages_of_two_connections"] += len(live) + len(_receive_all(self.sub, at_most=None))
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
        for frames in _receive_all(dealer):
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

    def status(self, now: float) -> PublisherStatus:
        stream = self.stream
        return PublisherStatus(
            is_connected=self.is_connected,
            is_complete=stream.is_complete,
            is_replaying=stream.is_replaying,
            incarnation=stream.incarnation,
            next_sequence=stream.next_sequence,
            last_event_age=None if self.last_live is None else now - self.last_live,
            counters={
                **self.counters,
                "gaps": stream.gaps,
                "replays": stream.replays,
                "lost_batches": stream.lost_batches,
                "duplicates": stream.duplicates,
            },
        )

    def _read_monitor(self, now: float) -> list[Step]:
        steps: list[Step] = []
        for frames in _receive_all(self.monitor):
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
        if len(frames) != 3 or len(frames[1]) != 8:
            return self._malformed()
        self.last_live = now
        self._recheck_at = now + self.settings.recheck_idle
        return self.stream.receive(int.from_bytes(frames[1], "big"), self._batch(frames[2]))

    def _replayed(self, frames: list[bytes], now: float) -> list[Step]:
        # vLLM <= 0.24 answers [b"", seq, payload], >= 0.26 [b"", topic, seq, payload]: read from the end.
        if len(frames) < 3 or len(frames[-2]) != 8:
            return self._malformed()
        if frames[-2] == END_MARKER:
            self._end_replay()
            return self.stream.replay_ended()
        if len(frames) > 3 and not frames[-3].startswith(self.publisher.topic.encode()):
            self.counters["foreign_topics"] += 1
            if self.counters["foreign_topics"] == 1:
                log.warning(
                    "%s: publishes under topic %r, subscribed to %r: no live events will come",
                    self.publisher.replica,
                    frames[-3],
                    self.publisher.topic,
                )
        self._replay_deadline = now + self.settings.replay_timeout
        return self.stream.replayed(int.from_bytes(frames[-2], "big"), self._batch(frames[-1]))

    def _malformed(self) -> list[Step]:
        self.counters["malformed_messages"] += 1
        self._count_unreadable()
        return []

    def _count_unreadable(self) -> None:
        self._unreadable += 1
        if self._unreadable >= MAX_UNREADABLE:
            raise _UselessPublisher(
                f"{MAX_UNREADABLE} messages in a row cannot be read; is {self.publisher.events} a vLLM publisher of KV events?"
            )

    def _batch(self, payload: bytes) -> Batch:
        try:
            batch = decode(payload)
            self._unreadable = 0
        except WireError as error:
            batch = Batch(0.0, [], None, (str(error),))
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
            raise _UselessPublisher(
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


class _UselessPublisher(Exception):
    """Whatever it is that publishes there, it takes time from those that can be read."""


def _receive_all(sock: _Socket, at_most: int | None = READ_AT_ONCE) -> list[list[bytes]]:
    messages: list[list[bytes]] = []
    with contextlib.suppress(zmq.Again):
        while at_most is None or len(messages) < at_most:
            messages.append(sock.recv_multipart(zmq.NOBLOCK))
    return messages


class EventReader:
    """Reads all publishers in one thread and hands over, per replica, what to apply, forget or count as lost.

    ``deliver(replica, steps)`` is called in the reader's thread and must not block. ``add``, ``remove``, ``restart`` and
    ``close`` may be called from any thread.
    """

    def __init__(
        self, deliver: Callable[[ReplicaId, list[Step]], None], settings: ReaderSettings | None = None
    ) -> None:
        self._deliver = deliver
        self._settings = settings or ReaderSettings()
        self._commands: deque[Callable[[], None]] = deque()
        self._subscriptions: dict[ReplicaId, _Subscription] = {}
        self._registered: dict[ReplicaId, dict[int, _Socket]] = {}
        self._unread: set[_Subscription] = set()  # with more to read than they had a turn for
        self._failed: dict[ReplicaId, tuple[float, Publisher]] = {}  # when to begin anew
        self._next_tick = 0.0
        self._context: zmq.Context[_Socket] = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, 8_192)
        self._selector = selectors.DefaultSelector()
        self._wake_out, self._wake_in = socket.socketpair()
        self._wake_out.setblocking(False)
        self._wake_in.setblocking(False)
        self._selector.register(self._wake_out, selectors.EVENT_READ, None)
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="kvlb-events", daemon=True)
        self._thread.start()

    def add(self, publisher: Publisher, resume: Position | None = None) -> None:
        """Subscribe; a publisher of the same replica is replaced.

        ``resume`` is where an earlier subscription had come to, in this process or another one, if what it delivered is
        still known (``EventStream``).
        """
        self._command(lambda: self._add(publisher, resume))

    def remove(self, replica: ReplicaId) -> None:
        """Unsubscribe; steps that are already handed over may still be on their way."""
        self._command(lambda: self._remove(replica))

    def restart(self, replica: ReplicaId) -> None:
        """Subscribe anew, after a pause: what was handed over could not be used."""
        self._command(lambda: self._restart(replica))

    def status(self) -> dict[ReplicaId, PublisherStatus]:
        """A view of every subscription."""
        now = time.monotonic()
        return {replica: sub.status(now) for replica, sub in list(self._subscriptions.items())}

    def close(self) -> None:
        """Stop reading and close every socket."""
        if not self._thread.is_alive():
            return
        self._command(self._stop)
        self._thread.join()

    def _command(self, action: Callable[[], None]) -> None:
        self._commands.append(action)
        with contextlib.suppress(BlockingIOError, OSError):  # full: the thread is woken already; closed: it has ended
            self._wake_in.send(b"\0")

    def _stop(self) -> None:
        self._is_closing = True

    def _add(self, publisher: Publisher, resume: Position | None = None) -> None:
        is_told = publisher.replica in self._failed
        self._remove(publisher.replica)
        try:
            subscription = _Subscription(self._context, publisher, self._settings, resume)
        except zmq.ZMQError as error:
            level = logging.DEBUG if is_told else logging.ERROR
            log.log(level, "%s: no subscription to %s: %s", publisher.replica, publisher.events, error)
            self._failed[publisher.replica] = time.monotonic() + RESTART_DELAY, publisher
            if resume is not None:  # the next attempt begins at 0
                self._deliver(publisher.replica, [Forget("its publisher cannot be asked whether the snapshot holds")])
            return
        self._subscriptions[publisher.replica] = subscription
        self._registered[publisher.replica] = {}
        self._guarded(subscription, self._read)

    def _remove(self, replica: ReplicaId) -> None:
        self._failed.pop(replica, None)
        subscription = self._subscriptions.pop(replica, None)
        if subscription is not None:
            self._unread.discard(subscription)
            for fd in self._registered.pop(replica):
                self._selector.unregister(fd)
            subscription.close()
            if not self._is_closing:
                # Behind every step of it that is still queued: none of them may reach what comes next under this name.
                with contextlib.suppress(Exception):  # a failing deliver was logged where it mattered
                    self._deliver(replica, [Forget("its subscription has ended"), Standing()])

    def _restart(self, replica: ReplicaId, after: float = RESTART_DELAY) -> None:
        subscription = self._subscriptions.get(replica)
        if subscription is not None:
            self._remove(replica)
            self._failed[replica] = time.monotonic() + after, subscription.publisher

    def _run(self) -> None:
        try:
            while not self._is_closing:
                ready = self._selector.select(timeout=0 if self._unread else 0.25)
                for subscription in self._unread | {key.data for key, _ in ready if key.data is not None}:
                    self._guarded(subscription, self._read)
                with contextlib.suppress(BlockingIOError):
                    self._wake_out.recv(4096)
                while self._commands:
                    self._obey_command(self._commands.popleft())
                self._tick()
        except Exception:
            log.exception("the event reader has stopped; the index no longer follows the engines")
            raise
        finally:
            for replica in list(self._subscriptions):
                self._remove(replica)
            self._selector.close()
            self._wake_in.close()
            self._wake_out.close()
            self._context.destroy(0)

    @staticmethod
    def _obey_command(action: Callable[[], None]) -> None:
        try:
            action()
        except Exception:
            log.exception("a subscription could not be changed; the others go on")

    def _tick(self) -> None:
        now = time.monotonic()
        if now < self._next_tick:
            return
        self._next_tick = now + TICK
        for subscription in list(self._subscriptions.values()):
            if subscription not in self._unread:  # else the silence is ours, not the publisher's
                self._guarded(subscription, self._tick_one)
        for due, publisher in list(self._failed.values()):
            if now >= due:
                self._add(publisher)

    def _guarded(self, subscription: _Subscription, action: Callable[[_Subscription], None]) -> None:
        """A fault met while serving one publisher costs that publisher a fresh start, and the others nothing."""
        publisher = subscription.publisher
        if self._subscriptions.get(publisher.replica) is not subscription:
            return
        try:
            action(subscription)
        except _UselessPublisher as error:
            log.warning("%s: left alone for %g s: %s", publisher.replica, QUARANTINE, error)
            self._restart(publisher.replica, QUARANTINE)
        except Exception:
            log.exception("%s: the subscription failed and begins anew", publisher.replica)
            self._restart(publisher.replica)

    def _tick_one(self, subscription: _Subscription) -> None:
        self._hand_over(subscription, subscription.tick(time.monotonic()))

    def _read(self, subscription: _Subscription) -> None:
        self._hand_over(subscription, subscription.read(time.monotonic()))
        # ZMQ's file descriptor tells of news only once: what is left unread now would stay so.
        if any(int(sock.getsockopt(zmq.EVENTS)) & zmq.POLLIN for sock in subscription.sockets()):
            self._unread.add(subscription)
        else:
            self._unread.discard(subscription)

    def _hand_over(self, subscription: _Subscription, steps: list[Step]) -> None:
        stream = subscription.stream
        standing = Standing(subscription.is_connected, stream.is_complete, stream.is_restored)
        if standing != subscription.told:
            subscription.told = standing
            steps = [*steps, standing]
        if steps:
            self._deliver(subscription.publisher.replica, steps)
        self._watch(subscription)

    def _watch(self, subscription: _Subscription) -> None:
        """Watch the descriptors of the sockets there are now: replay sockets come and go."""
        known = self._registered[subscription.publisher.replica]
        sockets = subscription.sockets()
        if len(known) == len(sockets) and all(any(old is sock for old in known.values()) for sock in sockets):
            return
        for fd in known:
            self._selector.unregister(fd)
        known.clear()
        for sock in sockets:
            fd = int(sock.getsockopt(zmq.FD))
            self._selector.register(fd, selectors.EVENT_READ, subscription)
            known[fd] = sock
