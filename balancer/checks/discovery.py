"""Check of where endpoints come from, besides those that the settings name.

Knows what the discovery has told last. A pure function of the facts; what an endpoint itself is worth is judged elsewhere.
"""

from collections.abc import Iterator
from typing import Final

from balancer.checks.facts import Facts
from balancer.checks.finding import Finding, broken, degraded, ok, skipped
from balancer.words import counted

NAMED: Final = "static"
"""The discovery that looks nowhere: only the settings name endpoints."""


def discovery(facts: Facts) -> Iterator[Finding]:
    """It can say who is there, of all that should be."""
    found = facts.discovery
    if found is None or found.name == NAMED:
        return
    if found.problem is not None and not found.endpoints:
        yield broken(found.name, f"finds no endpoint: {found.problem}", "mend what it names, or [discovery]")
    elif found.problem is not None:
        yield degraded(
            found.name,
            f"has found {counted(found.endpoints, 'endpoint')}, which may not be all: {found.problem}",
            "mend what it names, or [discovery]; what was found is used meanwhile",
        )
    elif found.told is None:
        yield skipped(found.name, "has not told anything yet", "ask again in a moment")
    elif not found.endpoints:
        yield degraded(
            found.name,
            f"finds no endpoint: {found.told}",
            "start engines there, wait until they are ready, or mend [discovery]",
        )
    else:
        yield ok(found.name, f"{found.told}: {counted(found.endpoints, 'endpoint')}")
