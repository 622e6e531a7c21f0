"""All that is known of the replicas' caches: from their events, from what was sent there, and from what they report.

Binds the index, the blocks that are expected, the reading of keys, the audit and its corrections together. Never knows load,
policy or sockets: news comes in through ``put`` and ``observe``, time as an argument; orders go out as values (``orders``).
Between calls: each replica that was put has its own reading, losses and life here, and nothing of a removed one is left.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from balancer.audit import Audit, Cause
from balancer.core import Decision, Replica, RouteRequest, Truth
from balancer.healing import REMEMBERED_BLOCKS, Correction, Finding, Healer
from balancer.knowledge import FED, Losses, View, judge
from balancer.load_audit import LoadAudit
from balancer.loading import Loader
from balancer.matching import Matcher
from balancer.renewals import Renewals
from balancer.stores import Store, Stores
from indexer.chunks import Chunks
from indexer.events import AllBlocksCleared, BlockRemoved, BlockStored, KVEvent
from indexer.groups import Untold
from indexer.hits import placed
from indexer.index import MAX_BLOCKS, CacheIndex, ReplicaId
from indexer.places import is_on_gpu
from indexer.predicted import PredictedBlocks
from indexer.recognition import KeyState, Recognition
from indexer.snapshot import Restored
from indexer.stream import Apply, Forget, Lost, Position, Replay, Standing, Step

OTHER_SIZE: Final = "it has another number of blocks than the one by which it was found to have too many"


class Resync(msgspec.Struct, frozen=True):
    """An order: ask this replica's publisher whether anything is missing."""

    replica: ReplicaId
    reason: str


class Renew(msgspec.Struct, frozen=True):
    """An order: subscribe to this replica's publisher anew, as to one that nothing is known of."""

    replica: ReplicaId
    reason: str


class Sent(msgspec.Struct, frozen=True):
    """A request that was sent to a replica, and the life of its cache at that time (``Healer.life``)."""

    decision: Decision
    request: RouteRequest
    life: int


class Caches:
    """The caches of a fleet. Changes with every call but the questions."""

    def __init__(self, max_blocks: int = MAX_BLOCKS, stores: Iterable[Store] = ()) -> None:
        self.index = CacheIndex(max_blocks)
        self.stores = Stores(self.index.stores, stores)
        self.predicted = PredictedBlocks()
        self.audit = Audit()
        self.healer = Healer(self.index, self.predicted, self.audit)
        self.load_audit = LoadAudit(self.index, self.stores)
        self.orders: list[Resync | Renew] = []
        """For whoever has the sockets to obey, and to clear."""
        self.recognitions: dict[ReplicaId, Recognition] = {}
        """How the keys of each replica are read."""
        self.positions: dict[ReplicaId, Position] = {}
        """How far each replica's event stream has been applied."""
        self.matcher = Matcher(self.index, self.predicted, self.recognitions)
        self._chunks: dict[ReplicaId, Chunks] = {}  # of those that have told of blocks outside their GPU
        self.loader = Loader(self.index, self.matcher, self.stores, self._chunks)
        self._replicas: dict[ReplicaId, Replica] = {}
        self._losses: dict[ReplicaId, Losses] = {}
        self._standings: dict[ReplicaId, Standing] = {}
        self._views: dict[ReplicaId, View] = {}
        self._unjudged: set[ReplicaId] = set()  # whose view may have changed
        self._felt: set[ReplicaId] = set()  # whose metrics have been seen, in their present life
        self._renewals = Renewals()
        self._offloading: set[ReplicaId] = set()  # which have told of blocks outside their GPU, in their present life

    def __repr__(self) -> str:
        return f"<Caches {self.index!r}, {self.predicted!r}>"

    # News

    def put(self, replica: Replica) -> None:
        """Add a replica or replace what is known of it."""
        self._replicas[replica.id] = replica
        self.index.add(replica.id)
        self.stores.put(replica)
        known, untold = self.recognitions.get(replica.id), Untold(replica.has_eagle, replica.attention_chunk)
        if known is None:
            self.recognitions[replica.id] = Recognition(replica.recipe, replica.adapters, untold)
        else:
            known.declare(replica.recipe, replica.adapters, untold)
        if replica.id not in self._losses:
            self._find_whole(replica.id)
        self._unjudged.add(replica.id)

    def remove(self, replica: ReplicaId) -> None:
        """The replica is gone: forget its cache, and drop events of it that are still on their way."""
        self._forget(replica)
        self.index.remove(replica)
        self.stores.remove(replica)
        self.audit.remove(replica)
        self.healer.ended(replica)
        self._renewals.forget(replica)
        self._unjudged.discard(replica)
        for known in (
            self._replicas,
            self.recognitions,
            self._losses,
            self._standings,
            self._views,
            self.positions,
        ):
            known.pop(replica, None)

    def observe(self, replica: ReplicaId, steps: Iterable[Step]) -> None:
        """What the replica's event stream says, in order."""
        for step in steps:
            match step:
                case Apply():
                    self._hear(replica)
                    for batch in step.batches:
                        self.apply(replica, batch.events)
                        # Behind a clear of the same batch: nothing tells on which side of it the unreadable ones were.
                        self._lose(replica, events=len(batch.skipped))
                case Forget():
                    self._forget(replica)
                case Lost():
                    self._lose(replica, batches=step.last - step.first + 1)
                case Standing():
                    self._stand(replica, step)
                case Replay():
                    raise AssertionError(f"{step} is for the source to obey")
            if self.index.knows(replica):
                self.positions[replica] = self.positions.get(replica, Position()).after(step)

    def apply(self, replica: ReplicaId, events: Sequence[KVEvent]) -> None:
        """One scheduler step's events."""
        recognition, strangers, told = self.recognitions.get(replica), 0, events
        if recognition is not None and events:
            if replica in self._offloading or self.stores:
                self._look_behind_gpu(replica, events)
                is_learned = recognition.state is KeyState.LEARNED
                events = self.stores.divert(
                    self._replicas[replica], events, self._chunks[replica], is_learned=is_learned
                )
            is_open, doubt = recognition.state is not KeyState.PROVEN, recognition.doubt
            before = recognition.strangers
            events, is_void = recognition.read(events)
            strangers = recognition.strangers - before
            if is_open or recognition.doubt != doubt:
                self._unjudged.add(replica)
            if is_void:
                self._forget_blocks(replica)
                self.healer.began(replica)
        if replica in self._losses:
            self._settle(replica, events)
            if replica in self._offloading and replica not in self._chunks:
                self._look_behind_gpu(replica, told)
        before = self.index.gpu.unknown_removals
        unread = self.index.apply(replica, events)
        strangers += self.index.gpu.unknown_removals - before
        if strangers and any(isinstance(event, AllBlocksCleared) for event in events):
            strangers = 0  # most likely before the clear, and then it does not matter any more
        self._lose(replica, events=unread, strangers=strangers)

    def _look_behind_gpu(self, replica: ReplicaId, events: Sequence[KVEvent]) -> None:
        """Learn how many blocks its tiers keep together."""
        if replica not in self._chunks:
            self._chunks[replica] = Chunks()
        self._chunks[replica].read(events)

    def slept(self, replica: ReplicaId) -> None:
        """The engine has given its memory away: vLLM (0.32) empties the connector's, too, and no event tells that."""
        self.apply(replica, [AllBlocksCleared()])
        self.index.forget_tier(replica, "CPU")

    def felt(self, replica: ReplicaId, queries: float) -> None:
        """So many tokens the engine has looked up in its cache since it began, by its own metrics.

        One that had computed prompts when its present life was first looked at, and has no event to show for them, keeps no
        batches. What it computes from then on comes live, or is too short for a block.
        """
        losses, position = self._losses.get(replica), self.positions.get(replica)
        if losses is None or replica in self._felt:
            return
        self._felt.add(replica)
        if (position is None or not position.next_sequence) and self._replicas[replica].has_events:
            losses.untold = round(queries)
            self._unjudged.add(replica)

    def _hear(self, replica: ReplicaId) -> None:
        """Its events come, from number 0 on or with a loss that says otherwise."""
        if (losses := self._losses.get(replica)) is not None and losses.untold:
            losses.untold = 0
            self._unjudged.add(replica)

    def restore(self, restored: Restored, losses: Losses) -> None:
        """What other caches knew of a replica that is in the fleet now; its blocks are in the index already."""
        image = restored.image
        self.recognitions[image.replica].restore(image.recognition, restored.learned)
        self.positions[image.replica] = image.position
        self._losses[image.replica] = losses
        if losses.overfull:
            self._take_removals_wholly(image.replica)
        self._unjudged.add(image.replica)

    def view(self, replica: ReplicaId, now: float) -> View:
        """How much is known of the replica's cache, why, and since when."""
        view = self._views.get(replica)
        if view is not None and replica not in self._unjudged:
            return view
        losses = self._losses[replica]
        losses.let_go = self.index.let_go(replica)
        standing = self._standings.get(replica, FED)
        new = judge(self._replicas[replica], self.recognitions[replica], standing, losses)
        since = view.since if view is not None and view.state is new.state else now
        if new.state.is_promise and (view is None or not view.state.is_promise):
            # All that it holds is known from its events now; what was remembered until then may be gone.
            self.predicted.forget_remembered(self.index.gpu.bit(replica))
        new = self._views[replica] = msgspec.structs.replace(new, since=since)
        self._unjudged.discard(replica)
        return new

    @property
    def standings(self) -> Mapping[ReplicaId, Standing]:
        """How each subscription stands, of those that have told."""
        return self._standings

    def views(self, now: float) -> Mapping[ReplicaId, View]:
        """The same of every replica."""
        if self._unjudged:
            for each in list(self._unjudged):
                self.view(each, now)
        return self._views

    @property
    def losses(self) -> Mapping[ReplicaId, Losses]:
        """What is missing or in doubt, for each replica."""
        return self._losses

    def can_load(self, replica: ReplicaId) -> bool:
        """Whether it may have more of a prompt than its GPU has: then what it reports as cached is more than GPU hits."""
        return self.index.has_other_tiers(replica) or bool(self.stores and self.stores.attached(replica))

    # What was sent there

    def sent(self, decision: Decision, request: RouteRequest, missing: Sequence[int]) -> Sent:
        """The request goes there: blocks that are ``missing`` are expected until events name them."""
        replica = decision.replica.id
        self.predicted.expect(decision.lease, self.index.gpu.bit(replica), missing)
        return Sent(decision, request, self.healer.life(replica))

    def expect_no_more(self, lease: int) -> None:
        """Its events have had their time, or it has failed."""
        self.predicted.drop(lease)

    def finished(self, sent: Sent, now: float, truth: Truth | None) -> None:
        """The request has ended well; ``truth`` is what the engine said of it. What it leaves is expected for a while yet."""
        if truth is not None:
            self._compare(sent, truth, now)
        replica = sent.decision.replica.id
        if replica in self._losses and not self.view(replica, now).state.is_promise:
            self._remember(sent)

    def tick(self, now: float) -> None:
        """What is due by time alone; call it often."""
        for finding in self.healer.tick(now):
            self._heed(finding, now)
        for replica in self._replicas.values():
            self._count_copies(replica)
            if self._is_anothers(replica) and self._renewals.is_due(replica.id, now):
                self.orders.append(Renew(replica.id, self.recognitions[replica.id].doubt or OTHER_SIZE))
        self._unjudged.update(self._losses)
        if self.index.has_retired:
            self.index.sweep()

    # How

    def _compare(self, sent: Sent, truth: Truth, now: float) -> None:
        """Hold the prediction against the engine's figure, if both sides have said something of the same prompt."""
        decision, actual = sent.decision, truth.cached_tokens
        losses = self._losses.get(decision.replica.id)
        if actual is None or not decision.is_comparable or losses is None:
            return
        if not 0 <= actual <= decision.prompt_tokens:
            reason = f"the engine reported {actual} cached tokens of a prompt of {decision.prompt_tokens}"
            self.audit.explain(decision, actual, Cause.WORKLOAD, reason, now)
            return
        if truth.prompt_tokens is not None and truth.prompt_tokens != decision.prompt_tokens:
            reason = f"the engine counted {truth.prompt_tokens} prompt tokens: it was not this prompt"
            self.audit.explain(decision, actual, Cause.WORKLOAD, reason, now)
            return
        if decision.loadable and sent.request.takes_hint and actual >= decision.cached_tokens:
            self._compare_loads(sent, actual)
        if self.audit.compare(decision, actual):
            if losses.confirmed():
                self._unjudged.add(decision.replica.id)
            return
        recipe = self.matcher.recipe(decision.replica)
        chains = self.matcher.chains(sent.request, decision.replica)
        if recipe is not None and chains and decision.cached_tokens <= actual <= decision.loadable_until:
            return  # its GPU had what was said of it; the rest has been counted
        if recipe is not None and chains:
            keys = chains[0].keys(decision.prompt_tokens // recipe.block_size)
            rule, rendered_at = self.matcher.rule(decision.replica), sent.request.rendered_at
            self.healer.doubt(decision, actual, tuple(keys), recipe.block_size, sent.life, now, rule, rendered_at)

    def _compare_loads(self, sent: Sent, actual: int) -> None:
        decision = sent.decision
        recipe, chains = self.matcher.recipe(decision.replica), self.matcher.chains(sent.request, decision.replica)
        if recipe is not None and chains:
            self.load_audit.compare(decision, actual, sent.request, chains[0], recipe.block_size)

    def _heed(self, finding: Finding, now: float) -> None:
        decision = finding.doubt.decision
        replica = decision.replica.id
        losses = self._losses.get(replica)
        if losses is None or finding.cause is not Cause.INDEX:
            return
        if self.view(replica, now).state.is_promise:  # else events are known to be missing, which may explain it
            if decision.is_predicted:
                losses.contradicted()
                self._unjudged.add(replica)
            else:  # what was missing when it was decided has come since
                self.predicted.forget_remembered(self.index.gpu.bit(replica))
        if finding.correction is Correction.DROPPED:
            losses.dropped += 1
            self._unjudged.add(replica)
        if finding.correction in {Correction.DROPPED, Correction.LEARNED} and self._replicas[replica].has_events:
            self.orders.append(Resync(replica, finding.reason))

    def _remember(self, sent: Sent) -> None:
        """A replica that does not tell all: what a finished request has left there is remembered until it says otherwise."""
        replica = sent.decision.replica
        if self.healer.life(replica.id) == sent.life:
            missing = self.matcher.holding(sent.request, replica).missing
            self.predicted.remember(
                self.index.gpu.bit(replica.id), missing, replica.num_gpu_blocks or REMEMBERED_BLOCKS
            )

    def _is_anothers(self, replica: Replica) -> bool:
        """Whether what is known of it was another engine's, by its events or by the size of its cache."""
        if not replica.has_events:
            return False
        overfull, blocks = self._losses[replica.id].overfull, replica.num_gpu_blocks
        has_other_size = blocks is not None and overfull not in {0, blocks}
        return has_other_size or self.recognitions[replica.id].continuity.is_broken

    def _count_copies(self, replica: Replica) -> None:
        """More blocks than the engine has: removals were lost, or stores were told twice (vLLM 0.32, contract of its pool)."""
        losses = self._losses[replica.id]
        if replica.num_gpu_blocks is None or losses.overfull:
            return
        rule = self.matcher.rule(replica)
        if rule is not None and rule.has_parts_of_blocks:
            return
        if self.index.gpu.copies(replica.id) >= replica.num_gpu_blocks:
            losses.overfull = replica.num_gpu_blocks
            self._take_removals_wholly(replica.id)

    def _settle(self, replica: ReplicaId, events: Sequence[KVEvent]) -> None:
        """What events say is no longer expected or missing: the index speaks for it."""
        bit = self.index.gpu.bit(replica)
        for event in events:
            if isinstance(event, BlockStored):
                if not is_on_gpu(event):
                    self._offloading.add(replica)
                else:
                    self.predicted.confirm(bit, placed(event.group_idx or 0, event.block_hashes))
            elif isinstance(event, BlockRemoved):
                if is_on_gpu(event):
                    self.predicted.deny(bit, placed(event.group_idx or 0, _gone(event)))
            elif isinstance(event, AllBlocksCleared):
                self.predicted.forget(bit)
                self._find_gpu_empty(replica)

    def _stand(self, replica: ReplicaId, standing: Standing) -> None:
        if replica in self._losses:
            self._standings[replica] = standing
            self._unjudged.add(replica)

    def _lose(self, replica: ReplicaId, *, batches: int = 0, events: int = 0, strangers: int = 0) -> None:
        losses = self._losses.get(replica)
        if losses is not None and (batches or events or strangers):
            losses.batches += batches
            losses.events += events
            losses.strangers += strangers
            self._unjudged.add(replica)

    def _take_removals_wholly(self, replica: ReplicaId) -> None:
        """Its copies cannot be counted: from now on a removal means that none is left."""
        self.index.removal_means_gone.add(replica)
        self.recognitions[replica].learned.removal_means_gone = True

    def _find_gpu_empty(self, replica: ReplicaId) -> None:
        """A clear empties the GPU alone: what is missing of other tiers is still missing."""
        before = self._losses[replica]
        self._find_whole(replica)
        if self.index.has_other_tiers(replica) or replica in self._offloading:
            after = self._losses[replica]
            after.batches, after.events = before.batches, before.events

    def _find_whole(self, replica: ReplicaId) -> None:
        """Its caches are known to be empty: whatever was missing or in doubt of them is no longer."""
        self._losses[replica] = Losses()
        self.healer.began(replica)
        self.index.removal_means_gone.discard(replica)
        self._unjudged.add(replica)

    def _forget(self, replica: ReplicaId) -> None:
        """Another life of the engine, or none."""
        self._forget_blocks(replica)
        if replica in self.recognitions:
            self.recognitions[replica].forget()
            self._offloading.discard(replica)
            self._chunks.pop(replica, None)
            self._felt.discard(replica)
            self._find_whole(replica)

    def _forget_blocks(self, replica: ReplicaId) -> None:
        if self.index.knows(replica):
            self.predicted.forget(self.index.gpu.bit(replica))
        self.index.forget(replica)


def _gone(event: BlockRemoved) -> Sequence[int]:
    """The blocks of which no copy may be left."""
    counts = event.remaining_copy_counts
    if counts is None or len(counts) != len(event.block_hashes):
        return event.block_hashes
    return [key for key, left in zip(event.block_hashes, counts, strict=True) if not left]
