"""What a lookup among several cache groups costs beside one of full attention. One JSON line a case.

Run from the root of the checkout: ``python -m tests.bench.bench_hybrid``. Every replica holds the whole prompt in full
attention; what its window of 1,024 tokens holds is the case. The chain is made before; CPU seconds are the process's own, the
best of the repetitions counts.
"""

import random
import time
from collections.abc import Callable, Sequence
from typing import Final

from indexer.hits import matches
from indexer.hybrid import GroupSpec, hit_rule
from indexer.index import ReplicaId, TierIndex
from tests.bench.report import report

BLOCK_SIZE: Final = 16
WINDOW: Final = 1024
REPEATS: Final = 10

KEPT: Final[dict[str, slice | None]] = {
    "full attention alone": None,
    "window at the end": slice(-1 - WINDOW // BLOCK_SIZE, None),
    "window elsewhere": slice(0, WINDOW // BLOCK_SIZE),
    "dense window": slice(None),
}


class _Hashed:
    def __init__(self, keys: Sequence[int]) -> None:
        self._keys = keys

    def keys(self, count: int) -> Sequence[int]:
        return self._keys


def bench(tokens: int, replicas: int, name: str) -> None:
    bits = random.Random(tokens).getrandbits
    keys = [bits(64) for _ in range(tokens // BLOCK_SIZE)]
    kept = KEPT[name]
    tier = TierIndex()
    names = [ReplicaId(f"replica {at}") for at in range(replicas)]
    for replica in names:
        tier.store(replica, 0, keys)
        if kept is not None:
            tier.store(replica, 1, keys[kept])
    owners = [tier.bit(replica) for replica in names]
    chain = _Hashed(keys)
    rule = hit_rule(
        (GroupSpec(0, "full_attention", BLOCK_SIZE), GroupSpec(1, "sliding_window", BLOCK_SIZE, WINDOW)), BLOCK_SIZE
    )
    if kept is None:
        best = _best_of(lambda: tier.depths(chain, (tokens - 1) // BLOCK_SIZE, sum(owners)))
    else:
        best = _best_of(lambda: matches(rule, tier, chain, tokens, owners))
    report("hybrid", {"tokens": tokens, "replicas": replicas, "case": name}, {"ms": round(best * 1e3, 3)})


def _best_of(call: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(REPEATS):
        began = time.process_time()
        call()
        best = min(best, time.process_time() - began)
    return best


def main() -> None:
    for tokens in (8_192, 131_072):
        for replicas in (1, 8, 64):
            for name in KEPT:
                bench(tokens, replicas, name)


if __name__ == "__main__":
    main()
