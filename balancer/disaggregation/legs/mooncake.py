"""Mooncake: both legs are sent at once, and the prefill engine writes the blocks when both are there.

Knows the parameters of vLLM's ``MooncakeConnector`` (>= 0.18). Never asks a bootstrap server: engine ids come with the pair.
"""

from typing import ClassVar

import msgspec

from balancer.disaggregation.plan import (
    Answered,
    Leg,
    Pair,
    Plain,
    connector,
    wants_remote_decode,
    wants_remote_prefill,
)


@connector("mooncake")
class Mooncake(Plain, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``MooncakeConnector``. Blocks of a prefill that ends by itself are dropped, and the decode engine would wait in vain."""

    is_concurrent: ClassVar[bool] = True
    has_bootstrap: ClassVar[bool] = True

    def prefill(self, pair: Pair, /) -> Leg:
        return Leg(wants_remote_decode(transfer_id=pair.transfer_id), ends_by_length=True)

    def decode(self, pair: Pair, answered: Answered | None, /) -> Leg | None:
        side = pair.prefill
        if side.engine_id is None or side.transfer.bootstrap is None:
            return None
        return Leg(
            wants_remote_prefill(
                transfer_id=pair.transfer_id,
                remote_engine_id=side.engine_id,
                remote_bootstrap_addr=side.transfer.bootstrap,
            )
        )
