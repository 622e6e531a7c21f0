"""What ``kvlb doctor`` looks at, in the order in which it tells it: each check is a pure function of the facts.

A finding says what is, and what to do where it is not right. One more check is one more function in the list.
"""

from collections.abc import Callable, Iterable
from typing import Final

from balancer.checks import discovery, ends, fleet, replicas, siblings
from balancer.checks.facts import Facts
from balancer.checks.finding import Finding, Result, gathered

CHECKS: Final[dict[str, Callable[[Facts], Iterable[Finding]]]] = {
    "kvlb": fleet.kvlb,
    "discovery": discovery.discovery,
    "endpoint": replicas.endpoint,
    "addresses": fleet.addresses,
    "version": replicas.version,
    "caching": replicas.caching,
    "events": replicas.events,
    "port": replicas.port,
    "ranks": fleet.ranks,
    "replay": replicas.replay,
    "buffers": replicas.buffers,
    "seed": replicas.seed,
    "recipe": replicas.recipe,
    "alike": fleet.alike,
    "knowledge": replicas.knowledge,
    "roles": ends.roles,
    "ends": ends.ends,
    "connector": ends.connector,
    "channel": ends.channel,
    "stores": ends.stores,
    "copies": replicas.copies,
    "clock": replicas.clock,
    "tokenizer": fleet.tokenizer,
    "usage": replicas.usage,
    "salts": fleet.salts,
    "memory": fleet.memory,
    "snapshot": fleet.snapshot,
    "siblings": siblings.siblings,
}
"""Name -> check. The names are those of docs/doctor.md."""


def examine(facts: Facts) -> list[Result]:
    """Everything there is to say, a few lines a check."""
    return [result for name, check in CHECKS.items() for result in gathered(name, check(facts))]
