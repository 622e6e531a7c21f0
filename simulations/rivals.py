"""Fields of a fleet that say the same, each in its own words: whoever says one has said the other.

Knows their names, and layers of fields of which the upper one counts. Never knows what a fleet does with them.
"""

from collections.abc import Container, Iterable, Mapping
from typing import Any, Final

from balancer.errors import ConfigError

SAME: Final = (
    ("cache", "blocks", "how much a cache holds"),
    ("load", "rate", "how fast requests come"),
    ("decode_ms", "decode_seconds", "how long a token of an answer takes"),
    ("decode_ms", "latency", "how long a token of an answer takes"),
    ("prefill_tps", "latency", "how fast prompts are computed"),
)
"""Two fields, and what both say."""


def rivals(field: str) -> set[str]:
    """The field, and all that say the same."""
    return {field, *(name for pair in SAME if field in pair[:2] for name in pair[:2])}


def subject(one: str, other: str) -> str | None:
    """What both fields say; None where they say different things."""
    return next((about for *pair, about in SAME if {one, other} == set(pair)), None)


def below(fields: Mapping[str, Any], above: Iterable[str]) -> dict[str, Any]:
    """Of these fields, what is left beneath a layer in which others are said."""
    said = {name for field in above for name in rivals(field)}
    return {field: value for field, value in fields.items() if field not in said}


def refuse_rivals(fields: Container[str]) -> None:
    """Refuse fields of one and the same layer that say the same.

    Raises:
        ConfigError: two of them do.
    """
    for one, other, about in SAME:
        if one in fields and other in fields:
            raise ConfigError(f"fleet.{one}: give either {one} or {other}, not both; both say {about}")
