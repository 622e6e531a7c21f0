"""What an ``Exchange`` (``balancer.epp.stream``) orders, and what it is told in return.

Knows values. Never does any of it.
"""

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import msgspec

from balancer.core import Failure, Outcome, Truth
from balancer.epp.destinations import Place, Subset
from balancer.epp.messages import Kind, Mutation, streamed
from balancer.http.fields import Fields


class Placed(msgspec.Struct, frozen=True):
    """A request that was given a replica, and so is a lease.

    ``place`` is where that one listens, ``destination`` what the proxy is told of it. ``body`` is what it shall get in place of
    the body that was seen, None where none was; ``is_changed`` says whether it is another one. ``told`` is what the client
    may learn.
    """

    place: Place
    destination: str
    mutation: Mutation
    body: bytes | None
    is_changed: bool
    request_id: str
    told: Sequence[tuple[bytes, bytes]] = ()


# Orders


class Send(msgspec.Struct, frozen=True, gc=False):
    """One message."""

    data: bytes


class Give(msgspec.Struct, frozen=True, gc=False):
    """A body, back to a proxy that streams both ways, in pieces that it takes."""

    kind: Kind
    body: bytes
    is_last: bool

    def pieces(self, size: int) -> Iterator[bytes]:
        """Messages with at most so many bytes of it each; one at least."""
        end = len(self.body)
        for at in range(0, end or 1, size):
            yield streamed(self.kind, self.body[at : at + size], is_last=self.is_last and at + size >= end)


class Ask(msgspec.Struct, frozen=True):
    """Where this request shall go. ``body`` is None where there is one that could not be seen.

    ``is_too_large`` when it is more than is taken, and was let go.
    """

    method: str
    target: str
    fields: Fields
    body: bytes | None
    subset: Subset | None
    is_too_large: bool = False


class Unask(msgspec.Struct, frozen=True, gc=False):
    """Nobody waits for that any more."""


class Moved(msgspec.Struct, frozen=True, gc=False):
    """Somebody else answers than was chosen."""

    place: Place


class Started(msgspec.Struct, frozen=True, gc=False):
    """The prompt has been computed."""


class End(msgspec.Struct, frozen=True):
    """The lease is over. ``status`` is that of the answer, 0 where none came."""

    outcome: Outcome
    truth: Truth | None = None
    failure: Failure | None = None
    status: int = 0


class Close(msgspec.Struct, frozen=True, gc=False):
    """End the stream: in peace, so that the proxy goes on alone, or with the ``problem`` that it has caused."""

    problem: str = ""


Order: TypeAlias = Send | Give | Ask | Unask | Moved | Started | End | Close
