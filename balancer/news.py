"""What an operator is told of each replica: restarts, losses, ejections, and when more or less is known of its cache.

Knows log lines and what has been told already. Never knows where the news come from.
"""

import logging
from collections.abc import Mapping
from typing import Final

from balancer.core import Paper
from balancer.knowledge import Knowledge, View
from indexer.index import ReplicaId
from indexer.stream import Forget, Lost, Step

log = logging.getLogger(__name__)

TOLD_AFTER: Final = 3.0
"""Seconds for which less than exact knowledge must last before it is news: every subscription begins with a moment of it."""


class News:
    """Tells each thing once. Changes with every call."""

    def __init__(self) -> None:
        self._told: dict[ReplicaId, Knowledge] = {}
        self._ejected: dict[ReplicaId, str] = {}
        self._shadow = ""

    def step(self, replica: ReplicaId, step: Step) -> None:
        """A step of the replica's event stream."""
        match step:
            case Forget():
                log.info("%s: its index begins anew: %s", replica, step.reason)
            case Lost():
                which = f"batch {step.first}" if step.first == step.last else f"batches {step.first} to {step.last}"
                log.warning("%s: lost %s of its events", replica, which)

    def knowledge(self, replica: ReplicaId, view: View, now: float, *, is_normal: bool = False) -> None:
        """How much is known of the replica's cache at this moment; ask often. ``is_normal``: no less than was expected."""
        has_lasted = view.state is Knowledge.EXACT or now - view.since >= TOLD_AFTER
        if has_lasted and self._told.get(replica) is not view.state:
            self._told[replica] = view.state
            level = logging.INFO if is_normal or view.state is Knowledge.EXACT else logging.WARNING
            log.log(level, "%s: its cache is known as %s: %s", replica, view.state, view.reason)

    def ejections(self, ejected: Mapping[ReplicaId, str]) -> None:
        """Those that are left out at this moment, with the reason; ask often."""
        for replica in self._ejected.keys() - ejected.keys():
            log.info("%s: is no longer left out", replica)
        for replica, reason in ejected.items():
            if self._ejected.get(replica) != reason:
                log.warning("%s: is left out while others can serve: %s", replica, reason)
        self._ejected = dict(ejected)

    def shadow(self, paper: Paper) -> None:
        """A policy on paper has failed: no request has, and it may fail for every one."""
        if paper.failure != self._shadow:
            self._shadow = paper.failure
            log.warning("policy.shadow: %s cannot choose: %s", paper.policy, paper.failure)

    def forget(self, replica: ReplicaId) -> None:
        """The replica is gone; should it come back, all is news again."""
        self._told.pop(replica, None)
