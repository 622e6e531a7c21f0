"""The pieces of a snapshot, and which of their values can be believed.

Values alone. Never knows how they become bytes, or what becomes of them (``indexer.snapshot``).
"""

from typing import Annotated, Final, TypeAlias

import msgspec

from indexer.errors import SnapshotError
from indexer.places import ReplicaId, Tier
from indexer.recognition import RecognitionImage
from indexer.stream import Position

MAGIC: Final = b"kvlbsnap"
VERSION: Final = 1
BEGINNING: Final = MAGIC + VERSION.to_bytes(2, "little")
MAX_SEQUENCE: Final = 2**63
"""Of batches; the wire has room for twice as many."""

MAX_KEYS: Final = 16_384
"""Keys in a frame: about 3 ms to write or to restore."""

MAX_FRAME: Final = 16 * 1024 * 1024
"""Bytes; a frame of keys that are all held by different halves of a thousand replicas has 2 MiB."""

Natural: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]


class ReplicaImage(msgspec.Struct, frozen=True):
    """One replica but for its blocks; ``notes`` are its owner's, who alone can read them."""

    replica: ReplicaId
    notes: bytes
    position: Position
    recognition: RecognitionImage


class Head(msgspec.Struct, frozen=True, tag="head"):
    created: float


class Owner(msgspec.Struct, frozen=True, tag="owner"):
    number: int
    image: ReplicaImage


class Names(msgspec.Struct, frozen=True, tag="names"):
    owner: int
    tier: Tier
    group: int
    names: list[bytes]
    keys: bytes
    copies: list[bytes]


class Table(msgspec.Struct, frozen=True, tag="table"):
    tier: Tier
    bits: list[tuple[int, Natural, Natural]]  # owner, number of its bit, blocks let go


class Keys(msgspec.Struct, frozen=True, tag="keys"):
    group: int
    keys: bytes
    sets: list[bytes]
    which: list[bytes]


class Copies(msgspec.Struct, frozen=True, tag="copies"):
    owner: int
    group: int
    keys: bytes
    copies: list[bytes]


class End(msgspec.Struct, frozen=True, tag="end"):
    checksum: int


Frame: TypeAlias = Head | Owner | Names | Table | Keys | Copies | End


def check(image: ReplicaImage) -> None:
    """What no kvlb writes must not reach an index: whoever divides by a block size or asks from a position would fail.

    Raises:
        SnapshotError: such a value.
    """
    position, recognition = image.position, image.recognition
    if not position.can_be_resumed or position.next_sequence > MAX_SEQUENCE or position.lost_batches < 0:
        raise SnapshotError(f"it is damaged: {position} of {image.replica} is no position")
    if recognition.learned is not None and recognition.learned.block_size < 1:
        raise SnapshotError(f"it is damaged: blocks of {recognition.learned.block_size} tokens of {image.replica}")
    if recognition.unplaced < 0 or any(spec.block_size < 0 for spec in recognition.groups.specs):
        raise SnapshotError(f"it is damaged: a negative number of {image.replica}")
