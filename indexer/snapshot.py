"""The index as bytes and back: what one gateway knows of every cache, for the next one to go on from.

Knows the format, and what belongs to a replica: its blocks in every tier, how its keys are read, how far its events were
applied. Never knows files, sockets, clocks or what the notes of a replica say: the time comes in, and whoever restores
says which replicas are wanted. What comes back is what went in, or a ``SnapshotError``.

A snapshot is a head of ten bytes and frames: four bytes of length, then msgpack. The last frame has the checksum of all bytes
before it. Frames are small, so that both sides go piece by piece and never hold a second copy of the index:

    Head      when it was made
    Owner     one replica: its name, position in its event stream, how its keys are read
    Names     of a replica with learned keys, 8,192 blocks of one tier and group: names ascending, with keys and copies
    Table     from here on one tier: which bit is whose
    Keys      16,384 blocks of one group in the table's order, each with its bit set out of a list of those that occur
    Copies    of one replica and group, copies beyond the first
    End       the checksum

A hash takes its eight bytes, the bit set usually less than one; a learned block, whose name is in ascending order, some 14.7.
"""

import sys
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

import msgspec
import xxhash

from indexer.errors import SnapshotError
from indexer.frames import (
    BEGINNING,
    MAGIC,
    MAX_FRAME,
    MAX_KEYS,
    VERSION,
    Copies,
    End,
    Frame,
    Head,
    Keys,
    Names,
    Owner,
    ReplicaImage,
    Table,
    check,
)
from indexer.index import CacheIndex, ReplicaId, Tier, TierImage, TierIndex
from indexer.learned import LearnedBlocks, NamesImage
from indexer.packing import pack_small, pack_sorted, pack_words, unpack_small, unpack_sorted, unpack_words
from indexer.places import Piece

__all__ = ["MAGIC", "Image", "ReplicaImage", "Restoration", "Restored", "write"]


class Image(msgspec.Struct, frozen=True):
    """A copy of what is known at one moment; ``created`` in seconds since the epoch.

    ``names`` are those of replicas with learned keys: their blocks are told by them, and what ``tiers`` has of them is not.
    Writing uses it up.
    """

    created: float
    replicas: Sequence[ReplicaImage]
    names: dict[ReplicaId, deque[NamesImage]]
    tiers: Mapping[Tier, TierImage]


class Restored(msgspec.Struct, frozen=True):
    """A replica whose blocks are in an index again; ``learned`` has their names, if its keys are learned."""

    image: ReplicaImage
    learned: LearnedBlocks


# Writing --------------------------------------------------------------------------------------------------------------


def write(image: Image) -> Iterator[bytes]:
    """The bytes, in pieces of a few milliseconds each; what is written is taken out of the image."""
    digest = xxhash.xxh3_64()
    encode = msgspec.msgpack.Encoder().encode
    yield BEGINNING
    digest.update(BEGINNING)
    for frame in _frames(image):
        piece = _framed(encode(frame))
        digest.update(piece)
        yield piece
    yield _framed(encode(End(digest.intdigest())))


def _framed(data: bytes) -> bytes:
    return len(data).to_bytes(4, "little") + data


def _frames(image: Image) -> Iterator[Frame]:
    yield Head(image.created)
    owners: dict[ReplicaId, int] = {}
    for number, each in enumerate(image.replicas):
        try:
            check(each)
        except SnapshotError:  # whoever reads it would refuse the whole for the sake of one
            image.names.pop(each.replica, None)
            continue
        yield Owner(number, each)
        if each.recognition.learned is None:
            owners[each.replica] = number
        pieces = image.names.get(each.replica)
        while pieces:
            yield _names_frame(number, pieces.popleft())
    for tier, table in image.tiers.items():
        yield from _table_frames(tier, table, owners)


def _names_frame(owner: int, image: NamesImage) -> Names:
    keys = dict(zip(image.names, image.keys, strict=True))
    names = sorted(keys)  # within the frame: all of them at once would hold up a busy gateway
    copies = pack_small([image.copies.get(name, 0) for name in names]) if image.copies else []
    return Names(owner, image.tier, image.group, pack_sorted(names), pack_words(map(keys.__getitem__, names)), copies)


def _table_frames(tier: Tier, table: TierImage, owners: Mapping[ReplicaId, int]) -> Iterator[Frame]:
    slots = {replica: slot for replica, slot in table.replicas.items() if replica in owners}
    if not slots:
        return
    bits = [(owners[replica], slot.bit.bit_length() - 1, slot.let_go) for replica, slot in slots.items()]
    yield Table(tier, bits)
    told = sum(slot.bit for slot in slots.values())
    for group, pieces in table.groups.items():
        while pieces:
            frame = _keys_frame(group, pieces.popleft(), told)
            if frame is not None:
                yield frame
    for replica, slot in slots.items():
        for group, copies in slot.copies.items():
            rest = iter(copies.items())
            while some := dict(islice(rest, MAX_KEYS)):
                yield Copies(owners[replica], group, pack_words(some), pack_small(some.values()))


def _keys_frame(group: int, piece: Piece, told: int) -> Keys | None:
    """None when nobody holds any of them whose bit is told."""
    keys: Sequence[int] = piece.keys
    which: Sequence[int] = piece.which
    sets = [bits & told for bits in piece.sets]
    if 0 in sets:
        kept = [(key, at) for key, at in zip(keys, which, strict=True) if sets[at]]
        keys, which = [key for key, _ in kept], [at for _, at in kept]
    if not keys:
        return None
    return Keys(
        group=group,
        keys=pack_words(keys),
        sets=[bits.to_bytes((bits.bit_length() + 7) // 8, "little") for bits in sets],
        which=pack_small(which),
    )


# Reading --------------------------------------------------------------------------------------------------------------


class Restoration:
    """Bytes into an index, as they come. Changes with ``feed``; ``finish`` says that it was all.

    After an error the index has parts of a snapshot that cannot be trusted: they must be taken out again. ``is_wanted`` is
    asked for each replica; a snapshot made before ``oldest`` or after ``newest`` is refused, in seconds since the epoch.
    """

    def __init__(
        self,
        index: CacheIndex,
        is_wanted: Callable[[ReplicaId], bool],
        oldest: float,
        newest: float = sys.float_info.max,
    ) -> None:
        self.size = 0
        """Bytes so far."""
        self._index = index
        self._is_wanted = is_wanted
        self._oldest, self._newest = oldest, newest
        self._buffer = bytearray()
        self._digest = xxhash.xxh3_64()
        self._decode = msgspec.msgpack.Decoder(Frame).decode
        self._has_begun = False
        self._head: Head | None = None
        self._is_whole = False
        self._owners: dict[int, Restored | None] = {}
        self._table: TierIndex | None = None
        self._bits = _Bits({})

    def feed(self, data: bytes) -> None:
        """The next bytes.

        Raises:
            SnapshotError: it is no snapshot of this format, too old, or damaged.
        """
        self.size += len(data)
        self._buffer += data
        while (piece := self._next_piece()) is not None:
            if self._is_whole:
                raise SnapshotError("it is damaged: something follows its end")
            try:
                self._take(piece)
            except (msgspec.MsgspecError, ArithmeticError, LookupError, ValueError) as error:
                raise SnapshotError(f"it is damaged: {error}") from error

    def finish(self) -> list[Restored]:
        """The replicas that were wanted; their blocks are in the index.

        Raises:
            SnapshotError: the end is missing.
        """
        if not self._is_whole or self._buffer:
            raise SnapshotError("it is damaged: its end is missing" if self.size else "it is empty")
        return [restored for restored in self._owners.values() if restored is not None]

    @property
    def created(self) -> float:
        """When it was made, in seconds since the epoch."""
        return 0.0 if self._head is None else self._head.created

    def _next_piece(self) -> bytes | None:
        if not self._has_begun:
            length = len(BEGINNING)
        elif len(self._buffer) < 4:
            return None
        else:
            length = 4 + int.from_bytes(self._buffer[:4], "little")
            if length > MAX_FRAME:
                raise SnapshotError("it is damaged: a frame of impossible length")
        if len(self._buffer) < length:
            return None
        piece = bytes(self._buffer[:length])
        del self._buffer[:length]
        return piece

    def _take(self, piece: bytes) -> None:
        if not self._has_begun:
            self._begin(piece)
        else:
            frame = self._decode(memoryview(piece)[4:])
            if isinstance(frame, End):
                if frame.checksum != self._digest.intdigest():
                    raise SnapshotError("it is damaged: its checksum is another one")
                self._is_whole = True
                return
            self._restore(frame)
        self._digest.update(piece)

    def _begin(self, head: bytes) -> None:
        if not head.startswith(MAGIC):
            raise SnapshotError("it is no snapshot of kvlb")
        if head != BEGINNING:
            version = int.from_bytes(head[len(MAGIC) :], "little")
            raise SnapshotError(f"it is of format {version}, and this kvlb reads format {VERSION}")
        self._has_begun = True

    def _restore(self, frame: Frame) -> None:
        if isinstance(frame, Head):
            if frame.created < self._oldest:
                raise SnapshotError(f"it is {self._oldest - frame.created:.0f} s older than snapshots may be")
            if not frame.created <= self._newest:
                raise SnapshotError(f"it was made at {frame.created:g}, which has not come yet; compare the clocks")
            self._head = frame
        elif self._head is None:
            raise SnapshotError("it is damaged: its head is missing")
        else:
            match frame:
                case Owner():
                    self._owners[frame.number] = self._own(frame.image)
                case Names():
                    self._name(frame)
                case Table():
                    self._open(frame)
                case Keys():
                    self._store(frame)
                case Copies():
                    self._copy(frame)

    def _own(self, image: ReplicaImage) -> Restored | None:
        if not self._is_wanted(image.replica):
            return None
        check(image)
        self._index.add(image.replica)
        return Restored(image, LearnedBlocks())

    def _name(self, frame: Names) -> None:
        owner = self._owners[frame.owner]
        if owner is None:
            return
        keys = list(_words(frame.keys))  # the same integers for both: each is an object
        names, counts = unpack_sorted(frame.names, len(keys)), unpack_small(frame.copies, len(keys))
        copies = {name: count for name, count in zip(names, counts, strict=True) if count}
        owner.learned.restore(NamesImage(frame.tier, frame.group, names, keys, copies))
        table = self._index.tier(frame.tier)
        if table is not None:
            replica = owner.image.replica
            table.store(replica, frame.group, keys)
            for key, count in zip(keys, counts, strict=True):
                if count:
                    table.restore(replica, frame.group, (), {key: count})

    def _open(self, frame: Table) -> None:
        self._table = self._index.tier(frame.tier)
        bits: dict[int, int] = {}
        for number, bit, let_go in frame.bits:
            owner = self._owners[number]
            if owner is not None and self._table is not None:
                bits[bit] = self._table.bit(owner.image.replica)
                self._table.restore_let_go(owner.image.replica, let_go)
        self._bits = _Bits(bits)

    def _store(self, frame: Keys) -> None:
        if self._table is None:
            return
        keys = _words(frame.keys)
        which = unpack_small(frame.which, len(keys))
        self._table.restore_sets(frame.group, keys, which, [self._bits.translated(held) for held in frame.sets])

    def _copy(self, frame: Copies) -> None:
        owner = self._owners[frame.owner]
        if owner is not None and self._table is not None:
            keys = _words(frame.keys)
            copies = dict(zip(keys, unpack_small(frame.copies, len(keys)), strict=True))
            self._table.restore(owner.image.replica, frame.group, (), copies)


def _words(data: bytes) -> "array[int]":
    """The keys of one frame.

    Raises:
        SnapshotError: more than one frame has.
    """
    keys = unpack_words(data)
    if len(keys) > MAX_KEYS:
        raise SnapshotError(f"{len(keys)} keys in one frame")
    return keys


class _Bits(dict[int, int]):
    """A snapshot's bit sets as the table's own, a byte at a time: each byte's meaning is worked out once."""

    def __init__(self, bits: Mapping[int, int]) -> None:
        super().__init__()
        self._own = bits

    def __missing__(self, byte: int) -> int:
        at, value = byte >> 8 << 3, byte & 0xFF
        meaning = self[byte] = self._meaning(at, value)
        return meaning

    def _meaning(self, at: int, value: int) -> int:
        bits = 0
        for bit in range(8):
            if value >> bit & 1:
                bits |= self._own.get(at + bit, 0)
        return bits

    def translated(self, held: bytes) -> int:
        """The table's bit set."""
        bits = 0
        for at, value in enumerate(held):
            bits |= self[at << 8 | value]
        return bits
