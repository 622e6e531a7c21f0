"""The KV cache of one replica: which physical block holds which key, who uses it, and which block is given away next.

Knows blocks by number and keys by value, and gives blocks away in the order of vLLM 0.32.0 (``vllm/v1/core/block_pool.py``).
Never knows requests, tokens, steps or events: what an allocation evicts is returned as a value. Between calls every block but
the null block is either referenced or free, a free block may still hold a key, and several blocks may hold the same key.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

NULL_BLOCK: Final = 0
"""vLLM takes the first block out of the pool as a placeholder: it is never free and never cached."""

_NO_KEY: Final = -1  # keys are unsigned


class BlockPool:
    """The blocks of one replica; mutable.

    Per-block state lies in flat lists, indexed by block number, and an ordered dictionary of the free blocks: pools have
    hundreds of thousands of blocks, and each is touched for every few tokens.
    """

    def __init__(self, num_blocks: int) -> None:
        """Make a pool of ``num_blocks`` empty blocks, one of which is the null block.

        Raises:
            ValueError: there would be no block to give.
        """
        if num_blocks < 2:
            raise ValueError(f"a pool needs at least 2 blocks (one is the null block), got {num_blocks}")
        self.num_blocks: Final = num_blocks
        self._references = [0] * num_blocks
        self._keys = [_NO_KEY] * num_blocks
        # Almost every key has one block: an inner dict (used as an ordered set) exists only for keys with copies.
        self._holders: dict[int, int | dict[int, None]] = {}
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks))
        self.num_returns = 0  # how often blocks were given back

    @property
    def capacity(self) -> int:
        """How many blocks can be in use at once: all but the null block."""
        return self.num_blocks - 1

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def usage(self) -> float:
        """Referenced blocks over capacity, 0 to 1: what vLLM exports as ``vllm:kv_cache_usage_perc``."""
        return 1.0 - len(self._free) / self.capacity

    def find(self, keys: Iterable[int]) -> list[int]:
        """The blocks that hold the longest cached run of ``keys`` from the start; of several copies the oldest."""
        found: list[int] = []
        for key in keys:
            holders = self._holders.get(key)
            if holders is None:
                break
            found.append(holders if isinstance(holders, int) else next(iter(holders)))
        return found

    def has(self, key: int) -> bool:
        """Whether a block holds this key."""
        return key in self._holders

    def count_free(self, blocks: Iterable[int]) -> int:
        """How many of ``blocks`` nobody uses: referencing them takes them out of the free queue."""
        references = self._references
        return sum(1 for block in blocks if not references[block])

    def reference(self, blocks: Iterable[int]) -> None:
        """Use cached blocks once more; those that were free can no longer be given away."""
        references, free = self._references, self._free
        for block in blocks:
            if not references[block]:
                del free[block]
            references[block] += 1

    def allocate(self, count: int) -> tuple[list[int], list[int]]:
        """Take ``count`` blocks from the front of the free queue.

        Returns:
            The blocks, and the keys that they held until now: one entry a block that held one, in the same order.

        Raises:
            ValueError: fewer blocks are free.
        """
        free = self._free
        if count > len(free):
            raise ValueError(f"{count} blocks were asked for, {len(free)} are free")
        blocks = [free.popitem(last=False)[0] for _ in range(count)]
        evicted: list[int] = []
        for block in blocks:
            self._references[block] = 1
            key = self._keys[block]
            if key != _NO_KEY:
                self._forget(key, block)
                evicted.append(key)
        return blocks, evicted

    def cache(self, blocks: Sequence[int], keys: Sequence[int]) -> None:
        """Let each block hold the key at the same place. A key that others hold already gets one more copy."""
        for block, key in zip(blocks, keys, strict=True):
            self._keys[block] = key
            holders = self._holders.get(key)
            if holders is None:
                self._holders[key] = block
            elif isinstance(holders, int):
                self._holders[key] = {holders: None, block: None}
            else:
                holders[block] = None

    def free(self, blocks: Iterable[int]) -> None:
        """Use each block once less; those that nobody uses any more join the free queue.

        Blocks that hold a key go to the back, in the order given (callers give the tail of a sequence first, so that it is
        evicted before its head). Blocks without a key cannot be hit and go to the front.
        """
        self.num_returns += 1
        without_key: list[int] = []
        references, keys, free = self._references, self._keys, self._free
        for block in blocks:
            references[block] -= 1
            if references[block]:
                continue
            if keys[block] == _NO_KEY:
                without_key.append(block)
            else:
                free[block] = None
        for block in reversed(without_key):
            free[block] = None
            free.move_to_end(block, last=False)

    def reset(self) -> bool:
        """Forget every key, unless a block is in use; the order of the free queue stays. Returns whether it was done."""
        if len(self._free) != self.capacity:
            return False
        self._holders.clear()
        self._keys = [_NO_KEY] * self.num_blocks
        return True

    def holds(self, block: int, key: int) -> bool:
        return self._keys[block] == key

    def cached(self) -> Counter[int]:
        """Every cached key with its number of blocks: what an index of this replica should hold."""
        return Counter({k: 1 if isinstance(held, int) else len(held) for k, held in self._holders.items()})

    def free_queue(self) -> list[int]:
        """The free blocks, the next one to be given away first."""
        return list(self._free)

    def check(self) -> None:
        """Verify what must hold between calls, at the cost of a pass over the pool.

        Raises:
            AssertionError: it does not hold; the message names the first block or key that is wrong.
        """
        assert NULL_BLOCK not in self._free, "the null block is free"
        assert self._keys[NULL_BLOCK] == _NO_KEY, "the null block is cached"
        for block, references in islice(enumerate(self._references), 1, None):
            assert references >= 0, f"block {block} was freed more often than used"
            assert (references == 0) == (block in self._free), (
                f"block {block}: {references} references, yet free or lost"
            )
        holders = Counter(key for key in self._keys if key != _NO_KEY)
        assert self.cached() == holders, "keys and blocks disagree"
        for key, held in self._holders.items():
            for block in (held,) if isinstance(held, int) else held:
                assert self._keys[block] == key, f"block {block} does not hold the key {key} that leads to it"

    def _forget(self, key: int, block: int) -> None:
        self._keys[block] = _NO_KEY
        holders = self._holders[key]
        if isinstance(holders, dict) and len(holders) > 1:
            del holders[block]
        else:
            del self._holders[key]
