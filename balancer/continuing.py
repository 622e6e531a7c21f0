"""Which prompts go on where an earlier one ended: the turns of a conversation, whoever calls it by a name or does not.

Knows the keys of blocks at which prompts have ended, and where these were sent; of more than it may keep, it forgets the
oldest. Never knows caches or time.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from indexer.index import Keys, ReplicaId

MAX_ENDS: Final = 100_000

FAR: Final = 256
"""Blocks between the end of a prompt and that of what the next turn finds cached: an answer of 4,000 tokens, at 16 a block."""


class Ends:
    """The last full blocks of prompts. Changes with all calls but ``found``."""

    def __init__(self, at_most: int = MAX_ENDS) -> None:
        self._at_most = at_most
        self._keys: OrderedDict[int, ReplicaId] = OrderedDict()

    def __len__(self) -> int:
        return len(self._keys)

    def __repr__(self) -> str:
        return f"<Ends {len(self)} of at most {self._at_most}>"

    def sent(self, chain: Keys, blocks: int, replica: ReplicaId) -> None:
        """A prompt of so many full blocks was sent there."""
        keys = chain.keys(blocks)
        if not 0 < blocks <= len(keys):
            return
        key = keys[blocks - 1]
        self._keys[key] = replica
        self._keys.move_to_end(key)
        if len(self._keys) > self._at_most:
            self._keys.popitem(last=False)

    def found(self, chain: Keys, blocks: int, cached: int) -> list[int]:
        """Where earlier prompts ended, before this one of ``blocks`` does: at most ``FAR`` before the end of what is cached.

        The same prompt once more goes on with nothing.
        """
        end = min(cached, blocks - 1)
        if end <= 0 or not self._keys:
            return []
        keys = chain.keys(end)[max(0, end - FAR) : end]
        return [] if self._keys.keys().isdisjoint(keys) else [key for key in keys if key in self._keys]

    def passed(self, keys: Sequence[int]) -> None:
        """A prompt went on there. The next one that does is no turn of the same conversation."""
        for key in keys:
            self._keys.pop(key, None)

    def forget(self, replica: ReplicaId) -> None:
        """The replica is gone."""
        for key in [key for key, at in self._keys.items() if at == replica]:
            del self._keys[key]
