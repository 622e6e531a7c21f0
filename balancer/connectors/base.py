"""What kvlb has to know of a shared store, and how one is named in the settings.

Knows the Protocols alone. A connector answers three questions: what does the store hold of this chain, what does a fetch cost,
and what must the request carry. It answers the first by keeping the index of stores up to date: from events (nothing to do), by
watching, or by asking when a prompt comes. Who is attached and whether a store is up is not its business.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol, TypeVar

import msgspec

from balancer.core import Replica
from balancer.errors import BalancerError
from balancer.registry import Registry
from balancer.store_settings import StoreSettings
from balancer.stores import Store, Traits
from hashing.chain import Chain
from hashing.extras import Lora
from hashing.own import LearnedKeys
from indexer.stores import Namespace, StoreIndex


class StoreError(BalancerError):
    """The store cannot be used now: why, and what to do, in one sentence."""


class Writer:
    """The part of the index that one session may change; only in the event loop."""

    def __init__(self, store: Store, index: StoreIndex) -> None:
        self._store = store
        self._index = index

    def add(
        self, model: str, keys: Iterable[int], kind: LearnedKeys | None = None, chunk: int = 1, part: str = ""
    ) -> Namespace:
        """These blocks are there, for this model; ``chunk`` of them make one object, which is named by the last."""
        namespace = Namespace(self._store.name, self._store.settings.model or model, kind, part)
        if chunk > 1:
            self._store.chunks[namespace] = chunk
        is_kept = self._index.add(namespace, keys)
        self._store.counts["stored" if is_kept else "dropped"] += 1
        return namespace

    def discard(self, namespace: Namespace, keys: Iterable[int]) -> None:
        """These are not, or no longer."""
        self._store.counts["removed"] += self._index.discard(namespace, keys)

    def clear(self) -> None:
        """Nothing is known to be there."""
        self._index.clear(self._store.name)

    def looked(self) -> None:
        """All has been looked at that was announced before the look before this one ended: what is there is known by that."""
        for namespace, keys in self._store.announced_before:
            self._index.discard(namespace, keys)
        self._store.announced_before, self._store.announced = self._store.announced, []

    def count(self, what: str, times: int = 1) -> None:
        """It has happened so often (``kvlb_store_events_total``)."""
        self._store.counts[what] += times

    def restarted(self) -> None:
        """It began anew, and holds nothing of what it held."""
        self._store.counts["restarts"] += 1
        self.clear()

    def up(self) -> None:
        """It can be used."""
        self._store.problem = ""


class Way(msgspec.Struct, frozen=True):
    """How the replicas that are like ``replica`` would look for the prompt: its chain under their recipe."""

    replica: Replica
    chain: Chain
    adapter: Lora | None = None


class Question(msgspec.Struct, frozen=True):
    """One prompt, that a store is asked about."""

    tokens: Sequence[int]
    ways: tuple[Way, ...]
    salt: str | None = None


class Session(Protocol):
    """A store while it is used. What it finds goes into the index through its ``Writer``."""

    async def run(self) -> None:
        """Keep the index up to date until cancelled; at once where nothing can be followed.

        Raises:
            StoreError: it cannot be used now; it is tried again.
        """
        ...

    async def ask(self, question: Question) -> None:
        """Bring the index up to date about this prompt.

        Raises:
            StoreError: it cannot say.
        """
        ...

    async def close(self) -> None:
        """End every connection."""
        ...


class Connector(Protocol):
    """One kind of store. A frozen ``msgspec.Struct``, whose fields are its settings."""

    @property
    def traits(self) -> Traits:
        """How engines read from it, and what events say of it."""
        ...

    @property
    def is_asked(self) -> bool:
        """Whether it has to be asked about each prompt."""
        ...

    def open(self, settings: StoreSettings, writer: Writer) -> Session | None:
        """Begin to use it, in the running event loop; None where events say all.

        Raises:
            ConfigError: a setting cannot be used.
        """
        ...

    def carries(self, tokens: int) -> dict[str, Any]:
        """What ``kv_transfer_params`` must have so that an engine loads so many tokens from here, or none of them for 0."""
        ...


class FetchCost(msgspec.Struct, frozen=True):
    """What a fetch costs: seconds before its first byte, and then so many bytes a second; None where nobody knows."""

    latency: float
    bytes_per_second: float | None


def fetch_cost(settings: StoreSettings) -> FetchCost:
    """As the settings say it; what is measured is for others to know better."""
    speed = settings.gigabits_per_second
    return FetchCost(settings.latency_ms / 1e3, None if speed is None else speed * 1e9 / 8)


C = TypeVar("C", bound=type[Connector])

CONNECTORS: Final = Registry[Connector](
    "connector", package="balancer.connectors", group="kvlb.connectors", method="open"
)


def connector(name: str) -> Callable[[C], C]:
    """Class decorator: makes the connector known under ``name`` (``[[stores]] connector = ...``)."""
    return CONNECTORS.register(name)


def names() -> list[str]:
    """Every connector that can be named in the settings."""
    return CONNECTORS.names()


def make(settings: StoreSettings) -> Connector:
    """The connector of a store, with its own settings.

    Raises:
        ConfigError: there is no such connector, or a setting is not one of its fields or not of its type.
    """
    return CONNECTORS.make(settings.connector, settings.settings, f"stores.{settings.name}")
