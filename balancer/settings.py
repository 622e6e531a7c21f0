"""One frozen tree of settings; a TOML file and the command line are two ways to fill it.

Knows names, types and defaults: each default stands here once. Never opens a file. A message names the setting by its path and
says what would be right.
"""

import difflib
import ipaddress
import math
import re
import tomllib
from enum import EnumMeta
from pathlib import PurePath
from typing import Any, Final, get_args
from urllib.parse import urlsplit

import msgspec

from balancer import admission, conversations, ejection, limits, retries, security, slow_start, store_settings, timeouts
from balancer.addresses import place
from balancer.admission import AdmissionSettings
from balancer.conversations import SessionSettings
from balancer.disaggregation import settings as disaggregation
from balancer.disaggregation.roles import NO_TRANSFER, Role, Transfer
from balancer.disaggregation.settings import DisaggregationSettings
from balancer.economics import settings as economics
from balancer.economics.settings import LinkSettings, ModelSettings
from balancer.ejection import EjectionSettings
from balancer.epp import settings as epp
from balancer.epp.settings import EppSettings
from balancer.errors import ConfigError
from balancer.limits import LimitSettings
from balancer.openai import PATHS
from balancer.retries import RetrySettings
from balancer.security import AuthSettings, CorsSettings, TenantSettings, TlsSettings
from balancer.siblings import settings as siblings
from balancer.siblings.settings import SiblingSettings
from balancer.slow_start import SlowStartSettings
from balancer.store_settings import StoreSettings
from balancer.timeouts import RouteTimeouts, TimeoutSettings
from balancer.wishes import ClientSettings
from balancer.words import printable
from hashing.recipes import Algorithm
from indexer.index import MAX_BLOCKS

MAX_BODY_BYTES: Final = 1024**3
"""A body is held in memory until its answer has begun."""

MAX_PROCESSES: Final = 256

MAX_SOCKET_NAME: Final = 108
"""Longest name of a Unix socket in bytes, with the zero at its end (Linux, ``sun_path``)."""

_DEFAULT_PORTS: Final = {"http://": ":80", "https://": ":443"}


class ServerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where and how the gateway listens."""

    host: str = "127.0.0.1"
    port: int = 8080
    processes: int = 1
    """Gateways; with more than one, the brain is a process of its own, and a supervisor keeps all of them."""
    max_body_bytes: int = 64 * 1024 * 1024
    """Largest request body; 64 MiB holds a million tokens as JSON numbers and a few images."""
    drain_grace_seconds: float = 5.0
    """From SIGTERM on, for as long as requests still come although /ready says no; SIGINT does without."""
    drain_timeout_seconds: float = 20.0
    """For requests under way, after that."""
    expose_decisions: bool = False
    """Add x-kvlb-replica and x-kvlb-cached-tokens to every answer; only for clients that may know the fleet."""


class ReplicaSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One endpoint. All but ``url`` is for engines that are too old to tell, or to overrule what they tell."""

    url: str
    events: str | None = None
    """ZMQ address of the KV events of rank 0, such as tcp://10.0.0.1:5557; rank r is at this port + r."""
    events_bind: str | None = None
    """ZMQ address to listen at for rank 0's events, such as tcp://*:5557, for an engine that connects to kvlb."""
    events_from: tuple[str, ...] | None = None
    """Addresses and networks that may connect to ``events_bind``; the address of ``url`` where it is one, else all."""
    replay: str | None = None
    topic: str | None = None
    """Prefix of the topic to subscribe to; empty for all."""
    version: str | None = None
    block_size: int | None = None
    hash_algorithm: str | None = None
    hash_seed: str | None = None
    """PYTHONHASHSEED in the engine's environment, if it is set there."""
    data_parallel_size: int | None = None
    eagle: bool = False
    """The engine drafts with EAGLE or MTP: it computes the last block of every hit anew."""
    attention_chunk: int | None = None
    """Tokens in a chunk of chunked local attention (``attention_chunk_size`` in the model's config), which no engine tells."""
    role: Role = Role.BOTH
    """What it is for where one replica computes prompts for another: prefill, decode or both."""
    transfer: Transfer = NO_TRANSFER
    """How others reach its cache, for connectors that do not tell by themselves."""
    kv_connectors: tuple[str, ...] | None = None
    """vLLM's names of its KV connectors, such as OffloadingConnector, where its metrics do not tell; none: []."""


class AbSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A second policy that decides for a share of requests, and its own settings (its fields)."""

    name: str | None = None
    """Without one there is none."""
    share: float = 0.1
    """Of conversations where clients name them, else of requests; 0 to 1."""
    settings: dict[str, Any] = {}


class ShadowSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A policy that decides on paper alone, and its own settings (its fields)."""

    name: str | None = None
    """Without one there is none."""
    share: float = 1.0
    """Of requests that it decides, 0 to 1."""
    settings: dict[str, Any] = {}


class PolicySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Which policy, and its own settings (its fields); and those that are tried beside it."""

    name: str = "predicted_ttft"
    ab: AbSettings = AbSettings()
    shadow: ShadowSettings = ShadowSettings()
    settings: dict[str, Any] = {}


class DiscoverySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Who says which endpoints there are besides ``[[replicas]]``, and its own settings (its fields)."""

    name: str = "static"
    settings: dict[str, Any] = {}


class TokenizerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How text becomes token ids: by asking a replica."""

    enabled: bool = True
    """Off: texts are routed by load, and only token ids by cache."""
    timeout_seconds: float = 2.0
    """After this long the request is routed without knowing its tokens."""
    cache_bytes: int = 64 * 1024 * 1024
    """Memory for the token ids of texts seen before."""


class UpstreamSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How kvlb speaks to the replicas."""

    api_key: str | None = None
    """Bearer token for kvlb's own questions to the replicas; clients' requests keep their own, but for keys of ``[auth]``."""
    ca_file: str | None = None
    """Certificate authorities of replicas with https; those of the system without it."""
    cert_file: str | None = None
    """kvlb's own certificate for replicas that ask for one, with its key in the same file or in ``key_file``."""
    key_file: str | None = None


class HealthSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How replicas are watched, in seconds."""

    interval_seconds: float = 2.0
    timeout_seconds: float = 2.0
    failures: int = 2
    """Probes in a row that must fail before a replica is lost; a refused connection counts at once."""
    relearn_seconds: float = 30.0
    """How often an engine that runs is asked again what it serves: adapters come and go without a restart."""
    stall_seconds: float = 30.0
    """Without a byte or an event while answers are under way, before a replica has stalled."""


class HashingSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Memory for block hashes of prompts seen before."""

    memory_bytes: int = 64 * 1024 * 1024


class IndexSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How much is known at most of what the replicas' caches hold."""

    max_blocks: int = MAX_BLOCKS
    """Different blocks over all replicas and tiers, at about 90 bytes; beyond that those least recently matched are let go."""


class LogSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is remembered of decisions; no prompt and no salt is ever among it."""

    decisions: str | None = None
    """File to which every decision is appended as a line of JSON, once its request has ended."""
    decisions_max_bytes: int = 64 * 1024 * 1024
    """A file of this size becomes FILE.1, and another is begun; so at most twice as much is used."""
    access: str | None = None
    """File to which every request is appended as a line of JSON once it has been answered; - is standard output."""
    access_max_bytes: int = 64 * 1024 * 1024
    """A file of this size becomes FILE.1, and another is begun."""
    decisions_kept: int = 1_000
    """Decisions kept in memory for /debug/decisions; some 300 bytes each, and 100 more for each candidate."""


class TracingSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where spans of requests go (OTLP over HTTP); needs ``kvlb[otlp]``."""

    endpoint: str | None = None
    """The collector, such as http://otel-collector:4318; without one nothing is traced; ``traceparent`` passes unchanged."""
    sample_ratio: float = 1.0
    """The share of requests that are traced, of those whose clients do not say."""
    service_name: str = "kvlb"


class SnapshotSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How the index outlives a restart: in a file, and by taking it over from another gateway."""

    path: str | None = None
    """The file; saved now and then and at the end, read at the start."""
    interval_seconds: float = 30.0
    """An engine that has published more than its replay buffer holds (vLLM: 10,000 steps) since then begins anew."""
    max_age_seconds: float = 3600.0
    """An older snapshot is not used."""
    siblings: tuple[str, ...] = ()
    """Gateways that are asked for theirs at the start, before the file; the first one that has any is enough."""
    sibling_api_key: str | None = None
    """Key for siblings that ask for one (``[auth]``, with ``admin = true``)."""
    sibling_timeout_seconds: float = 30.0
    """For the whole answer of one of them; nobody is served before."""


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything that can be set."""

    replicas: tuple[ReplicaSettings, ...] = ()
    discovery: DiscoverySettings = DiscoverySettings()
    disaggregation: DisaggregationSettings = DisaggregationSettings()
    server: ServerSettings = ServerSettings()
    policy: PolicySettings = PolicySettings()
    sessions: SessionSettings = SessionSettings()
    tokenizer: TokenizerSettings = TokenizerSettings()
    upstream: UpstreamSettings = UpstreamSettings()
    health: HealthSettings = HealthSettings()
    timeouts: TimeoutSettings = TimeoutSettings()
    retries: RetrySettings = RetrySettings()
    ejection: EjectionSettings = EjectionSettings()
    slow_start: SlowStartSettings = SlowStartSettings()
    admission: AdmissionSettings = AdmissionSettings()
    limits: LimitSettings = LimitSettings()
    hashing: HashingSettings = HashingSettings()
    index: IndexSettings = IndexSettings()
    log: LogSettings = LogSettings()
    snapshot: SnapshotSettings = SnapshotSettings()
    siblings: SiblingSettings = SiblingSettings()
    tracing: TracingSettings = TracingSettings()
    auth: AuthSettings = AuthSettings()
    tls: TlsSettings = TlsSettings()
    tenants: TenantSettings = TenantSettings()
    clients: ClientSettings = ClientSettings()
    cors: CorsSettings = CorsSettings()
    epp: EppSettings = EppSettings()
    links: tuple[LinkSettings, ...] = ()
    models: tuple[ModelSettings, ...] = ()
    stores: tuple[StoreSettings, ...] = ()


def load(text: str) -> Settings:
    """Settings from the text of a TOML file.

    Raises:
        ConfigError: not TOML, an unknown setting, or a value that cannot be used.
    """
    return convert(parse(text))


def parse(text: str) -> dict[str, Any]:
    """The plain values of a TOML file.

    Raises:
        ConfigError: not TOML.
    """
    try:
        return tomllib.loads(text)
    except ValueError as error:  # TOMLDecodeError is one; the other is Python's, about integers of thousands of digits
        raise ConfigError(f"not valid TOML: {error}") from error
    except RecursionError:
        raise ConfigError("not valid TOML: nested too deeply") from None


def convert(tree: dict[str, Any]) -> Settings:
    """Settings from plain values; of ``[policy]`` and ``[discovery]`` everything but the name is the named one's own.

    Raises:
        ConfigError: an unknown setting, or a value that cannot be used.
    """
    tree = dict(tree)
    for name in ("replicas", "links", "models"):
        if isinstance(tree.get(name), dict):
            raise ConfigError(f"{name}: written as one table; write [[{name}]], with two brackets, before each of them")
    for section, default in (("policy", PolicySettings().name), ("discovery", DiscoverySettings().name)):
        named = tree.get(section)
        if isinstance(named, dict):
            beside = {key: _beside(key, named[key]) for key in _BESIDE.get(section, ()) if key in named}
            own = {key: value for key, value in named.items() if key != "name" and key not in beside}
            tree[section] = {"name": named.get("name", default), "settings": own, **beside}
    if isinstance(tree.get("stores"), dict):
        raise ConfigError("stores: written as one table; write [[stores]], with two brackets, before each of them")
    if "stores" in tree:
        tree["stores"] = store_settings.gather(tree["stores"])
    if isinstance(tree.get("timeouts"), dict):
        tree["timeouts"] = timeouts.gather_routes(tree["timeouts"])
    try:
        settings = msgspec.convert(tree, Settings)
    except msgspec.ValidationError as error:
        raise ConfigError(_explain(str(error))) from error
    roots = [msgspec.structs.replace(replica, url=_root(replica.url)) for replica in settings.replicas]
    links = [msgspec.structs.replace(link, replicas=tuple(map(_root, link.replicas))) for link in settings.links]
    stores = [msgspec.structs.replace(store, replicas=tuple(map(_root, store.replicas))) for store in settings.stores]
    others = msgspec.structs.replace(settings.siblings, urls=tuple(map(_root, settings.siblings.urls)))
    settings = msgspec.structs.replace(
        settings, replicas=tuple(roots), links=tuple(links), stores=tuple(stores), siblings=others
    )
    _check(settings)
    return settings


_BESIDE: Final[dict[str, tuple[str, ...]]] = {"policy": ("ab", "shadow")}
"""Sections within a section that are not its named one's own settings."""


def _beside(which: str, named: object) -> object:
    """``[policy.ab]`` or ``[policy.shadow]``: what is neither its name nor its share is the named one's own."""
    if not isinstance(named, dict):
        return named
    if "name" not in named:
        raise ConfigError(f"policy.{which}.name: missing; name the policy that is tried, or leave out [policy.{which}]")
    ours = {key: named[key] for key in ("name", "share") if key in named}
    return {**ours, "settings": {key: value for key, value in named.items() if key not in ours}}


def _root(url: str) -> str:
    """One spelling for each server: a scheme, a host's name and the scheme's own port make no difference."""
    root = url.rstrip("/").lower()
    for scheme, port in _DEFAULT_PORTS.items():
        if root.startswith(scheme):
            return root.removesuffix(port)
    return root


def _explain(message: str) -> str:
    """msgspec's message, with the path in front and the nearest name for an unknown one."""
    what, _, where = message.partition(" - at `$")
    path = where.rstrip("`").lstrip(".").replace("timeouts.routes[...]", 'timeouts."/path"')
    unknown = re.search(r"unknown field `(.+)`", what)
    if unknown:
        name = unknown[1]
        known = _fields(path)
        near = difflib.get_close_matches(name, known, 1)
        remedy = f"did you mean {near[0]}?" if near else f"there are: {', '.join(known)}"
        return f"{f'{path}.' if path else ''}{name}: unknown setting; {remedy}"
    if what.startswith("Invalid enum value"):
        what = f"{what.removeprefix('Invalid enum value ')} is unknown; use one of {', '.join(_choices(path))}"
    return f"{path or 'settings'}: {what[:1].lower()}{what[1:]}"


def _choices(path: str) -> list[str]:
    """What can be written at this path, which takes one of several names."""
    struct, _, name = re.sub(r"\[.*?\]", "", path).rpartition(".")
    kind = next(field.type for field in msgspec.structs.fields(_struct(struct)) if field.name == name)
    choices = next((each for each in (kind, *get_args(kind)) if isinstance(each, EnumMeta)), None)
    return [str(each) for each in (get_args(kind) if choices is None else choices)]


def _fields(path: str) -> list[str]:
    return [field.name for field in msgspec.structs.fields(_struct(path))]


def _struct(path: str) -> Any:
    """The settings under this path."""
    struct: Any = Settings
    for part in re.sub(r"\[.*?\]", "", path).split("."):
        if part == '"/path"':
            struct = RouteTimeouts
        elif part:
            kind = next(field.type for field in msgspec.structs.fields(struct) if field.name == part)
            struct = next((each for each in get_args(kind) if isinstance(each, type(msgspec.Struct))), kind)
    return struct


def check_replicas(replicas: tuple[ReplicaSettings, ...]) -> None:
    """Raise ``ConfigError`` unless these endpoints can be used together."""
    for at, replica in enumerate(replicas):
        check_url(f"replicas[{at}].url", replica.url)
        for name in ("events", "replay"):
            endpoint = getattr(replica, name)
            if endpoint is not None:
                check_endpoint(f"replicas[{at}].{name}", endpoint)
        _check_bind(f"replicas[{at}]", replica)
        if replica.hash_algorithm is not None and replica.hash_algorithm not in get_args(Algorithm):
            raise ConfigError(
                f"replicas[{at}].hash_algorithm: '{replica.hash_algorithm}' is unknown; "
                f"use one of {', '.join(get_args(Algorithm))}"
            )
        if replica.block_size is not None and replica.block_size < 1:
            raise ConfigError(f"replicas[{at}].block_size: {replica.block_size} is too small; it counts tokens")
        if replica.attention_chunk is not None and replica.attention_chunk < 1:
            raise ConfigError(
                f"replicas[{at}].attention_chunk: {replica.attention_chunk} is too small; it counts tokens"
            )
        if replica.data_parallel_size is not None and not 1 <= replica.data_parallel_size <= 1024:
            raise ConfigError(f"replicas[{at}].data_parallel_size: {replica.data_parallel_size} is not 1 to 1024")
        if replica.transfer.bootstrap is not None:
            check_url(f"replicas[{at}].transfer.bootstrap", replica.transfer.bootstrap)
        _check_ports(f"replicas[{at}]", replica)
    _check_bound_ports(replicas)
    _check_named_once(replicas)


def _check_named_once(replicas: tuple[ReplicaSettings, ...]) -> None:
    """One engine under two names would get two shares of all requests, and its cache would be counted twice."""
    places: dict[tuple[str, int], int] = {}
    streams: dict[tuple[str, str | None], int] = {}
    for at, replica in enumerate(replicas):
        other = places.setdefault(place(replica.url), at)
        if other != at:
            raise ConfigError(
                f"replicas[{at}].url: '{replica.url}' is the same engine as replicas[{other}], '{replicas[other].url}'; "
                "name it once (its data-parallel ranks are found behind the one name)"
            )
        for name in ("events", "replay"):
            endpoint = getattr(replica, name)
            other = streams.setdefault((endpoint, replica.topic), at) if endpoint is not None else at
            if other != at:
                raise ConfigError(
                    f"replicas[{at}].{name}: '{endpoint}' is that of replicas[{other}] ({replicas[other].url}), too; nothing "
                    "in an event says whose it is: give each engine an address, or a topic, of its own"
                )


def _check(settings: Settings) -> None:
    check_replicas(settings.replicas)
    _check_stores(settings)
    path = settings.snapshot.path
    if path is not None and (not PurePath(path).name or "\0" in path):
        raise ConfigError(f"snapshot.path: {path!a} names no file; give one like /var/lib/kvlb/index")
    for at, url in enumerate(settings.snapshot.siblings):
        check_url(f"snapshot.siblings[{at}]", url)
    for at, url in enumerate(settings.siblings.urls):
        check_url(f"siblings.urls[{at}]", url)
    siblings.check(settings.siblings)
    if settings.tracing.endpoint is not None:
        check_url("tracing.endpoint", settings.tracing.endpoint)
    for path, share in (
        ("tracing.sample_ratio", settings.tracing.sample_ratio),
        ("policy.ab.share", settings.policy.ab.share),
        ("policy.shadow.share", settings.policy.shadow.share),
    ):
        if not 0 <= share <= 1:
            raise ConfigError(f"{path}: {share} is not a share; give a number from 0 to 1")
    for path, key in (
        ("upstream.api_key", settings.upstream.api_key),
        ("snapshot.sibling_api_key", settings.snapshot.sibling_api_key),
    ):
        if key is not None and not key.isprintable():
            raise ConfigError(f"{path}: has a line break or another control character; give the bare key")
    if settings.upstream.key_file is not None and settings.upstream.cert_file is None:
        raise ConfigError("upstream.cert_file: missing; a key is of no use without its certificate")
    security.check(settings.auth, settings.tls, settings.tenants, settings.cors)
    if not 0 <= settings.server.port <= 65535:
        raise ConfigError(f"server.port: {settings.server.port} is not a port; use 1 to 65535, or 0 for any free one")
    if not 1 <= settings.server.processes <= MAX_PROCESSES:
        raise ConfigError(
            f"server.processes: {settings.server.processes} cannot be used; give 1 to {MAX_PROCESSES}, at most one a core"
        )
    epp.check(settings.epp, settings.server.processes)
    admission.check(settings.admission)
    conversations.check(settings.sessions)
    limits.check(settings.limits)
    _check_economics(settings)
    for path, value in _positive(settings):
        if not 0 < value < math.inf:
            raise ConfigError(f"{path}: {value} cannot be used; give a number above 0")
    timeouts.check(settings.timeouts, PATHS)
    retries.check(settings.retries)
    ejection.check(settings.ejection)
    slow_start.check(settings.slow_start)
    disaggregation.check(settings.disaggregation)
    if settings.server.max_body_bytes > MAX_BODY_BYTES:
        raise ConfigError(
            f"server.max_body_bytes: {settings.server.max_body_bytes} cannot be used; give at most {MAX_BODY_BYTES} (1 GiB)"
        )
    for path, size in (
        ("tokenizer.cache_bytes", settings.tokenizer.cache_bytes),
        ("hashing.memory_bytes", settings.hashing.memory_bytes),
    ):
        if size < 0:
            raise ConfigError(f"{path}: {size} cannot be used; give a number of bytes, 0 for none")
    for name in ("drain_grace_seconds", "drain_timeout_seconds"):
        seconds = getattr(settings.server, name)
        if not 0 <= seconds < math.inf:
            raise ConfigError(f"server.{name}: {seconds} cannot be used; give a number of seconds, 0 for none")


def _check_economics(settings: Settings) -> None:
    for at, link in enumerate(settings.links):
        if economics.is_url(link.source):
            check_url(f"links[{at}].source", link.source)
        for url in link.replicas:
            check_url(f"links[{at}].replicas", url)
    economics.check(settings.links, settings.models)


def _check_stores(settings: Settings) -> None:
    store_settings.check(settings.stores)
    for at, store in enumerate(settings.stores):
        for name, endpoint in (("events", store.events), ("replay", store.replay)):
            if endpoint is not None:
                check_endpoint(f"stores[{at}].{name}", endpoint)
        for url in store.replicas:
            check_url(f"stores[{at}].replicas", url)


def _positive(settings: Settings) -> list[tuple[str, float]]:
    return [
        ("server.max_body_bytes", settings.server.max_body_bytes),
        ("tokenizer.timeout_seconds", settings.tokenizer.timeout_seconds),
        ("health.interval_seconds", settings.health.interval_seconds),
        ("health.timeout_seconds", settings.health.timeout_seconds),
        ("health.failures", settings.health.failures),
        ("health.relearn_seconds", settings.health.relearn_seconds),
        ("health.stall_seconds", settings.health.stall_seconds),
        ("retries.budget_seconds", settings.retries.budget_seconds),
        ("ejection.consecutive_failures", settings.ejection.consecutive_failures),
        ("ejection.minimum_requests", settings.ejection.minimum_requests),
        ("ejection.window_seconds", settings.ejection.window_seconds),
        ("ejection.pause_seconds", settings.ejection.pause_seconds),
        ("ejection.max_pause_seconds", settings.ejection.max_pause_seconds),
        ("index.max_blocks", settings.index.max_blocks),
        ("log.decisions_max_bytes", settings.log.decisions_max_bytes),
        ("log.access_max_bytes", settings.log.access_max_bytes),
        ("log.decisions_kept", settings.log.decisions_kept),
        ("snapshot.interval_seconds", settings.snapshot.interval_seconds),
        ("snapshot.max_age_seconds", settings.snapshot.max_age_seconds),
        ("snapshot.sibling_timeout_seconds", settings.snapshot.sibling_timeout_seconds),
    ]


def check_url(path: str, url: str) -> None:
    """Raise ``ConfigError`` unless this is the address of an OpenAI-compatible server."""
    try:
        parts = urlsplit(url)
        is_usable = (
            parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port is None or parts.port > 0)
        )
    except ValueError:
        is_usable = False
    if not is_usable or parts.query or parts.fragment:
        raise ConfigError(f"{path}: '{url}' is not an endpoint; give one like http://10.0.0.1:8000")
    if parts.username is not None:
        raise ConfigError(f"{path}: it has a name or password in it; give the engines' key as upstream.api_key")
    if parts.path not in {"", "/"}:
        raise ConfigError(f"{path}: '{url}' has a path; give the server's root, like {parts.scheme}://{parts.netloc}")


def check_endpoint(path: str, endpoint: str) -> None:
    """Raise ``ConfigError`` unless this is a ZMQ address that can be connected to."""
    match = re.fullmatch(r"tcp://[0-9A-Za-z\[:][\w.:;%\[\]-]*:(\d{1,5})", endpoint, re.ASCII)
    name = endpoint.removeprefix("ipc://")
    is_socket = name != endpoint and name.isprintable() and name != "*" and 0 < len(name.encode()) < MAX_SOCKET_NAME
    if not is_socket and (match is None or not 0 < int(match[1]) < 65536):
        raise ConfigError(
            f"{path}: '{printable(endpoint)}' cannot be connected to; give the engine's own host and port, like tcp://10.0.0.1:5557"
        )


def _check_bind(path: str, replica: ReplicaSettings) -> None:
    if replica.events_from is not None and replica.events_bind is None:
        raise ConfigError(f"{path}.events_from: says who may connect to events_bind, which is not given")
    for sender in replica.events_from or ():
        try:
            ipaddress.ip_network(sender, strict=False)
        except ValueError:
            raise ConfigError(
                f"{path}.events_from: {sender!a} is no address and no network; give one like 10.0.0.7 or 10.1.0.0/16"
            ) from None
    if replica.events_bind is None:
        return
    if replica.events is not None:
        raise ConfigError(f"{path}.events_bind: events is given, too; an engine either listens or connects")
    if _bound_port(replica.events_bind) is None:
        raise ConfigError(
            f"{path}.events_bind: '{replica.events_bind}' cannot be listened at; give one like tcp://*:5557"
        )


def _bound_port(endpoint: str) -> int | None:
    match = re.fullmatch(r"tcp://(\*|[\w.-]+|\[[0-9a-fA-F:]+\]):(\d{1,5})", endpoint)
    return int(match[2]) if match and 0 < int(match[2]) < 65536 else None


def _check_bound_ports(replicas: tuple[ReplicaSettings, ...]) -> None:
    """Nothing in an event says whose it is but the port that it came to."""
    taken: dict[int, int] = {}
    for at, replica in enumerate(replicas):
        first = _bound_port(replica.events_bind or "")
        for port in range(first, first + (replica.data_parallel_size or 1)) if first else ():
            if taken.setdefault(port, at) != at:
                raise ConfigError(
                    f"replicas[{at}].events_bind: port {port} is that of replicas[{taken[port]}], too; "
                    "each rank of each engine needs a port of its own"
                )


def _check_ports(path: str, replica: ReplicaSettings) -> None:
    """vLLM gives rank r the port base + r for events and for replays alike: the two ranges must not meet."""
    ranks = replica.data_parallel_size or 1
    ports = [re.fullmatch(r"tcp://(.+):(\d+)", endpoint or "") for endpoint in (replica.events, replica.replay)]
    if ports[0] and ports[1] and ports[0][1] == ports[1][1] and abs(int(ports[0][2]) - int(ports[1][2])) < ranks:
        raise ConfigError(
            f"{path}.replay: with {ranks} ranks, its ports overlap those of events; choose ports at least {ranks} apart"
        )
