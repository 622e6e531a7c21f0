"""What one gateway leaves to the next: taken out of a router, and put into another one's.

Knows the router and what a snapshot may be believed for: a replica of this fleet that is still what it was, and whose publisher
can say whether it is still in the same life. Never knows files, sockets or clocks. Between calls: what is restored of a replica
is in the index; until the replica is known it waits among ``waiting``, and no request can find it.
"""

import sys
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from typing import Final
from urllib.parse import urlsplit

import msgspec

from balancer.core import Replica
from balancer.facts import MAX_RANKS, Described
from balancer.knowledge import Losses
from balancer.router import Router
from indexer.errors import SnapshotError
from indexer.index import ReplicaId
from indexer.learned import NamesImage
from indexer.snapshot import Image, ReplicaImage, Restoration, Restored
from indexer.stream import Position


class _Notes(msgspec.Struct, frozen=True):
    """What a router has to know of a replica besides its blocks and its events."""

    identity: str
    losses: Losses


class Handover:
    """Both sides of it. Changes with ``accept``, ``adopt``, ``drop`` and ``drop_all``.

    ``endpoints`` are the fleet's URLs: what a snapshot says of others is passed over. None where others may yet be found.
    """

    def __init__(self, router: Router, endpoints: Iterable[str] | None) -> None:
        self.waiting: dict[ReplicaId, Restored] = {}
        self._router = router
        self._has_accepted = False
        self._adopted: set[ReplicaId] = set()
        self._hosts = None if endpoints is None else {urlsplit(url).netloc for url in endpoints}

    # Taking

    def take(self, now: float) -> Generator[None, None, Image]:
        """A copy of what is known, made in slices of a few milliseconds; ``now`` in seconds since the epoch.

        Until it is made no events may be applied. Left out are replicas whose publisher could not be asked later on whether
        all this still holds, and those of which nothing has shown yet how their keys are to be read.
        """
        router = self._router
        while router.caches.index.has_retired:  # else sweeping would change the tables between two slices
            router.caches.index.sweep()
            yield
        images: dict[ReplicaId, ReplicaImage] = {}
        names: dict[ReplicaId, deque[NamesImage]] = {}
        for live in list(router.fleet):
            image = self._image(live.replica)
            if image is not None:
                images[image.replica] = image
                names[image.replica] = yield from router.caches.recognitions[image.replica].learned.export()
        for replica, restored in list(self.waiting.items()):
            images[replica] = restored.image
            names[replica] = yield from restored.learned.export()
        tables = {}
        for tier, table in list(router.caches.index.tiers.items()):
            tables[tier] = yield from table.export()
        still = {*self.waiting, *(live.replica.id for live in router.fleet)}
        return Image(now, [image for replica, image in images.items() if replica in still], names, tables)

    def _image(self, replica: Replica) -> ReplicaImage | None:
        router = self._router
        if replica.id not in router.caches.recognitions:  # removed since the first slice
            return None
        position, recognition = (
            router.caches.positions.get(replica.id, Position()),
            router.caches.recognitions[replica.id].export(),
        )
        if recognition is None or not position.can_be_resumed:
            return None
        notes = _Notes(identity(replica), router.caches.losses[replica.id])
        return ReplicaImage(replica.id, msgspec.msgpack.encode(notes), position, recognition)

    # Restoring

    def restoration(self, oldest: float, newest: float = sys.float_info.max) -> Restoration:
        """What fills the router's index with a snapshot's bytes, before any replica is known.

        ``oldest`` and ``newest`` are in seconds since the epoch. End it with ``accept`` or ``abandon``.
        """
        index = self._router.caches.index
        assert not index.replicas, "a snapshot is restored into an empty index"
        return Restoration(index, self._is_wanted, oldest, newest)

    def _is_wanted(self, replica: ReplicaId) -> bool:
        host, _, rank = replica.partition("#")
        return (self._hosts is None or host in self._hosts) and (not rank or rank in _RANKS)

    def accept(self, restored: Sequence[Restored]) -> int:
        """All of it has come; returns the blocks that are in the index now.

        Raises:
            SnapshotError: there is nothing in it for this fleet.
        """
        if not restored:
            raise SnapshotError("it has no replica of this fleet")
        try:
            for each in restored:
                msgspec.msgpack.decode(each.image.notes, type=_Notes)
        except msgspec.MsgspecError as error:
            raise SnapshotError(f"it is of another kvlb: {error}") from error
        self.waiting = {each.image.replica: each for each in restored}
        self._has_accepted = True
        return self.blocks(self.waiting)

    def blocks(self, replicas: Iterable[ReplicaId]) -> int:
        """Blocks on GPU of these replicas."""
        return sum(self._router.caches.index.gpu.blocks(replica) for replica in replicas)

    def abandon(self) -> None:
        """What has come cannot be trusted: nothing of it stays."""
        index = self._router.caches.index
        for replica in index.replicas:
            index.remove(replica)
        while index.has_retired:
            index.sweep()

    def adopt(self, described: Described) -> tuple[Position | None, str | None]:
        """A replica has told what it is, and is in the router: (where to resume its events, why not).

        Both are None where no snapshot was accepted, and from the second time on.
        """
        replica, source = described.replica, described.source
        restored = self.waiting.pop(replica.id, None)
        is_first = self._has_accepted and replica.id not in self._adopted
        self._adopted.add(replica.id)
        if restored is None:
            problem = "it has no replay socket" if source is None or source.replay is None else "no snapshot has it"
            return None, problem if is_first else None
        notes = msgspec.msgpack.decode(restored.image.notes, type=_Notes)
        if notes.identity != identity(replica):
            problem = "it has another model or another recipe now"
        elif source is None or source.replay is None:
            problem = "without a replay socket it cannot be asked whether it is still in the same life"
        else:
            self._router.caches.restore(restored, notes.losses)
            return restored.image.position, None
        self._router.caches.index.forget(replica.id)
        return None, problem

    def drop(self, endpoint: str) -> list[ReplicaId]:
        """The endpoint has told all its replicas: what else was restored of it is not there any more."""
        host = urlsplit(endpoint).netloc
        return self._drop([replica for replica in self.waiting if _host(replica) == host])

    def drop_all(self) -> list[ReplicaId]:
        """Nobody has come for the rest."""
        return self._drop(list(self.waiting))

    def _drop(self, gone: list[ReplicaId]) -> list[ReplicaId]:
        for replica in gone:
            del self.waiting[replica]
            self._router.caches.index.remove(replica)
        return gone


def identity(replica: Replica) -> str:
    """What a replica must still be for its blocks to mean the same: its base models and what it says of its recipe."""
    return msgspec.json.encode([sorted(replica.base_models), replica.recipe]).decode()


_RANKS: Final = frozenset(map(str, range(MAX_RANKS)))


def _host(replica: ReplicaId) -> str:
    """The endpoint's host and port; a rank follows them (``facts.replica_id``)."""
    return replica.partition("#")[0]
