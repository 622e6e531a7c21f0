"""Who may connect to where events are listened for.

Knows ZMQ's own question about every connection (ZAP, RFC 27 of ZeroMQ), which is asked before anything of it is read, and
addresses. Never knows what is sent. Lives in the reader's thread.
"""

import contextlib
import ipaddress
import logging
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

import zmq

from indexer.index import ReplicaId

log = logging.getLogger(__name__)

ENDPOINT: Final = "inproc://zeromq.zap.01"
"""Where ZMQ asks; one for each context."""

MAX_TOLD: Final = 1_000
"""Strangers of which the log is told."""

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


class Guard:
    """Answers for all sockets of a context that have a domain: the replica whose events they listen for."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]") -> None:
        self.socket = context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(ENDPOINT)
        self._allowed: dict[bytes, tuple[Network, ...]] = {}
        self._told: set[tuple[bytes, str]] = set()

    def allow(self, replica: ReplicaId, senders: Iterable[str]) -> None:
        """From now on, these addresses and networks may send the replica's events, and nobody else."""
        self._allowed[replica.encode()] = tuple(ipaddress.ip_network(each, strict=False) for each in senders)

    def forget(self, replica: ReplicaId) -> None:
        self._allowed.pop(replica.encode(), None)

    def answer(self) -> None:
        """Answer whatever has been asked."""
        with contextlib.suppress(zmq.Again):
            while True:
                envelope, _, version, request, domain, address, *_ = self.socket.recv_multipart(zmq.NOBLOCK)
                status = b"200" if self._may(domain, address.decode(errors="replace")) else b"400"
                self.socket.send_multipart([envelope, b"", version, request, status, b"", b"", b""], zmq.NOBLOCK)

    def _may(self, domain: bytes, address: str) -> bool:
        if is_among(address, self._allowed.get(domain, ())):
            return True
        if (domain, address) not in self._told and len(self._told) < MAX_TOLD:
            self._told.add((domain, address))
            log.warning(
                "%s: somebody at %s wants to send its events, and is refused; if that is the engine, add it to "
                "replicas.events_from",
                domain.decode(),
                address,
            )
        return False


def is_among(address: str, networks: Sequence[Network]) -> bool:
    """Whether the address is in one of the networks, in whichever way it is written."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(parsed, "ipv4_mapped", None)
    return any((mapped or parsed) in network for network in networks)
