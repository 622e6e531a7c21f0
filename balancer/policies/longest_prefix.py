"""Longest prefix: the replica that holds most of the prompt, whatever it has to do."""

from collections.abc import Sequence

import msgspec

from balancer.core import NOTHING_ASKED, Asked, Candidate
from balancer.policies.base import calmest, policy


@policy("longest_prefix")
class LongestPrefix(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Most cached tokens; of equals the fewest requests in flight.

    For comparison: where all prompts begin alike, whoever came first gets everything. ``counts_expected`` makes that worse, as
    the first burst is then enough.
    """

    counts_expected: bool = False

    def choose(self, candidates: Sequence[Candidate], draw: float, asked: Asked = NOTHING_ASKED, /) -> Candidate:
        return calmest(candidates, [-each.cached_tokens for each in candidates], draw)
