"""What a question carries in its address.

Knows the names of parameters and what they may be. Never knows what is asked for.
"""

from collections.abc import Mapping
from typing import overload

from balancer.errors import BadRequest


@overload
def limit(query: Mapping[str, str], default: int) -> int: ...


@overload
def limit(query: Mapping[str, str]) -> int | None: ...


def limit(query: Mapping[str, str], default: int | None = None) -> int | None:
    """How many entries are wanted at most.

    Raises:
        BadRequest: it is no such number.
    """
    text = query.get("limit")
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise BadRequest(f"limit: {text[:20]!r} is not a number from 0 on; give one such as 100", param="limit")
    return int(text)
