"""Connectors that find each other by the request's id: it names the addresses of both replicas.

Knows the form of such an id (vLLM-router and vLLM's own proxies; ``parse_request_id`` <= 0.22, ``moriio_common`` 0.32), and the
parameters of MoRI-IO beside it. Clients may not send such ids, and never see them (``balancer.gateway.headers``).
"""

from typing import Any, ClassVar, Literal

import msgspec

from balancer.disaggregation.plan import (
    Answered,
    Leg,
    Pair,
    Plain,
    Side,
    connector,
    fields_of,
    lacks,
    wants_remote_decode,
    wants_remote_prefill,
)


def naming_both(pair: Pair) -> str | None:
    """The id; None where the settings do not say where the two are."""
    prefill, decode = pair.prefill.transfer.address, pair.decode.transfer.address
    if prefill is None or decode is None:
        return None
    return f"___prefill_addr_{prefill}___decode_addr_{decode}_{pair.number:032x}"


@connector("p2p_nccl")
class P2pNccl(Plain, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``P2pNcclConnector`` (vLLM 0.11 - 0.22): nothing but the id, the same one on both legs."""

    def prefill(self, pair: Pair, /) -> Leg:
        return Leg(request_id=naming_both(pair))

    def decode(self, pair: Pair, answered: Answered | None, /) -> Leg | None:
        request_id = naming_both(pair)
        return None if request_id is None else Leg(request_id=request_id)


@connector("moriio")
class MoriIo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``MoRIIOConnector``, in the mode in which the engines run (``read_mode`` of their extra config)."""

    shares: ClassVar[bool] = False
    tells_loaded: ClassVar[bool] = False
    chunk_tokens: ClassVar[int] = 1
    has_bootstrap: ClassVar[bool] = False
    frees_rejected: ClassVar[bool] = True

    mode: Literal["read", "write"] = "read"

    @property
    def is_concurrent(self) -> bool:
        """Whether the prefill engine writes: then it waits to hear where."""
        return self.mode == "write"

    def prefill(self, pair: Pair, /) -> Leg:
        other = _where(pair.decode) if self.is_concurrent else {}
        params = wants_remote_decode(
            transfer_id=pair.transfer_id,
            remote_dp_size=pair.decode.ranks,
            remote_tp_size=pair.decode.transfer.tp_size,
            **other,
        )
        return Leg(params, naming_both(pair), ends_by_length=True)

    def decode(self, pair: Pair, answered: Answered | None, /) -> Leg | None:
        side = pair.prefill
        common = {
            "transfer_id": pair.transfer_id,
            "remote_dp_size": side.ranks,
            "remote_tp_size": side.transfer.tp_size,
            "remote_dp_rank": side.rank,
            "remote_dp_rank_override": True,
        }
        if self.is_concurrent:
            nothing_yet = {"remote_engine_id": None, "remote_block_ids": None}
            return Leg(wants_remote_prefill(**common, **nothing_yet, **_where(side)), naming_both(pair))
        told = fields_of(None if answered is None else answered.params)
        if lacks(told, "remote_engine_id", "remote_block_ids"):
            return None
        return Leg({**common, **told, "transfer_id": pair.transfer_id}, naming_both(pair))


def _where(side: Side) -> dict[str, Any]:
    """The parts of ``host:IP,handshake:PORT,notify:PORT`` as parameters, for releases that take them instead of an id."""
    parts = dict(each.strip().partition(":")[::2] for each in (side.transfer.address or "").split(","))
    if not {"host", "handshake", "notify"} <= parts.keys():
        return {}
    return {
        "remote_host": parts["host"],
        "remote_handshake_port": parts["handshake"],
        "remote_notify_port": parts["notify"],
    }
