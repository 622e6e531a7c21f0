"""Settings of who may ask, over what, and of what is kept apart: ``[auth]``, ``[tls]``, ``[tenants]``, ``[cors]``.

Knows names, types, defaults and which of them go together. Never opens a file; a message names the setting by its path.
"""

import re
from typing import Literal

import msgspec

from balancer.errors import ConfigError

OPEN_PATHS = ("/health", "/ping", "/ready")


class AuthSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """API keys. Nobody is asked for one unless there is a source of keys."""

    keys_file: str | None = None
    """TOML with a ``[[keys]]`` for each key; read again when it changes, and on SIGHUP."""
    keys_variable: str | None = None
    """Environment variable with keys, ``KEY`` or ``TENANT:KEY``, separated by commas or blanks."""
    open_paths: tuple[str, ...] = OPEN_PATHS
    """Paths of kvlb itself that need no key."""

    @property
    def is_on(self) -> bool:
        return self.keys_file is not None or self.keys_variable is not None


class TlsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """HTTPS for clients. Files are PEM, and are read again when they change."""

    cert_file: str | None = None
    """The certificate with its chain; HTTP without it."""
    key_file: str | None = None
    """Its private key, if it is not in the same file."""
    client_ca_file: str | None = None
    """Certificate authorities of clients: whoever has no certificate of one of them is not heard."""
    minimum_version: Literal["1.2", "1.3"] = "1.2"


class TenantSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is kept apart between the tenants of the keys."""

    isolation: bool = False
    """Give each tenant a ``cache_salt`` of its own, so that nobody can tell by timing what others have sent."""
    secret_file: str | None = None
    """File with the secret that salts are made from, at least 16 bytes; the same for all gateways of a fleet."""
    secret_variable: str | None = None
    """Environment variable with it."""
    groups: dict[str, tuple[str, ...]] = {}
    """Tenants that share what is cached: name of a group, and its tenants."""
    client_salt: Literal["mix", "refuse"] = "mix"
    """What a client's own ``cache_salt`` does: it divides its tenant's cache further, or is refused."""
    unsalted: Literal["refuse", "pass"] = "refuse"
    """Requests that engines compute without a salt (``/v1/audio/...``), or that name cached media or stored answers."""


class CorsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which web pages may call from a browser."""

    origins: tuple[str, ...] = ()
    """Like ``https://chat.example.org``, or ``*`` for all."""
    max_age_seconds: int = 600
    """How long a browser remembers the answer."""


def check(auth: AuthSettings, tls: TlsSettings, tenants: TenantSettings, cors: CorsSettings) -> None:
    """Raise ``ConfigError`` for what does not go together."""
    for path in auth.open_paths:
        if not path.startswith("/"):
            raise ConfigError(f"auth.open_paths: '{path}' is no path; give one like /metrics")
    for path, variable in (
        ("auth.keys_variable", auth.keys_variable),
        ("tenants.secret_variable", tenants.secret_variable),
    ):
        if variable is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", variable):
            raise ConfigError(f"{path}: '{variable}' is no name of an environment variable; give one like KVLB_KEYS")
    if tls.cert_file is None and (tls.key_file is not None or tls.client_ca_file is not None):
        raise ConfigError("tls.cert_file: missing; without a certificate of its own kvlb cannot speak TLS to clients")
    if tenants.isolation:
        if not auth.is_on:
            raise ConfigError("tenants.isolation: tenants are told by keys; give auth.keys_file, or auth.keys_variable")
        if (tenants.secret_file is None) == (tenants.secret_variable is None):
            raise ConfigError(
                "tenants.isolation: needs a secret; give one of tenants.secret_file and tenants.secret_variable"
            )
    for origin in cors.origins:
        if origin != "*" and not re.fullmatch(r"https?://[A-Za-z0-9.\-\[\]:]+", origin):
            raise ConfigError(f"cors.origins: {origin!a} is no origin; give one like https://chat.example.org, or *")
    if cors.max_age_seconds < 0:
        raise ConfigError(f"cors.max_age_seconds: {cors.max_age_seconds} cannot be used; give 0 or more")
