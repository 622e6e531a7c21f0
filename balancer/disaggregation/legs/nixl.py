"""NIXL: the decode engine reads the blocks (pull), or the prefill engine writes them (push).

Knows the parameters of vLLM's ``NixlConnector`` and ``NixlPushConnector`` (0.11 - 0.32). Whatever else a prefill answers
is passed on as it came: nearly every release has added a field.
"""

from typing import ClassVar

import msgspec

from balancer.disaggregation.plan import (
    Answered,
    Leg,
    Pair,
    Plain,
    connector,
    fields_of,
    lacks,
    wants_remote_decode,
    wants_remote_prefill,
)

_NEEDED = ("remote_engine_id", "remote_block_ids", "remote_host", "remote_port")
"""Without one of these the engine computes the whole prompt and only warns (vLLM 0.32, ``pull_scheduler``)."""

_WHERE = ("remote_engine_id", "remote_host", "remote_port", "remote_request_id", "tp_size", "pp_size", "dcp_size")


@connector("nixl")
class Nixl(Plain, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``NixlConnector``, also called ``NixlPullConnector``: the answer of the prefill leg is passed on, word for word."""

    frees_rejected: ClassVar[bool] = True

    def prefill(self, pair: Pair, /) -> Leg:
        nobody = dict.fromkeys(_NEEDED)
        return Leg(wants_remote_decode(**nobody))

    def decode(self, pair: Pair, answered: Answered | None, /) -> Leg | None:
        params = None if answered is None else answered.params
        told = fields_of(params)
        if params is None or lacks(told, *_NEEDED):
            return None
        return Leg(params)


@connector("nixl_push")
class NixlPush(Plain, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``NixlPushConnector``: the decode engine registers where it wants the blocks, and the prefill engine writes them there.

    vLLM 0.32 pairs the two by the request's id, so both legs have the same one, and a new one for each attempt; later
    releases by ``transfer_id``. The legs could run at once, but for the prefill's own address, which only its answers tell; it
    keeps the blocks for whoever registers later.
    """

    frees_rejected: ClassVar[bool] = True

    def prefill(self, pair: Pair, /) -> Leg:
        return Leg(wants_remote_decode(transfer_id=pair.transfer_id), pair.transfer_id)

    def decode(self, pair: Pair, answered: Answered | None, /) -> Leg | None:
        told = fields_of(None if answered is None else answered.params)
        if lacks(told, "remote_engine_id", "remote_host", "remote_port"):
            return None
        where = {name: told[name] for name in _WHERE if name in told}
        return Leg(wants_remote_prefill(**where, transfer_id=pair.transfer_id), pair.transfer_id)
