"""What is done for replicas beside probing them: retries are budgeted, stalls looked for, ejections told.

Knows the pieces that judge, and calls them in turn. Never decides itself, and never knows a clock: time comes in as ``now``
(seconds, any monotonic clock).
"""

from typing import Final

from balancer.fleet import LiveReplica, Status
from balancer.retries import Retries
from balancer.router import Router
from balancer.settings import Settings
from balancer.signals import Sign, signs
from balancer.stalls import Answer, Stalls
from indexer.index import ReplicaId

LOOK_SECONDS: Final = 1.0
"""Between two looks for replicas that have stalled."""


class Care:
    """Looks after the replicas of one router. Changes with every call but the questions."""

    def __init__(self, router: Router, settings: Settings) -> None:
        self.retries = Retries(settings.retries)
        self.stalls = Stalls(settings.health.stall_seconds)
        self._probe_seconds = settings.health.timeout_seconds
        self._router = router
        self._next_look = 0.0

    def tick(self, now: float) -> list[Answer]:
        """What is due by time alone; call it often. Returns the answers whose replicas stand still: they are to ``leave``."""
        if now < self._next_look:
            return []
        self._next_look = now + LOOK_SECONDS
        ejections = self._router.ejections
        stalled, alive = self.stalls.look(now)
        for replica in alive:
            ejections.moved(replica, now)
        for replica, seconds in stalled.items():
            ejections.stalled(replica, f"nothing has come from it for {seconds:.0f} s, though it has work", now)
        lost = {live.replica.id for live in self._router.fleet if live.health is Status.LOST}
        still = self.stalls.silent(lost, self._probe_seconds, now) | stalled.keys() if lost else stalled.keys()
        return self.stalls.waiting_at(still) if still else []

    def ejected(self) -> dict[ReplicaId, str]:
        """Who is left out now, and why."""
        ejections = self._router.ejections
        return {replica: told.reason for replica in ejections if (told := ejections.get(replica))}

    def signs(self, live: LiveReplica, problem: Sign | None, unheard: int) -> list[Sign]:
        """Everything that is wrong with a replica; the arguments are those of ``signals.signs``."""
        return signs(problem, self._router.ejections.get(live.replica.id), unheard)
