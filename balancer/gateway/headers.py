"""Which headers pass through, in which direction.

Knows HTTP's hop-by-hop rules (RFC 9110, section 7.6.1) and the headers that only kvlb may set. Everything else passes as it is,
repeated fields included.
"""

import secrets
from collections.abc import Iterable
from typing import Final

from multidict import CIMultiDict, CIMultiDictProxy

from balancer.core import Decision

HOP_BY_HOP: Final = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)

RANK: Final = "X-data-parallel-rank"
"""Read by vLLM >= 0.14; the rank is the router's to choose, so a client's own is dropped."""

NOT_TO_REPLICA: Final = HOP_BY_HOP | {"host", "content-length", "content-encoding", "expect", RANK.lower()}
"""``content-encoding`` because the body was decoded when it was read, ``expect`` because it was answered here."""


REQUEST_ID: Final = "x-request-id"
"""Names one request in the client's log, in ours and in the engine's (vLLM takes it for its own id)."""


def request_id(headers: CIMultiDictProxy[str]) -> str:
    """The client's own id of this request, as text that can be written anywhere, or a new one."""
    own = headers.get(REQUEST_ID)
    return own.encode(errors="backslashreplace").decode() if own else secrets.token_hex(16)


def named(headers: CIMultiDict[str], request_id: str) -> CIMultiDict[str]:
    """The same, with this id where they have none."""
    if not headers.get(REQUEST_ID):
        headers[REQUEST_ID] = request_id
    return headers


def to_replica(headers: CIMultiDictProxy[str], decision: Decision) -> CIMultiDict[str]:
    """The client's headers, as the chosen replica shall see them."""
    kept = _spelt_alike(_without(headers, NOT_TO_REPLICA))
    if decision.replica.ranks > 1:
        kept[RANK] = str(decision.replica.rank)
    return kept


def to_client(headers: CIMultiDictProxy[str], decision: Decision, *, expose: bool) -> CIMultiDict[str]:
    """The replica's headers, as the client shall see them; with ``expose``, also what was decided and why."""
    kept = _without(headers, HOP_BY_HOP)
    if expose:
        kept["x-kvlb-replica"] = decision.replica.id
        kept["x-kvlb-cached-tokens"] = str(decision.cached_tokens)
        kept["x-kvlb-prompt-tokens"] = str(decision.prompt_tokens)
        kept["x-kvlb-predicted"] = "exact" if decision.is_predicted else "unknown"
    return kept


def for_questions(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    """What goes along when a replica is asked something on behalf of a client: its credentials, and that we send JSON."""
    kept: CIMultiDict[str] = CIMultiDict()
    if "Authorization" in headers:
        kept["Authorization"] = headers["Authorization"]
    kept["Content-Type"] = "application/json"
    return kept


def _spelt_alike(headers: CIMultiDict[str]) -> CIMultiDict[str]:
    """The same, with repeated fields spelt as the first of them: of "x-a" and "X-A", aiohttp 3.14 sends only the last."""
    spelling: dict[str, str] = {}
    return CIMultiDict((spelling.setdefault(name.lower(), name), value) for name, value in headers.items())


def _without(headers: CIMultiDictProxy[str], dropped: Iterable[str]) -> CIMultiDict[str]:
    named = {name.strip().lower() for value in headers.getall("Connection", ()) for name in value.split(",")}
    gone = named.union(dropped)
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in gone)
