"""The smallest fleet that holds what it has to, for each way to build one.

Knows options, numbers of replicas, and whether runs hold the targets. Never knows how runs are made, or in how many
processes: it asks for them in rounds, and is told what came of them. It takes more replicas to be better, which a policy that
sends everything to one of them does not make true: such an option ends at ``at_most``.
"""

from collections.abc import Sequence
from typing import Generic, TypeVar

K = TypeVar("K")


class Search(Generic[K]):
    """Of each option (any key) the least number of replicas that holds; mutable, until ``wanted`` is empty."""

    def __init__(self, options: Sequence[K], *, start: int, at_most: int) -> None:
        if not 1 <= start <= at_most:
            raise ValueError(f"start must be from 1 to {at_most}, got {start}")
        self._at_most = at_most
        self._next = dict.fromkeys(options, start)
        self._fails = dict.fromkeys(options, 0)  # the most that is known not to hold
        self._holds: dict[K, int] = {}  # the least that is known to
        self._paused: dict[K, int] = {}  # what would have to be run next

    def wanted(self) -> list[tuple[K, int]]:
        """What has to be run next: options, each with a number of replicas."""
        return list(self._next.items())

    def told(self, option: K, replicas: int, *, is_held: bool) -> None:
        """What came of one of those."""
        if is_held:
            self._holds[option] = replicas
        else:
            self._fails[option] = replicas
        fails, holds = self._fails[option], self._holds.get(option)
        if holds is None:
            following = min(2 * replicas, self._at_most)
            is_done = replicas == self._at_most
        else:
            following = (fails + holds) // 2
            is_done = holds - fails == 1
        if is_done:
            del self._next[option]
        else:
            self._next[option] = following

    def drop(self, option: K) -> None:
        """It is looked for no longer, and not found."""
        self._next.pop(option, None)
        self._paused.pop(option, None)
        self._holds.pop(option, None)

    def pause(self, option: K) -> None:
        """It is looked for no longer, until it is resumed."""
        if option in self._next:
            self._paused[option] = self._next.pop(option)

    def resume(self, option: K) -> None:
        """It goes on where it was paused."""
        if option in self._paused:
            self._next[option] = self._paused.pop(option)

    def least(self, option: K) -> int:
        """Fewer are known not to hold."""
        return self._fails[option] + 1

    @property
    def left(self) -> int:
        """How many runs are still to come, if whatever has not held yet holds the next time."""
        return sum(
            [
                (self._holds[option] - self._fails[option] - 1).bit_length()
                if option in self._holds
                else 1 + (following - self._fails[option] - 1).bit_length()
                for option, following in self._next.items()
            ]
        )

    @property
    def found(self) -> dict[K, int]:
        """The least number for each option that holds with any; final once ``wanted`` is empty, but for what is paused."""
        return dict(self._holds)
