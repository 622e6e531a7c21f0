"""What a list of the Kubernetes API and the watch behind it amount to: the objects that there are.

Knows how objects, lists and watch events are written (Kubernetes API concepts, "Efficient detection of changes"), and which
of two tellings of one object is the newer: a resource version is a number that grows (as the API promises since 1.35, and as
etcd has always made it); where it is none, what comes later is newer. Never asks, and never knows what an object is for.
Between calls: for each object that was told of since the last list, the newest telling counts, in whatever order they came.
"""

from collections.abc import Iterator
from typing import Any, Final, Generic, TypeVar

import msgspec

GONE: Final = 410
"""HTTP status, and code of an event: the version is too old to go on from."""

MAX_LINE: Final = 16 * 1024 * 1024
"""Bytes of one event; etcd takes no object of more than 1.5 MiB."""

MAX_OBJECTS: Final = 300_000
MAX_PAGES: Final = 10_000
"""Of one list; Kubernetes is made for 150,000 Pods in a cluster."""


class Meta(msgspec.Struct, frozen=True, rename="camel"):
    """``metadata`` of an object. Timestamps are RFC 3339 in UTC, to the second, so that they sort as text."""

    name: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    """Set from the moment when its deletion was asked for; the object stays until it has ended."""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class Object(msgspec.Struct, frozen=True, kw_only=True):
    """Any object, as far as all of them are alike."""

    metadata: Meta = Meta()


T = TypeVar("T", bound=Object)


class _ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class _Page(msgspec.Struct, Generic[T], frozen=True):
    metadata: _ListMeta = _ListMeta()
    items: list[T] | None = None


class _Event(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


class Status(msgspec.Struct, frozen=True):
    """What the API server says instead of an object."""

    code: int = 0
    reason: str = ""
    message: str = ""


class Unreadable(Exception):
    """What came is not what the API says."""


class Ended(Exception):
    """The server has ended the watch, and said why (an event of type ERROR)."""

    def __init__(self, status: Status) -> None:
        self.status = status
        super().__init__(status.message or status.reason or f"status {status.code}")

    @property
    def is_expired(self) -> bool:
        """Whether the version was too old: a list is needed, and nothing is wrong."""
        return self.status.code == GONE


def read_status(body: bytes) -> Status:
    """The words of a refusal; empty ones where it is in another form."""
    try:
        return msgspec.json.decode(body, type=Status)
    except msgspec.MsgspecError:
        return Status()


class Listing(Generic[T]):
    """A list under way: ``add`` its pages until there is no ``more``."""

    def __init__(self, kind: type[T]) -> None:
        self.items: list[T] = []
        self.version = ""
        self.more = ""
        """The token that the next page is asked for with; empty behind the last one."""
        self._pages = 0
        page: Any = _Page[kind]  # type: ignore[valid-type]
        self._decoder: msgspec.json.Decoder[_Page[T]] = msgspec.json.Decoder(page)

    def add(self, body: bytes) -> None:
        """The next page.

        Raises:
            Unreadable: it is no list of these objects, or the list has no end.
        """
        try:
            page = self._decoder.decode(body)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise Unreadable(f"a list that cannot be read: {error}") from error
        if not page.metadata.resource_version:
            raise Unreadable("a list without a version")
        if page.metadata.continue_ and page.metadata.continue_ == self.more:
            raise Unreadable("a list that has no end: each page is followed by the same one")
        self.items += page.items or []
        self._pages += 1
        if len(self.items) > MAX_OBJECTS or self._pages > MAX_PAGES:
            raise Unreadable(f"a list of more than {MAX_OBJECTS:,} objects or {MAX_PAGES:,} pages")
        self.version, self.more = page.metadata.resource_version, page.metadata.continue_


class Objects(Generic[T]):
    """The objects of one kind. Changes with ``listed`` and ``told``."""

    def __init__(self, kind: type[T]) -> None:
        self.version = ""
        """Of the last list, event or bookmark: what a watch begins at."""
        self._of: dict[str, T] = {}  # by uid: a name may be another object's tomorrow
        self._told: dict[str, int] = {}  # by uid: version of the newest telling, those of its end included
        self._listed_at: int | None = None
        self._decoder: msgspec.json.Decoder[T] = msgspec.json.Decoder(kind)

    def __repr__(self) -> str:
        return f"<Objects {len(self._of)}, version {self.version or 'none'}>"

    def __iter__(self) -> Iterator[T]:
        return iter(self._of.values())

    def __len__(self) -> int:
        return len(self._of)

    def listed(self, listing: Listing[T]) -> None:
        """These are all of them, whatever was told before."""
        self.version, self._listed_at = listing.version, _number(listing.version)
        self._of = {each.metadata.uid: each for each in listing.items}
        self._told = {
            uid: number
            for uid, each in self._of.items()
            if (number := _number(each.metadata.resource_version)) is not None
        }

    def told(self, line: bytes) -> bool:
        """One line of a watch. Whether the objects are others than before.

        Raises:
            Unreadable: it is no event. What was told before still counts, but there may be something that was not.
            Ended: the server ends the watch.
        """
        try:
            event = msgspec.json.decode(line, type=_Event)
            match event.type:
                case "ADDED" | "MODIFIED" | "DELETED":
                    return self._changed(self._decoder.decode(event.object), is_gone=event.type == "DELETED")
                case "BOOKMARK":
                    self._passed(msgspec.json.decode(event.object, type=Object).metadata.resource_version)
                    return False
                case "ERROR":
                    raise Ended(msgspec.json.decode(event.object, type=Status))
        except (msgspec.MsgspecError, RecursionError) as error:
            raise Unreadable(f"an event that cannot be read: {error}") from error
        raise Unreadable(f"an event of type {event.type!a}")

    def _changed(self, each: T, *, is_gone: bool) -> bool:
        uid = each.metadata.uid
        if self._is_old(uid, each.metadata.resource_version, is_gone=is_gone):
            return False
        self._passed(each.metadata.resource_version)
        if is_gone:
            return self._of.pop(uid, None) is not None
        before, self._of[uid] = self._of.get(uid), each
        return before != each

    def _is_old(self, uid: str, version: str, *, is_gone: bool) -> bool:
        """Whether something newer is known of the object; notes the version if not.

        The end of an object may carry the version of its last state; a list has everything up to its own version in it.
        """
        number = _number(version)
        if number is None:
            return False
        known = self._told.get(uid, self._listed_at)
        if known is not None and (number < known if is_gone else number <= known):
            return True
        self._told[uid] = number
        return False

    def _passed(self, version: str) -> None:
        """The watch has come to this version."""
        new, old = _number(version), _number(self.version)
        if version and (new is None or old is None or new > old):
            self.version = version


class Lines:
    """Cuts a stream of bytes into lines."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._size = 0

    def cut(self, piece: bytes) -> list[bytes]:
        """The lines that are whole with this piece; empty ones are left out.

        Raises:
            Unreadable: there is no end of the line.
        """
        first, *more = piece.split(b"\n")
        self._rest.append(first)
        self._size += len(first)
        if self._size > MAX_LINE:
            raise Unreadable(f"an event of more than {MAX_LINE >> 20} MiB")
        if not more:
            return []
        *whole, last = more
        lines = [b"".join(self._rest), *whole]
        self._rest, self._size = [last], len(last)
        return [line for line in lines if line.strip()]


def _number(version: str) -> int | None:
    return int(version) if version.isascii() and version.isdecimal() and len(version) < 20 else None
