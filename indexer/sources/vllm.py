"""vLLM's ZMQ publishers, all read by one thread of its own.

Knows the thread, whose turn it is, and what follows when a subscription fails: it begins anew, and the others go on. The
thread does nothing but read, and steps are handed over through ``deliver``, which must not block. Identity comes from the
connection that was configured, never from the topic.
"""

import contextlib
import logging
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

import zmq

from indexer.index import ReplicaId
from indexer.sources.guard import Guard
from indexer.sources.publisher import Publisher, PublisherStatus, ReaderSettings, not_subscribed
from indexer.sources.subscription import TICK, Socket, Subscription, UselessPublisher
from indexer.stream import Forget, Position, Standing, Step

__all__ = ["EventReader", "Publisher", "PublisherStatus", "ReaderSettings"]

log = logging.getLogger(__name__)

RESTART_DELAY: Final = 1.0
"""Seconds before a subscription that failed begins anew: a fault that repeats must not keep the thread busy."""

QUARANTINE: Final = 10.0


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
        self._subscriptions: dict[ReplicaId, Subscription] = {}
        self._registered: dict[ReplicaId, dict[int, Socket]] = {}
        self._unread: set[Subscription] = set()  # with more to read than they had a turn for
        self._failed: dict[ReplicaId, tuple[float, Publisher, str]] = {}  # when to begin anew, and why
        self._next_tick = 0.0
        self._context: zmq.Context[Socket] = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, 8_192)
        self._guard = Guard(self._context)
        self._selector = selectors.DefaultSelector()
        self._selector.register(int(self._guard.socket.getsockopt(zmq.FD)), selectors.EVENT_READ, None)
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

    def restart(self, replica: ReplicaId, reason: str) -> None:
        """Subscribe anew, after a pause, for this reason: its ``status`` until then."""
        self._command(lambda: self._restart(replica, reason))

    def recheck(self, replica: ReplicaId) -> None:
        """Ask the publisher now whether there is more than what has come."""
        self._command(lambda: self._recheck(replica))

    def status(self) -> dict[ReplicaId, PublisherStatus]:
        """A view of every subscription, those that begin anew in a while among them."""
        now = time.monotonic()
        failed = {replica: not_subscribed(reason) for replica, (_, _, reason) in list(self._failed.items())}
        return failed | {replica: sub.status(now) for replica, sub in list(self._subscriptions.items())}

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
        if publisher.senders is not None:
            self._guard.allow(publisher.replica, publisher.senders)
        try:
            subscription = Subscription(self._context, publisher, self._settings, resume)
        except zmq.ZMQError as error:
            level = logging.DEBUG if is_told else logging.ERROR
            log.log(level, "%s: no subscription to %s: %s", publisher.replica, publisher.events, error)
            self._failed[publisher.replica] = time.monotonic() + RESTART_DELAY, publisher, str(error)
            if resume is not None:  # the next attempt begins at 0
                self._deliver(publisher.replica, [Forget("its publisher cannot be asked whether the snapshot holds")])
            return
        self._subscriptions[publisher.replica] = subscription
        self._registered[publisher.replica] = {}
        self._guarded(subscription, self._read)

    def _remove(self, replica: ReplicaId) -> None:
        self._failed.pop(replica, None)
        self._guard.forget(replica)
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

    def _recheck(self, replica: ReplicaId) -> None:
        subscription = self._subscriptions.get(replica)
        if subscription is not None:
            self._guarded(subscription, lambda each: self._hand_over(each, each.recheck(time.monotonic())))

    def _restart(self, replica: ReplicaId, reason: str, after: float = RESTART_DELAY) -> None:
        subscription = self._subscriptions.get(replica)
        if subscription is not None:
            self._remove(replica)
            self._failed[replica] = time.monotonic() + after, subscription.publisher, reason

    def _run(self) -> None:
        try:
            while not self._is_closing:
                ready = self._selector.select(timeout=0 if self._unread else 0.25)
                for subscription in self._unread | {key.data for key, _ in ready if key.data is not None}:
                    self._guarded(subscription, self._read)
                self._guard.answer()
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
            self._failed.clear()
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
        for due, publisher, _ in list(self._failed.values()):
            if now >= due:
                self._add(publisher)

    def _guarded(self, subscription: Subscription, action: Callable[[Subscription], None]) -> None:
        """A fault met while serving one publisher costs that publisher a fresh start, and the others nothing."""
        publisher = subscription.publisher
        if self._subscriptions.get(publisher.replica) is not subscription:
            return
        try:
            action(subscription)
        except UselessPublisher as error:
            log.warning("%s: left alone for %g s: %s", publisher.replica, QUARANTINE, error)
            self._restart(publisher.replica, str(error), QUARANTINE)
        except Exception:
            log.exception("%s: the subscription failed and begins anew", publisher.replica)
            self._restart(publisher.replica, "the subscription failed; the log says how")

    def _tick_one(self, subscription: Subscription) -> None:
        self._hand_over(subscription, subscription.tick(time.monotonic()))

    def _read(self, subscription: Subscription) -> None:
        self._hand_over(subscription, subscription.read(time.monotonic()))
        # ZMQ's file descriptor tells of news only once: what is left unread now would stay so.
        if any(int(sock.getsockopt(zmq.EVENTS)) & zmq.POLLIN for sock in subscription.sockets()):
            self._unread.add(subscription)
        else:
            self._unread.discard(subscription)

    def _hand_over(self, subscription: Subscription, steps: list[Step]) -> None:
        if news := subscription.news(steps):
            self._deliver(subscription.publisher.replica, news)
        self._watch(subscription)

    def _watch(self, subscription: Subscription) -> None:
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
