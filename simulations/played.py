"""What a run of the detailed model keeps of a request under way, and of a replica.

Knows who has sent what, and an engine with the step that it computes. Never knows what happens when
(``simulations.detailed_play``).
"""

from typing import Final

import msgspec

from balancer.core import Decision, Replica
from balancer.disaggregation.roles import Part, Role
from balancer.economics.hints import OFFLOADING
from hashing.recipes import Recipe
from indexer.index import ReplicaId
from simulations.detailed_fleet import DetailedFleet
from simulations.engine import Engine
from simulations.engine_values import ScheduledStep
from simulations.latency import LatencyModel
from simulations.store import Reader

MODEL: Final = "m"
RELEASE: Final = (0, 32)
"""Of the engines: where a store's loads are to be chosen, they can be told how much to load."""


class Sent(msgspec.Struct):
    """A request under way: which gateway has sent it, and what that has decided."""

    gateway: int
    decision: Decision
    known: int  # leading tokens of the prompt that somebody had computed before
    forgotten: tuple[int, ...] = ()  # blocks of these, by their place, that restarts have thrown away
    has_begun: bool = False
    cached: int = 0  # tokens that the engine says it had, or has loaded


class Held(msgspec.Struct, frozen=True):
    """A request that is routed, and waits until its replica has less to do."""

    request: int
    attempt: int
    came: float
    decision: Decision
    part: Part = Part.WHOLE


class PlayedReplica:
    """One engine, and the step that it computes; mutable."""

    __slots__ = (
        "_latency",
        "_speed",
        "busy_seconds",
        "engine",
        "life",
        "loading_seconds",
        "name",
        "number",
        "reader",
        "sent",
        "step",
        "writer",
    )

    def __init__(self, number: int, name: ReplicaId, engine: Engine, speed: float, latency: LatencyModel) -> None:
        self.number = number
        self.name = name
        self.engine: Engine | None = engine
        self.life = 0
        self.step: ScheduledStep | None = None
        self.sent: dict[str, int] = {}  # engine's id -> request
        self.busy_seconds = 0.0
        self.loading_seconds = 0.0  # of lives before this one
        self.reader = Reader()
        self.writer = Reader()  # the other direction of its link
        self._latency = latency
        self._speed = speed

    def seconds(self, step: ScheduledStep) -> float:
        return self._latency.seconds(step.workload) / self._speed

    def described(self, fleet: DetailedFleet, recipe: Recipe, role: Role) -> Replica:
        """As the gateways know it."""
        can_be_told = fleet.store is not None and fleet.store.loads == "mixed"
        return Replica(
            self.name,
            f"http://{self.name}",
            models=(MODEL,),
            recipe=recipe,
            num_gpu_blocks=fleet.blocks + 1,
            role=role,
            connectors=(OFFLOADING,) if can_be_told else (),
            release=RELEASE if can_be_told else None,
        )
