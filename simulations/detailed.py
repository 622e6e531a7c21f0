"""The detailed model: a fleet of engines step by step, behind the router that production runs.

Knows which kind of run a fleet is played by. Never knows how. Time and chance come from the trace and the seed alone, so a run
repeats to the bit.
"""

import random
from collections.abc import Callable, Sequence

from balancer.policies.base import Policy
from simulations.detailed_fleet import DetailedFleet
from simulations.detailed_play import Play
from simulations.disaggregated import SplitPlay
from simulations.keys import TraceKeys
from simulations.results import Run
from simulations.traces.trace import Trace


def play_detailed(
    trace: Trace,
    fleet: DetailedFleet,
    policy: Callable[[], Policy],
    name: str,
    sessions: Sequence[int],
    seed: int = 1,
    keys: TraceKeys | None = None,
) -> Run:
    """Every request of the trace, in its order, through gateways with the policy called ``name``; ``policy`` makes one.

    ``sessions`` is a number for each request, ``NO_SESSION`` for none; ``keys`` those of the trace, where they are made
    already.
    """
    kind = Play if fleet.disaggregation is None else SplitPlay
    return kind(trace, fleet, policy, name, sessions, random.Random(seed), keys).run(name, seed)
