"""What restarts have thrown away and nobody has had since: it was not evicted, and no larger cache would have it.

Knows keys of blocks. Never knows engines, or what a prompt hits.
"""

from collections.abc import Collection, Iterable, Sequence


class Forgotten:
    """Keys of such blocks; mutable."""

    def __init__(self) -> None:
        self._keys: set[int] = set()

    def lost(self, held: Iterable[int], elsewhere: Iterable[Collection[int]]) -> None:
        """A cache that ``held`` these is gone; what others hold ``elsewhere`` is not lost."""
        self._keys.update(set(held).difference(*elsewhere))

    def stored(self, keys: Iterable[int]) -> None:
        """Somebody has these again."""
        if self._keys:
            self._keys.difference_update(keys)

    def places(self, keys: Sequence[int]) -> tuple[int, ...]:
        """Which of these are lost, by their place."""
        return tuple([at for at, key in enumerate(keys) if key in self._keys]) if self._keys else ()
