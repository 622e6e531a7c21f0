"""What an engine tells about itself, read from the bodies of its own endpoints.

Knows the answers of vLLM 0.8 - 0.32 (``/v1/models``, ``/metrics``, ``/kv_event_sources``, ``/version``) and what is missing in
which. Never asks for them. What an engine is too old to tell comes from the settings; what nobody tells is None, never a guess
that looks like a fact.
"""

import ipaddress
import re
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from balancer.core import Replica
from balancer.releases import release
from balancer.settings import ReplicaSettings
from hashing.errors import RecipeError
from hashing.extras import Lora
from hashing.recipes import Recipe
from indexer.index import ReplicaId

CONFIG_METRIC: Final = "vllm:cache_config_info"

EVENTS_FLAG: Final = '--kv-events-config \'{"enable_kv_cache_events": true, "replay_endpoint": "tcp://*:5657"}\''
"""What makes an engine tell of its cache, all at once."""

MAX_RANKS: Final = 1024
"""More than any engine has; a rank beyond it is a misunderstanding, and each would be a replica of its own."""

MAX_DIGITS: Final = 12

LOOPBACK: Final = ("127.0.0.0/8", "::1")

FIRST_SYSTEM_PORT: Final = 32_768
"""The least that a system chooses by itself (Linux, as it comes)."""


class ModelCard(msgspec.Struct, frozen=True):
    """One entry of ``/v1/models``: a base model, or a LoRA adapter, which names its ``parent``."""

    id: str
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None


class _ModelList(msgspec.Struct, frozen=True):
    data: list[ModelCard]


class CacheConfig(msgspec.Struct, frozen=True):
    """What ``vllm:cache_config_info`` says of one engine rank; None where the release does not say it."""

    rank: int
    block_size: int | None
    algorithm: str | None
    num_gpu_blocks: int | None
    has_prefix_caching: bool | None
    cache_dtype: str | None = None
    """``--kv-cache-dtype``; ``auto`` is the model's own."""


class EventSource(msgspec.Struct, frozen=True):
    """One rank's publisher, as addresses that a client can connect to, with its bounds where they are told.

    ``topic`` is the prefix to subscribe to, ``told_topic`` what the engine says it publishes under; None where it does not.
    """

    rank: int
    events: str
    replay: str | None
    topic: str
    buffer_steps: int | None = None
    """Batches that can be replayed."""
    hwm: int | None = None
    max_queue_size: int | None = None
    is_dialling: bool = False
    """The publisher connects to ``events`` instead of listening there."""
    told_topic: str | None = None
    senders: tuple[str, ...] | None = None
    """Addresses and networks from which it may connect; None for all."""
    is_set: bool = False
    """The settings say where its events are."""


class EngineFacts(msgspec.Struct, frozen=True):
    """All that one endpoint has told; ``listing`` has the entries of its ``/v1/models`` as they came."""

    models: tuple[ModelCard, ...] = ()
    listing: tuple[dict[str, Any], ...] = ()
    version: str | None = None
    cache: tuple[CacheConfig, ...] = ()
    sources: tuple[EventSource, ...] = ()
    connectors: tuple[str, ...] = ()

    def tells_the_same_as(self, other: "EngineFacts") -> bool:
        """Whether nothing has changed but the listing, which has the time of asking in it."""
        return msgspec.structs.replace(self, listing=other.listing) == other


class Described(msgspec.Struct, frozen=True):
    """One replica of an endpoint, with its event source and what an operator should know about it.

    ``said_ranks`` are the ranks that its batches may name, its own first; None for any.
    """

    replica: Replica
    source: EventSource | None
    warnings: tuple[str, ...]
    said_ranks: tuple[int, ...] | None = None


def read_models(body: bytes) -> tuple[ModelCard, ...]:
    """``GET /v1/models``.

    Raises:
        msgspec.MsgspecError: it is no list of models.
    """
    return tuple(msgspec.json.decode(body, type=_ModelList).data)


def read_listing(body: bytes) -> tuple[dict[str, Any], ...]:
    """``GET /v1/models`` with every field of every entry.

    Raises:
        msgspec.MsgspecError: it is no list of models.
    """
    return tuple(msgspec.json.decode(body, type=dict[str, list[dict[str, Any]] | Any])["data"])


def merge_listings(listings: Iterable[Iterable[dict[str, Any]]]) -> list[dict[str, Any]]:
    """One entry for each model; where replicas disagree on ``max_model_len``, the smallest holds for all of them.

    In the engines' own order, base models before adapters: clients that name no model take the first one of the list.
    """
    merged: dict[str, dict[str, Any]] = {}
    for entry in (entry for listing in listings for entry in listing):
        known = merged.setdefault(entry["id"], dict(entry))
        lengths = [e["max_model_len"] for e in (known, entry) if isinstance(e.get("max_model_len"), int)]
        if lengths:
            known["max_model_len"] = min(lengths)
    return sorted(merged.values(), key=lambda entry: entry.get("parent") is not None)


def read_version(body: bytes) -> str | None:
    """``GET /version``."""
    try:
        version = msgspec.json.decode(body, type=dict[str, Any]).get("version")
    except msgspec.MsgspecError:
        return None
    return version if isinstance(version, str) else None


def read_cache_config(body: bytes) -> tuple[CacheConfig, ...]:
    """``GET /metrics``: one entry a rank; empty where the engine does not say (vLLM < 0.11, renderers)."""
    found: dict[int, CacheConfig] = {}
    # Only the lines of one metric: the whole page is hundreds of kilobytes on a busy engine.
    lines = [line for line in body.decode(errors="replace").splitlines() if line.startswith(CONFIG_METRIC + "{")]
    try:
        samples = [each for f in text_string_to_metric_families("\n".join(lines) + "\n") for each in f.samples]
    except ValueError:  # no metrics page at all
        return ()
    for sample in samples:
        rank = _int(sample.labels.get("engine")) or 0
        found[rank] = _cache_config(rank, sample.labels)
    return tuple(found[rank] for rank in sorted(found))


def _cache_config(rank: int, labels: dict[str, str]) -> CacheConfig:
    caching = labels.get("enable_prefix_caching")
    return CacheConfig(
        rank=rank,
        # vLLM >= 0.31 has the size with the context-parallel factor in it, which is what events and hashes go by.
        block_size=_int(labels.get("effective_attention_block_size")) or _int(labels.get("block_size")),
        algorithm=labels.get("prefix_caching_hash_algo"),
        num_gpu_blocks=_int(labels.get("num_gpu_blocks")),
        has_prefix_caching=None if caching is None else caching == "True",
        cache_dtype=labels.get("cache_dtype"),
    )


def read_event_sources(body: bytes, host: str) -> tuple[EventSource, ...]:
    """``GET /kv_event_sources`` (vLLM >= 0.31), with ``host`` in place of wildcards."""
    try:
        ranks = msgspec.json.decode(body, type=dict[str, dict[str, Any]])
    except msgspec.MsgspecError:
        return ()
    found = []
    for name, config in ranks.items():
        endpoint = config.get("endpoint")
        rank = _int(name)
        if rank is None or not config.get("enable_kv_cache_events") or not isinstance(endpoint, str):
            continue
        replay = config.get("replay_endpoint")
        topic = _str(config.get("topic")) or ""
        found.append(
            EventSource(
                rank=rank,
                events=reachable(endpoint, host),
                replay=reachable(replay, host) if isinstance(replay, str) else None,
                topic=topic,
                buffer_steps=_count(config.get("buffer_steps")),
                hwm=_count(config.get("hwm")),
                max_queue_size=_count(config.get("max_queue_size")),
                is_dialling=dials(endpoint),
                told_topic=topic,
            )
        )
    return tuple(sorted(found, key=lambda source: source.rank))


def reachable(endpoint: str, host: str) -> str:
    """A publisher's bind address as one that a client on another machine can connect to."""
    return re.sub(r"^tcp://(\*|0\.0\.0\.0|\[::\]|::):", lambda _: f"tcp://{_bracketed(host)}:", endpoint)


def dials(endpoint: str) -> bool:
    """Whether a publisher that tells this endpoint connects to it.

    vLLM 0.11 - 0.32 listens at wildcards, IPv6 and ipc addresses, and connects to all others. The only other address that it
    can tell while it listens is what has become of ``tcp://*:0``: a number, and a port that the system chose.
    """
    match = re.fullmatch(r"tcp://([^*]+):(\d+)", endpoint)
    if match is None or "::" in endpoint:
        return False
    is_number = re.fullmatch(r"[\d.]+", match[1]) is not None
    return not is_number or int(match[2]) < FIRST_SYSTEM_PORT


def with_rank(endpoint: str, rank: int) -> str:
    """The address of a data-parallel rank: vLLM adds the rank to the configured tcp port."""
    match = re.fullmatch(r"(tcp://.*:)(\d+)", endpoint)
    return f"{match[1]}{int(match[2]) + rank}" if match else endpoint


def describe(settings: ReplicaSettings, facts: EngineFacts) -> list[Described]:
    """The replicas behind one endpoint: what the engine told, overruled by what the settings say."""
    configs = {config.rank: config for config in facts.cache}
    sources = {source.rank: source for source in facts.sources}
    ranks = _ranks(settings, sorted(rank for rank in {*configs, *sources} if rank < MAX_RANKS))
    return [_describe(settings, facts, configs.get(rank), sources.get(rank), rank, len(ranks)) for rank in ranks]


def _ranks(settings: ReplicaSettings, told: list[int]) -> list[int]:
    """The data-parallel ranks behind the endpoint.

    One that is alone may still have a number above 0: behind an external load balancer vLLM (>= 0.14) counts ranks over all
    pods, and each pod tells of its own only.
    """
    count = settings.data_parallel_size
    if count is None or (count == 1 and len(told) == 1):
        return told or [0]
    return list(range(count))


def _describe(
    settings: ReplicaSettings,
    facts: EngineFacts,
    config: CacheConfig | None,
    source: EventSource | None,
    rank: int,
    ranks: int,
) -> Described:
    warnings: list[str] = []
    recipe = _recipe(settings, facts, config, warnings)
    said_ranks = _said_ranks(rank, ranks, is_told=source is not None)
    source = _source(settings, source, rank)
    if config is not None and config.has_prefix_caching is False:
        warnings.append("prefix caching is off, so nothing is cached; start vLLM with --enable-prefix-caching")
        recipe = source = None
    elif source is None:
        warnings.append(
            f"no KV event source is known, so its cache is invisible; start vLLM with {EVENTS_FLAG} "
            'and, before vLLM 0.31, name it here (events = "tcp://...", replay = "tcp://...")'
        )
    elif source.is_dialling and settings.events_bind is None:
        warnings.append(
            f"its publisher connects to {source.events} instead of listening there, so nobody may hear it; give "
            '--kv-events-config an "endpoint" of "tcp://*:PORT", or let kvlb listen where it connects to '
            '(events_bind = "tcp://*:PORT")'
        )
        source = msgspec.structs.replace(source, is_dialling=False)
    elif source.replay is None:
        warnings.append(
            'its publisher has no replay socket, so lost events stay lost; add "replay_endpoint" to --kv-events-config '
            'and, before vLLM 0.31, name it here (replay = "tcp://...")'
        )
    if source is not None and source.is_dialling and source.senders is None:
        warnings.append(f"whoever connects to {source.events} is taken for this engine; say who may, with events_from")
    base = [card for card in facts.models if card.parent is None]
    replica = Replica(
        id=replica_id(settings.url, rank, ranks),
        endpoint=settings.url,
        rank=rank,
        ranks=ranks,
        models=tuple(card.id for card in facts.models),
        adapters=tuple(Lora(name=card.id, path=card.root) for card in facts.models if card.parent is not None),
        recipe=recipe,
        has_events=source is not None,
        has_eagle=settings.eagle,
        attention_chunk=settings.attention_chunk,
        has_prefix_caching=config is None or config.has_prefix_caching is not False,
        max_model_len=min((card.max_model_len for card in base if card.max_model_len), default=None),
        num_gpu_blocks=config.num_gpu_blocks if config else None,
        root=next((card.root for card in base if card.root), None),
        role=settings.role,
        transfer=settings.transfer,
        connectors=facts.connectors if settings.kv_connectors is None else settings.kv_connectors,
        release=release(settings.version or facts.version),
    )
    return Described(replica, source, tuple(warnings), said_ranks)


def _said_ranks(rank: int, ranks: int, *, is_told: bool) -> tuple[int, ...] | None:
    """Which ranks the batches of this one may name.

    Where the engine tells of its publishers (vLLM >= 0.31), each names its own. Else one that is alone may have any: behind an
    external load balancer releases before 0.14 tell their rank nowhere else. Of several each has its own, unless it is an
    engine that always says 0.
    """
    if is_told:
        return (rank,)
    return None if ranks == 1 else tuple(dict.fromkeys((rank, 0)))


def _source(settings: ReplicaSettings, told: EventSource | None, rank: int) -> EventSource | None:
    """Where its events are: what the engine told, each part of it overruled by the settings."""
    named = settings.events or settings.events_bind
    if named is None and told is None:
        return None
    source = told or EventSource(rank, "", None, "")
    if named is not None:
        is_dialling = settings.events_bind is not None
        source = msgspec.structs.replace(
            source,
            events=with_rank(named, rank),
            is_dialling=is_dialling,
            senders=_senders(settings) if is_dialling else None,
            is_set=True,
        )
    if settings.replay is not None:
        source = msgspec.structs.replace(source, replay=with_rank(settings.replay, rank))
    if settings.topic is not None:
        source = msgspec.structs.replace(source, topic=settings.topic)
    return source


def _senders(settings: ReplicaSettings) -> tuple[str, ...] | None:
    """Who may send its events: who the settings say, else who is at its address, as far as that can be told from it."""
    if settings.events_from is not None:
        return settings.events_from
    host = urlsplit(settings.url).hostname or ""
    try:
        is_here = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return None
    return LOOPBACK if is_here else (host,)


def _recipe(
    settings: ReplicaSettings, facts: EngineFacts, config: CacheConfig | None, warnings: list[str]
) -> Recipe | None:
    version = settings.version or facts.version
    block_size = settings.block_size or (config.block_size if config else None)
    algorithm = settings.hash_algorithm or (config.algorithm if config else None) or "sha256"
    if version is None or block_size is None:
        missing = "version" if version is None else "block_size"
        warnings.append(
            f"the engine does not tell its {missing}, so its hashes are learned from its events; "
            f"give it in the settings ({missing} = ...)"
        )
        return None
    try:
        recipe = Recipe.for_version(
            version,
            algorithm=algorithm,  # type: ignore[arg-type]  # checked by Recipe itself
            block_size=block_size,
            seed=settings.hash_seed,
        )
    except RecipeError as error:
        warnings.append(f"its block hashes cannot be computed and are learned from its events: {error}")
        return None
    try:
        recipe.none_hash()
    except RecipeError as error:  # the rest of the recipe is still worth knowing: a seed may be found by trying
        warnings.append(f"its block hashes cannot be computed before its first events: {error}")
    return recipe


def replica_id(endpoint: str, rank: int, ranks: int) -> ReplicaId:
    """``host:port``, and ``host:port#rank`` when the endpoint has several."""
    netloc = urlsplit(endpoint).netloc
    return ReplicaId(netloc if ranks == 1 else f"{netloc}#{rank}")


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _str(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _int(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() and len(text) <= MAX_DIGITS else None
