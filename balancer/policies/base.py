"""What a routing policy is, and how one is found by its name.

A policy is one frozen Struct in one file: its fields are its settings, ``choose`` its rule. It sees candidates, never the
index or the fleet, so it runs unchanged in the gateway and in the simulator. It must be a pure function of its arguments
and its own memory: chance comes in as ``draw``, and time, if it ever needs it, with the candidates.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeAlias, TypeVar, runtime_checkable

from balancer.core import NOTHING_ASKED, Asked, Candidate
from balancer.registry import Registry


class Policy(Protocol):
    """Chooses one of the candidates for a request."""

    def choose(self, candidates: Sequence[Candidate], draw: float, asked: Asked = NOTHING_ASKED, /) -> Candidate:
        """The candidate to send the request to.

        ``candidates`` is never empty and in no order that means anything. ``draw`` is a random number from 0 (included) to
        1 (excluded), new for each request; use it to break ties, or identical replicas will not share the load. ``asked`` is
        what is known of the request beside its length.
        """
        ...


@runtime_checkable
class Weighing(Protocol):
    """A policy that can say what it weighs. Optional: it explains choices, and chooses nothing.

    ``cost_unit``, where there is one, is the sign of the unit that costs are in, as sentences write it (``s``).
    """

    def costs(self, candidates: Sequence[Candidate], asked: Asked = NOTHING_ASKED, /) -> list[float]:
        """What each candidate costs, in their order: the lowest is chosen."""
        ...


@runtime_checkable
class Ordering(Protocol):
    """A policy that says in which order requests go that wait for the same replica. Optional: without it, as they came.

    ``feed``, where there is one, is what a replica has to do until something is held for it (``balancer.fleet.Feed``).
    """

    def rank(self, seconds: float, now: float, /) -> float | None:
        """The place of a request that comes now and takes so many seconds of prefill: lowest first. None: hold nothing."""
        ...


Rank: TypeAlias = Callable[[float, float], float | None]
"""As ``Ordering.rank``."""


def rank_of(policy: Policy) -> Rank:
    """The order in which the policy has requests sent."""
    return policy.rank if isinstance(policy, Ordering) else in_turn


def in_turn(seconds: float, now: float, /) -> float | None:
    """Nothing is held: requests go as they come."""
    return None


def costs_of(policy: Policy, candidates: Sequence[Candidate], asked: Asked = NOTHING_ASKED) -> list[float] | None:
    """What each candidate costs under this policy, or None when it weighs nothing."""
    return policy.costs(candidates, asked) if isinstance(policy, Weighing) else None


def unit_of(policy: Policy) -> str:
    """The sign of the unit of its costs; empty of one that names none."""
    return str(getattr(policy, "cost_unit", ""))


P = TypeVar("P", bound=type[Policy])

POLICIES: Final = Registry[Policy]("policy", package="balancer.policies", group="kvlb.policies", method="choose")


def policy(name: str) -> Callable[[P], P]:
    """Class decorator: makes the policy known under ``name`` (``[policy] name = ...``)."""
    return POLICIES.register(name)


def pick(tied: Sequence[Candidate], draw: float) -> Candidate:
    """One of several equally good candidates: the one that the prompt leans to, else by ``draw``."""
    if tied[0].lean:
        return max(tied, key=lambda each: each.lean)
    return tied[int(draw * len(tied))]


def lowest(candidates: Sequence[Candidate], cost: Callable[[Candidate], float], draw: float) -> Candidate:
    """A candidate of the lowest cost; ties are broken by ``pick``."""
    return cheapest(candidates, [cost(candidate) for candidate in candidates], draw)


def cheapest(candidates: Sequence[Candidate], costs: Sequence[float], draw: float) -> Candidate:
    """As ``lowest``, of costs that are known, in the order of the candidates."""
    best = min(costs)
    if costs.count(best) == 1:
        return candidates[costs.index(best)]
    return pick([candidate for candidate, value in zip(candidates, costs, strict=True) if value == best], draw)


def calmest(candidates: Sequence[Candidate], costs: Sequence[float], draw: float) -> Candidate:
    """As ``cheapest``; of equal costs the fewest requests in flight come first, by share.

    For costs that forget a request once its prompt is computed: else who only decodes is as good as who does nothing.
    """
    best = min(costs)
    if costs.count(best) == 1:
        return candidates[costs.index(best)]
    tied = [candidate for candidate, value in zip(candidates, costs, strict=True) if value == best]
    return lowest(tied, lambda each: each.in_flight / each.share, draw)


def names() -> list[str]:
    """Every policy that can be named in the settings."""
    return POLICIES.names()


def make(name: str, settings: dict[str, Any] | None = None, at: str = "policy") -> Policy:
    """The policy called ``name`` with these settings; ``package.module:Class`` names one that is not registered.

    ``at`` is the section of the settings that they stand in.

    Raises:
        ConfigError: there is no such policy, or a setting is not one of its fields or not of its type.
    """
    return POLICIES.make(name, settings or {}, at)
