"""Which headers pass through, in which direction.

Knows the headers that only kvlb may set, beside HTTP's hop-by-hop rules (``balancer.http.fields``). Everything else passes as
it is, repeated fields included.
"""

import math
import random

from balancer.core import Decision
from balancer.errors import BadRequest
from balancer.header_names import (
    MAX_WAIT,
    NOT_TO_CLIENT,
    NOT_TO_REPLICA,
    NOT_TO_STRANGER,
    RANK,
    REQUEST_ID,
    exposed,
    steers,
)
from balancer.http.fields import Fields, Named, end_to_end, lines
from balancer.trace_context import TRACEPARENT, TraceContext


def text(named: Named, name: bytes) -> str:
    """The value of a header (its name given in lower case), empty where there is none; what is no text becomes surrogates."""
    return named.get(name, b"").decode(errors="surrogateescape")


def request_id(named: Named) -> str:
    """The client's own id of this request, as text that can be written anywhere, or a new one."""
    own = named.get(REQUEST_ID)
    if not own or steers(own):
        return f"{random.getrandbits(128):032x}"
    return own.decode(errors="surrogateescape").encode(errors="backslashreplace").decode()


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
        kept += exposed(decision, prefill)
    return lines(kept)


def _kept(fields: Fields, dropped: frozenset[bytes], request_id: str) -> list[tuple[bytes, bytes]]:
    """Those that go on (``balancer.http.fields.end_to_end``), with this id where they have none."""
    kept, is_named = [], False
    for field in end_to_end(fields, dropped):
        if len(field[0]) == len(REQUEST_ID) and field[0].lower() == REQUEST_ID and not is_named:
            is_named = True
            if not field[1] or steers(field[1]):
                field = (field[0], request_id.encode())  # noqa: PLW2901 - the others go on as they are
        kept.append(field)
    if not is_named:
        kept.append((REQUEST_ID, request_id.encode()))
    return kept
