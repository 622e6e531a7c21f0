"""Where the other gateways are, and how often they are asked.

Knows names, types, defaults and what goes together. Never asks anybody (``balancer.siblings.watching``).
"""

from typing import Final

import msgspec

from balancer.errors import ConfigError
from balancer.words import printable

LEAST_INTERVAL: Final = 0.05
MOST_SECONDS: Final = 60.0


class SiblingSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Other gateways before the same replicas; this gateway itself may be among them."""

    urls: tuple[str, ...] = ()
    """Where they are, each by itself: an address behind which there are several is none."""
    host: str | None = None
    """Instead of urls: a name that stands for all of them, as that of a headless service does."""
    port: int | None = None
    """At which all of them listen; goes with host."""
    scheme: str = "http"
    """http or https; goes with host."""
    server: str | None = None
    """The name server to ask for host, such as 10.96.0.10:53; those of the system without it."""
    interval_seconds: float = 0.5
    """After which each is asked again, or sooner while siblings are sent anything (``Book.pause``)."""
    timeout_seconds: float = 2.0
    """For an answer."""
    api_key: str | None = None
    """Key for those that ask for one (``[auth]``, with ``admin = true``)."""
    prewarm: bool = True
    """Take the index over from one of them at the start."""

    @property
    def has_any(self) -> bool:
        """Whether any were named."""
        return bool(self.urls) or self.host is not None


def check(settings: SiblingSettings) -> None:
    """Raise ``ConfigError`` unless these can be used; that each of ``urls`` is one is for whoever knows URLs."""
    if settings.urls and settings.host is not None:
        raise ConfigError("siblings.host: urls are given, too; name the siblings by either of them")
    if settings.host is not None and (
        not settings.host or not settings.host.isprintable() or set(settings.host) & set("/: ")
    ):
        raise ConfigError(
            f"siblings.host: '{printable(settings.host)}' is no name; give one like kvlb-gateways.default.svc"
        )
    if (settings.host is None) != (settings.port is None):
        missing, other = ("port", "host") if settings.port is None else ("host", "port")
        raise ConfigError(f"siblings.{missing}: missing; it goes with siblings.{other}")
    if settings.port is not None and not 0 < settings.port < 65536:
        raise ConfigError(f"siblings.port: {settings.port} is not a port; use 1 to 65535")
    if settings.scheme not in {"http", "https"}:
        raise ConfigError(f"siblings.scheme: '{printable(settings.scheme)}' is neither http nor https")
    if settings.server is not None and settings.host is None:
        raise ConfigError("siblings.server: is asked for siblings.host, which is not given")
    if len(set(settings.urls)) < len(settings.urls):
        twice = next(url for at, url in enumerate(settings.urls) if url in settings.urls[:at])
        raise ConfigError(f"siblings.urls: '{twice}' is there twice; name each gateway once")
    if not LEAST_INTERVAL <= settings.interval_seconds <= MOST_SECONDS:
        raise ConfigError(
            f"siblings.interval_seconds: {settings.interval_seconds} cannot be used; "
            f"give {LEAST_INTERVAL:g} to {MOST_SECONDS:g} seconds"
        )
    if not 0 < settings.timeout_seconds <= MOST_SECONDS:
        raise ConfigError(
            f"siblings.timeout_seconds: {settings.timeout_seconds} cannot be used; "
            f"give seconds above 0, at most {MOST_SECONDS:g}"
        )
    if settings.api_key is not None and (not settings.api_key or not settings.api_key.isprintable()):
        raise ConfigError("siblings.api_key: is empty or has a control character in it; give the bare key")
