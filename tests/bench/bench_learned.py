"""What learned keys cost: chains of our own, events in, bytes per block. One JSON line a measurement.

Run from the root of the checkout: ``python -m tests.bench.bench_learned [chain|events|memory]``, all three when none is named.
Inputs are seeded and stand in each line; CPU seconds are the process's own; the best of the repetitions counts. ``memory``
measures in a fresh process.
"""

import argparse
import gc
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from hashing.chain import Chain
from hashing.memory import ChainMemory
from hashing.own import LearnedKeys, OwnChain
from hashing.recipes import Recipe
from indexer.index import CacheIndex, Keys, ReplicaId
from indexer.recognition import Recognition
from indexer.stream import Apply, EventStream
from indexer.wire import decode
from tests.bench.bench_index import (
    BLOCK_SIZE,
    BLOCKS_PER_EVENT,
    REPLICA,
    SEQUENCE,
    hashes,
    new_index,
    payload,
    removed_event,
    slices,
    stored_event,
)
from tests.bench.report import report, rss

VOCABULARY: Final = 128_000


def bench_chain(repeats: int) -> None:
    """All keys of a prompt, made anew each time; beside it vLLM's default, cold and remembered."""
    rng = random.Random(3)
    for length in (8_192, 131_072):
        tokens = [rng.randrange(VOCABULARY) for _ in range(length)]
        recipe, memory = Recipe(block_size=BLOCK_SIZE), ChainMemory(1 << 28)
        cases: dict[str, Callable[[Sequence[int]], Keys]] = {
            "learned": partial(OwnChain, LearnedKeys(BLOCK_SIZE)),
            "sha256_cold": partial(Chain, recipe),
            "sha256_warm": partial(Chain, recipe, memory=memory),
        }
        figures: dict[str, object] = {}
        for name, make in cases.items():
            seconds = []
            for _ in range(5 * repeats):
                begun = time.process_time()
                make(tokens).keys(length)
                seconds.append(time.process_time() - begun)
            figures[f"{name}_ms"] = round(1e3 * min(seconds), 3)
        report(
            "learned_chain", {"tokens": length, "block_size": BLOCK_SIZE, "seed": 3, "best_of": 5 * repeats}, figures
        )


def learned_from_now_on() -> Recognition:
    """Its first event, a prompt whose name is no hash of anything, has shown that nothing agrees."""
    recognition = Recognition(None)
    recognition.read(decode(payload(0, [stored_event("map", [1], None, [0] * BLOCK_SIZE)])).events)
    return recognition


def feed(payloads: Sequence[bytes], recognition: Recognition, index: CacheIndex, stream: EventStream) -> float:
    """CPU seconds of decode -> stream -> recognition -> index for these payloads, which follow what the stream has."""
    first = stream.next_sequence or 0
    gc.collect()
    begun = time.process_time()
    for sequence, data in enumerate(payloads, first):
        for step in stream.receive(sequence, decode(data)):
            if isinstance(step, Apply):
                for batch in step.batches:
                    events, _ = recognition.read(batch.events)
                    index.apply(REPLICA, events)
    return time.process_time() - begun


def bench_events(blocks: int, repeats: int) -> None:
    for size in BLOCKS_PER_EVENT:
        keys = hashes(blocks, seed=1)
        rng = random.Random(2)
        stored, removed, singles = [], [], []
        for at, (parent, part) in enumerate(slices(keys, size)):
            tokens = [rng.randrange(VOCABULARY) for _ in range(len(part) * BLOCK_SIZE)]
            stored.append(payload(at, [stored_event("map", part, parent, tokens)]))
            removed.append(payload(at, [removed_event("map", part)]))
            singles.append(payload(at, [removed_event("map", [key]) for key in part]))
        rates: dict[str, float] = {}
        for _ in range(repeats):
            for removals, name in ((removed, "removed"), (singles, "removed_one_per_event")):
                recognition, index, stream = learned_from_now_on(), new_index(), EventStream(has_replay=True)
                rates["stored"] = max(rates.get("stored", 0), blocks / feed(stored, recognition, index, stream))
                assert index.gpu.blocks(REPLICA) == blocks
                rates[name] = max(rates.get(name, 0), blocks / feed(removals, recognition, index, stream))
                assert not index.gpu.blocks(REPLICA)
        report(
            "learned_events",
            {"blocks_per_event": size, "blocks": blocks, "block_size": BLOCK_SIZE, "seed": 1, "best_of": repeats},
            {f"{name}_blocks_per_cpu_s": int(rate) for name, rate in rates.items()},
        )


def bench_memory(blocks: int) -> None:
    for holders in (1, 8):
        code = f"from tests.bench.bench_learned import measure_memory; measure_memory({blocks}, {holders}, 8)"
        subprocess.run([sys.executable, "-c", code], check=True)


def measure_memory(blocks: int, holders: int, replicas: int) -> None:
    """RSS growth of this process, index and names together, for ``blocks`` copies that ``replicas`` hold in all."""
    index = CacheIndex()
    names = [ReplicaId(f"replica-{number}") for number in range(replicas)]
    recognitions = {name: learned_from_now_on() for name in names}
    for name in names:
        index.add(name)
        index.gpu.bit(name)
    index.apply(names[0], recognitions[names[0]].read(decode(_prompt(1, 99)).events)[0])
    gc.collect()
    before = rss()
    rng = random.Random(5)
    for number in range(0, blocks // holders, SEQUENCE):
        for at in rng.sample(range(replicas), holders):
            # The same tokens at each holder, under names of its own: as engines with random roots have them.
            data = _prompt(number, at + 1)
            index.apply(names[at], recognitions[names[at]].read(decode(data).events)[0])
    gc.collect()
    grown = rss() - before
    held = sum(index.gpu.blocks(name) for name in names)
    report(
        "learned_memory",
        {"blocks": held, "holders": holders, "replicas": replicas, "seed": 5},
        {"bytes_per_block": round(grown / held, 1), "MiB": round(grown / 2**20, 1)},
    )


def _prompt(number: int, names: int) -> bytes:
    """Stored whole, with tokens that follow from the number, and names that follow from both."""
    rng = random.Random(number)
    tokens = [rng.randrange(VOCABULARY) for _ in range(SEQUENCE * BLOCK_SIZE)]
    return payload(0, [stored_event("map", hashes(SEQUENCE, seed=number * 1_000 + names), None, tokens)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", choices=["chain", "events", "memory", []], default=[])
    parser.add_argument("--blocks", type=int, default=131_072, help="of the events benchmark")
    parser.add_argument("--held", type=int, default=1_000_000, help="blocks of the memory benchmark")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    what: list[Any] = options.what or ["chain", "events", "memory"]
    if "chain" in what:
        bench_chain(options.repeats)
    if "events" in what:
        bench_events(options.blocks, options.repeats)
    if "memory" in what:
        bench_memory(options.held)


if __name__ == "__main__":
    main()
