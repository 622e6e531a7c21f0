"""By how many seconds of waiting a request lets others pass that are held for the same replica: its class, and its tenant.

Knows tenants, their weights, and the seconds of prefill that each of them was given lately (moved time, any monotonic clock).
Never knows requests or replicas. A tenant is put behind by what it was given, for its weight; so one tenant's flood waits for
itself, and whoever asks for little is held up by little.
"""

import math
from collections.abc import Mapping
from typing import Final

from balancer.admission import ClassWeights, Urgency

MEMORY_SECONDS: Final = 60.0
"""What a tenant was given so long ago counts a third of what it is given now."""

MAX_TENANTS: Final = 1_000
"""That are remembered; those that were given least go first."""

CLASS_SECONDS: Final = {Urgency.HIGH: -30.0, Urgency.NORMAL: 0.0, Urgency.LOW: 30.0}


DEFAULT_CLASSES: Final = ClassWeights()


class Yielding:
    """Changes with every ``charge`` and ``give_back``."""

    def __init__(self, weights: Mapping[str, float], classes: ClassWeights = DEFAULT_CLASSES) -> None:
        """``weights`` are those of tenants, 1 without one; what they were given counts less in a class of more weight."""
        self._weights = weights
        self._share = {each: classes.normal / float(getattr(classes, each)) for each in Urgency}
        self._given: dict[str, tuple[float, float]] = {}  # seconds for its weight, and when that was so

    def __repr__(self) -> str:
        return f"<Yielding {len(self._given)} tenants>"

    def seconds(self, tenant: str, urgency: Urgency, now: float) -> float:
        """By how much a request of this tenant lets others pass; less than 0 where it passes them."""
        if len(self._given) < 2:  # nobody to yield to
            return CLASS_SECONDS[urgency]
        return CLASS_SECONDS[urgency] + self._share[urgency] * self._now(tenant, now)

    def charge(self, tenant: str, seconds: float, now: float) -> None:
        """So many seconds of prefill are given to a request of this tenant."""
        self._given[tenant] = self._now(tenant, now) + seconds / self._weights.get(tenant, 1.0), now
        if len(self._given) > MAX_TENANTS:
            least = sorted(self._given, key=lambda each: self._now(each, now))
            for each in least[: MAX_TENANTS // 10]:
                del self._given[each]

    def give_back(self, tenant: str, seconds: float, charged_at: float, now: float) -> None:
        """Nothing was computed of what was charged then."""
        if tenant in self._given:
            left = seconds / self._weights.get(tenant, 1.0) * math.exp((charged_at - now) / MEMORY_SECONDS)
            self._given[tenant] = max(0.0, self._now(tenant, now) - left), now

    def _now(self, tenant: str, now: float) -> float:
        given, at = self._given.get(tenant, (0.0, now))
        return given * math.exp((at - now) / MEMORY_SECONDS)
