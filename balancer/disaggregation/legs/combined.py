"""Several connectors in one engine, as vLLM's ``MultiConnector`` has them.

Knows how their parameters are put together. Never knows what one of them means.
"""

from functools import cache
from typing import Any

import msgspec

from balancer.disaggregation.plan import Answered, Connector, Leg, Pair, connector, fields_of, make


@connector("multi")
class Multi(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``MultiConnector``: parameters are the union of all parts; the first one of the engine that finds anything loads it.

    ``of`` names the parts in the engine's order. A part that has nothing to fetch is left out, unless all are.
    """

    of: tuple[str, ...] = ("nixl", "shared")

    def __post_init__(self) -> None:
        if not self.of or "multi" in self.of:
            raise ValueError("of: name the connectors that the engines combine, like ['nixl', 'shared']")

    @property
    def _parts(self) -> list[Connector]:
        return [_made(name) for name in self.of]

    @property
    def is_concurrent(self) -> bool:
        return any(each.is_concurrent for each in self._parts)

    @property
    def shares(self) -> bool:
        return all(each.shares for each in self._parts)

    @property
    def tells_loaded(self) -> bool:
        return all(each.tells_loaded for each in self._parts)

    @property
    def chunk_tokens(self) -> int:
        return max(each.chunk_tokens for each in self._parts)

    @property
    def has_bootstrap(self) -> bool:
        return any(each.has_bootstrap for each in self._parts)

    @property
    def frees_rejected(self) -> bool:
        return any(each.frees_rejected for each in self._parts)

    def prefill(self, pair: Pair, /) -> Leg:
        return _together([each.prefill(pair) for each in self._parts])

    def decode(self, pair: Pair, answered: Answered | None, /) -> Leg | None:
        legs = [leg for each in self._parts if (leg := each.decode(pair, answered)) is not None]
        return _together(legs) if legs else None


@cache
def _made(name: str) -> Connector:
    return make(name)


def _together(legs: list[Leg]) -> Leg:
    params: dict[str, Any] = {}
    for leg in reversed(legs):  # where two say the same thing, the first one is right
        params |= fields_of(leg.params) if isinstance(leg.params, msgspec.Raw) else leg.params or {}
    return Leg(
        params or None,
        next((leg.request_id for leg in legs if leg.request_id is not None), None),
        ends_by_length=any(leg.ends_by_length for leg in legs),
    )
