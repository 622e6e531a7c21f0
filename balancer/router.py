"""The brain: what is known of every cache and every queue, and the choice of a replica for each request.

Knows the index, the blocks that are expected, the fleet and the policy, and binds them together. Never knows sockets, bodies
or clocks: news comes in through ``observe``, ``put`` and ``set_status``, time as ``now`` (seconds, any monotonic clock), chance
as ``draw``. Between calls: each open lease belongs to one replica, and is released exactly once.
"""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

import msgspec

from balancer.audit import Audit
from balancer.core import Candidate, Decision, Outcome, Replica, RouteRequest, Truth
from balancer.errors import NoReplica, UnknownModel
from balancer.fleet import Fleet, LiveReplica, Status
from balancer.knowledge import FED, Knowledge, View, judge
from balancer.policies.base import Policy
from hashing.extras import Lora
from hashing.recipes import Recipe
from indexer.events import AllBlocksCleared, BlockStored, KVEvent
from indexer.index import GPU, CacheIndex, Keys, ReplicaId
from indexer.predicted import PredictedBlocks
from indexer.recognition import KeyState, Recognition
from indexer.stream import Apply, Forget, Lost, Position, Replay, Standing, Step

SETTLE_SECONDS: Final = 1.0
"""How long after its end a request's blocks are still expected: events trail the answer by one scheduler step."""


class Router:
    """Routes requests by what each replica's cache holds. Changes with every call but the questions."""

    def __init__(self, policy: Policy, policy_name: str) -> None:
        self.policy = policy
        self.policy_name = policy_name
        self.index = CacheIndex()
        self.predicted = PredictedBlocks()
        self.fleet = Fleet()
        self.audit = Audit()
        self.holes: dict[ReplicaId, int] = {}
        """Batches of events that are lost for good, per replica, in its present incarnation."""
        self.recognitions: dict[ReplicaId, Recognition] = {}
        """How the keys of each replica are read."""
        self.positions: dict[ReplicaId, Position] = {}
        """How far each replica's event stream has been applied."""
        self._standings: dict[ReplicaId, Standing] = {}
        self._views: dict[ReplicaId, View] = {}
        self._open: dict[int, Decision] = {}
        self._settling: dict[int, float] = {}  # lease -> when its expectations end; in order of time

    def __repr__(self) -> str:
        return f"<Router {self.policy_name}: {self.fleet!r}, {self.index!r}, {self.predicted!r}>"

    # News

    def put(self, replica: Replica) -> None:
        """Add a replica or replace what is known of it."""
        self.fleet.put(replica)
        self.index.add(replica.id)
        known = self.recognitions.get(replica.id)
        if known is None:
            self.recognitions[replica.id] = Recognition(replica.recipe)
        else:
            known.declare(replica.recipe)

    def remove(self, replica: ReplicaId) -> None:
        """The replica is gone: forget its cache, and drop events of it that are still on their way."""
        self._forget(replica)
        self.index.remove(replica)
        self.fleet.remove(replica)
        for known in (self.recognitions, self._standings, self._views, self.positions):
            known.pop(replica, None)

    def set_status(self, replica: ReplicaId, status: Status) -> None:
        self.fleet.set_status(replica, status)

    def observe(self, replica: ReplicaId, steps: Iterable[Step]) -> None:
        """What the replica's event stream says, in order."""
        for step in steps:
            match step:
                case Apply():
                    for batch in step.batches:
                        self.apply(replica, batch.events)
                case Forget():
                    self._forget(replica)
                case Lost() if replica in self.index.replicas:
                    self.holes[replica] = self.holes.get(replica, 0) + step.last - step.first + 1
                case Standing():
                    self._standings[replica] = step
                case Replay():
                    raise AssertionError(f"{step} is for the source to obey")
            if replica in self.index.replicas:
                self.positions[replica] = self.positions.get(replica, Position()).after(step)

    def apply(self, replica: ReplicaId, events: Sequence[KVEvent]) -> None:
        """One scheduler step's events."""
        recognition = self.recognitions.get(replica)
        if recognition is not None and recognition.state is not KeyState.PROVEN:
            events, is_void = recognition.read(events)
            if is_void:
                self._forget_blocks(replica)
        if self.predicted and replica in self.index.replicas:
            self._settle(self.index.gpu.bit(replica), events)
        self.index.apply(replica, events)

    def view(self, replica: ReplicaId, now: float) -> View:
        """How much is known of the replica's cache, why, and since when."""
        live = self.fleet.get(replica)
        assert live is not None, f"{replica} is not in the fleet"
        standing = self._standings.get(replica, FED)
        view = judge(live.replica, self.recognitions[replica], standing, self.holes.get(replica, 0))
        known = self._views.get(replica)
        since = known.since if known is not None and known.state is view.state else now
        view = self._views[replica] = msgspec.structs.replace(view, since=since)
        return view

    # The two calls of a request

    def route(self, request: RouteRequest, now: float, draw: float) -> Decision:
        """Choose a replica; the decision is a lease.

        Raises:
            UnknownModel: no replica serves this model, not even one that is lost.
            NoReplica: none of those that do can take a request now.
        """
        decision = self.consider(request, now, draw)
        live = self.fleet.get(decision.replica.id)
        assert live is not None, "a replica was chosen that is not in the fleet"
        lease = self.fleet.acquire(live, decision.prompt_tokens - decision.cached_tokens)
        decision = msgspec.structs.replace(decision, lease=lease)
        self._open[lease] = decision
        self._expect(lease, live.replica, request)
        return decision

    def consider(self, request: RouteRequest, now: float, draw: float) -> Decision:
        """What ``route`` would decide. It is no lease (its number is 0), and changes nothing.

        Raises:
            UnknownModel, NoReplica: as ``route``.
        """
        serving = self._available(request)
        matches = self._match(request, serving)
        candidates = tuple(
            Candidate(
                replica=live.replica.id,
                prompt_tokens=request.prompt_tokens,
                cached_tokens=matches.get(live.replica.id, 0),
                queued_tokens=live.queued_tokens,
                in_flight=live.in_flight,
                last_lease=live.last_lease,
            )
            for live in serving
        )
        chosen = self.policy.choose(candidates, draw)
        replica = next(live.replica for live in serving if live.replica.id == chosen.replica)
        return Decision(
            lease=0,
            replica=replica,
            prompt_tokens=request.prompt_tokens,
            cached_tokens=chosen.cached_tokens,
            is_predicted=self._is_predicted(request, replica, now),
            knows_tokens=bool(request.prompt_lengths),
            policy=self.policy_name,
            candidates=candidates,
        )

    def started(self, lease: int) -> None:
        """The first output of the request has come: its prompt is computed."""
        self.fleet.started(lease)

    def release(self, lease: int, outcome: Outcome, now: float, truth: Truth | None = None) -> None:
        """The request has ended; ``truth`` is what the engine said of it.

        Raises:
            KeyError: the lease was released before, or never given.
        """
        decision = self._open.pop(lease)
        self.fleet.release(lease)
        if outcome is Outcome.OK:
            self._settling[lease] = now + SETTLE_SECONDS
            if truth is not None:
                self.audit.record(decision, truth)
        else:
            self.predicted.drop(lease)

    def tick(self, now: float) -> None:
        """What is due by time alone; call it often."""
        for lease in list(islice(self._settling, 1_000)):
            if self._settling[lease] > now:
                break
            del self._settling[lease]
            self.predicted.drop(lease)
        if self.index.has_retired:
            self.index.sweep()

    # How

    def _available(self, request: RouteRequest) -> list[LiveReplica]:
        serving = self.fleet.serving(request.model)
        if not len(self.fleet):
            raise NoReplica(
                "no replica has answered yet; see /kvlb/status for the endpoints that are tried", retry_after=5
            )
        if not serving:
            served = ", ".join(self.fleet.models()) or "none yet"
            raise UnknownModel(f"the model '{request.model}' is not served here; served: {served}", param="model")
        available = [live for live in serving if live.is_available() and live.replica.id not in request.excluded]
        if not available:
            raise NoReplica(
                f"none of the {len(serving)} replicas of '{request.model}' can take a request now; try again",
                retry_after=2,
            )
        return available

    def _recipe(self, replica: Replica) -> Recipe | None:
        """What a prompt must be hashed with to be found among this replica's blocks; None while nobody can say."""
        return self.recognitions[replica.id].recipe

    def _is_predicted(self, request: RouteRequest, replica: Replica, now: float) -> bool:
        """Whether what is known of the replica's cache must be what the engine will say."""
        recipe = self._recipe(replica)
        if recipe is None or not request.prompt_lengths or not request.is_comparable:
            return False
        has_chain = bool(request.hashes.chains(recipe, replica.adapter(request.model)))
        return has_chain and self.view(replica.id, now).state in {Knowledge.EXACT, Knowledge.LEARNED}

    def _match(self, request: RouteRequest, serving: Sequence[LiveReplica]) -> dict[ReplicaId, int]:
        """Tokens of the request that each replica holds, summed over its prompts."""
        found: dict[ReplicaId, int] = {}
        if not request.reads_cache or not request.prompt_lengths:
            return found
        groups: dict[tuple[Recipe, Lora | None], list[Replica]] = {}
        for live in serving:
            recipe = self._recipe(live.replica)
            if recipe is not None:
                key = (recipe, live.replica.adapter(request.model))
                groups.setdefault(key, []).append(live.replica)
        for (recipe, adapter), replicas in groups.items():
            for chain, length in zip(request.hashes.chains(recipe, adapter), request.prompt_lengths, strict=False):
                for replica, blocks in self._blocks(chain, usable_blocks(length, recipe.block_size), replicas):
                    found[replica] = found.get(replica, 0) + blocks * recipe.block_size
        return found

    def _blocks(self, chain: Keys, limit: int, replicas: Sequence[Replica]) -> list[tuple[ReplicaId, int]]:
        gpu = self.index.gpu
        bits = {gpu.bit(replica.id): replica for replica in replicas}
        depths = gpu.depths(chain, limit, sum(bits), also=self.predicted.holders)
        return [
            (replica.id, blocks - replica.has_eagle)
            for held, blocks in depths
            if blocks
            for bit, replica in bits.items()
            if held & bit
        ]

    def _expect(self, lease: int, replica: Replica, request: RouteRequest) -> None:
        """The chosen replica will hold the whole prompt; what it holds already needs no expectation."""
        recipe = self._recipe(replica)
        if recipe is None:
            return
        bit = self.index.gpu.bit(replica.id)
        held = self.index.gpu.groups.get(0, {})
        missing: list[int] = []
        chains = request.hashes.chains(recipe, replica.adapter(request.model))
        for chain, length in zip(chains, request.prompt_lengths, strict=False):
            keys = chain.keys(length // recipe.block_size)
            missing += [key for key in keys if not held.get(key, 0) & bit]
        self.predicted.expect(lease, bit, missing)

    def _settle(self, bit: int, events: Sequence[KVEvent]) -> None:
        """What events say is no longer expected: the index speaks for it."""
        for event in events:
            if isinstance(event, BlockStored):
                if event.medium in {None, GPU}:
                    self.predicted.confirm(bit, event.block_hashes)
            elif isinstance(event, AllBlocksCleared):
                self.predicted.forget(bit)

    def _forget(self, replica: ReplicaId) -> None:
        """Another life of the engine, or none."""
        self._forget_blocks(replica)
        self.holes.pop(replica, None)
        if replica in self.recognitions:
            self.recognitions[replica].forget()

    def _forget_blocks(self, replica: ReplicaId) -> None:
        if replica in self.index.replicas:
            self.predicted.forget(self.index.gpu.bit(replica))
        self.index.forget(replica)


def usable_blocks(prompt_tokens: int, block_size: int) -> int:
    """How many leading blocks of a prompt vLLM can take from its cache: the last token is always computed anew.

    Source: vLLM 0.32.0, ``KVCacheManager.get_computed_blocks``: the lookup is capped at ``num_tokens - 1``.
    """
    return max(0, prompt_tokens - 1) // block_size
