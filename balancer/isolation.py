"""Which tenants may find each other's blocks: salts for the engines' caches.

Knows the secret, the groups and the form of a salt. vLLM hashes the salt with the first block, so whatever follows it is found
only by who has the same salt (``cache_salt``, vLLM 0.11 - 0.32). A client's own salt divides a group's cache further; it never
gets anybody into another one's.
"""

import base64
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import Final

from balancer.errors import ConfigError

MIN_SECRET: Final = 16
"""Shortest secret, in bytes."""

MAX_REMEMBERED: Final = 10_000
"""Tenants whose salts are remembered."""


class Salts:
    """The salt of each tenant, or of the group that it shares a cache with."""

    def __init__(self, secret: bytes, groups: Mapping[str, Sequence[str]]) -> None:
        """``groups`` has the tenants of each group by its name.

        Raises:
            ConfigError: the secret is too short, or a tenant is in two groups.
        """
        if len(secret) < MIN_SECRET:
            raise ConfigError(f"the secret for salts has {len(secret)} bytes; give at least {MIN_SECRET}, at random")
        self._secret = secret
        self._groups: dict[str, str] = {}
        self._plain: dict[str, str] = {}
        for group, tenants in groups.items():
            for tenant in tenants:
                if self._groups.setdefault(tenant, group) != group:
                    raise ConfigError(
                        f"tenants.groups: {tenant} is in {group} and in {self._groups[tenant]}; one is enough"
                    )

    def salt(self, tenant: str, own: str | None = None) -> str:
        """The salt for requests of the tenant, of which ``own`` is what the client sent: 43 letters, digits, - and _.

        Without the secret, neither the tenant nor the client's salt can be told from it, and no other one be made from it.
        """
        if own is not None:
            return self._derived(tenant, b"own", own.encode(errors="surrogatepass"))
        known = self._plain.get(tenant)
        if known is None:
            if len(self._plain) >= MAX_REMEMBERED:
                self._plain.clear()
            known = self._plain[tenant] = self._derived(tenant, b"none", b"")
        return known

    def _derived(self, tenant: str, kind: bytes, own: bytes) -> str:
        group = self._groups.get(tenant)
        who = (b"tenant", tenant.encode()) if group is None else (b"group", group.encode())
        # With lengths before them: what is one tenant with a salt must never read like another with another one.
        message = b"".join(len(part).to_bytes(8, "big") + part for part in (b"kvlb cache_salt 1", *who, kind, own))
        digest = hmac.digest(self._secret, message, hashlib.sha256)
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
