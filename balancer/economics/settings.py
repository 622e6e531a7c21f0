"""Settings of what it costs to move a cache: ``[[links]]`` and ``[[models]]``.

Knows names, types, defaults and which of them go together. Never opens a file: a model's ``config.json`` is read by whoever
starts. A message names the setting by its path.
"""

import math
from collections.abc import Sequence
from typing import Final

import msgspec

from balancer.addresses import place
from balancer.economics.links import Link, link_named, network
from balancer.economics.precision import NAMES
from balancer.errors import ConfigError

_MILLISECOND: Final = 1e-3


class LinkSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How fast replicas load from one place."""

    source: str
    """The place: a tier as events name it (CPU, STORAGE, STORAGE/LOCAL), store: and the name of a shared store, prefill for all
    replicas that compute prompts for others, or the URL of one."""
    replicas: tuple[str, ...] = ()
    """URLs of the endpoints that it holds for; none: all that have no other one."""
    link: str | None = None
    """A link that is known by name (docs/economics.md)."""
    gigabits_per_second: float | None = None
    """Its rate, in place of a name."""
    latency_ms: float | None = None
    """Until the first byte; that of the named link, or of a network, where it is not given."""
    setup_ms: float = 0.0
    """What each load takes besides."""

    def made(self, path: str) -> Link:
        """The link itself.

        Raises:
            ConfigError: there is none of this name.
        """
        if self.link is not None:
            found = link_named(f"{path}.link", self.link)
        else:
            assert self.gigabits_per_second is not None, "check has seen to it"
            found = network(self.gigabits_per_second)
        latency = found.latency if self.latency_ms is None else self.latency_ms * _MILLISECOND
        return msgspec.structs.replace(found, latency=latency, setup=self.setup_ms * _MILLISECOND)


class ModelSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a prompt of one model weighs in a cache."""

    name: str
    """As the replicas serve it."""
    bytes_per_token: float | None = None
    config: str | None = None
    """Its config.json, or the folder in which that is, in place of bytes_per_token."""
    kv_cache_dtype: str = "auto"
    """The engines' --kv-cache-dtype, for ``config``."""


def check(links: Sequence[LinkSettings], models: Sequence[ModelSettings]) -> None:
    """Raise ``ConfigError`` unless these can be used together."""
    seen: dict[tuple[str, str], int] = {}
    for at, link in enumerate(links):
        path = f"links[{at}]"
        check_link(path, link)
        source = str(place(link.source)) if is_url(link.source) else link.source
        for replica in link.replicas or ("",):
            other = seen.setdefault((source, replica and str(place(replica))), at)
            if other != at:
                whom = f"'{replica}'" if replica else "all replicas"
                raise ConfigError(f"{path}.source: '{link.source}' of {whom} is in links[{other}], too; give it once")
    names: dict[str, int] = {}
    for at, model in enumerate(models):
        path = f"models[{at}]"
        if names.setdefault(model.name, at) != at:
            raise ConfigError(f"{path}.name: '{model.name}' is that of models[{names[model.name]}], too")
        if (model.bytes_per_token is None) == (model.config is None):
            raise ConfigError(f"{path}: give either bytes_per_token or config, a path to the model's config.json")
        if model.bytes_per_token is not None and not 0 < model.bytes_per_token < math.inf:
            raise ConfigError(f"{path}.bytes_per_token: {model.bytes_per_token} cannot be used; give a number above 0")
        if model.kv_cache_dtype not in NAMES:
            raise ConfigError(
                f"{path}.kv_cache_dtype: '{model.kv_cache_dtype}' is unknown; use one of {', '.join(NAMES)}"
            )


def is_url(source: str) -> bool:
    """Whether this place is a replica's endpoint."""
    return source.startswith(("http://", "https://"))


def check_link(path: str, link: LinkSettings) -> None:
    """Raise ``ConfigError`` unless this is one link, with numbers that can be reckoned with."""
    if not link.source or link.source == "GPU":
        raise ConfigError(f"{path}.source: '{link.source}' is no place to load from; give one like CPU or store:NAME")
    if (link.link is None) == (link.gigabits_per_second is None):
        raise ConfigError(f"{path}: give either link, a name like 100gbe, or gigabits_per_second")
    if link.gigabits_per_second is not None and not 0 < link.gigabits_per_second < math.inf:
        raise ConfigError(
            f"{path}.gigabits_per_second: {link.gigabits_per_second} cannot be used; give a number above 0"
        )
    for name, value in (("latency_ms", link.latency_ms), ("setup_ms", link.setup_ms)):
        if value is not None and not 0 <= value < math.inf:
            raise ConfigError(f"{path}.{name}: {value} cannot be used; give a number, 0 for none")
    link.made(path)
