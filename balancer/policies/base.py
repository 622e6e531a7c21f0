"""What a routing policy is, and how one is found by its name.

A policy is one frozen Struct in one file: its fields are its settings, ``choose`` its rule. It sees candidates, never the
index or the fleet, so it runs unchanged in the gateway and in the simulator. It must be a pure function of its arguments
and its own memory: chance comes in as ``draw``, and time, if it ever needs it, with the candidates.
"""

import difflib
import importlib
import pkgutil
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from typing import Any, Protocol, TypeVar, runtime_checkable

import msgspec

import balancer.policies
from balancer.core import Candidate
from balancer.errors import ConfigError

ENTRY_POINTS = "kvlb.policies"


class Policy(Protocol):
    """Chooses one of the candidates for a request."""

    def choose(self, candidates: Sequence[Candidate], draw: float) -> Candidate:
        """The candidate to send the request to.

        ``candidates`` is never empty and in no order that means anything. ``draw`` is a random number from 0 (included) to
        1 (excluded), new for each request; use it to break ties, or identical replicas will not share the load.
        """
        ...


@runtime_checkable
class Weighing(Protocol):
    """A policy that can say what it weighs. Optional: it explains choices, and chooses nothing."""

    def costs(self, candidates: Sequence[Candidate]) -> list[float]:
        """What each candidate costs, in their order: the lowest is chosen."""
        ...


def costs_of(policy: Policy, candidates: Sequence[Candidate]) -> list[float] | None:
    """What each candidate costs under this policy, or None when it weighs nothing."""
    return policy.costs(candidates) if isinstance(policy, Weighing) else None


_registry: dict[str, type[Policy]] = {}

P = TypeVar("P", bound=type[Policy])


def policy(name: str) -> Callable[[P], P]:
    """Class decorator: makes the policy known under ``name`` (``[policy] name = ...``)."""

    def register(cls: P) -> P:
        _registry[name] = cls
        return cls

    return register


def pick(tied: Sequence[Candidate], draw: float) -> Candidate:
    """One of several equally good candidates, by ``draw``."""
    return tied[int(draw * len(tied))]


def lowest(candidates: Sequence[Candidate], cost: Callable[[Candidate], float], draw: float) -> Candidate:
    """A candidate of the lowest cost; ties are broken by ``draw``."""
    costs = [cost(candidate) for candidate in candidates]
    best = min(costs)
    return pick([candidate for candidate, value in zip(candidates, costs, strict=True) if value == best], draw)


def names() -> list[str]:
    """Every policy that can be named in the settings."""
    _load_all()
    return sorted(_registry)


def make(name: str, settings: dict[str, Any] | None = None) -> Policy:
    """The policy called ``name`` with these settings; ``package.module:Class`` names one that is not registered.

    Raises:
        ConfigError: there is no such policy, or a setting is not one of its fields or not of its type.
    """
    cls = _find(name)
    if not (isinstance(cls, type) and issubclass(cls, msgspec.Struct) and hasattr(cls, "choose")):
        raise ConfigError(f"policy.name: {name!r} is no policy; it must be a msgspec.Struct with a method choose")
    _check_names(name, cls, settings or {})
    try:
        return msgspec.convert(settings or {}, cls)
    except msgspec.ValidationError as error:
        fields = ", ".join(getattr(cls, "__struct_fields__", ()))
        raise ConfigError(f"policy.{name}: {error}; its settings are: {fields or 'none'}") from error


def _check_names(name: str, cls: type[msgspec.Struct], settings: dict[str, Any]) -> None:
    known = cls.__struct_fields__
    for unknown in settings.keys() - set(known):
        near = difflib.get_close_matches(unknown, known, 1)
        remedy = f"did you mean {near[0]}?" if near else f"its settings are: {', '.join(known) or 'none'}"
        raise ConfigError(f"policy.{unknown}: {name} has no such setting; {remedy}")


def _find(name: str) -> type[Policy]:
    if ":" in name:
        module, _, attribute = name.partition(":")
        try:
            found: type[Policy] = getattr(importlib.import_module(module), attribute)
        except Exception as error:  # whatever a module of somebody else does when it is imported
            raise ConfigError(
                f"policy.name: cannot load {name!r}: {error}; give package.module:Class, importable from here"
            ) from error
        return found
    _load_all()
    if name not in _registry:
        raise ConfigError(f"policy.name: there is no policy {name!r}; there are: {', '.join(names())}")
    return _registry[name]


def _load_all() -> None:
    for module in pkgutil.iter_modules(balancer.policies.__path__):
        importlib.import_module(f"balancer.policies.{module.name}")
    for point in entry_points(group=ENTRY_POINTS):
        _registry.setdefault(point.name, point.load())
