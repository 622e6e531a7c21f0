"""Where a request goes when nobody can be asked what caches hold: where its prompt leans to (``balancer.leaning``).

Knows names, keys and loads. Every gateway comes to the same choice by itself, the brain among equals to the same one, and a
replica that leaves gives the others no request but its own. Source of the bound on loads: Mirrokni, Thorup and Zadimoghaddam,
"Consistent hashing with bounded loads", 2016.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final

from balancer.leaning import lean
from indexer.index import ReplicaId

BOUND: Final = 2.0
"""So many times the mean load a replica may have, and ``SPARE`` requests more, before what is its own goes to the next one: a
prompt that everybody sends must not go to one replica alone."""

SPARE: Final = 8


def ranked(key: int, replicas: Sequence[ReplicaId]) -> list[ReplicaId]:
    """The replicas, the one that this key leans to most first."""
    return sorted(replicas, key=lambda replica: lean(key, replica), reverse=True)


def choose(key: int, in_flight: Mapping[ReplicaId, int]) -> ReplicaId:
    """One of these replicas (there must be one), by the requests that each has; ``key`` names the prompt's beginning."""
    most = math.ceil(BOUND * sum(in_flight.values()) / len(in_flight)) + SPARE
    order = ranked(key, list(in_flight))
    return next((replica for replica in order if in_flight[replica] < most), order[0])
