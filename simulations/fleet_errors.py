"""What is wrong with a field of a fleet, for people: the field, what it must be, what it is, and how it is written.

Knows messages of msgspec and the fields that they are about. Never knows what a field means.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from simulations.fleet_tables import EXAMPLES

_KINDS: Final = {"int": "a whole number", "float": "a number", "str": "a word", "bool": "true or false"}
_BOUNDS: Final = {">=": "of at least", "<=": "of at most", ">": "above", "<": "below"}
_BOUND: Final = re.compile(r"Expected `(int|float)` (>=|<=|>|<) (\S+)")
_KIND: Final = re.compile(r"Expected `(int|float|str|bool)(?: \| null)?`, got `\w+`")
_SHAPE: Final = re.compile(r"Expected `(array|object)`, got `\w+`")
_LACKS: Final = re.compile(r"Object missing required field `(\w+)`")
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(\w+)`")
_STEP: Final = re.compile(r"[^.\[\]]+")


def said(error: Exception, fields: Mapping[str, Any]) -> str:
    """The field first, and then what it must be; ``fields`` are those that the error is about."""
    message, at, place = str(error).partition(" - at `$")
    if not at:
        return message
    field = place.rstrip("`").lstrip(".")
    told = _translated(message, field, _value(fields, field))
    return f"{field}: {told}" if field else told


def _translated(message: str, field: str, value: Any) -> str:
    if match := _BOUND.fullmatch(message):
        bound = float(match[3])
        shown = f"{bound:,.0f}" if bound >= 1 and bound == int(bound) else f"{bound:g}"
        return f"must be {_KINDS[match[1]]} {_BOUNDS[match[2]]} {shown}, got {value!r}"
    if match := _KIND.fullmatch(message):
        return f"must be {_KINDS[match[1]]}, got {value!r}"
    written = _written(field)
    if match := _SHAPE.fullmatch(message):
        return f"must be a {'list' if match[1] == 'array' else 'table'}{written}; got {value!r}"
    if match := _LACKS.fullmatch(message):
        return f"{match[1]} is missing{written}"
    if match := _UNKNOWN.fullmatch(message):
        return f"there is no field {match[1]}{written}"
    return message


def _written(field: str) -> str:
    name = next(iter(_STEP.findall(field)), "")
    return f": write it as in '{EXAMPLES[name]}'" if name in EXAMPLES else ""


def _value(fields: Mapping[str, Any], place: str) -> Any:
    """What was given there, as far as it can be found."""
    value: Any = fields
    for step in _STEP.findall(place):
        if isinstance(value, Mapping) and step in value:
            value = value[step]
        elif isinstance(value, Sequence) and step.isdigit() and int(step) < len(value):
            value = value[int(step)]
        else:
            return None
    return value
