"""What a request must carry so that the engine loads what was planned, and no more.

Knows the fields of vLLM's OffloadingConnector in ``kv_transfer_params``, and which releases understand them. Never plans.

``kv_load_tiers`` (vllm#48123; read in 0.28 to 0.32) lists the secondary tiers that may be read, by medium and locality; the CPU
tier is always read. ``max_load_tokens`` (vllm#55885; in 0.31 and 0.32, not in 0.30; called experimental) is how many tokens may
be loaded beyond the engine's own hit, rounded down to a chunk. Other connectors and older engines load all that they find, and
pass over the fields.
"""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final

import msgspec

from balancer.economics.mix import Control, Mix, Source

TIERS_FIELD: Final = "kv_load_tiers"
LENGTH_FIELD: Final = "max_load_tokens"

CPU: Final = "CPU"
"""The medium of the tier that no filter leaves out."""

OFFLOADING: Final = "OffloadingConnector"

_FETCH_WHAT_IS_NAMED: Final = frozenset(
    {"NixlConnector", "NixlPullConnector", "NixlPushConnector", "MooncakeConnector"}
)
"""Beside it they change nothing: they bring what a request says that another engine has computed for it."""

_TOLD_SINCE: Final = ((0, 31), (0, 28))


class Tier(msgspec.Struct, frozen=True):
    """How an engine names a tier: a medium (``CPU``, ``STORAGE``), and where that is (``LOCAL``, ``REMOTE``), if it says so."""

    medium: str
    locality: str | None = None

    @property
    def is_optional(self) -> bool:
        """Whether a request can leave it out."""
        return self.medium != CPU

    def matches(self, other: "Tier") -> bool:
        """Whether a filter that names this tier lets the other one in; what is not said fits all."""
        return self.medium == other.medium and (
            self.locality is None or other.locality is None or self.locality == other.locality
        )


def offloads(connectors: AbstractSet[str]) -> bool:
    """Whether of these connectors of one engine none but the OffloadingConnector loads what it finds."""
    return OFFLOADING in connectors and not connectors - _FETCH_WHAT_IS_NAMED - {OFFLOADING}


def control_of(release: tuple[int, ...] | None, *, offloads: bool) -> Control:
    """What an engine of this release can be told; ``offloads``: its connector is the OffloadingConnector.

    Of a release that nobody knows nothing is expected.
    """
    if release is None or not offloads:
        return Control.NOTHING
    length, sources = _TOLD_SINCE
    return Control.LENGTH if release >= length else Control.SOURCES if release >= sources else Control.NOTHING


def hint(mix: Mix, sources: Sequence[Source], tiers: Mapping[str, Tier], control: Control) -> dict[str, Any]:
    """The fields for ``kv_transfer_params``; empty where the engine does by itself what was planned, or cannot be told.

    ``tiers`` names the tier of each source. Tiers that a filter cannot tell apart must have been one source.

    Raises:
        ValueError: they were not, and one of them was left out.
    """
    fields: dict[str, Any] = {}
    found = [source for source in sources if source.reach > mix.hit_tokens]
    if control is Control.LENGTH and mix.loaded_tokens < _all(mix, found):
        fields[LENGTH_FIELD] = mix.loaded_tokens
        if not mix.loaded_tokens:
            return fields  # no filter says more
    left_out = [source for source in found if source.optional and source.name not in mix.allowed]
    if control >= Control.SOURCES and left_out:
        allowed = [tiers[source.name] for source in sources if source.optional and source.name in mix.allowed]
        for source in left_out:
            if any(tier.matches(tiers[source.name]) for tier in allowed):
                raise ValueError(f"{source.name}: an engine cannot tell it from another tier that is to be read")
        fields[TIERS_FIELD] = [_matcher(tier) for tier in allowed]
    return fields


def guarded(
    fields: dict[str, Any], mix: Mix | None, tiers: Mapping[str, Tier], poor: AbstractSet[str], control: Control
) -> dict[str, Any]:
    """These fields, and where they say nothing yet: what keeps the engine from loading more than was planned from poor places.

    What a prompt is thought to hit may be gone when its turn comes, and stores fill meanwhile: an engine that is told nothing
    then loads all of it, over whatever link. ``tiers`` names all that it may read from, ``poor`` those from which nobody would
    load the prompt if the GPU had nothing of it. A length counts from the engine's own hit, wherever that ends; so it is told
    only where no place is worth more.
    """
    if fields or not poor or control is Control.NOTHING:
        return fields
    good = [tier for name, tier in tiers.items() if name not in poor]
    is_planned = mix is not None and any(load.source in poor for load in mix.loads)
    left_out = [tiers[name] for name in poor]
    if not is_planned and all(each.is_optional and not any(tier.matches(each) for tier in good) for each in left_out):
        return {TIERS_FIELD: [_matcher(tier) for tier in good if tier.is_optional]}
    if control is Control.LENGTH and not good:
        return {LENGTH_FIELD: 0 if mix is None else mix.loaded_tokens}
    return fields


def forbids(fields: Mapping[str, Any], tiers: Iterable[Tier]) -> bool:
    """Whether an engine that is told this loads nothing of these tiers, whatever it finds there."""
    return fields.get(LENGTH_FIELD) == 0 or (fields.get(TIERS_FIELD) == [] and all(tier.is_optional for tier in tiers))


def _all(mix: Mix, found: Sequence[Source]) -> int:
    """Tokens that the engine would load from the sources that it may read."""
    reach = (source.reach for source in found if not source.optional or source.name in mix.allowed)
    return max(reach, default=mix.hit_tokens) - mix.hit_tokens


def _matcher(tier: Tier) -> dict[str, str]:
    return {"medium": tier.medium} if tier.locality is None else {"medium": tier.medium, "locality": tier.locality}
