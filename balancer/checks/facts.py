"""What the doctor has found out about a fleet, before anyone judges it.

Knows plain values: what the engines told, how their event streams stand, what was tried on the spot. Never knows how they were
found out, nor what is good or bad about them. None is what nobody has said.
"""

import msgspec


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One address. ``clock_skew`` is its clock minus ours, in seconds; HTTP tells it to a second.

    ``drains`` says that none of its replicas is sent anything new, ``lacks_key`` that it asks for a key, ``refuses_key`` that
    it has refused the one it was given.
    """

    url: str
    problem: str | None = None
    version: str | None = None
    models: tuple[str, ...] = ()
    clock_skew: float | None = None
    drains: bool = False
    lacks_key: bool = False
    refuses_key: bool = False


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Where a rank publishes its events; buffers as ``/kv_event_sources`` tells them (vLLM >= 0.31), in batches."""

    events: str
    replay: str | None = None
    topic: str = ""
    is_dialling: bool = False
    """Events are an address of ours, which the publisher connects to."""
    is_set: bool = False
    """The settings name ``events``."""
    buffer_steps: int | None = None
    hwm: int | None = None
    max_queue_size: int | None = None


class Stream(msgspec.Struct, frozen=True, kw_only=True):
    """How the subscription stands. ``problem`` is what is known to be wrong with it, or why its port cannot be reached."""

    is_connected: bool
    is_complete: bool
    is_replaying: bool = False
    batches: int = 0
    replays_unanswered: int = 0
    malformed: int = 0
    problem: str | None = None


class Overruled(msgspec.Struct, frozen=True):
    """A setting of ``[[replicas]]`` against what the engine has."""

    setting: str
    given: str
    actual: str


class Address(msgspec.Struct, frozen=True):
    """Where other engines are to reach a replica's cache: a host and a port, and what a connection from here has met there.

    ``problem`` is None where it was taken, and where nobody tried.
    """

    host: str
    port: int
    problem: str | None = None


class End(msgspec.Struct, frozen=True, kw_only=True):
    """What a replica has told the doctor of how its cache gets to others (``balancer.engine_info``).

    ``connectors`` is empty of one that has none. ``is_fetchable`` says whether its answer to a prefill had what it takes to
    fetch the blocks; None where it was not asked.
    """

    model: str | None = None
    dtype: str | None = None
    connectors: tuple[str, ...] | None = None
    kv_role: str | None = None
    addresses: tuple[Address, ...] = ()
    is_fetchable: bool | None = None


class Cache(msgspec.Struct, frozen=True, kw_only=True):
    """One replica. ``keys`` is how its block hashes are read (``indexer.recognition.KeyState``).

    ``blocks`` and ``copies`` are what the index says of its GPU; ``reports`` and ``silences`` count ended requests of which the
    engine did and did not say how much it had cached, where it must have had something. ``block_size`` and ``algorithm`` are
    what is in use; ``overruled`` are settings that say something else than its events and the engine do. ``without_events``
    counts requests that must have been followed by an event, and were not; ``is_unheard`` says that of a probe. ``role`` is
    what the replica is for, ``bootstrap`` and ``address`` are how the settings say that others reach its cache, ``root`` is
    where its model is from, ``cache_dtype`` as ``--kv-cache-dtype``, ``hash_root`` what its hashes begin with (in
    hexadecimal digits).
    """

    replica: str
    endpoint: str
    rank: int = 0
    ranks: int = 1
    models: tuple[str, ...] = ()
    version: str | None = None
    has_prefix_caching: bool | None = None
    block_size: int | None = None
    algorithm: str | None = None
    has_known_root: bool | None = None
    num_gpu_blocks: int | None = None
    source: Source | None = None
    stream: Stream | None = None
    keys: str = "unproven"
    keys_reason: str = ""
    knowledge: str = "blind"
    reason: str = ""
    blocks: int = 0
    copies: int = 0
    reports: int = 0
    silences: int = 0
    overruled: tuple[Overruled, ...] = ()
    without_events: int = 0
    is_unheard: bool = False
    role: str = "both"
    bootstrap: str | None = None
    address: str | None = None
    root: str | None = None
    cache_dtype: str | None = None
    hash_root: str | None = None
    connectors: tuple[str, ...] = ()
    """KV connectors, as far as its metrics or the settings name any."""
    end: End = End()


class SharedStore(msgspec.Struct, frozen=True, kw_only=True):
    """A store of the settings and the replicas that read from it; ``has_own_names``: its blocks have no names of the engines'.

    ``block_size`` is what its settings say of the engines, where they have to say it.
    """

    name: str
    connector: str
    replicas: tuple[str, ...] = ()
    has_own_names: bool = False
    block_size: int | None = None


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """What one endpoint made of a sample text; ``tokens`` is empty with an ``error``. ``way`` is render or tokenize."""

    endpoint: str
    model: str
    sample: str
    way: str
    tokens: tuple[int, ...] = ()
    error: str | None = None


class Sibling(msgspec.Struct, frozen=True, kw_only=True):
    """Another gateway, as ``balancer.siblings.book.Told``."""

    address: str
    gateway: str | None = None
    is_self: bool = False
    problem: str | None = None
    age: float | None = None
    common: int = 0
    only_there: tuple[str, ...] = ()
    only_here: tuple[str, ...] = ()
    differs_seconds: float = 0.0


class Discovering(msgspec.Struct, frozen=True, kw_only=True):
    """What ``[discovery]`` has told: ``told`` is what its last list was made of, ``problem`` why that may not be all there is.

    ``endpoints`` are in use beside those of the settings. ``told`` and ``problem`` are None before it has said anything.
    """

    name: str
    told: str | None = None
    problem: str | None = None
    endpoints: int = 0


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the checks look at.

    ``kvlb`` is the version that keeps the index, ``doctor`` the one that judges. ``max_blocks`` is the index' hard limit;
    ``is_gateway`` is false where a fleet is looked at that nobody serves yet. ``snapshot`` is the file that the index is saved
    to, ``snapshot_problem`` why that cannot be written, ``taken_over_from`` where it began with so many blocks,
    ``not_taken_over`` the sibling or file that had none to give, and why. ``requests``, ``salted`` and ``salts`` count the last
    requests, those with a ``cache_salt``, and the different ones.
    ``siblings`` are other gateways, as far as any were named; ``siblings_host`` is the name that stands for them,
    ``siblings_problem`` why these may not be all. ``discovery`` is what finds further endpoints.
    """

    kvlb: str
    doctor: str | None = None
    endpoints: tuple[Endpoint, ...] = ()
    caches: tuple[Cache, ...] = ()
    max_blocks: int | None = None
    is_gateway: bool = True
    snapshot: str | None = None
    snapshot_problem: str | None = None
    taken_over_from: str | None = None
    taken_over_blocks: int = 0
    not_taken_over: str | None = None
    requests: int = 0
    salted: int = 0
    salts: int = 0
    samples: tuple[Sample, ...] = ()
    disaggregation: tuple[str, ...] = ()
    stores: tuple[SharedStore, ...] = ()
    siblings: tuple[Sibling, ...] = ()
    siblings_host: str | None = None
    siblings_problem: str | None = None
    discovery: Discovering | None = None
