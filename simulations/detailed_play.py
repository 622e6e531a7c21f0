"""One run of the detailed model: a fleet of engines step by step, behind the router that production runs.

Knows arrivals, engines (``simulations.engine``), how long their steps take, how their events travel, and what goes wrong.
Never knows what a policy thinks: each gateway is a ``balancer.router.Router``, which is told what it would be told in
production, and no sooner. Where prefill and decode are apart, ``simulations.disaggregated`` plays it.
"""

import math
import random
from array import array
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import Final

from balancer.core import Candidate, Decision, Outcome, RouteRequest, Truth
from balancer.disaggregation.roles import PREFILL_SESSION, Part, Role
from balancer.economics.economy import Economy
from balancer.economics.settings import ModelSettings
from balancer.errors import RequestError
from balancer.fleet import Status
from balancer.policies.base import Policy
from balancer.router import Router
from hashing.recipes import Recipe
from indexer.events import AllBlocksCleared, BlockStored, KVEvent
from indexer.index import ReplicaId
from indexer.steps import Apply
from indexer.wire import Batch
from simulations.arrivals import Arrivals, scale_to
from simulations.course import Course
from simulations.detailed_fleet import DetailedFleet, prefill_speed, told
from simulations.divided import Divided
from simulations.engine import Engine
from simulations.engine_values import EngineConfig, EngineRequest, ScheduledStep
from simulations.exchanging import Exchanging
from simulations.forgotten import Forgotten
from simulations.given_keys import GivenKeys, proof
from simulations.hub import Hub
from simulations.keys import TraceKeys
from simulations.missing import known_tokens, reasons
from simulations.played import MODEL, Held, PlayedReplica, Sent
from simulations.results import REFUSED, Run
from simulations.sequences import KeyPrompt
from simulations.shared_store import NAME, SharedStore, known_store, most_loaded, store_links
from simulations.store import Reader
from simulations.traces.trace import NO_SESSION, Trace

TICK_SECONDS: Final = 1.0
QUIET_TICKS: Final = 600
"""After so many in a row in which no step began, each takes twice as long to come: a load may take years."""

RETRY_SECONDS: Final = 1.0
ATTEMPTS: Final = 30
"""How often a request is tried again that nobody can take, before it counts as refused."""


class Play(Course):
    """A run, until it is over; mutable."""

    def __init__(
        self,
        trace: Trace,
        fleet: DetailedFleet,
        policy: Callable[[], Policy],
        name: str,
        sessions: Sequence[int],
        dice: random.Random,
        keys: TraceKeys | None,
    ) -> None:
        self._prepare(fleet)
        self._settings = fleet
        speeds = [*fleet.speeds, *[1.0] * fleet.replicas][: fleet.replicas]
        self._speeds = [prefill_speed(fleet) * speed for speed in speeds]
        scale = 1 / fleet.rate if fleet.load is None else scale_to(trace, fleet.load * self._full_speed())
        super().__init__(trace, Arrivals(trace, scale, closed_loop=fleet.closed_loop))
        self._outputs = array("q", bytes(8 * len(trace)))
        self._sessions = sessions
        self._dice = dice
        self._keys = keys or TraceKeys(trace, fleet.block_size)
        self._recipe = Recipe(block_size=fleet.block_size)
        longest = max([inp + out for inp, out in zip(trace.inputs, trace.outputs, strict=True)], default=1)
        room = fleet.blocks * fleet.block_size
        self._config = EngineConfig(
            self._recipe,
            fleet.blocks + 1,
            max_num_batched_tokens=fleet.max_num_batched_tokens,
            max_num_seqs=fleet.max_num_seqs,
            max_model_len=min(longest + 1, room),
            async_scheduling=fleet.async_scheduling,
            announce_tokens=False,
        )
        self._store = (
            None if fleet.store is None or fleet.store.loads == "never" else SharedStore(fleet.store, fleet.block_size)
        )
        self._replicas = [
            PlayedReplica(number, ReplicaId(f"r{number:03}"), Engine(self._config, self._store), speed, fleet.latency)
            for number, speed in enumerate(speeds)
        ]
        self._gateways = [self._gateway(policy(), name) for _ in range(fleet.gateways)]
        for replica in self._replicas:
            self._introduce(replica)
        self._devices: list[Divided] = []
        if fleet.devices < fleet.replicas:  # what one gives in a second is a second of computing
            self._devices = [Divided(Hub(1.0, 1.0, 0.0), self._push) for _ in range(fleet.devices)]
        if fleet.store is not None:
            self._divide_links(fleet.store.hub())
        self._open: dict[int, Sent] = {}
        self._held: dict[tuple[int, int], Held] = {}  # by gateway and lease
        self._due = [-math.inf] * fleet.gateways
        self._exchanging = Exchanging(self._gateways, fleet.exchange, self._push, lambda: self._is_busy)
        self._in_turn = 0
        self._next_tick = math.inf
        self._quiet = 0  # ticks in which nothing began
        self._computed: set[int] = set()  # keys that somebody has had
        self._explained: set[int] = set()  # and those of prompts whose first token has come
        self._forgotten = Forgotten()

    def _full_speed(self) -> float:
        """Prompt tokens a second of all replicas that compute at once."""
        count = self._settings.devices
        return sum(fmean(self._speeds[number::count]) for number in range(count))

    def _prepare(self, fleet: DetailedFleet) -> None:
        """Before anything is made of the fleet."""

    def run(self, name: str, seed: int) -> Run:
        for restart in self._settings.restarts:
            self._push(restart.at, self._die, self._replicas[restart.replica], restart.down)
        self._play(self._arrive)
        busy = [replica.busy_seconds for replica in self._replicas]
        for device in self._devices:
            for (number, _), seconds in device.seconds.items():
                busy[number] += seconds
        loading = [replica.loading_seconds + replica.reader.loading_seconds for replica in self._replicas]
        for (number, _), seconds in ({} if self._links is None else self._links.seconds).items():
            loading[number] += seconds
        return self._run_of(name, seed, {"model": "detailed", **told(self._settings)}, busy, loading)

    # Requests

    def _arrive(self, now: float, request: int, attempt: int = 1, came: float | None = None) -> None:
        came = now if came is None else came
        self._arrivals[request] = came
        tokens = self._trace.inputs[request]
        self._tick_at(now + TICK_SECONDS)
        self._exchanging.begin(now)
        if tokens + 1 > self._config.max_model_len:
            self._leave(now, request)
            return
        gateway, self._in_turn = self._in_turn, (self._in_turn + 1) % len(self._gateways)
        try:
            decision = self._route(now, gateway, request)
        except RequestError:
            if attempt < ATTEMPTS:
                self._push(now + RETRY_SECONDS, self._arrive, request, attempt + 1, came)
            else:
                self._leave(now, request)
            return
        self._chosen[request] = int(decision.replica.id[1:])
        self._place(now, gateway, Held(request, attempt, came, decision))

    def _place(self, now: float, gateway: int, held: Held) -> None:
        """What was decided is done as soon as the router lets it go."""
        if self._gateways[gateway].is_held(held.decision.lease):
            self._held[gateway, held.decision.lease] = held
            self._look(now, gateway)
        else:
            self._send(now, gateway, held)

    def _route(self, now: float, gateway: int, request: int, part: Part = Part.WHOLE) -> Decision:
        """Where this part of the request goes, as the gateway decides.

        Raises:
            RequestError: nobody can take it.
        """
        session = self._sessions[request]
        number = 0 if session == NO_SESSION else session + 1
        wanted = RouteRequest(
            MODEL,
            GivenKeys(self._keys.of(request)),
            (self._trace.inputs[request],),
            session=number ^ PREFILL_SESSION if part is Part.PREFILL and number else number,
            request_id=str(request),
            part=part,
        )
        return self._gateways[gateway].route(wanted, now, self._dice.random())

    def _look(self, now: float, gateway: int) -> None:
        """Who was held at this gateway goes on, if it is time; whoever it was held for may be gone."""
        router = self._gateways[gateway]
        for lease in router.stranded(now):
            self._strand(now, gateway, self._held.pop((gateway, lease)))
        for lease in router.dispatch(now):
            self._send(now, gateway, self._held.pop((gateway, lease)))
        self._look_later(gateway)

    def _strand(self, now: float, gateway: int, held: Held) -> None:
        """It comes anew, as whoever it was held for is gone."""
        self._gateways[gateway].release(held.decision.lease, Outcome.CANCELLED, now)
        self._push(now, self._arrive, held.request, held.attempt, held.came)

    def _look_later(self, gateway: int) -> None:
        due = self._gateways[gateway].due()
        if due is not None and due != self._due[gateway]:
            self._due[gateway] = due
            self._push(due, self._look, gateway)

    def _send(self, now: float, gateway: int, held: Held) -> None:
        request, attempt, came, decision = held.request, held.attempt, held.came, held.decision
        tokens, keys = self._trace.inputs[request], self._keys.of(request)
        replica = self._replicas[int(decision.replica.id[1:])]
        engine = replica.engine
        if engine is None:  # nobody is there, and the router does not know it yet
            self._gateways[gateway].release(decision.lease, Outcome.UNREACHABLE, now)
            self._tell_lost(replica)
            self._push(now, self._arrive, request, attempt + 1, came)
            return
        name = f"{request}/{attempt}"
        known = self._known(keys, tokens)
        self._open[request] = Sent(gateway, decision, known, self._forgotten_of(keys, known))
        replica.sent[name] = request
        most = most_loaded(decision.hint)
        engine.add(EngineRequest(name, KeyPrompt(tokens, keys), self._trace.outputs[request], max_load_tokens=most))
        self._run(now, replica)

    def _leave(self, now: float, request: int) -> None:
        """Nobody has taken it."""
        self._chosen[request] = REFUSED
        self._follow(now, request, self._arrive)

    # Engines

    def _run(self, now: float, replica: PlayedReplica) -> None:
        """The engine's next step, if it has anything to do and computes none."""
        engine = replica.engine
        if engine is None or replica.step is not None or not engine.has_work:
            return
        step = replica.step = engine.schedule()
        seconds = replica.seconds(step)
        if self._quiet and self._next_tick < math.inf:
            self._quiet = 0
            self._tick_at(now + TICK_SECONDS)
        if (device := self._device(replica)) is None:
            replica.busy_seconds += seconds
            self._push(now + seconds, self._stepped, replica, replica.life, step)
        else:
            device.begin(now, (replica.number, replica.life), seconds, self._stepped, replica, replica.life, step)
        for name, tokens in step.loads.items():
            self._load(now, replica, name, tokens)

    def _device(self, replica: PlayedReplica) -> Divided | None:
        """What it computes on together with others; None where it has one of its own."""
        return self._devices[replica.number % len(self._devices)] if self._devices else None

    def _load(self, now: float, replica: PlayedReplica, name: str, tokens: int) -> None:
        """The replica begins to load so many, as soon as it can, for what its engine calls so."""
        assert self._store is not None, "it is what engines load from"
        if self._links is None:
            done = replica.reader.load(now, self._store.seconds(tokens))
            self._push(done, self._loaded, replica, replica.life, name)
        else:
            way = replica.number, replica.life
            self._links.begin(now, way, self._store.size(tokens), self._loaded, replica, replica.life, name)

    def _loaded(self, now: float, replica: PlayedReplica, life: int, name: str) -> None:
        if replica.engine is not None and replica.life == life:
            replica.engine.loaded(name)
            self._run(now, replica)

    def _stepped(self, now: float, replica: PlayedReplica, life: int, step: ScheduledStep) -> None:
        engine = replica.engine
        if engine is None or replica.life != life:
            return
        replica.step = None
        result = engine.complete(step, _sample)
        stored: list[KVEvent] = []
        for name, cached in result.cached_tokens.items():
            request = replica.sent[name]
            self._began(now, replica, request, cached)
            if self._store is not None:
                stored += self._keep(now, replica, request)
        for name in result.finished:
            self._ended(now, replica, replica.sent.pop(name))
        if result.events or stored:
            self._publish(now, replica, result.events, stored)
        self._run(now, replica)

    def _began(self, now: float, replica: PlayedReplica, request: int, cached: int) -> None:
        sent = self._open[request]
        sent.has_begun = True
        self._gateways[sent.gateway].started(sent.decision.lease, now)
        self._look(now, sent.gateway)
        self._ttfts[request] = now - self._arrivals[request] + self._settings.latency.request
        sent.cached = cached
        # All of a prompt can be loaded: its last token is computed anew all the same.
        self._hits[request] = hit = min(cached, self._trace.inputs[request] - 1)
        self._explain(request, sent, hit)

    def _ended(self, now: float, replica: PlayedReplica, request: int) -> None:
        sent = self._open.pop(request)
        tokens = self._trace.inputs[request]
        truth = Truth(tokens, sent.cached, self._trace.outputs[request], "length", 200)
        self._gateways[sent.gateway].release(sent.decision.lease, Outcome.OK, now, truth)
        self._look(now, sent.gateway)
        now += self._settings.latency.request  # the client has it later than the engine
        self._latencies[request] = now - self._arrivals[request]
        self._outputs[request] = min(self._trace.outputs[request], self._config.max_model_len - tokens)
        self._end = now
        self._follow(now, request, self._arrive)

    # Events

    def _keep(self, now: float, replica: PlayedReplica, request: int) -> list[KVEvent]:
        """The store gets a prompt that was computed: at once, or when it is written; what that changes now."""
        store, settings, size = self._store, self._settings.store, self._settings.block_size
        assert store is not None, "it is asked for by that"
        assert settings is not None, "or there was no store"
        keys = self._keys.of(request)[: self._trace.inputs[request] // size]
        if settings.write_gbits is None:
            return store.put(keys)
        if new := store.lacks(keys):
            done = replica.writer.load(now, settings.write_seconds(new * size))
            self._push(done, self._written, replica, replica.life, keys)
            return []
        return store.put(keys)

    def _written(self, now: float, replica: PlayedReplica, life: int, keys: Sequence[int]) -> None:
        if replica.life != life:  # who died while it wrote has written nothing that is whole
            return
        assert self._store is not None, "it is written there"
        if told := self._store.put(keys):
            self._publish(now, replica, [], told)

    def _publish(self, now: float, replica: PlayedReplica, events: list[KVEvent], stored: list[KVEvent]) -> None:
        settings = self._settings
        for event in events:
            if isinstance(event, BlockStored):
                self._computed.update(event.block_hashes)
                self._forgotten.stored(event.block_hashes)
        if settings.event_loss and self._dice.random() < settings.event_loss:
            return
        self._push(now + settings.event_lag, self._hear, replica, replica.life, events, stored)

    def _hear(
        self, now: float, replica: PlayedReplica, life: int, events: list[KVEvent], stored: list[KVEvent]
    ) -> None:
        """What the engine tells of its cache, and of what it has written into the store, which outlives it."""
        for gateway in self._gateways:
            if events and replica.life == life:
                gateway.caches.apply(replica.name, events)
            if stored:
                gateway.caches.stores.observe(NAME, Apply([Batch(now, stored)]))

    # Faults

    def _die(self, now: float, replica: PlayedReplica, down: float) -> None:
        """The engine is gone; requests that had not begun are sent elsewhere, the others are lost for their clients."""
        lost = list(replica.sent.values())
        if replica.engine is not None:
            others = [
                each.engine.cached() for each in self._replicas if each is not replica and each.engine is not None
            ]
            self._forgotten.lost(replica.engine.cached(), others)
        replica.engine, replica.step, replica.life = None, None, replica.life + 1
        replica.loading_seconds += replica.reader.loading_seconds
        replica.reader, replica.writer = Reader(), Reader()
        for divided in (self._links, self._device(replica)):
            if divided is not None:
                divided.drop(now, (replica.number, replica.life - 1))
        replica.sent.clear()
        self._tell_lost(replica)
        for request in lost:
            self._lose(now, replica, request)
        self._push(now + down, self._return, replica, replica.life)

    def _lose(self, now: float, replica: PlayedReplica, request: int, attempt: int = 2) -> None:
        """The engine that had this request has died."""
        sent = self._open.pop(request)
        outcome = Outcome.ERROR if sent.has_begun else Outcome.UNREACHABLE
        self._gateways[sent.gateway].release(sent.decision.lease, outcome, now)
        if sent.has_begun:
            self._latencies[request] = now - self._arrivals[request]
            self._follow(now, request, self._arrive)
        else:
            self._push(now, self._arrive, request, attempt, self._arrivals[request])

    def _return(self, now: float, replica: PlayedReplica, life: int) -> None:
        if replica.life != life:  # it has died again meanwhile, and comes back later
            return
        replica.engine = Engine(self._config, self._store)
        for gateway in self._gateways:
            gateway.caches.apply(replica.name, [AllBlocksCleared()])
            gateway.set_status(replica.name, Status.READY)

    def _tell_lost(self, replica: PlayedReplica) -> None:
        for gateway in self._gateways:
            gateway.set_status(replica.name, Status.LOST)

    # How

    def _gateway(self, policy: Policy, name: str) -> Router:
        settings = self._settings.store
        if self._store is None or settings is None:
            return Router(policy, name)
        economy = Economy(
            models=[ModelSettings(name=MODEL, bytes_per_token=settings.token_bytes)], stores=store_links(settings)
        )
        return Router(policy, name, stores=[known_store()], economy=economy)

    def _introduce(self, replica: PlayedReplica) -> None:
        """The gateways learn of the replica, and that its keys are what they compute."""
        described = replica.described(self._settings, self._recipe, self._role(replica))
        for gateway in self._gateways:
            gateway.put(described)
            gateway.caches.apply(replica.name, [proof(self._recipe), AllBlocksCleared()])
            live = gateway.fleet.get(replica.name)
            assert live is not None, "what was put is there"
            if self._settings.knows_speeds:
                live.fix_speed(self._speeds[replica.number])

    def _role(self, _: PlayedReplica) -> Role:
        return Role.BOTH

    def _tick_at(self, due: float) -> None:
        if due < self._next_tick:
            self._next_tick = due
            self._push(due, self._tick)

    def _tick(self, now: float) -> None:
        if now != self._next_tick:  # another one has come in its place
            return
        self._quiet += 1
        for number, gateway in enumerate(self._gateways):
            gateway.tick(now)
            self._look(now, number)
        self._next_tick = math.inf
        if self._is_busy:
            self._tick_at(now + TICK_SECONDS * 2.0 ** min(1023, max(0, self._quiet - QUIET_TICKS)))

    @property
    def _is_busy(self) -> bool:
        return bool(self._open or self._held)

    def _known(self, keys: Sequence[int], tokens: int) -> int:
        return known_tokens(keys, tokens, self._settings.block_size, self._computed)

    def _forgotten_of(self, keys: Sequence[int], known: int) -> tuple[int, ...]:
        return self._forgotten.places(keys[: known // self._settings.block_size])

    def _seen(self, _: int, sent: Sent) -> Iterable[Candidate]:
        """The replicas that a request could have hit, as its gateway saw them."""
        return sent.decision.candidates

    def _explain(self, request: int, sent: Sent, cached: int) -> None:
        """Why what it did not hit had to be computed, as the gateway's candidates show it."""
        best = max([each.cached_tokens for each in self._seen(request, sent)])
        tokens, keys, size = self._trace.inputs[request], self._keys.of(request), self._settings.block_size
        begun = known_tokens(keys, tokens, size, self._explained)
        self._explained.update(keys[: tokens // size])
        why = reasons(tokens, cached, sent.known, best, begun)
        for at, missed in enumerate(why):
            self._missed[at] += missed
        begin = max(cached, min(best, sent.known)) // size
        self._lost_tokens += min(why[3], size * sum([at >= begin for at in sent.forgotten]))


def _sample(_: str) -> int:
    return 0
