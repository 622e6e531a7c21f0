"""What a running service knows of its fleet, as the facts that the doctor judges.

Knows the service and where in it each fact lies, and the folder that the index is saved in. Asks no engine, changes nothing,
and judges nothing.
"""

import time
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import msgspec

from balancer import snapshot_file
from balancer.checks.facts import Cache, Discovering, Endpoint, Facts, Overruled, SharedStore, Sibling, Source, Stream
from balancer.core import Outcome
from balancer.disaggregation import plan
from balancer.facts import CacheConfig, Described, describe
from balancer.health import KEY_NEEDED, Watcher
from balancer.service import RouterService
from balancer.settings import ReplicaSettings, SnapshotSettings
from balancer.stores import Store
from balancer.words import counted
from hashing.recipes import Recipe
from indexer.index import ReplicaId
from indexer.recognition import KeyState, Recognition
from indexer.sources.vllm import PublisherStatus

ROOT_DIGITS: Final = 12
"""Of a digest; enough to tell roots apart."""

OWN_NAMES: Final = frozenset({"example", "redis"})
"""Stores whose blocks are named by other hashes than the engines', besides those that say so."""


def survey(service: RouterService, snapshot: SnapshotSettings | None = None) -> Facts:
    """Everything that can be said without asking anyone; ``snapshot`` is what was meant where the service has none."""
    path = (snapshot or service.settings.snapshot).path
    salts = service.decisions.salts()
    watchers = service.watchers.items()
    streams = service.publishers()
    reports, silences = _usage(service)
    has_key = service.settings.upstream.api_key is not None
    return Facts(
        kvlb=version("kvlb"),
        endpoints=tuple(
            _endpoint(url, watcher, has_key=has_key, drains=_drains(service, url)) for url, watcher in watchers
        ),
        caches=tuple(
            _cache(service, watcher, each, streams.get(each.replica.id), reports, silences)
            for url, watcher in watchers
            if watcher.is_known
            for each in describe(watcher.replica, watcher.facts)
            if service.router.fleet.get(each.replica.id) is not None
        ),
        max_blocks=service.router.caches.index.max_blocks,
        is_gateway=snapshot is None,
        snapshot=path,
        taken_over_from=service.warm.taken_over_from,
        taken_over_blocks=service.warm.restored_blocks,
        not_taken_over=service.warm.problem if service.warm.taken_over_from is None else None,
        snapshot_problem=None if path is None else snapshot_file.problem(Path(path)) or _unsaved(service),
        requests=salts.requests,
        salted=salts.salted,
        salts=salts.distinct,
        disaggregation=_disaggregation(service),
        stores=tuple(_store(service, store) for store in service.router.caches.stores),
        siblings=tuple(msgspec.convert(each, Sibling, from_attributes=True) for each in service.siblings.told()),
        siblings_host=service.settings.siblings.host,
        siblings_problem=service.siblings.problem,
        discovery=Discovering(
            name=service.settings.discovery.name,
            told=service.follower.reason,
            problem=service.follower.problem,
            endpoints=service.follower.found,
        ),
    )


def _disaggregation(service: RouterService) -> tuple[str, ...]:
    settings = service.settings.disaggregation
    made = plan.make(settings.name, settings.settings)
    return (settings.name, *getattr(made, "of", ()))


def _store(service: RouterService, store: Store) -> SharedStore:
    attached = [
        live.replica.id
        for live in service.router.fleet
        if store in service.router.caches.stores.attached(live.replica.id)
    ]
    return SharedStore(
        name=store.name,
        connector=store.settings.connector,
        replicas=tuple(attached),
        has_own_names=store.traits.has_own_hashes or store.settings.connector in OWN_NAMES,
        block_size=getattr(service.stores.connectors[store.name], "block_size", None),
    )


def _drains(service: RouterService, url: str) -> bool:
    behind = service.router.fleet.behind(url)
    return bool(behind) and all(live.drain is not None for live in behind)


def _unsaved(service: RouterService) -> str | None:
    warm = service.warm
    return (
        f"{counted(warm.failures, 'attempt')} failed; the log says why"
        if warm.failures and warm.saved_at is None
        else None
    )


def _endpoint(url: str, watcher: Watcher, *, has_key: bool, drains: bool) -> Endpoint:
    cards = watcher.facts.models
    return Endpoint(
        url=url,
        problem=watcher.problem,
        version=watcher.replica.version or watcher.facts.version,
        models=tuple(card.id for card in cards if card.parent is None),
        clock_skew=watcher.clock_skew,
        drains=drains,
        lacks_key=watcher.refusal in KEY_NEEDED and not has_key,
        refuses_key=watcher.refusal in KEY_NEEDED and has_key,
    )


def _cache(
    service: RouterService,
    watcher: Watcher,
    described: Described,
    status: PublisherStatus | None,
    reports: Counter[ReplicaId],
    silences: Counter[ReplicaId],
) -> Cache:
    replica, source, settings = described.replica, described.source, watcher.replica
    router = service.router
    told = next((each for each in watcher.facts.cache if each.rank == replica.rank), CacheConfig(0, *[None] * 4))
    recognition = router.caches.recognitions[replica.id]
    recipe = recognition.declared
    in_use = _in_use(recognition)
    view = router.caches.view(replica.id, time.monotonic())
    return Cache(
        replica=replica.id,
        endpoint=replica.endpoint,
        rank=replica.rank,
        ranks=replica.ranks,
        models=replica.base_models,
        version=settings.version or watcher.facts.version,
        has_prefix_caching=told.has_prefix_caching,
        block_size=in_use.get("block_size") or settings.block_size or told.block_size,
        algorithm=in_use.get("algorithm") or settings.hash_algorithm or told.algorithm,
        has_known_root=None if recipe is None else recipe.has_known_root,
        num_gpu_blocks=told.num_gpu_blocks,
        source=None if source is None else msgspec.convert(source, Source, from_attributes=True),
        stream=None if status is None else _stream(status),
        keys=recognition.state,
        keys_reason=recognition.reason,
        knowledge=view.state,
        reason=view.reason,
        blocks=router.caches.index.gpu.blocks(replica.id),
        copies=router.caches.index.gpu.copies(replica.id),
        reports=reports[replica.id],
        silences=silences[replica.id],
        overruled=_overruled(settings, told, in_use),
        without_events=service.silence.unheard(replica.id),
        role=replica.role,
        bootstrap=replica.transfer.bootstrap,
        address=replica.transfer.address,
        root=replica.root,
        cache_dtype=told.cache_dtype,
        hash_root=_hash_root(recognition),
        connectors=replica.connectors,
    )


def _hash_root(recognition: Recognition) -> str | None:
    """What its hashes begin with; None where they are learned, or nobody can say."""
    recipe = recognition.recipe
    if not isinstance(recipe, Recipe) or not recipe.has_known_root:
        return None
    return recipe.none_hash().hex()[:ROOT_DIGITS]


def _in_use(recognition: Recognition) -> dict[str, Any]:
    """What its events have shown of how it hashes."""
    recipe = recognition.recipe
    if recipe is None or recognition.state is KeyState.UNPROVEN or recognition.rule is not None:
        return {}  # with several cache groups hashes are made in other steps than its blocks have
    return {"block_size": recipe.block_size, "algorithm": getattr(recipe, "algorithm", None)}


def _overruled(settings: ReplicaSettings, told: CacheConfig, in_use: dict[str, Any]) -> tuple[Overruled, ...]:
    """Settings that its events, or else the engine, contradict."""
    found = []
    for name, given, actual in (
        ("block_size", settings.block_size, in_use.get("block_size") or told.block_size),
        ("hash_algorithm", settings.hash_algorithm, in_use.get("algorithm") or told.algorithm),
    ):
        if given is not None and actual is not None and given != actual:
            found.append(Overruled(name, str(given), str(actual)))
    return tuple(found)


def _stream(status: PublisherStatus) -> Stream:
    counters = status.counters
    return Stream(
        is_connected=status.is_connected,
        is_complete=status.is_complete,
        is_replaying=status.is_replaying,
        batches=counters["batches"],
        replays_unanswered=counters["replays_unanswered"],
        malformed=counters["malformed_messages"],
        problem=status.problem or None,
    )


def _usage(service: RouterService) -> tuple[Counter[ReplicaId], Counter[ReplicaId]]:
    """Ended requests that told what was cached, and those that should have and did not; per replica.

    vLLM leaves the figure out where nothing was cached, and a stream may have no usage at all: these say nothing.
    """
    reports: Counter[ReplicaId] = Counter()
    silences: Counter[ReplicaId] = Counter()
    for entry in service.decisions.last(service.settings.log.decisions_kept):
        decision, truth = entry.decision, entry.truth
        if entry.outcome is not Outcome.OK or truth is None:
            continue
        if truth.cached_tokens is not None:
            reports[decision.replica.id] += 1
        elif truth.prompt_tokens is not None and decision.is_predicted and decision.cached_tokens:
            silences[decision.replica.id] += 1
    return reports, silences
