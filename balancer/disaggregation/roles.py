"""What a replica is for where prefill and decode are apart, and how another one reaches its cache.

Knows names and addresses. Never knows a request: which part of one goes where is the router's to say.
"""

from enum import StrEnum
from typing import Final

import msgspec

PREFILL_SESSION: Final = 1 << 40
"""Tells the conversations of prefill replicas from those of decode replicas: each has a replica of each kind."""


class Role(StrEnum):
    """Which parts of requests a replica is sent."""

    PREFILL = "prefill"  # computes prompts for others, and answers nobody
    DECODE = "decode"  # answers, with a prompt that another one has computed where that is worth it
    BOTH = "both"  # answers what it is sent by itself, and computes prompts for those that only decode


class Part(StrEnum):
    """What of a request is to be sent somewhere."""

    WHOLE = "whole"  # all of it; its prompt may be computed by somebody else
    ALONE = "alone"  # all of it, by one replica
    PREFILL = "prefill"  # its prompt, for whoever answers


def takes(role: Role, part: Part) -> bool:
    """Whether a replica with this role may be sent this part."""
    return role is not (Role.DECODE if part is Part.PREFILL else Role.PREFILL)


class Transfer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How other replicas reach this one's cache, as far as its connector does not tell by itself."""

    bootstrap: str | None = None
    """Mooncake: a prefill engine's bootstrap server, such as http://10.0.0.1:8998 (VLLM_MOONCAKE_BOOTSTRAP_PORT)."""
    address: str | None = None
    """P2pNccl: IP:PORT; MoRI-IO: host:IP,handshake:PORT,notify:PORT. Both name the two replicas in the request's id."""
    tp_size: int = 1
    """MoRI-IO: tensor-parallel ranks of the replica."""


NO_TRANSFER = Transfer()
