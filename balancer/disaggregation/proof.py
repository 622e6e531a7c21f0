"""Whether a decode replica has fetched what was computed for it: results are right either way, so nobody else would notice.

Knows what the two engines have counted, and what could have come between. Never knows a clock.
"""

import msgspec

from balancer.core import Replica
from balancer.disaggregation.counts import Miss


class Proof(msgspec.Struct, frozen=True):
    """What was to be fetched and what the engine says it had, in tokens; ``miss`` is why that is less, None if it is not."""

    expected: int
    fetched: int
    miss: Miss | None


def prove(
    prefill: Replica,
    decode: Replica,
    prompt_tokens: int,
    held: int,
    cached_tokens: int,
    prefill_tokens: int | None,
    chunk_tokens: int = 1,
) -> Proof:
    """Compare what a decode leg's answer says with what was to be there.

    Of ``prompt_tokens`` the decode replica held ``held`` itself; its answer says ``cached_tokens``. ``prefill_tokens`` is how
    long the prompt of the prefill leg was. The last token is always computed anew, and what is fetched may end with a block, or
    with the last whole chunk of ``chunk_tokens``.
    """
    block = max(_block_size(prefill), _block_size(decode), chunk_tokens)
    expected = max(0, prompt_tokens - held)
    fetched = min(expected, max(0, cached_tokens - held))
    if held + fetched >= prompt_tokens - block:
        return Proof(expected, fetched, None)
    return Proof(expected, fetched, _cause(prefill, decode, prompt_tokens, fetched, prefill_tokens))


def _cause(prefill: Replica, decode: Replica, prompt_tokens: int, fetched: int, prefill_tokens: int | None) -> Miss:
    if prefill_tokens is not None and prefill_tokens != prompt_tokens:
        return Miss.PREFILL
    if not set(prefill.base_models) & set(decode.base_models):
        return Miss.MODEL
    if prefill.recipe is not None and decode.recipe is not None and _block_size(prefill) != _block_size(decode):
        return Miss.BLOCK_SIZE
    return Miss.PART if fetched else Miss.WHOLE


def _block_size(replica: Replica) -> int:
    return replica.recipe.block_size if replica.recipe is not None else 1
