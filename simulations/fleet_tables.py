"""Fields of a fleet that have fields of their own, as people write them: a shared store, and prefill and decode apart.

Knows their names, links by name, and what is said of those that are none. Never knows a fleet beside them.
"""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

import msgspec

from balancer.economics.links import Link
from balancer.errors import ConfigError
from simulations.detailed_fleet import Disaggregation
from simulations.economics import link_of
from simulations.store import StoreSettings, gbits_of

TABLES: Final[dict[str, type[msgspec.Struct]]] = {"store": StoreSettings, "disaggregation": Disaggregation}
"""Fields of a fleet that have fields of their own."""

NONE: Final = "none"
"""Stands for a fleet without one of these, so that it can be swept beside those that have one; so it does for other fields
that a fleet may be without."""

LINK: Final = "link"
"""In such a table, stands for ``gbits`` and ``latency``: a link by its name, or a network by its rate, as everywhere else."""

NAME: Final = "name"
"""In such a table, what it is called where it is told of: as the link was written, unless it says otherwise."""

EXAMPLES: Final = {
    "store": 'store={link="25gbe"}',
    "disaggregation": 'disaggregation={prefill=2,link="25gbe"}',
    "restarts": "restarts=[{at=600,replica=3,down=60}]",
    "speeds": "speeds=[1,1,0.5]",
    "latency": "latency={overhead=0.001,weights=0.0067,token=4e-5}",
}
"""How those are written that are more than a number."""


def spelled(fields: Mapping[str, Any]) -> dict[str, Any]:
    """A fleet's fields with these tables as they are meant: checked, links by name made rates, and none where it says none.

    Raises:
        ConfigError: one is no table, has a field that there is not, or a word or a link that is not known.
    """
    made = {field: value for field, value in fields.items() if field not in TABLES or value not in (None, NONE)}
    for field in TABLES.keys() & made.keys():
        value = made[field]
        if field == "store" and isinstance(value, str) and not value.startswith("{"):
            value = {LINK: value}
        _check(field, value)
        made[field] = _with_rates(field, value)
    return made


def remedy(field: str, known: Sequence[str]) -> str:
    """What to write in place of a field that there is not."""
    near = difflib.get_close_matches(field, known, 1)
    return f"did you mean {near[0]}?" if near else f"there are: {', '.join(known)}"


def fields_of(link: Link) -> dict[str, float]:
    """What stands for such a link in a table."""
    return {"gbits": gbits_of(link), "latency": link.fixed}


def _with_rates(field: str, table: Mapping[str, Any]) -> dict[str, Any]:
    made = dict(table)
    if LINK not in made:
        return made
    if "gbits" in made:
        raise ConfigError(
            f"fleet.{field}: give either {LINK} (its name, or a network's rate) or gbits (what arrives of it as data), not both"
        )
    written = str(made.pop(LINK))
    return {**fields_of(link_of(f"fleet.{field}.{LINK}", written)), NAME: written, **made}


def _check(field: str, value: Any) -> None:
    known = get_type_hints(TABLES[field])
    names = (*known, LINK)
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"fleet.{field}: must be {NONE} or a table of {', '.join(names)}, words in quotes, as in '{EXAMPLES[field]}'; "
            f"got {value!r}"
        )
    for key, each in value.items():
        if key not in names:
            raise ConfigError(f"fleet.{field}.{key}: there is no such field; {remedy(key, names)}")
        if key != LINK and get_origin(known[key]) is Literal and each not in (words := get_args(known[key])):
            raise ConfigError(f"fleet.{field}.{key}: must be one of {', '.join(words)}, got {each!r}")
