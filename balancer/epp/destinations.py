"""Which endpoints a proxy means, and how it is told of one.

Knows addresses as the Gateway API Inference Extension writes them (``ip:port``, lists of them, a bare IP for all its ports), in
metadata and in headers. Never asks a name server.
"""

import ipaddress
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from balancer.addresses import shown
from balancer.epp.messages import HINTS, NAMESPACE
from balancer.http.fields import Fields
from indexer.index import ReplicaId

DESTINATION: Final = "x-gateway-destination-endpoint"
"""Of the header and of the key in metadata; both have to say the same."""

SUBSET: Final = "x-gateway-destination-endpoint-subset"
SERVED: Final = "x-gateway-destination-endpoint-served"

_SUBSET_HEADER: Final = SUBSET.encode()
_SERVED_HEADER: Final = SERVED.encode()


class Place(msgspec.Struct, frozen=True):
    """Where a replica listens, as a proxy names it: an IP, without brackets, and a port."""

    ip: str
    port: int

    def __str__(self) -> str:
        return shown(self.ip, self.port)


class Subset(msgspec.Struct, frozen=True):
    """The endpoints that may be chosen; a port of 0 stands for all ports of its IP."""

    places: frozenset[Place]

    def has(self, place: Place) -> bool:
        return place in self.places or Place(place.ip, 0) in self.places


def read_place(told: str) -> Place | None:
    """``ip:port``, ``[ip]:port`` or a bare IP (port 0); None where it is none of them."""
    told = told.strip()
    ip = _ip(told)
    if ip is not None:
        return Place(ip, 0)
    host, colon, port = told.rpartition(":")
    if not colon or not (port.isascii() and port.isdecimal() and len(port) <= 5) or not 0 < int(port) < 65536:
        return None
    ip = _ip(host[1:-1]) if host.startswith("[") and host.endswith("]") else _ip(host) if ":" not in host else None
    return None if ip is None else Place(ip, int(port))


def _ip(host: str) -> str | None:
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return None
    return str(getattr(ip, "ipv4_mapped", None) or ip)


def subset(metadata: Mapping[str, Mapping[str, Any]], fields: Fields, *, with_header: bool) -> Subset | None:
    """Whom the proxy would have chosen from; None where it does not say, and an empty one where it knows nobody.

    The header counts where metadata say nothing: a proxy's metadata cannot be a client's.
    """
    told = metadata.get(HINTS, {}).get(SUBSET)
    if told is None and with_header:
        values = [value.decode("latin-1") for name, value in fields if name == _SUBSET_HEADER]
        told = ",".join(values) if values else None
    if told is None:
        return None
    entries = [each for each in told if isinstance(each, str)] if isinstance(told, list) else str(told).split(",")
    return Subset(frozenset([place for each in entries if (place := read_place(each)) is not None]))


def served(metadata: Mapping[str, Mapping[str, Any]], fields: Fields) -> Place | None:
    """Who has answered, as far as the proxy says: by metadata, or by a header that its route adds to answers."""
    told = metadata.get(NAMESPACE, {}).get(SERVED)
    if told is None:
        told = next((value.decode("latin-1") for name, value in fields if name == _SERVED_HEADER), None)
    found = read_place(told) if isinstance(told, str) else None
    return found if found is None or found.port else None


def listed(places: Sequence[Place], limit: int) -> str:
    """What the proxy is told: the chosen place, and at most so many others behind it, each once."""
    return ",".join(map(str, list(dict.fromkeys(places))[: limit + 1]))


def outside(places: Mapping[ReplicaId, Place | None], allowed: Subset) -> Collection[ReplicaId]:
    """The names of those that may not be chosen."""
    return [name for name, place in places.items() if place is None or not allowed.has(place)]
