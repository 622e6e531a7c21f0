"""Whether the index stays flat: unique blocks for hours' worth of traffic, some of their removals lost. JSON lines over time.

Run from the root of the checkout: ``python -m tests.bench.bench_soak``. Each replica keeps ``--capacity`` blocks and removes
its oldest, one an event, as vLLM does; ``--lost`` of the removals never come, so that their blocks would stay for ever. With a
limit (``--max-blocks``) memory must stop growing once it is reached; with a limit that is out of reach the leak is seen.
Everything goes through the wire's decoding. ``longest_ms`` is the longest that one batch of events took since the line before;
``missing`` are blocks that the replicas hold and the index has let go.
"""

import argparse
import random
import time
from collections import deque

from indexer.index import CacheIndex, ReplicaId
from indexer.wire import decode
from tests.bench.bench_index import payload, removed_event, stored_event
from tests.bench.report import report, rss

BLOCKS_PER_EVENT = 16
SEED = 11


class Engine:
    """What one replica publishes while new prompts go round its cache."""

    def __init__(self, capacity: int, lost: float, dice: random.Random) -> None:
        self._capacity = capacity
        self._lost = lost
        self._dice = dice
        self.held: deque[int] = deque()

    def step(self) -> bytes:
        """The payload of one scheduler step that stores new blocks, and removes as many of the oldest once it is full."""
        keys = [self._dice.getrandbits(64) for _ in range(BLOCKS_PER_EVENT)]
        self.held.extend(keys)
        evicted = [self.held.popleft() for _ in range(max(0, len(self.held) - self._capacity))]
        told = [key for key in evicted if self._dice.random() >= self._lost]
        return payload(0, [*(removed_event("map", [key]) for key in told), stored_event("map", keys, None, [])])


def soak(blocks: int, replicas: int, capacity: int, lost: float, max_blocks: int, lines: int) -> None:
    dice = random.Random(SEED)
    index = CacheIndex(max_blocks)
    engines = {ReplicaId(f"replica-{at}"): Engine(capacity, lost, dice) for at in range(replicas)}
    for name in engines:
        index.add(name)
    inputs: dict[str, object] = {
        "blocks": blocks,
        "replicas": replicas,
        "capacity": capacity,
        "removals_lost": lost,
        "max_blocks": max_blocks,
        "seed": SEED,
    }
    begun, before, stored, longest, spent = rss(), 0, 0, 0.0, 0.0
    while stored < blocks:
        for name, engine in engines.items():
            data = engine.step()
            started = time.process_time()
            index.apply(name, decode(data).events)
            took = time.process_time() - started
            spent += took
            longest = max(longest, took)
            stored += BLOCKS_PER_EVENT
        if stored * lines // blocks > before:
            before = stored * lines // blocks
            figures: dict[str, object] = {
                "stored": stored,
                "index_blocks": index.size,
                "MiB": round((rss() - begun) / 2**20, 1),
                "evicted": index.evicted,
                "blocks_per_cpu_s": int(stored / spent),
                "longest_ms": round(longest * 1e3, 2),
                "missing": sum(
                    not index.gpu.holds(name, 0, key) for name, engine in engines.items() for key in engine.held
                ),
            }
            report("soak", inputs, figures)
            longest = 0.0
    index.check()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=5_000_000, help="stored in all")
    parser.add_argument("--replicas", type=int, default=8)
    parser.add_argument("--capacity", type=int, default=50_000, help="blocks of each replica's cache")
    parser.add_argument("--lost", type=float, default=0.05, help="share of removals that never come")
    parser.add_argument("--max-blocks", type=int, default=500_000, help="limit of the index")
    parser.add_argument("--lines", type=int, default=20, help="lines printed")
    options = parser.parse_args()
    soak(options.blocks, options.replicas, options.capacity, options.lost, options.max_blocks, options.lines)


if __name__ == "__main__":
    main()
