"""Settings of the endpoint picker: ``[epp]``.

Knows names, types and defaults. Never opens a file; a message names the setting by its path.
"""

from typing import Final, Literal

import msgspec

from balancer.errors import ConfigError

_ANYWHERE: Final = frozenset({"0.0.0.0", "::"})

MAX_PIECE_BYTES: Final = 64 * 1024 * 1024


class EppSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where and how ``kvlb epp`` is asked over ext_proc. Its HTTP control plane is at ``[server]`` ``host`` and ``port``."""

    host: str = "0.0.0.0"
    port: int = 9002
    """For ext_proc and gRPC health."""
    health_port: int | None = None
    """A second port with gRPC health alone, plain; the same port alone without it."""
    cert_file: str | None = None
    """PEM, with its chain, for TLS at ``port``; plain without it. It is read again when it changes."""
    key_file: str | None = None
    """Its private key, if it is not in the same file."""
    response: Literal["watch", "leave"] = "watch"
    """What becomes of the answer: shown to the picker to its end, for usage and the time to the first token, or left alone
    once its headers have come."""
    fallbacks: int = 0
    """Further endpoints named behind the chosen one, for proxies that understand a list; ORIGINAL_DST clusters do not."""
    subset_header: bool = True
    """Whether a header may name the endpoints that may be chosen, where the proxy's metadata does not."""
    piece_bytes: int = 1024 * 1024
    """Largest piece in which a body is given back; some proxies take no more than 64 KiB."""


def check(settings: EppSettings, processes: int) -> None:
    """Raise ``ConfigError`` for what cannot be used; ``processes`` are those that share the port."""
    for name, port in (("port", settings.port), ("health_port", settings.health_port)):
        if port is not None and not 0 <= port <= 65535:
            raise ConfigError(f"epp.{name}: {port} is not a port; use 1 to 65535, or 0 for any free one")
        if port == 0 and processes > 1:
            raise ConfigError(f"epp.{name}: several processes share one port; name it, or set server.processes to 1")
    if settings.port and settings.port == settings.health_port:
        raise ConfigError(
            f"epp.health_port: {settings.port} is epp.port, where health is asked in any case; leave it out, or name another"
        )
    if settings.key_file is not None and settings.cert_file is None:
        raise ConfigError("epp.cert_file: missing; a key is of no use without its certificate")
    if not 0 <= settings.fallbacks <= 16:
        raise ConfigError(f"epp.fallbacks: {settings.fallbacks} cannot be used; give 0 for none, or up to 16")
    if not 1024 <= settings.piece_bytes <= MAX_PIECE_BYTES:
        raise ConfigError(
            f"epp.piece_bytes: {settings.piece_bytes} cannot be used; give 1024 to {MAX_PIECE_BYTES} (64 MiB)"
        )


def check_beside(settings: EppSettings, host: str, port: int) -> None:
    """Raise ``ConfigError`` where the picker would listen at its control plane's place: ``[server]`` ``host`` and ``port``."""
    if not port or not (settings.host == host or {settings.host, host} & _ANYWHERE):
        return
    for name, own in (("port", settings.port), ("health_port", settings.health_port)):
        if own == port:
            raise ConfigError(
                f"epp.{name}: {own} is server.port, where kvlb epp has its control plane (HTTP); give one of the two another"
            )
