"""What the supervisor and its children tell each other, over a pair of sockets that a child is born with.

Knows the messages. Never knows processes. A channel that ends is the end of the other side: a child whose supervisor has gone
ends what it has, and goes too.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import Final, Literal, TypeAlias

import msgspec

from balancer.processes.frames import HEAD_BYTES, FrameReader, ProtocolError, framed
from balancer.processes.link import Link
from balancer.settings import Settings

Role: TypeAlias = Literal["brain", "gateway"]


class Begin(msgspec.Struct, frozen=True, tag=True):
    """The first message to a child: what it is, and with what. ``number`` is its place among those of its role."""

    role: Role
    number: int
    settings: Settings
    folder: str
    """Where the sockets are."""
    listener: int | None
    """The file descriptor of the socket that a gateway listens at."""
    log_level: str
    log_format: str
    startup_timeout: float | None
    is_first: bool
    """Whether nobody has been at its place before."""
    picks: bool = False
    """Whether gateways are endpoint pickers, which forward nothing."""


class Retire(msgspec.Struct, frozen=True, tag=True):
    """Another gateway has taken over: end what is under way, and go."""


class Restarts(msgspec.Struct, frozen=True, tag=True):
    """How often a process of each role was started again; for the brain, which tells it to the metrics."""

    counts: dict[str, int]


class Ping(msgspec.Struct, frozen=True, tag=True):
    """Whether the child's loop turns; it says the same in return."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """A child serves."""


class GivesUp(msgspec.Struct, frozen=True, tag=True):
    """A child ends for something that the user has to mend; it has said what."""

    code: int


Message: TypeAlias = Begin | Retire | Restarts | Ping | Ready | GivesUp
_decoder: Final = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    return framed(msgspec.msgpack.encode(message))


def decode(data: bytes) -> Message:
    """Raises: ProtocolError: it is no message."""
    try:
        message: Message = _decoder.decode(data)
    except (msgspec.MsgspecError, ValueError) as error:
        raise ProtocolError(f"no message: {error}") from error
    return message


def read_begin(channel: socket.socket) -> Begin:
    """The first message, and not a byte beyond it, before there is a loop.

    Raises:
        ProtocolError: it is another one, or none.
    """
    reader = FrameReader()
    wanted = HEAD_BYTES
    while True:
        data = channel.recv(wanted)
        if not data:
            raise ProtocolError("the supervisor has gone")
        for each in reader.feed(data):
            message = decode(each)
            if not isinstance(message, Begin):
                raise ProtocolError(f"expected Begin, got {message}")
            return message
        wanted = reader.wanted


async def open_channel(
    end: socket.socket, receive: Callable[[Message], None], ended: Callable[[], None] = lambda: None
) -> Link:
    """A channel over this end, which belongs to it from now on."""
    loop = asyncio.get_running_loop()
    _, link = await loop.create_unix_connection(lambda: Link(lambda data: receive(decode(data)), ended), sock=end)
    return link
