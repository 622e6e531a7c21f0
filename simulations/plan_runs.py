"""The runs of ``kvlb plan``: one trace on fleets of any hardware, with a shared store behind them or without.

Knows what makes a fleet of hardware, and how far the runs are. Never knows flags, prices of devices or which fleet is wanted
next (``simulations.planning``).
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from balancer.economics.links import Link
from balancer.words import counted
from simulations.detailed_fleet import DetailedFleet
from simulations.fleet_tables import fields_of
from simulations.grid import Case, run_all
from simulations.hardware.estimate import Hardware
from simulations.named_policies import NamedPolicy
from simulations.planning import Build, Wanted, least_figures, most_hits
from simulations.progress import say, tell
from simulations.results import Run, Summary, summarise
from simulations.scenario import Kind, fleet_of, with_hardware
from simulations.simple import SimpleFleet
from simulations.traces.trace import Trace


class PlannedStore(msgspec.Struct, frozen=True):
    """A store that may be had: its price of an hour, and each replica's way to it."""

    price: float
    link: Link

    @property
    def fields(self) -> dict[str, Any]:
        """Of a fleet's store."""
        return fields_of(self.link)


def _silent(done: int, of: int, seconds: float) -> None:
    pass


class Runs:
    """Plays one trace, and tells how far it is; mutable."""

    def __init__(self, trace: Trace, rate: float, seed: int, jobs: int | None, store: PlannedStore | None) -> None:
        self._trace = trace
        self._store = store
        self._rate = rate
        self._seed = seed
        self._jobs = jobs
        self._hits: Sequence[int] | None = None
        self._played = 0
        self._seconds = 0.0

    def search(self, wanted: Sequence[Wanted], following: int) -> list[Summary]:
        """The figures of these fleets, by the simple model; about ``following`` more are to come."""

        def told(done: int, of: int, seconds: float) -> None:
            tell(self._played + done, self._played + of + following, self._seconds + seconds, "fleets")

        after = f", and about {following:,} after that" if following else ""
        say(f"the simple model plays {_fleets(wanted)}{after} ...")
        began = time.monotonic()
        found = self._play("simple", wanted, told)
        self._played += len(wanted)
        self._seconds += time.monotonic() - began
        return found

    def confirm(self, build: Build, policy: NamedPolicy, replicas: int) -> tuple[Summary, float]:
        """The figures of this fleet by the detailed model, and how many seconds it took to play it."""
        began = time.monotonic()
        (summary,) = self._play("detailed", [(build, policy, replicas)])
        return summary, time.monotonic() - began

    def least(self, hardware: Hardware) -> dict[str, float]:
        """What no number of these replicas stays below."""
        fleet = self._fleet("simple", Build(hardware), 1)
        assert isinstance(fleet, SimpleFleet), "it is asked for one"
        if self._hits is None:
            self._hits = most_hits(self._trace)
        return least_figures(self._trace, self._hits, fleet)

    def _play(
        self, model: Kind, wanted: Sequence[Wanted], told: Callable[[int, int, float], None] = _silent
    ) -> list[Summary]:
        cases = [Case(policy, self._fleet(model, build, replicas), self._seed) for build, policy, replicas in wanted]
        return run_all(self._trace, cases, jobs=self._jobs, told=told, keep=self._summary)

    def _summary(self, case: Case, run: Run) -> Summary:
        """Whether caches were full matters where anything can be hit there."""
        return summarise(run, case.fleet.blocks * case.fleet.block_size if self._trace.has_blocks else None)

    def _fleet(self, model: Kind, build: Build, replicas: int) -> SimpleFleet | DetailedFleet:
        fields: dict[str, Any] = {"replicas": replicas, "rate": self._rate, "closed_loop": self._trace.has_pauses}
        if model == "simple":
            fields["block_size"] = self._trace.block_size
        if build.has_store:
            assert self._store is not None, "nobody plans with one otherwise"
            fields["store"] = self._store.fields
        return fleet_of(model, with_hardware(model, build.hardware, fields))


def _fleets(wanted: Sequence[Wanted]) -> str:
    """How many, and how large they are."""
    sizes = sorted({replicas for _, _, replicas in wanted})
    told = f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"
    return f"{counted(len(wanted), 'fleet')} of {told} replica{'' if sizes == [1] else 's'}"
