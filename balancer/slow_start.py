"""A replica that is new, or back, gets little at first and its full share after a while.

Knows since when each replica can be used, and moved time (seconds, any monotonic clock). Never knows load: what the share means
is for the policies, which find it in ``core.Candidate``.
"""

from collections.abc import Collection, Sequence

import msgspec

from balancer.errors import ConfigError
from indexer.index import ReplicaId


class SlowStartSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How long a replica takes to its full share, and with what it begins."""

    seconds: float = 15.0
    """0: no slow start."""
    least_share: float = 0.1


class SlowStart:
    """Since when each replica can be used. Changes with every call; times never go back."""

    def __init__(self, settings: SlowStartSettings) -> None:
        self._settings = settings
        self._since: dict[ReplicaId, float] = {}
        self._all_full_at = -1.0

    def see(self, usable: Collection[ReplicaId], now: float) -> None:
        """These and no others can be used now: whoever is missing begins anew when it is back."""
        for replica in self._since.keys() - set(usable):
            del self._since[replica]
        for replica in usable:
            self._note(replica, now)

    def shares(self, candidates: Sequence[ReplicaId], now: float) -> list[float] | None:
        """The share of each one, 1 being that of the one longest in use; None when all have a full one.

        They are relative because nobody is spared by holding back where all are new, as after a restart of the gateway.
        """
        for replica in candidates:
            if replica not in self._since:
                self._note(replica, now)
        if now >= self._all_full_at:
            return None
        settings = self._settings
        shares = [
            max(settings.least_share, min(1.0, (now - self._since[replica]) / settings.seconds))
            for replica in candidates
        ]
        most = max(shares)
        return [share / most for share in shares]

    def _note(self, replica: ReplicaId, now: float) -> None:
        if replica not in self._since:
            self._since[replica] = now
            self._all_full_at = now + self._settings.seconds


def check(settings: SlowStartSettings) -> None:
    """Raise ``ConfigError`` unless these settings can be used."""
    if not 0 <= settings.seconds < float("inf"):
        raise ConfigError(
            f"slow_start.seconds: {settings.seconds} cannot be used; give a number of seconds, 0 for none"
        )
    if not 0 < settings.least_share <= 1:
        raise ConfigError(f"slow_start.least_share: {settings.least_share} cannot be used; give more than 0, at most 1")
