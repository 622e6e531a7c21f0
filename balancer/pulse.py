"""What two looks at an engine's metrics say of its life: that it sleeps, that its cache is gone, that it is another process.

Knows the series of vLLM 0.8 - 0.32 (``process_start_time_seconds``, ``vllm:prefix_cache_queries_total``,
``vllm:engine_sleep_state``, ``vllm:kv_cache_usage_perc``). Never asks for them, and never knows an index: what follows goes out
as an order. It is needed because events come late: an engine that has been put to sleep announces its empty cache with the
first step after it has woken up, and one that is idle announces nothing.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from indexer.index import ReplicaId

_SERIES: Final = re.compile(
    rb"^(process_start_time_seconds|vllm:(?:gpu_)?prefix_cache_queries_total|vllm:engine_sleep_state"
    rb"|vllm:(?:kv|gpu)_cache_usage_perc|vllm:external_prefix_cache_hits_total)(?:\{(.*)\})? (\S+)$",
    re.MULTILINE,
)
_RANK: Final = re.compile(rb'(?:^|,)engine="(\d{1,4})"')
_STATE: Final = re.compile(rb'(?:^|,)sleep_state="(\w+)"')


class Pulse(msgspec.Struct, frozen=True):
    """One look at ``GET /metrics``.

    ``started`` is when the process began, in seconds since 1970; None where it is not said (several API servers). ``queries``
    counts tokens looked up in the cache since then, over all ranks, ``queries_of`` those of each. ``asleep`` has the ranks that
    compute nothing, ``emptied`` those of them that gave up their cache for it (sleep level 1 and 2). ``usage_of`` is, of each
    rank, the share of its cache that running requests need, 0 to 1, and ``fetched_of`` the prompt tokens that its connector has
    brought since then.
    """

    started: float | None = None
    queries: float | None = None
    asleep: frozenset[int] = frozenset()
    emptied: frozenset[int] = frozenset()
    queries_of: Mapping[int, float] = {}
    usage_of: Mapping[int, float] = {}
    fetched_of: Mapping[int, float] = {}


class Order(StrEnum):
    """What whoever keeps the index has to do."""

    CLEAR = "clear"  # the GPU's blocks are gone; the stream of events goes on as it was
    BEGIN_ANEW = "begin anew"  # another process: nothing of what is known holds, and its events are another series


def read_pulse(page: bytes) -> Pulse:
    """``GET /metrics``, of which a busy engine sends hundreds of kilobytes; what is not there is None or empty."""
    started: float | None = None
    queries: dict[int, float] = {}  # by rank
    states: dict[str, set[int]] = {}
    usage: dict[int, float] = {}
    fetched: dict[int, float] = {}
    for name, labels, text in _SERIES.findall(page):
        value = _number(text)
        rank = _RANK.search(labels)
        if value is None:
            continue
        if name == b"process_start_time_seconds":
            started = value
        elif name == b"vllm:engine_sleep_state":
            state = _STATE.search(labels)
            if state and rank and (value == 1) is (state[1] != b"awake"):
                states.setdefault(state[1].decode(), set()).add(int(rank[1]))
        elif name.endswith(b"usage_perc"):
            usage[int(rank[1]) if rank else 0] = min(1.0, value)
        elif name.startswith(b"vllm:external"):
            fetched[int(rank[1]) if rank else 0] = value
        else:
            of = int(rank[1]) if rank else 0
            queries[of] = queries.get(of, 0.0) + value
    emptied = states.get("weights_offloaded", set()) | states.get("discard_all", set())
    total = sum(queries.values()) if queries else None
    asleep = frozenset(states.get("awake", set()) | emptied)
    return Pulse(started, total, asleep, frozenset(emptied), queries, usage, fetched)


def _number(text: bytes) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


class _Seen(msgspec.Struct, frozen=True):
    """``clears`` and ``lives`` are how many the event stream had told of when the pulse was taken."""

    pulse: Pulse
    clears: int
    lives: int


class Pulses:
    """The last pulse of each replica. Changes with every call."""

    def __init__(self) -> None:
        self._seen: dict[ReplicaId, _Seen] = {}
        self._lives: Counter[ReplicaId] = Counter()
        self._serves: dict[ReplicaId, tuple[Sequence[str], int]] = {}

    def began(self, replica: ReplicaId) -> None:
        """The event stream has noticed another life by itself."""
        self._lives[replica] += 1

    def forget(self, replica: ReplicaId) -> None:
        """The replica is gone."""
        for kept in (self._seen, self._lives, self._serves):
            kept.pop(replica, None)

    def look(self, replica: ReplicaId, rank: int, pulse: Pulse, clears: int) -> Order | None:
        """What follows; ``clears`` counts the clears that have been applied to the replica's blocks.

        A cache that was emptied is cleared at every look at which no clear has come since the look before: blocks that are
        stored after the engine has woken up come behind the clear that it announces itself, and are never taken for the old.
        """
        seen, lives = self._seen.get(replica), self._lives[replica]
        order = None
        if seen is not None and _is_another(seen.pulse, pulse):
            order = Order.BEGIN_ANEW if lives == seen.lives else None
        elif seen is not None and rank in pulse.emptied and clears == seen.clears:
            order = Order.CLEAR
            clears += 1
        if seen is not None and seen.pulse.started is not None and pulse.started is not None:
            # Two processes that answer by turns behind one address are no restarts.
            pulse = msgspec.structs.replace(pulse, started=max(pulse.started, seen.pulse.started))
        self._seen[replica] = _Seen(pulse, clears, lives)
        return order

    def serves(self, replica: ReplicaId, models: Sequence[str]) -> Order | None:
        """What follows from the base models that the replica serves now."""
        known, lives = self._serves.get(replica), self._lives[replica]
        self._serves[replica] = models, lives
        is_another = known is not None and known[0] != models and known[1] == lives
        return Order.BEGIN_ANEW if is_another else None


def _is_another(before: Pulse, now: Pulse) -> bool:
    """Whether the process is a later one."""
    if before.started is not None and now.started is not None:
        return now.started > before.started
    if before.queries is not None and now.queries is not None:
        return now.queries < before.queries
    return False
