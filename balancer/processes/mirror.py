"""What a gateway knows of the fleet: the last that the brain has told.

Knows replicas, which of them can be used, and how prompts are hashed for them. Never knows caches or the brain's own load, but
for the last that it was told. Changes with ``apply`` and ``load``, and for a moment with what the gateway finds out itself.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from balancer.core import Replica, RouteRequest
from balancer.disaggregation.choosing import Threshold
from balancer.disaggregation.roles import Part, Role
from balancer.errors import NoReplica, RequestError, UnknownModel
from balancer.fleet import Fleet, LiveReplica, Status
from balancer.processes import protocol
from balancer.processes.keys import Kind
from balancer.words import counted
from hashing.extras import Lora
from indexer.index import ReplicaId

SPARED_SECONDS: Final = 1.0
"""How long an endpoint that was not there is not used, unless the brain says something else."""


class Mirror:
    """The fleet as it was told."""

    def __init__(self) -> None:
        self.fleet = Fleet()
        self.lives: Mapping[str, int] = {}
        self._kinds: dict[int, Kind] = {}
        self._recipes: dict[ReplicaId, int | None] = {}
        self._order: list[LiveReplica] = []
        self._also: list[int] = []
        self._ways: dict[str, list[tuple[int, Kind, Lora | None]]] = {}

    def __repr__(self) -> str:
        return f"<Mirror {self.fleet!r}>"

    def apply(self, view: protocol.FleetView) -> None:
        """This is the fleet now."""
        fleet = Fleet()
        for known in view.replicas:
            fleet.put(known.replica)
            fleet.set_status(known.replica.id, Status.READY if known.is_available else Status.LOST)
        self._order = list(fleet)
        for live, known in zip(self._order, view.replicas, strict=True):
            live.rests_until = known.rests_until
            was = self.fleet.get(live.replica.id)
            live.in_flight = was.in_flight if was is not None else 0
        self.fleet, self.lives, self._ways = fleet, view.lives, {}
        self._recipes = {known.replica.id: known.recipe for known in view.replicas}
        self._kinds = {**view.recipes, **view.learned, **view.examples}
        self._also = view.also

    def load(self, in_flight: Sequence[int]) -> None:
        """Requests under way at each replica, in the order of the fleet; what is of another fleet is not used."""
        if len(in_flight) == len(self._order):
            for live, count in zip(self._order, in_flight, strict=True):
                live.in_flight = count

    def replica(self, name: ReplicaId) -> Replica | None:
        live = self.fleet.get(name)
        return None if live is None else live.replica

    def ways(self, model: str) -> Sequence[tuple[int, Kind, Lora | None]]:
        """How a prompt for this model is hashed by those that serve it: number, recipe and adapter of each kind of them."""
        found = self._ways.get(model)
        if found is None:
            numbers = [
                (self._recipes[live.replica.id], live.replica.adapter(model))
                for part in (Part.WHOLE, Part.PREFILL)
                for live in self.fleet.serving(model, part)
            ]
            numbers += [(number, adapter) for number in self._also for _, adapter in list(numbers)]
            found = [
                (number, self._kinds[number], adapter)
                for number, adapter in dict.fromkeys(numbers)
                if number is not None and number in self._kinds
            ]
            if found:  # or whoever invents models could fill the memory
                self._ways[model] = found
        return found

    def first_way(self, model: str) -> tuple[Kind, Lora | None] | None:
        """By whose keys the beginning of a prompt is named (``Router``): recipe and adapter of the first by name."""
        usable = [live.replica for live in self.fleet.serving(model) if live.is_available()]
        first = min(usable, key=lambda each: each.id, default=None)
        number = None if first is None else self._recipes[first.id]
        kind = None if number is None else self._kinds.get(number)
        return None if kind is None or first is None else (kind, first.adapter(model))

    def spare(self, endpoint: str, now: float, *, is_told: bool) -> None:
        """Nobody was there; ``is_told`` when the brain is told, and will say what it is from now on."""
        for live in self.fleet.behind(endpoint):
            if is_told:
                live.health = Status.LOST
            live.rests_until = max(live.rests_until, now + SPARED_SECONDS)

    def is_ready(self) -> bool:
        """Whether any replica can answer a request."""
        return any(live.is_available() and live.replica.role is not Role.PREFILL for live in self.fleet)

    def can_route(self, request: RouteRequest, now: float) -> bool:
        """Whether anybody could take the request now."""
        return any(self._usable(request, now))

    def can_split(self, request: RouteRequest, replica: Replica, worth: Threshold, now: float) -> bool:
        """Whether somebody else can compute the prompt for this replica, of whose cache nothing is known here."""
        if replica.role is not Role.DECODE or request.part is not Part.WHOLE or request.prompt_tokens < worth.tokens:
            return False
        return any(self._usable(msgspec.structs.replace(request, part=Part.PREFILL), now))

    def usable(self, request: RouteRequest, now: float) -> list[Replica]:
        """Who may be sent the request now; never none.

        Raises:
            UnknownModel: nobody serves its model.
            NoReplica: nobody who does can take it.
        """
        found = self._usable(request, now) or self._usable(request, math.inf)
        if found:
            return [live.replica for live in found]
        raise self._nobody(request)

    def by_load(self, request: RouteRequest, chosen: ReplicaId, now: float) -> list[Replica]:
        """Who else than the chosen one could take the request, those with less under way first."""
        others = [live for live in self._usable(request, now) if live.replica.id != chosen]
        return [live.replica for live in sorted(others, key=lambda live: (live.in_flight, live.replica.id))]

    def _usable(self, request: RouteRequest, now: float) -> list[LiveReplica]:
        return [
            live
            for live in self.fleet.serving(request.model, request.part)
            if live.is_available() and live.rests_until <= now and live.replica.id not in request.excluded
        ]

    def _nobody(self, request: RouteRequest) -> RequestError:
        serving = self.fleet.serving(request.model, request.part)
        if serving or request.model in self.fleet.models() or not len(self.fleet):
            told = counted(len(serving), "replica")
            return NoReplica(f"none of {told} of '{request.model}' can take a request now; try again", retry_after=2)
        served = ", ".join(self.fleet.models())
        return UnknownModel(f"the model '{request.model}' is not served here; served: {served}", param="model")
