"""Checks of the other gateways before the same replicas.

Knows who was asked, who answered, and whom each of them knows. Pure functions of the facts.
"""

from collections.abc import Iterator
from typing import Final

from balancer.checks.facts import Facts, Sibling
from balancer.checks.finding import Finding, broken, degraded, ok, skipped

DIFFERS_SECONDS: Final = 15.0
"""For so long two gateways may know different replicas: each finds them by itself, and engines take their time to answer."""

SHOWN: Final = 3

SAME: Final = "give all gateways the same URLs of replicas, or the same discovery"


def siblings(facts: Facts) -> Iterator[Finding]:
    """Each of them answers, each is another one, and all of them have the same fleet."""
    if facts.siblings_problem is not None:
        yield degraded(
            "siblings",
            facts.siblings_problem,
            "give siblings.host a name that the name server knows, and that stands for all gateways",
        )
    elif facts.siblings_host is not None and not facts.siblings:
        yield skipped(facts.siblings_host, "has not been resolved yet", "ask again in a moment")
    seen: dict[str, str] = {}
    others = [each for each in facts.siblings if not each.is_self]
    for each in others:
        other = seen.setdefault(each.gateway, each.address) if each.gateway and each.age is not None else each.address
        if other != each.address:
            yield degraded(
                each.address, f"is the same gateway as {other}", "name each gateway once, by its own address"
            )
        else:
            yield _judged(each)
    if facts.siblings and not others:
        yield ok(facts.siblings[0].address, "is this gateway itself, and the only one there is")


def _judged(each: Sibling) -> Finding:
    if each.problem is not None:
        return degraded(
            each.address,
            f"does not tell what it has under way: {each.problem}",
            "start it, mend [siblings], or leave it out; its requests count nothing here",
        )
    if each.age is None:
        return degraded(each.address, "has not been asked yet", "wait a moment, and ask again")
    differs = each.differs_seconds >= DIFFERS_SECONDS or not each.common
    if (each.only_there or each.only_here) and differs:
        told = "; ".join(
            f"{who} {', '.join(names[:SHOWN])}{' and more' if len(names) > SHOWN else ''}"
            for who, names in (("only it knows", each.only_there), ("only this one knows", each.only_here))
            if names
        )
        if not each.common:
            return broken(each.address, f"has another fleet: {told}", f"{SAME}, or leave it out of [siblings]")
        return degraded(each.address, f"does not know the same replicas: {told}", SAME)
    return ok(each.address, "tells what it has under way")
