"""What becomes of a request's headers, and of an answer's, on their way through the proxy.

Knows which headers are kvlb's alone (``balancer.header_names``): no client says to a replica where to connect, and no replica
says to a client what was decided. Hop-by-hop headers and framing are the proxy's own. Never knows bodies.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from balancer.core import Decision
from balancer.epp.destinations import DESTINATION
from balancer.epp.messages import Mutation
from balancer.header_names import EXPOSED, MAX_WAIT, RANK, REQUEST_ID, ROUTING
from balancer.http.fields import Fields

PREFILLER: Final = b"x-prefiller-host-port"
"""Names the replica that computes the prompt, to the sidecar before the one that answers (llm-d-router 0.10)."""

KEPT_BACK: Final = ROUTING | EXPOSED | {MAX_WAIT}

_DESTINATION: Final = DESTINATION.encode()
_AUTHORIZATION: Final = b"authorization"
_ENCODING: Final = b"content-encoding"
_RANK: Final = RANK.lower()


class Said(msgspec.Struct, frozen=True):
    """What kvlb says in a request's headers, besides where it goes.

    ``kept_back`` go no further, ``key`` is an ``Authorization`` for replicas, ``more`` are headers that are set.
    ``names_request`` when the request's own id is none that may go on.
    """

    request_id: str
    names_request: bool
    kept_back: frozenset[bytes] = frozenset()
    key: bytes | None = None
    more: Sequence[tuple[bytes, bytes]] = ()
    is_unpacked: bool = False


def of_request(fields: Fields, destination: str, decision: Decision, said: Said, prefiller: str | None) -> Mutation:
    """What becomes of a request's headers (names in lower case) that goes to ``destination``."""
    made = [(_DESTINATION, destination.encode()), *said.more]
    if decision.replica.ranks > 1:
        made.append((_RANK, b"%d" % decision.replica.rank))
    if prefiller is not None:
        made.append((PREFILLER, prefiller.encode()))
    if said.key is not None:
        made.append((_AUTHORIZATION, said.key))
    if said.names_request:
        made.append((REQUEST_ID, said.request_id.encode()))
    dropped = KEPT_BACK | said.kept_back
    if said.is_unpacked:
        dropped |= {_ENCODING}
    is_set = {name for name, _ in made}
    gone = {name for name, _ in fields if name in dropped and name not in is_set}
    return Mutation(made, sorted(gone))


def of_answer(fields: Fields, request_id: str, told: Sequence[tuple[bytes, bytes]], *, expose: bool) -> Mutation:
    """What becomes of an answer's headers; with ``expose``, ``told`` is what the client learns of the decision."""
    made = list(told) if expose else []
    names = {name for name, _ in fields}
    if REQUEST_ID not in names:
        made.append((REQUEST_ID, request_id.encode()))
    is_set = {name for name, _ in made}
    return Mutation(made, sorted(name for name in names if name in KEPT_BACK and name not in is_set))
