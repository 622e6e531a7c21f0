"""Settings of shared stores: ``[[stores]]``.

Knows names, types, defaults and which of them go together; what else stands in such a table is the connector's own. Never opens
anything. A message names the setting by its path.
"""

import math
import re
from typing import Any, Final

import msgspec

from balancer.errors import ConfigError

MAX_STORES: Final = 16

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class StoreSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One store that replicas load from, and how it is known what it holds."""

    name: str
    connector: str = "events"
    """How it is known what lies there (docs/stores.md), with its own settings beside it."""
    replicas: tuple[str, ...] = ()
    """URLs of the endpoints that are attached to it; none: all of them."""
    model: str = ""
    """The model whose cache it keeps, where neither its events nor its names say so; empty: any."""
    tiers: tuple[str, ...] = ()
    """Which of the attached replicas' KV events speak of it: MEDIUM, MEDIUM/LOCALITY or MEDIUM/LOCALITY/OWNERSHIP."""
    events: str | None = None
    """ZMQ address of the store's own publisher, which is no replica."""
    replay: str | None = None
    topic: str = ""
    gigabits_per_second: float | None = None
    """How fast a replica reads from it; not known where it is not given."""
    latency_ms: float = 0.0
    """Before the first byte of a fetch."""
    timeout_ms: float = 20.0
    """The longest that a request waits for what the store says of its prompt."""
    cache_seconds: float = 10.0
    """How long that is believed."""
    failures: int = 3
    """Lookups in a row that must fail before the store is down, and is left alone for ``pause_seconds``."""
    pause_seconds: float = 5.0
    settings: dict[str, Any] = {}

    def is_attached(self, endpoint: str) -> bool:
        """Whether the endpoint's replicas read from it."""
        return not self.replicas or endpoint in self.replicas

    def speaks_of(self, medium: str | None, locality: str | None, ownership: str | None) -> bool:
        """Whether events with these fields are about it; Mooncake's medium is ``cpu``, and an engine's own memory ``CPU``."""
        told = (medium or "GPU", locality or "", ownership or "")
        return any(told[: tier.count("/") + 1] == tuple(tier.split("/")) for tier in self.tiers)


def gather(entries: object) -> object:
    """``[[stores]]`` as read from a file: what is not ours is the connector's own."""
    if not isinstance(entries, list):
        return entries
    ours = {field.name for field in msgspec.structs.fields(StoreSettings)} - {"settings"}
    return [
        {
            **{key: value for key, value in each.items() if key in ours},
            "settings": {key: value for key, value in each.items() if key not in ours},
        }
        if isinstance(each, dict)
        else each
        for each in entries
    ]


def check(stores: tuple[StoreSettings, ...]) -> None:
    """Raise ``ConfigError`` unless these stores can be used together."""
    if len(stores) > MAX_STORES:
        raise ConfigError(f"stores: {len(stores)} are too many; at most {MAX_STORES}")
    names: dict[str, int] = {}
    for at, store in enumerate(stores):
        path = f"stores[{at}]"
        if NAME.fullmatch(store.name) is None:
            raise ConfigError(
                f"{path}.name: {store.name[:80]!a} cannot be used; give letters, digits, dots and hyphens"
            )
        if names.setdefault(store.name, at) != at:
            raise ConfigError(f"{path}.name: '{store.name}' is that of stores[{names[store.name]}], too")
        for tier in store.tiers:
            if not 1 <= len(tier.split("/")) <= 3 or not tier.split("/")[0] or tier == "GPU":
                raise ConfigError(f"{path}.tiers: {tier[:80]!a} names no tier; give one like STORAGE/REMOTE or cpu")
        for name, value in (
            ("timeout_ms", store.timeout_ms),
            ("failures", store.failures),
            ("pause_seconds", store.pause_seconds),
            ("gigabits_per_second", store.gigabits_per_second),
        ):
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"{path}.{name}: {value} cannot be used; give a number above 0")
        for name, value in (("latency_ms", store.latency_ms), ("cache_seconds", store.cache_seconds)):
            if not 0 <= value < math.inf:
                raise ConfigError(f"{path}.{name}: {value} cannot be used; give a number, 0 for none")
