"""Which headers pass through, in which direction.

Knows the headers that only kvlb may set, beside HTTP's hop-by-hop rules (``balancer.http.fields``). Everything else passes as
it is, repeated fields included.
"""

import math
import random
from typing import Final

from balancer.core import Decision
from balancer.errors import BadRequest
from balancer.http.fields import Fields, Named, end_to_end, lines
from balancer.http.relay import FRAMING
from balancer.trace_context import TRACEPARENT, TraceContext

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


def text(named: Named, name: bytes) -> str:
    """The value of a header (its name given in lower case), empty where there is none; what is no text becomes surrogates."""
    return named.get(name, b"").decode(errors="surrogateescape")


def request_id(named: Named) -> str:
    """The client's own id of this request, as text that can be written anywhere, or a new one."""
    own = named.get(REQUEST_ID)
    if not own or _steers(own):
        return f"{random.getrandbits(128):032x}"
    return own.decode(errors="surrogateescape").encode(errors="backslashreplace").decode()


def _steers(own: bytes) -> bool:
    return any(mark in own for mark in STEERING_IDS)


def max_wait(named: Named) -> float:
    """Seconds that the request may wait for a place, as far as the client says; endless where it does not.

    Raises:
        BadRequest: what it says is no such number.
    """
    told = named.get(MAX_WAIT)
    if told is None:
        return math.inf
    try:
        seconds = float(told)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise BadRequest(
            f"{MAX_WAIT.decode()}: {text(named, MAX_WAIT)[:40]!r} is no number of seconds; give one like 2.5"
        )
    return seconds


def to_replica(
    fields: Fields,
    decision: Decision,
    request_id: str,
    kept_back: frozenset[bytes] = frozenset(),
    key: bytes | None = None,
    span: TraceContext | None = None,
    leg_id: str | None = None,
) -> bytes:
    """The lines of the client's headers, as the chosen replica shall see them.

    ``key`` is an ``Authorization`` of ours, ``span`` what the replica works within, if anyone traces. ``leg_id`` goes before
    any id that the client has given.
    """
    if leg_id is not None:
        request_id, kept_back = leg_id, kept_back | {REQUEST_ID}
    kept = _kept(fields, NOT_TO_REPLICA | kept_back if kept_back else NOT_TO_REPLICA, request_id)
    if key is not None:
        kept.append((b"Authorization", key))
    if span is not None:
        kept.append((TRACEPARENT, span.header()))
    if decision.replica.ranks > 1:
        kept.append((RANK, b"%d" % decision.replica.rank))
    return lines(kept)


def to_client(
    fields: Fields,
    decision: Decision,
    request_id: str,
    *,
    expose: bool,
    prefill: Decision | None = None,
    has_leg_id: bool = False,
) -> bytes:
    """The lines of the replica's headers, as the client shall see them; with ``expose``, also what was decided and why.

    ``prefill`` is the decision for the prompt where another replica has computed it, and what of it was cached. With
    ``has_leg_id`` an id that the replica names is none of the client's.
    """
    dropped = NOT_TO_CLIENT if expose else NOT_TO_STRANGER
    kept = _kept(fields, dropped | {REQUEST_ID} if has_leg_id else dropped, request_id)
    if expose:
        seen = prefill or decision
        kept += [
            (b"x-kvlb-replica", decision.replica.id.encode()),
            (b"x-kvlb-cached-tokens", b"%d" % seen.cached_tokens),
            (b"x-kvlb-prompt-tokens", b"%d" % seen.prompt_tokens),
            (b"x-kvlb-predicted", b"exact" if seen.is_predicted else b"unknown"),
        ]
        if prefill is not None:
            kept.append((PREFILL, prefill.replica.id.encode()))
    return lines(kept)


def _kept(fields: Fields, dropped: frozenset[bytes], request_id: str) -> list[tuple[bytes, bytes]]:
    """Those that go on (``balancer.http.fields.end_to_end``), with this id where they have none."""
    kept, is_named = [], False
    for field in end_to_end(fields, dropped):
        if len(field[0]) == len(REQUEST_ID) and field[0].lower() == REQUEST_ID and not is_named:
            is_named = True
            if not field[1] or _steers(field[1]):
                field = (field[0], request_id.encode())  # noqa: PLW2901 - the others go on as they are
        kept.append(field)
    if not is_named:
        kept.append((REQUEST_ID, request_id.encode()))
    return kept
