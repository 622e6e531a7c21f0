"""What the index service answers, in the shapes that clients of Dynamo's standalone indexer read.

Knows matches, registrations and their state. Never knows bodies or sockets. Figures are tokens; the keys of JSON objects are
the instances and ranks in decimal, as the peers have them.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from balancer.core import PrefixHashes, Replica
from balancer.index_service.bodies import Query
from balancer.index_service.workers import Status, Subscription, Workers
from balancer.lookup import match, tiers_in_order
from balancer.words import counted
from hashing.extras import Lora
from hashing.recipes import Recipe
from indexer.index import ReplicaId, Tier


class Instance(msgspec.Struct):
    """What one instance has of a prompt, in tokens; the best of its ranks. Changes with ``add``.

    ``dp`` has the GPU's figure of each rank; ``status`` is that of each rank that is not active, whatever it holds.
    """

    longest_matched: int
    gpu: int
    dp: dict[str, int]
    cpu: int
    disk: int
    status: dict[str, str] | msgspec.UnsetType = msgspec.UNSET

    def add(self, rank: str, gpu: int, cpu: int, disk: int) -> None:
        """One more rank. No figure of it falls from tier to tier."""
        self.dp[rank] = gpu
        self.gpu, self.cpu, self.disk = max(self.gpu, gpu), max(self.cpu, cpu), max(self.disk, disk)
        self.longest_matched = self.disk

    def doubt(self, rank: str, reason: str) -> None:
        """What is said of this rank may be wrong."""
        known = {} if self.status is msgspec.UNSET else self.status
        self.status = {**known, rank: reason}


class Scores(msgspec.Struct, frozen=True):
    """The answer to a query. ``scores``: instance -> rank -> tokens on its GPU, where there are any and it can be reached.

    ``warnings`` has what was passed over in the body.
    """

    scores: dict[str, dict[str, int]]
    frequencies: tuple[int, ...]  # of the peers' shape; nobody counts how often a block was asked for
    instances: dict[str, Instance]
    warnings: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET


def scores(workers: Workers, query: Query, hashes: PrefixHashes, now: float) -> Scores:
    """``POST /query`` and ``/query_by_hash``.

    Raises:
        UnknownModel: nobody is registered for this model and tenant.
        UnhashableError: what a chain came to is no token id, or no hash.
    """
    subscriptions = workers.subscriptions(query.scope)
    caches = workers.caches
    adapter = None if query.lora is None else Lora(query.lora)
    replicas = [replica for _, each in subscriptions for replica in each.replicas.values()]
    found = match(caches.index, caches.recognitions, replicas, hashes, lambda _: adapter)
    cpu_at, disk_at = _columns(tiers_in_order(caches.index))
    answer = Scores({}, (), {}, query.warnings or msgspec.UNSET)
    for name, subscription in subscriptions:
        for replica in subscription.replicas.values():
            each = found.get(replica.id)
            status, view = workers.status(subscription, replica, now)
            if each is None and status is Status.ACTIVE:
                continue
            rank = str(replica.rank)
            gpu, cpu, disk = (0, 0, 0) if each is None else (each.tokens[0], each.tokens[cpu_at], each.tokens[disk_at])
            instance = answer.instances.get(name)
            if instance is None:
                instance = answer.instances[name] = Instance(disk, gpu, {rank: gpu}, cpu, disk)
            else:
                instance.add(rank, gpu, cpu, disk)
            if gpu and status is not Status.DISCONNECTED:
                answer.scores.setdefault(name, {})[rank] = gpu
            if status is not Status.ACTIVE:
                instance.doubt(rank, f"{status}: {view.reason}")
    return answer


def warn_unasked(scores: Scores, workers: Workers, query: Query) -> Scores:
    """The answer to a query by Dynamo's hashes, with a warning for each instance whose keys are its engine's own."""
    unasked = tuple(
        f"{name}: its blocks are known by its engine's own hashes (vllm_version was given), which these are not: "
        "ask by token_ids"
        for name, subscription in workers.subscriptions(query.scope)
        if any(
            isinstance(workers.caches.recognitions[each.id].recipe, Recipe) for each in subscription.replicas.values()
        )
    )
    return msgspec.structs.replace(scores, warnings=(*query.warnings, *unasked)) if unasked else scores


def _columns(tiers: Sequence[Tier]) -> tuple[int, int]:
    """Where in a match the figures stand that the peers call cpu and disk: theirs is a fixed set of tiers."""
    cpu = max(at for at, tier in enumerate(tiers) if at == 0 or (tier.medium == "CPU" and not tier.locality))
    return cpu, len(tiers) - 1


def listing(workers: Workers, now: float) -> list[dict[str, Any]]:
    """``GET /workers``: every instance with its listeners, and what is wrong with each."""
    return [_instance(workers, subscriptions, now) for subscriptions in workers.instances()]


_WORST_FIRST = (Status.DISCONNECTED, Status.SUSPECT, Status.PENDING, Status.ACTIVE)


def _instance(workers: Workers, subscriptions: Sequence[Subscription], now: float) -> dict[str, Any]:
    listeners = {
        str(replica.rank): _listener(workers, subscription, replica, now)
        for subscription in subscriptions
        for replica in subscription.replicas.values()
    }
    registration = subscriptions[0].registration
    return {
        "instance_id": registration.instance,
        "source": "zmq",
        "status": min((each["status"] for each in listeners.values()), key=_WORST_FIRST.index),
        "model_name": registration.scope.model,
        "tenant_id": registration.scope.tenant,
        "routing_group": registration.scope.tenant,
        "block_size": _block_size(workers, subscriptions),
        "endpoints": {str(each.registration.rank): each.registration.endpoint for each in subscriptions},
        "listeners": listeners,
    }


def _block_size(workers: Workers, subscriptions: Sequence[Subscription]) -> int:
    """What the engine has, once its events have told; before, what was registered."""
    recognitions = workers.caches.recognitions
    replicas = (replica for each in subscriptions for replica in each.replicas.values())
    told = (recipe.block_size for replica in replicas if (recipe := recognitions[replica.id].recipe) is not None)
    return next(told, subscriptions[0].registration.block_size or 0)


def _listener(workers: Workers, subscription: Subscription, replica: Replica, now: float) -> dict[str, Any]:
    caches = workers.caches
    registration = subscription.registration
    status, view = workers.status(subscription, replica, now)
    listener: dict[str, Any] = {
        "endpoint": registration.endpoint,
        "status": status,
        "knowledge": view.state,
        "reason": view.reason,
        "blocks": {tier.label: table.blocks(replica.id) for tier, table in caches.index.tiers.items()},
    }
    warnings = list(_warnings(workers, subscription, replica.id))
    if warnings:
        listener["warnings"] = warnings
    return listener


def _warnings(workers: Workers, subscription: Subscription, replica: ReplicaId) -> Iterator[str]:
    registration = subscription.registration
    recipe = workers.caches.recognitions[replica].recipe
    said = registration.block_size
    if said and recipe is not None and recipe.block_size != said:
        yield f"registered with block_size {said}, but the engine has blocks of {recipe.block_size}; the engine is believed"
    if registration.replay is None:
        yield "no replay_endpoint: what was cached before the registration is unknown, and lost events stay lost"
    if subscription.misfiled:
        batches = counted(subscription.misfiled, "batch", "batches")
        yield f"{batches} with a rank that cannot be one; filed under {registration.rank}"
