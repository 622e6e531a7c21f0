"""Headers that are kvlb's to set or to keep back, by their names in lower case.

Knows names, and what clients are told of a decision. Never knows by which way a request goes: the gateway keeps the same ones
back as the endpoint picker.
"""

from typing import Final

from balancer.core import Decision
from balancer.http.relay import FRAMING

RANK: Final = b"X-data-parallel-rank"
"""Read by vLLM >= 0.14; the rank is the router's to choose, so a client's own is dropped."""

MAX_WAIT: Final = b"x-kvlb-max-wait"
"""Seconds that the client would have its request wait for a place, if that is less than the settings say."""

ROUTING: Final = frozenset(
    b"x-data-parallel-rank x-prefiller-host-port x-prefiller-hosts-ports x-prefiller-url x-encoder-hosts-ports "
    b"x-gateway-destination-endpoint x-gateway-destination-endpoint-subset x-gateway-destination-endpoint-served "
    b"routing-strategy".split()
)
"""By these, engines and the sidecars of other gateways are told where to connect and who shall answer: no client may say it."""

PREFILL: Final = b"x-kvlb-prefill"
"""Names the replica that computed the prompt, where it was another one."""

EXPOSED: Final = frozenset(
    {b"x-kvlb-replica", b"x-kvlb-cached-tokens", b"x-kvlb-prompt-tokens", b"x-kvlb-predicted", PREFILL}
)

NOT_TO_REPLICA: Final = FRAMING | ROUTING | EXPOSED | {MAX_WAIT, b"host", b"content-encoding", b"expect", b"origin"}
"""``content-encoding`` because the body was decoded when it was read, ``expect`` because it was answered here, and ``origin``
because engines have rules of their own for browsers."""

NOT_TO_CLIENT: Final = FRAMING | EXPOSED
NOT_TO_STRANGER: Final = NOT_TO_CLIENT | {b"server"}

STEERING_IDS: Final = (b"___prefill_addr_", b"___decode_addr_")
"""In a request's id these name hosts, to which engines with some connectors connect (vLLM: P2pNccl <= 0.22, MoRIIO)."""

REQUEST_ID: Final = b"x-request-id"
"""Names one request in the client's log, in ours and in the engine's (vLLM takes it for its own id)."""


def steers(own: bytes) -> bool:
    """Whether the id that a client gives its request would have an engine connect somewhere."""
    return any(mark in own for mark in STEERING_IDS)


def exposed(decision: Decision, prefill: Decision | None = None) -> list[tuple[bytes, bytes]]:
    """What a client is told of a decision that may know the fleet; ``prefill`` as in ``balancer.gateway.headers.to_client``."""
    seen = prefill or decision
    told = [
        (b"x-kvlb-replica", decision.replica.id.encode()),
        (b"x-kvlb-cached-tokens", b"%d" % seen.cached_tokens),
        (b"x-kvlb-prompt-tokens", b"%d" % seen.prompt_tokens),
        (b"x-kvlb-predicted", b"exact" if seen.is_predicted else b"unknown"),
    ]
    if prefill is not None:
        told.append((PREFILL, prefill.replica.id.encode()))
    return told
