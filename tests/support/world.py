"""A gateway's core in front of a few engines, in moved time, with everything between them that can go wrong.

Knows the real parts (``indexer.sources.vllm`` and its stream, ``balancer.router``), bound together as ``balancer.service``
does, over ``tests.support.network`` to the engines of ``tests.support.publisher``. Never draws: what happens next is said by
whoever tells the story. ``check`` is what must hold at every moment: no replica that is called exact or learned differs from
what its engine held after the last batch that was read, and no prompt's match from what the engine would find.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any, Final, cast

from balancer.caches import Renew
from balancer.core import Outcome, Replica, RouteRequest, Truth
from balancer.errors import RequestError
from balancer.facts import Described, EventSource
from balancer.handover import Handover
from balancer.hashes import PromptHashes
from balancer.knowledge import Knowledge, View
from balancer.policies.base import make
from balancer.router import Router
from indexer.index import ReplicaId
from indexer.recognition import KeyState
from indexer.snapshot import Image, write
from indexer.sources.publisher import Publisher as Address
from indexer.sources.publisher import ReaderSettings
from indexer.sources.subscription import TICK, Subscription, UselessPublisher
from indexer.stream import Apply, Forget, Lost, Position, Standing, Step
from tests.support.network import Dealer, Network, Sub
from tests.support.publisher import ADAPTER, GPU, Ask, Kind, Life, Publisher, Start, Stepped
from tests.support.routing import MODEL

SETTINGS: Final = ReaderSettings()
SETTLING: Final = 140
"""Half seconds: long enough for a second look at a publisher that has fallen silent."""


class World:
    """Engines, a network and one gateway; mutable."""

    def __init__(self, kinds: Sequence[Kind], start: Start, draw: Random) -> None:
        self.now = 1_000.0
        self.network = Network()
        self.publishers = {
            ReplicaId(f"{at}: {kind.name}"): Publisher(f"sim://{at}", kind, start, draw)
            for at, kind in enumerate(kinds)
        }
        self.seen: Counter[str] = Counter()
        """What has happened and what was judged: a world in which nothing happens proves nothing."""
        self._steps = 0
        self._saved = b""  # the last snapshot
        self._had_lost: frozenset[ReplicaId] = frozenset()
        self._cached: dict[tuple[ReplicaId, int, str], int] = {}  # what engines have said of requests that still run
        self.start_gateway()

    # The gateway

    def start_gateway(self) -> None:
        """A new process, which knows nothing but what was saved last; the one before is gone."""
        for subscription in getattr(self, "subscriptions", {}).values():
            subscription.close()
        self.router = Router(make("cache_aware"), "cache_aware")
        self.handover = Handover(self.router, [f"http://{replica}" for replica in self.publishers])
        self.queue: deque[tuple[ReplicaId, Step]] = deque()
        self.subscriptions: dict[ReplicaId, Subscription] = {}
        self._leases: dict[tuple[ReplicaId, int, str], int] = {}
        self._answered: dict[
            ReplicaId, tuple[int, int]
        ] = {}  # how far a publisher was by the last whole answer: life, batches
        self._has_lost = set(self._had_lost) if self._saved else set[ReplicaId]()
        if self._saved:
            restoration = self.handover.restoration(0.0)
            restoration.feed(self._saved)
            self.seen["blocks restored"] += self.handover.accept(restoration.finish())
        for replica in self.publishers:
            self.put(replica)

    def save(self) -> None:
        """A snapshot is made; gateways that start from now on begin with it."""
        taking = self.handover.take(self.now)
        while True:
            try:
                next(taking)
            except StopIteration as end:
                image: Image = end.value
                break
        self._saved = b"".join(write(image)) if image.replicas else b""
        self._had_lost = frozenset(self._has_lost)

    def put(self, replica: ReplicaId) -> None:
        """A replica is found, or found to be another one."""
        described = self._described(replica)
        self.router.put(described.replica)
        resume, _ = self.handover.adopt(described)
        if replica not in self.subscriptions:
            self.router.caches.observe(replica, [Standing(is_restored=resume is not None)])
            self._subscribe(replica, resume)

    def subscribe_anew(self, replica: ReplicaId) -> None:
        """As when the engine's metrics tell that its process has begun anew."""
        if replica in self.subscriptions:
            self._unsubscribe(replica)
            self._subscribe(replica)

    def _subscribe(self, replica: ReplicaId, resume: Position | None = None) -> None:
        publisher, network = self.publishers[replica], cast(Any, self.network)
        replay = None if publisher.kind.buffer is None else f"{publisher.address}/replay"
        self.subscriptions[replica] = Subscription(
            network, Address(replica, publisher.address, replay), SETTINGS, resume
        )

    def _described(self, replica: ReplicaId) -> Described:
        kind, address = self.publishers[replica].kind, self.publishers[replica].address
        known = Replica(
            id=replica,
            endpoint=f"http://{replica}",
            models=(MODEL, ADAPTER.name),
            adapters=(ADAPTER,),
            recipe=kind.declared,
            num_gpu_blocks=kind.num_gpu_blocks,
        )
        return Described(known, EventSource(0, address, None if kind.buffer is None else f"{address}/replay", ""), ())

    def remove(self, replica: ReplicaId) -> None:
        """A replica is gone, while steps of it may be queued."""
        if replica in self.subscriptions:
            self._unsubscribe(replica)
            self.router.remove(replica)

    def _unsubscribe(self, replica: ReplicaId) -> None:
        self.subscriptions.pop(replica).close()
        self._queue(replica, [Forget("its subscription has ended"), Standing()])

    def read(self, replica: ReplicaId) -> None:
        """The reader's thread looks at the replica's sockets."""
        if replica in self.subscriptions:
            dealer = self.dealer(replica)
            self._look(replica, Subscription.read)
            if dealer is None or not dealer.is_closed or not dealer.was_read or dealer.ends_at is None:
                return
            # Only the first message of an answer never gets lost: how many there are is told where that would be the next one.
            if dealer.start >= (self.subscriptions[replica].stream.next_sequence or 0):
                self._answered[replica] = dealer.ends_at

    def pass_time(self, seconds: float) -> None:
        """Time passes: the reader's thread and the router do what is due."""
        for _ in range(round(seconds / TICK)):
            self.now += TICK
            for replica in list(self.subscriptions):
                self._look(replica, Subscription.tick)
            self.router.tick(self.now)
            self._obey_orders()

    def _obey_orders(self) -> None:
        orders, self.router.caches.orders = self.router.caches.orders, []
        for order in orders:
            self.seen["orders"] += 1
            if order.replica in self.subscriptions:
                if isinstance(order, Renew):
                    self._unsubscribe(order.replica)
                    self._subscribe(order.replica)
                else:
                    self._look(order.replica, Subscription.recheck)

    def _look(self, replica: ReplicaId, look: Callable[[Subscription, float], list[Step]]) -> None:
        subscription = self.subscriptions[replica]
        unanswered = subscription.counters["replays_unanswered"]
        try:
            self._queue(replica, subscription.news(look(subscription, self.now)))
            self.publishers[replica].life.was_silent |= subscription.counters["replays_unanswered"] > unanswered
        except UselessPublisher:
            self._unsubscribe(replica)
            self._subscribe(replica)

    def drain(self, count: int) -> None:
        """The event loop applies the next ``count`` steps."""
        for _ in range(min(count, len(self.queue))):
            replica, step = self.queue.popleft()
            self.seen[type(step).__name__] += 1
            if isinstance(step, Lost) or (isinstance(step, Apply) and step.batches[0].skipped):
                self._has_lost.add(replica)
            elif isinstance(step, Forget):
                self._has_lost.discard(replica)
            self.router.caches.observe(replica, [step])

    def _queue(self, replica: ReplicaId, steps: Sequence[Step]) -> None:
        for step in steps:
            if isinstance(step, Apply):
                self.queue.extend((replica, Apply([batch])) for batch in step.batches)
            else:
                self.queue.append((replica, step))

    # Requests

    def route(self, ask: Ask) -> None:
        """A request comes through the gateway."""
        try:
            decision = self.router.route(self._request(ask), self.now, draw=0.5)
        except RequestError:
            self.seen["refused"] += 1
            return
        replica = decision.replica.id
        life = self.publishers[replica].life
        self._leases[replica, life.number, life.add(ask)] = decision.lease

    def send(self, replica: ReplicaId, ask: Ask) -> None:
        """A request comes past the gateway."""
        self.publishers[replica].life.add(ask)

    def abort(self, replica: ReplicaId, draw: Random) -> None:
        """A client goes away."""
        life = self.publishers[replica].life
        if requests := life.process.requests():
            name = draw.choice(requests)
            life.process.abort(name)
            self._release(replica, life, name, Outcome.CANCELLED)

    def _request(self, ask: Ask) -> RouteRequest:
        return RouteRequest(
            model=ADAPTER.name if ask.has_adapter else MODEL,
            hashes=PromptHashes([ask.tokens], ask.salt, None),
            prompt_lengths=(len(ask.tokens),),
        )

    def _release(self, replica: ReplicaId, life: Life, name: str, outcome: Outcome, truth: Truth | None = None) -> None:
        lease = self._leases.pop((replica, life.number, name), None)
        if lease is not None:
            self.router.release(lease, outcome, self.now, truth)

    # Engines

    def work(self, replica: ReplicaId, *, arrives: bool = True, is_readable: bool = True) -> None:
        """One step of the engine; what it publishes is lost on the way unless it ``arrives``."""
        publisher = self.publishers[replica]
        life = publisher.life
        if not life.process.has_work:
            return
        self._steps += 1
        stepped = life.step(1_764_000_000.0 + self._steps / 1_000, is_readable=is_readable)
        if stepped.payload is not None and arrives:
            self.network.publish(publisher.address, [b"", (life.sent - 1).to_bytes(8, "big"), stepped.payload])
        self.seen["engine steps"] += 1
        self.seen["batches"] += stepped.payload is not None
        self._answer(replica, life, stepped)

    def _answer(self, replica: ReplicaId, life: Life, stepped: Stepped) -> None:
        for name, cached in stepped.cached_tokens.items():
            self._cached[replica, life.number, name] = cached
            lease = self._leases.get((replica, life.number, name))
            if lease is not None:
                self.router.started(lease, self.now)
        for name in stepped.finished:
            cached = self._cached.pop((replica, life.number, name))
            truth = Truth(prompt_tokens=len(life.ask(name).tokens), cached_tokens=cached)
            self._release(replica, life, name, Outcome.OK, truth)

    def restart(self, replica: ReplicaId, draw: Random, kind: Kind | None = None) -> None:
        """The engine's process ends and another one begins, perhaps another engine altogether."""
        publisher = self.publishers[replica]
        for key in [key for key in self._leases if key[:2] == (replica, publisher.life.number)]:
            self._release(replica, publisher.life, key[2], Outcome.UNREACHABLE)
        self.part(replica, arrives=draw.randint(0, 3))
        publisher.restart(draw, kind)
        self.seen["restarts"] += 1

    # The network

    def sub(self, replica: ReplicaId) -> Sub | None:
        """The replica's SUB socket, if anybody is subscribed."""
        return next(iter(self.network.subs(self.publishers[replica].address)), None)

    def dealer(self, replica: ReplicaId) -> Dealer | None:
        """The replica's open replay, if there is one."""
        return next(iter(self.network.dealers(f"{self.publishers[replica].address}/replay")), None)

    def part(self, replica: ReplicaId, arrives: int = 0) -> None:
        sub = self.sub(replica)
        if sub is not None and sub.life is not None:
            sub.part(arrives)
            self.seen["broken connections"] += 1

    def join(self, replica: ReplicaId) -> None:
        sub = self.sub(replica)
        if sub is not None and sub.life is None:
            sub.join(self.publishers[replica].life.number)

    def subscribe(self, replica: ReplicaId) -> None:
        sub = self.sub(replica)
        if sub is not None and sub.life is not None:
            sub.is_subscribed = True

    def serve(self, replica: ReplicaId, lost: Sequence[int] = (), *, has_end: bool = True) -> None:
        """The publisher answers the open replay; the messages at these places are lost."""
        dealer = self.dealer(replica)
        if dealer is None or dealer.asked is None:
            return
        life = self.publishers[replica].life
        answer = life.answer(dealer.asked)
        dealer.asked = None
        life.is_doubtful |= 0 in lost and bool(answer)
        dealer.wire.extend(frames for at, frames in enumerate(answer) if at not in lost)
        if has_end:
            dealer.wire.append(life.end_of_answer())
            dealer.ends_at = life.number, life.sent

    def breathe(self, replica: ReplicaId) -> None:
        """All is well for a moment: what is on its way arrives, and is read."""
        self.join(replica)
        self.subscribe(replica)
        self.serve(replica)
        if (sub := self.sub(replica)) is not None:
            sub.carry(len(sub.wire))
        if (dealer := self.dealer(replica)) is not None:
            dealer.carry(len(dealer.wire))
        self.read(replica)

    def settle(self) -> None:
        """Every replica is found again, every engine falls idle, every message arrives, and time passes."""
        for replica in self.publishers:
            self.put(replica)
        for _ in range(SETTLING):
            for replica, publisher in self.publishers.items():
                if publisher.life.process.has_work:
                    self.work(replica)
                self.breathe(replica)
            self.drain(len(self.queue))
            self.pass_time(0.5)
            self.drain(len(self.queue))
        self.check()
        for replica in self.publishers:
            self._check_settled(replica)

    # What must hold

    def check(self) -> None:
        """At every moment."""
        waiting = {replica for replica, _ in self.queue}
        for replica in self.subscriptions:
            if replica in waiting:
                continue
            view = self.router.caches.view(replica, self.now)
            self.seen[view.state] += 1
            if view.state.is_promise:
                self._check_known(replica, view)

    def _check_known(self, replica: ReplicaId, view: View) -> None:
        publisher, subscription = self.publishers[replica], self.subscriptions[replica]
        socket: Any = subscription.sub
        told: int | None = socket.monitor.life
        assert told is not None, f"{replica} is {view.state}, and not connected"
        life = publisher.lives[told]
        sequence = (subscription.stream.next_sequence or 0) - 1
        assert sequence < life.sent, f"{replica} is {view.state} at batch {sequence}, of which this life knows nothing"
        number, sent = self._answered.get(replica, (told, 0))
        if number == told and not life.is_doubtful:
            assert sequence >= sent - 1, (
                f"{replica} is {view.state} at batch {sequence}, and was told that there are {sent}"
            )
        self._check_held(replica, view, life, sequence)
        if not self._is_waited_for(replica):
            self._check_matches(replica, life, sequence)

    def _check_held(self, replica: ReplicaId, view: View, life: Life, sequence: int) -> None:
        for tier, truth in life.truth(sequence).items():
            if tier != GPU and replica in self._has_lost:
                continue  # a clear makes up for what was lost of the GPU alone
            table = self.router.caches.index.tiers.get(tier)
            held = Counter[int]() if table is None else table.held(replica)
            named = self._named(replica, life, truth) if view.state is Knowledge.LEARNED else truth
            if held == named:
                self.seen[f"{tier.label} blocks judged"] += held.total()
                continue
            raise AssertionError(
                f"{replica} is called {view.state} ({view.reason}) after batch {sequence} of {life.sent} of life "
                f"{life.number}, but in {tier.label} it holds {held - named} too much and lacks {named - held}"
            )

    def _named(self, replica: ReplicaId, life: Life, truth: Counter[int]) -> Counter[int]:
        names = life.names(self.router.caches.recognitions[replica].recipe)
        named: Counter[int] = Counter()
        for key, copies in truth.items():
            named[names[key]] += copies
        return named

    def _is_waited_for(self, replica: ReplicaId) -> bool:
        """Whether blocks are expected there, of requests under way or just ended."""
        bit = self.router.caches.index.gpu.bit(replica)
        return any(bits & bit for bits in self.router.caches.predicted.holders.values())

    def _check_matches(self, replica: ReplicaId, life: Life, sequence: int) -> None:
        """The last prompts again: what would be predicted for them."""
        for ask in life.asks()[-3:]:
            decision = self.router.consider(self._request(ask), self.now, draw=0.5)
            matched = next((each.cached_tokens for each in decision.candidates if each.replica == replica), None)
            expected = life.cached_tokens(ask, sequence)
            assert matched == expected, f"{replica}: {matched} tokens predicted for {ask}, {expected} would be found"
            self.seen["matches judged"] += 1
            self.seen["tokens matched"] += expected

    def _check_settled(self, replica: ReplicaId) -> None:
        """Whoever could know everything does."""
        publisher, subscription = self.publishers[replica], self.subscriptions[replica]
        life, view = publisher.life, self.router.caches.view(replica, self.now)
        assert not self.queue
        if view.state.is_promise:
            assert not self._is_waited_for(replica), f"{replica} is waited for although nothing is under way"
            has_asked = (
                publisher.kind.buffer is not None
            )  # else the last batch before a silence leaves no trace when lost
            assert not has_asked or subscription.stream.next_sequence == life.sent, (
                f"{replica} has missed the last batches"
            )
            self.seen["settled as known"] += 1
            return
        for excuse in self._excuses(replica, life):
            self.seen[f"settled as {view.state}: {excuse}"] += 1
            return
        raise AssertionError(f"{replica} has settled as {view.state}: {view.reason}")

    def _excuses(self, replica: ReplicaId, life: Life) -> Iterator[str]:
        buffer = self.publishers[replica].kind.buffer
        if buffer is None:
            yield "no replay socket"
        elif life.sent > buffer:
            yield "the buffer does not reach back"
        if life.first_unreadable is not None:
            yield "events that nobody can read"
        if self.router.caches.losses[replica].batches and (life.is_doubtful or life.was_silent):
            yield "replays that lied or never came"
        if self.router.caches.losses[replica].contradictions:
            yield "events that came after what they explain"
        recognition = self.router.caches.recognitions[replica]
        if recognition.recipe is None:
            yield "no event has shown how it hashes"
        if recognition.state is KeyState.UNPROVEN and recognition.reason:
            yield "events that disagree and prove nothing"
        if recognition.unplaced and replica in self._has_lost:
            yield "blocks of other tiers, whose place was lost with the batches that told it"
        if not life.release.num_stored_fields >= 8 and not self.publishers[replica].kind.declared:
            yield "its events tell no salts"
