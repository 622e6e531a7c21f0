"""What several have at once and each gets a part of, in the course of a run: links that replicas share, or devices.

Knows a hub, and the moments at which something ends there. Never knows what is divided, or among whom.
"""

import math
from collections.abc import Callable
from typing import Any

from simulations.hub import Hub, Way


class Divided:
    """Mutable. ``push(when, happens, *what)`` has ``happens(when, *what)`` called at that moment."""

    def __init__(self, hub: Hub, push: Callable[..., None]) -> None:
        self._hub = hub
        self._push = push
        self._due = math.inf

    @property
    def seconds(self) -> dict[Way, float]:
        """For how long each way had something under way that has ended."""
        return self._hub.loading_seconds

    def begin(self, now: float, way: Way, size: float, happens: Callable[..., None], *what: Any) -> None:
        """``happens(when, *what)`` is called when so much has come that way, whoever else has something under way."""
        self._look(now)
        self._hub.load(now, way, size, (happens, what))
        self._look(now)

    def drop(self, now: float, way: Way) -> None:
        """Nobody wants anything there any more."""
        self._look(now)
        self._hub.drop(way)
        self._look(now)

    def _pass(self, now: float) -> None:
        if now == self._due:  # or another moment has come in its place
            self._look(now)

    def _look(self, now: float) -> None:
        come = self._hub.advance(now)
        due = self._hub.due()
        if due is not None and due != self._due:
            self._push(due, self._pass)
        self._due = math.inf if due is None else due
        for happens, what in come:
            happens(now, *what)
