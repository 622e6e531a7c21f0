"""What finds endpoints while the gateway runs, and how it is named in the settings.

Knows the Protocol and its two kinds of news. A discovery says who is there; whether they can be used is for probes to say, and
who gets a request for the policy. So it keeps no state of any endpoint, and never has to be right about health.
"""

import re
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final, Protocol, TypeVar

import msgspec

from balancer.errors import ConfigError
from balancer.registry import Registry
from balancer.settings import ReplicaSettings, convert


class Found(msgspec.Struct, frozen=True):
    """All endpoints that there are now: it replaces every list before it. ``reason`` says what made it anew, for the log.

    ``lives`` names who is behind a URL now, where that is known (a Pod's uid): another name than before is another engine, and
    nothing that was known of the one before holds for it. ``problem`` says why some that should be there are not, or may not
    have been heard of, and what to do; None where all is well. ``unused`` names some of those that were seen and are rightly
    not used now, each with why, for people.
    """

    replicas: tuple[ReplicaSettings, ...]
    reason: str
    lives: dict[str, str] = {}
    problem: str | None = None
    unused: tuple[str, ...] = ()


class Failed(msgspec.Struct, frozen=True):
    """Nobody could say who is there: the last list stays. ``reason`` says why and what to do."""

    reason: str


class Discovery(Protocol):
    """One place to look for endpoints. A frozen ``msgspec.Struct``, whose fields are its settings."""

    def watch(self) -> AsyncIterator[Found | Failed]:
        """News, until there can be none any more or the iterator is closed.

        The first comes as soon as anything can be said. The same list may come again, and the same failure: whoever listens
        tells each once. Who raises is logged and begun anew after a pause.
        """
        ...


D = TypeVar("D", bound=type[Discovery])

DISCOVERIES: Final = Registry[Discovery](
    "discovery", package="balancer.discovery", group="kvlb.discovery", method="watch"
)


def discovery(name: str) -> Callable[[D], D]:
    """Class decorator: makes the discovery known under ``name`` (``[discovery] name = ...``)."""
    return DISCOVERIES.register(name)


def names() -> list[str]:
    """Every discovery that can be named in the settings."""
    return DISCOVERIES.names()


def make(name: str, settings: Mapping[str, Any] | None = None) -> Discovery:
    """The discovery called ``name`` with these settings; ``package.module:Class`` names one that is not registered.

    Raises:
        ConfigError: there is no such discovery, or a setting is not one of its fields or not of its type.
    """
    return DISCOVERIES.make(name, dict(settings or {}))


def read_replicas(entries: list[Any]) -> tuple[ReplicaSettings, ...]:
    """Endpoints from plain values: tables as in ``[[replicas]]``, or their URLs alone.

    Raises:
        ConfigError: one cannot be used, or is named twice.
    """
    return convert({"replicas": [{"url": each} if isinstance(each, str) else each for each in entries]}).replicas


def check_shared(entries: list[Any]) -> None:
    """Whether endpoints can have these settings, which all of them share: ``[discovery.replica]``.

    Raises:
        ConfigError: they cannot; it names the setting.
    """
    try:
        read_replicas(entries)
    except ConfigError as error:
        raise ConfigError(re.sub(r"replicas\[\d+\]", "discovery.replica", str(error))) from error


def with_host(settings: Any, host: str) -> Any:
    """The same plain values with ``host`` in place of ``{host}``, however deep it stands."""
    match settings:
        case str():
            return settings.replace("{host}", host)
        case dict():
            return {name: with_host(value, host) for name, value in settings.items()}
        case list():
            return [with_host(value, host) for value in settings]
    return settings
