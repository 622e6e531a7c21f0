"""Fleets in words: how many replicas, how much cache, and what tells those of one report apart; and which one others are
compared with.

Knows cells, and how people write what their fleets have. Never knows what is concluded from them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from simulations.fleet_tables import TABLES
from simulations.report.comparison import Cell, Fleet, base, varied_settings
from simulations.report.figures import count
from simulations.report.result import table_of

ALWAYS: Final = {"store": "gbits", "disaggregation": "prefill"}
"""Settings that are tables, and the field of each that is always told."""


class Baseline(msgspec.Struct, frozen=True):
    """The fleet on which policies are compared, and with which other fleets are.

    Attributes:
        replicas, cache_tokens: of it.
        settings: what else tells it from the others, as people write it.
        fleets: how many there are.
        is_first: whether no fleet comes before it in the order in which they were asked for.
        words: all of that in a sentence.
    """

    replicas: int
    cache_tokens: int | None
    settings: dict[str, str]
    fleets: int
    is_first: bool
    words: str


def baseline(every: Sequence[Cell]) -> Baseline | None:
    """Which fleet the others are compared with; None where there are no others."""
    fleets = list(dict.fromkeys(cell.fleet for cell in every))
    if len(fleets) < 2:
        return None
    fleet = base(every)[0].fleet
    is_first = fleet == fleets[0]
    why = (
        f"the first of the {len(fleets)} that were run; name another one first to compare with that"
        if is_first
        else f"of the {len(fleets)} that were run, the first on which most policies served anybody"
    )
    return Baseline(
        replicas=fleet.replicas,
        cache_tokens=fleet.cache_tokens,
        settings=_settings(every, fleet),
        fleets=len(fleets),
        is_first=is_first,
        words=f"What follows compares policies on {fleet_words(every, fleet)}, and other fleets with it: {why}.",
    )


def fleet_words(every: Sequence[Cell], fleet: Fleet) -> str:
    """Which fleet it is: replicas, cache, and what others of the report have otherwise."""
    words, settings = size_words(fleet), _settings(every, fleet)
    return f"{words} ({', '.join(f'{name}={value}' for name, value in settings.items())})" if settings else words


def size_words(fleet: Fleet) -> str:
    """How many replicas, and how much cache."""
    words = f"{fleet.replicas} replica{'' if fleet.replicas == 1 else 's'}"
    return words if fleet.cache_tokens is None else f"{words} with {count(fleet.cache_tokens)} tokens of cache each"


def setting_words(name: str, fleets: Iterable[Mapping[str, object]]) -> Callable[[Mapping[str, object]], str]:
    """How a setting of each of these fleets is written, by the fleet's settings: a table by what is unusual in it."""
    if name not in ALWAYS:
        return lambda settings: _plain(settings.get(name))
    usual = {field.name: field.default for field in msgspec.structs.fields(TABLES[name])}
    different = dict.fromkeys(text for settings in fleets if isinstance(text := settings.get(name), str))
    told = told_apart([table for text in different if (table := table_of({name: text}, name))], ALWAYS[name])

    def words(settings: Mapping[str, object]) -> str:
        if name not in settings:
            return "none"
        table = table_of(settings, name)
        if not table:
            return _plain(settings[name])
        fields = {
            field: value
            for field, value in told(table).items()
            if field in ("link", ALWAYS[name]) or table[field] != usual.get(field)
        }
        if list(fields) == ["link"]:
            return fields["link"]
        return f"{{{', '.join(f'{field}={value}' for field, value in fields.items())}}}"

    return words


def told_apart(tables: Sequence[Mapping[str, Any]], always: str) -> Callable[[Mapping[str, Any]], dict[str, str]]:
    """Of tables, what each is told by: the field that ``always`` is, and those in which they differ.

    Where a table has a name, that is told as its ``link``, in place of a rate, and of a delay that all of this name have.
    """
    fields = list(dict.fromkeys(field for table in tables for field in table))
    differing = {field for field in fields if len({repr(table.get(field)) for table in tables}) > 1}
    delays: dict[object, set[object]] = {}
    for table in tables:
        delays.setdefault(table.get("name"), set()).add(table.get("latency"))

    def told(table: Mapping[str, Any]) -> dict[str, str]:
        found: dict[str, str] = {}
        name = table.get("name")
        is_named = name is not None and (always == "gbits" or bool(differing & {"name", "gbits"}))
        for field in fields:
            if field == "gbits" and is_named:
                found["link"] = str(name)
            elif field == "name" or field not in table or (field != always and field not in differing):
                continue
            elif not (field == "latency" and is_named and len(delays[name]) == 1):
                found[field] = _plain(table[field])
        return found

    return told


def _settings(every: Sequence[Cell], fleet: Fleet) -> dict[str, str]:
    results = [result for cell in every for result in cell.results]
    names = varied_settings(results)
    mine = dict(fleet.settings)
    return {
        name: setting_words(name, [result.settings for result in results])(mine)
        for name in names
        if name in mine or name in ALWAYS
    }


def _plain(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if value is None:
        return "none"
    return value.replace(",", ", ") if isinstance(value, str) and value[:1] in ("{", "[") else str(value)
