"""Blocks that are known by name alone: their parent was never seen, or nothing but their name was told.

Knows names, parents, links (``hashing.own``) and in how many copies a block waits at which place. Never knows events, tiers or
what has a key. Between calls: each waiting name is under its parent exactly if it can follow it, and there are at most
``MAX_WAITING``: beyond that the least recently stored are let go.
"""

from collections import Counter, OrderedDict
from collections.abc import Collection, Hashable, Iterable, Iterator
from typing import Final, Generic, TypeVar

from hashing.own import follow

MAX_WAITING: Final = 32_768
"""Some 400 bytes each."""

Place = TypeVar("Place", bound=Hashable)


class _Orphan(Generic[Place]):
    """What it takes to compute its key (nothing for a placeholder), and where its copies lie."""

    __slots__ = ("copies", "links", "parent")

    def __init__(self) -> None:
        self.parent: int | None = None
        self.links: tuple[bytes, ...] = ()
        self.copies: Counter[Place] = Counter()


class Orphans(Generic[Place]):
    """What waits for a place. Changes with ``wait``, ``place``, ``take`` and ``drop``."""

    def __init__(self) -> None:
        self.placed = 0
        """Blocks that have got a key after all."""
        self._waiting: OrderedDict[int, _Orphan[Place]] = OrderedDict()
        self._children: dict[int, set[int]] = {}  # parent -> those that wait for it

    def __repr__(self) -> str:
        return f"<Orphans {len(self._waiting):,} waiting, {self.placed:,} placed>"

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, name: int) -> bool:
        return name in self._waiting

    def wait(
        self, name: int, place: Place, parent: int | None = None, links: tuple[bytes, ...] = (), copies: int = 1
    ) -> Counter[Place]:
        """So many more copies; ``links`` lead to it from ``parent``. Returns those of a block that had to be let go for it."""
        orphan = self._waiting.setdefault(name, _Orphan())
        self._waiting.move_to_end(name)
        orphan.copies[place] += copies
        if links and parent is not None and not orphan.links:
            orphan.parent, orphan.links = parent, links
            self._children.setdefault(parent, set()).add(name)
        return self._leave(next(iter(self._waiting))).copies if len(self._waiting) > MAX_WAITING else Counter()

    def place(self, known: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int, Counter[Place]]]:
        """Names that have got keys -> all that have waited for them, each as name, key and copies."""
        pending = list(known)
        while pending:
            name, key = pending.pop()
            if name in self._waiting:
                self.placed += 1
                yield name, key, self._leave(name).copies
            children = self._children.get(name, ())
            pending += [(child, follow(key, self._waiting[child].links)[-1]) for child in children]

    def take(self, name: int, place: Place, left: int | None = None) -> None:
        """One copy less, or no more than are ``left``, of a name that waits."""
        copies = self._waiting[name].copies
        copies[place] = copies[place] - 1 if left is None else min(copies[place], left)
        if copies[place] <= 0:
            del copies[place]
        if not copies:
            self._leave(name)

    def drop(self, places: Collection[Place]) -> None:
        """Nothing is left at these places."""
        for name, orphan in list(self._waiting.items()):
            for place in places:
                orphan.copies.pop(place, None)
            if not orphan.copies:
                self._leave(name)

    def _leave(self, name: int) -> _Orphan[Place]:
        orphan = self._waiting.pop(name)
        siblings = None if orphan.parent is None else self._children.get(orphan.parent)
        if siblings is not None and orphan.parent is not None:
            siblings.discard(name)
            if not siblings:
                del self._children[orphan.parent]
        return orphan
