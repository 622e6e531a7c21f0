"""Who is registered: instances and their ranks, each fed by one publisher, apart by model and tenant.

Knows registrations, the replicas that stand for them in the index, and how each of them stands. Never knows sockets or clocks:
whoever reads the publishers hands in their steps. Between calls: every replica belongs to one subscription; a subscription has
the rank that was registered and those that its batches have named.
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import Final

from balancer.caches import Caches
from balancer.core import Replica
from balancer.errors import Conflict, UnknownInstance, UnknownModel
from balancer.index_service.bodies import MAX_RANK, Registration, Scope, Unregistration
from balancer.knowledge import Knowledge, View
from indexer.index import ReplicaId
from indexer.stream import Apply, Forget, Lost, Standing, Step
from indexer.wire import Batch

MAX_SUBSCRIPTIONS: Final = 2_000
"""Publishers that can be followed at once: each takes three of the event reader's sockets."""


class Status(StrEnum):
    """How far a listener can be believed, in the words of the peers' clients where they have one."""

    ACTIVE = "active"  # what is known of its cache is all there is
    PENDING = "pending"  # not reached yet, or its past is still being asked for
    SUSPECT = "suspect"  # something is missing for good: what is known may be too much or too little
    DISCONNECTED = "disconnected"  # it was reached before, and is not now


class Subscription:
    """One publisher. Changes with every step."""

    def __init__(self, id: ReplicaId, registration: Registration) -> None:
        self.id = id
        self.registration = registration
        self.standing = Standing()
        self.has_connected = False
        self.lost: Lost | None = None
        """All that was lost in the publisher's present life, as one hole: a rank that it names later may miss any of it."""
        self.replicas: dict[int, Replica] = {}  # by rank
        self.misfiled = 0
        """Batches whose rank cannot be one; filed under the registered rank."""


def _difference(known: Registration, wanted: Registration) -> str:
    """What the known one has otherwise."""
    fields = {
        "endpoint": (known.endpoint, wanted.endpoint),
        "replay_endpoint": (known.replay, wanted.replay),
        "topic": (known.topic or None, wanted.topic or None),
        "block_size": (known.block_size, wanted.block_size),
        "instance_id": (repr(known.instance), repr(wanted.instance)),
    }
    told = [
        f"without {name}" if had is None else f"with {name} {had}"
        for name, (had, wants) in fields.items()
        if had != wants
    ]
    if known.recipe != wanted.recipe:
        told.append("without vllm_version" if known.recipe is None else "with another hash recipe")
    return " and ".join(told)


class Workers:
    """All registrations, with what is known of their caches. Changes with every call but the questions."""

    def __init__(self, caches: Caches, max_subscriptions: int = MAX_SUBSCRIPTIONS) -> None:
        self.caches = caches
        self._max_subscriptions = min(max_subscriptions, MAX_SUBSCRIPTIONS)
        self._scopes: dict[Scope, dict[str, dict[int, Subscription]]] = {}
        self._subscriptions: dict[ReplicaId, Subscription] = {}
        self._serial = 0

    # Coming and going

    def register(self, registration: Registration) -> Subscription | None:
        """A new subscription to follow, or None when the very same one is there already.

        Raises:
            Conflict: this rank of the instance has another publisher, or there are too many.
        """
        ranks = self._scopes.get(registration.scope, {}).get(str(registration.instance), {})
        known = ranks.get(registration.rank)
        if known is not None:
            if known.registration == registration:
                return None
            raise Conflict(
                f"instance_id: instance {registration.instance} dp_rank {registration.rank} is already registered "
                f"{_difference(known.registration, registration)}; unregister it first",
                param="instance_id",
            )
        if len(self._subscriptions) >= self._max_subscriptions:
            few = self._max_subscriptions < MAX_SUBSCRIPTIONS
            remedy = "unregister some first" + (", or let kvlb open more files (ulimit -Hn)" if few else "")
            raise Conflict(f"{self._max_subscriptions} publishers are registered, which is the most; {remedy}")
        subscription = Subscription(self._name(registration), registration)
        self._subscriptions[subscription.id] = subscription
        self._scopes.setdefault(registration.scope, {}).setdefault(str(registration.instance), {})[
            registration.rank
        ] = subscription
        self._replica(subscription, registration.rank)
        return subscription

    def unregister(self, wanted: Unregistration) -> list[Subscription]:
        """The subscriptions that end; their blocks are forgotten.

        Raises:
            UnknownInstance: nothing of this name is registered.
        """
        instances = self._scopes.get(wanted.scope, {})
        ranks = instances.get(str(wanted.instance), {})
        ended = [ranks[rank] for rank in list(ranks) if wanted.rank in {None, rank}]
        if not ended:
            at = "" if wanted.rank is None else f" dp_rank {wanted.rank}"
            raise UnknownInstance(
                f"instance {wanted.instance}{at} of {wanted.scope.model} is not registered; GET /workers lists all",
                param="instance_id",
            )
        for subscription in ended:
            del ranks[subscription.registration.rank], self._subscriptions[subscription.id]
            for replica in subscription.replicas.values():
                self.caches.remove(replica.id)
        if not ranks:
            del instances[str(wanted.instance)]
        if not instances:
            del self._scopes[wanted.scope]
        return ended

    def _name(self, registration: Registration) -> ReplicaId:
        """Never the same twice: what is still queued for one registration must not reach the next of the same name."""
        self._serial += 1
        scope = registration.scope
        return ReplicaId(f"{scope.model}[{scope.tenant}]/{registration.instance}#{registration.rank}~{self._serial}")

    def _replica(self, subscription: Subscription, rank: int) -> Replica:
        known = subscription.replicas.get(rank)
        if known is not None:
            return known
        registration = subscription.registration
        is_own = rank == registration.rank
        replica = Replica(
            id=subscription.id if is_own else ReplicaId(f"{subscription.id}/rank {rank}"),
            endpoint=registration.endpoint,
            rank=rank,
            models=(registration.scope.model,),
            recipe=registration.recipe,
        )
        subscription.replicas[rank] = replica
        self.caches.put(replica)
        missing = [] if subscription.lost is None else [subscription.lost]
        self.caches.observe(replica.id, [*missing, subscription.standing])
        return replica

    # News

    def observe(self, id: ReplicaId, step: Step) -> None:
        """A step of the subscription's stream; one that has ended is not listened to any more."""
        subscription = self._subscriptions.get(id)
        if subscription is None:
            return
        if isinstance(step, Apply):
            own = subscription.registration.rank
            if all(batch.rank == own for batch in step.batches):
                self.caches.observe(id, (step,))
                return
            for rank, batches in self._by_rank(subscription, step.batches):
                self.caches.observe(self._replica(subscription, rank).id, [Apply(batches)])
            return
        match step:
            case Forget():
                subscription.lost = None
            case Lost():
                before = subscription.lost
                known = 0 if before is None else before.last - before.first + 1
                subscription.lost = Lost(step.first - known, step.last)
            case Standing():
                subscription.standing = step
                subscription.has_connected = subscription.has_connected or step.is_connected
        for replica in subscription.replicas.values():
            self.caches.observe(replica.id, [step])

    def _by_rank(self, subscription: Subscription, batches: list[Batch]) -> Iterator[tuple[int, list[Batch]]]:
        """Runs of batches of one rank, in order. Behind one address vLLM's ranks may number themselves otherwise."""
        own = subscription.registration.rank
        run: list[Batch] = []
        of = own
        for batch in batches:
            rank = own if batch.rank is None else batch.rank
            if not 0 <= rank <= MAX_RANK:
                subscription.misfiled += 1
                rank = own
            if rank != of and run:
                yield of, run
                run = []
            of = rank
            run.append(batch)
        if run:
            yield of, run

    # Questions

    def follower(self, replica: ReplicaId) -> ReplicaId | None:
        """The subscription that this replica's events come by."""
        for id, subscription in self._subscriptions.items():
            if any(each.id == replica for each in subscription.replicas.values()):
                return id
        return None

    def __len__(self) -> int:
        return len(self._subscriptions)

    def __contains__(self, id: ReplicaId) -> bool:
        """Whether this subscription goes on."""
        return id in self._subscriptions

    def subscriptions(self, scope: Scope) -> list[tuple[str, Subscription]]:
        """The subscriptions of one scope, each with the name of its instance.

        Raises:
            UnknownModel: nobody is registered there.
        """
        instances = self._scopes.get(scope)
        if instances is None:
            raise UnknownModel(
                f"no instance of model '{scope.model}' is registered for tenant '{scope.tenant}'; GET /workers lists all",
                param="model_name",
            )
        return [(name, subscription) for name, ranks in instances.items() for subscription in ranks.values()]

    def replicas(self) -> list[Replica]:
        """Everything that is indexed."""
        return [replica for each in self._subscriptions.values() for replica in each.replicas.values()]

    def instances(self) -> Iterator[list[Subscription]]:
        """The subscriptions of every instance that is registered, in order of rank."""
        for instances in self._scopes.values():
            for ranks in instances.values():
                yield [ranks[rank] for rank in sorted(ranks)]

    def statuses(self, now: float) -> Iterator[tuple[Status, View]]:
        """``status`` of every listener."""
        for subscription in self._subscriptions.values():
            for replica in subscription.replicas.values():
                yield self.status(subscription, replica, now)

    def status(self, subscription: Subscription, replica: Replica, now: float) -> tuple[Status, View]:
        """How far the replica can be believed, and the reason in the words of ``balancer.knowledge``."""
        view = self.caches.view(replica.id, now)
        standing = subscription.standing
        if not standing.is_connected:
            return (Status.DISCONNECTED if subscription.has_connected else Status.PENDING), view
        if self.caches.losses[replica.id].batches or standing.problem:
            return Status.SUSPECT, view
        if not standing.is_complete:
            return Status.PENDING, view
        recognition = self.caches.recognitions[replica.id]
        if recognition.recipe is None and not recognition.unplaced:
            return Status.ACTIVE, View(Knowledge.LEARNED, "it has told of no block yet: it holds nothing", view.since)
        return (Status.SUSPECT if view.state is Knowledge.PARTIAL else Status.ACTIVE), view
