"""What the index costs: events in, prompts matched, bytes per block. One JSON line a measurement.

Run from the root of the checkout: ``python -m tests.bench.bench_index [events|match|memory]``, all three when none is named.
Inputs are seeded and stand in each line; CPU seconds are the process's own, so that a busy machine spoils little; the best of
the repetitions counts. ``memory`` measures in fresh processes.
"""

import argparse
import gc
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec

from indexer.events import BlockRemoved, BlockStored
from indexer.index import CacheIndex, ReplicaId
from indexer.predicted import PredictedBlocks
from indexer.stream import Apply, EventStream
from indexer.wire import decode
from tests.bench.report import report, rss

SEQUENCE: Final = 512
"""Blocks of one stored sequence."""
BLOCK_SIZE: Final = 16
BLOCKS_PER_EVENT: Final = (1, 8, 16, 64, 512)
REPLICA: Final = ReplicaId("replica")


def hashes(count: int, seed: int) -> list[int]:
    bits = random.Random(seed).getrandbits
    return [bits(64) for _ in range(count)]


def stored_event(form: str, keys: Sequence[int], parent: int | None, tokens: Sequence[int]) -> object:
    """As vLLM 0.32 (``map``) and 0.22 (``array``) send it."""
    if form == "array":
        head = ["BlockStored", keys, parent, tokens, BLOCK_SIZE, None, "GPU", None]
        return [*head, [None] * len(keys), 0, "full_attention", None]
    return {
        "type": "BlockStored",
        "block_hashes": keys,
        "parent_block_hash": parent,
        "token_ids": tokens,
        "block_size": BLOCK_SIZE,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [None] * len(keys),
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }


def removed_event(form: str, keys: Sequence[int]) -> object:
    if form == "array":
        return ["BlockRemoved", keys, "GPU", 0]
    return {"type": "BlockRemoved", "block_hashes": keys, "medium": "GPU", "group_idx": 0}


def payload(at: int, events: Sequence[object]) -> bytes:
    return msgspec.msgpack.encode([1.7e9 + at * 0.01, events, 0])


def slices(keys: Sequence[int], size: int) -> Iterator[tuple[int | None, Sequence[int]]]:
    """(parent, keys) of each event: a sequence of ``SEQUENCE`` blocks begins without a parent."""
    for start in range(0, len(keys), size):
        yield (keys[start - 1] if start % SEQUENCE else None), keys[start : start + size]


def feed(payloads: Sequence[bytes], index: CacheIndex, stream: EventStream) -> float:
    """CPU seconds of decode -> stream -> index for these payloads, which follow what the stream has."""
    first = stream.next_sequence or 0
    gc.collect()
    begun = time.process_time()
    for sequence, data in enumerate(payloads, first):
        for step in stream.receive(sequence, decode(data)):
            if isinstance(step, Apply):
                for batch in step.batches:
                    index.apply(REPLICA, batch.events)
    return time.process_time() - begun


def new_index() -> CacheIndex:
    index = CacheIndex()
    index.add(REPLICA)
    return index


def bench_events(blocks: int, repeats: int) -> None:
    for form in ("map", "array"):
        for size in BLOCKS_PER_EVENT:
            _bench_one_size(form, size, blocks, repeats)


def _bench_one_size(form: str, size: int, blocks: int, repeats: int) -> None:
    keys = hashes(blocks, seed=1)
    tokens = [random.Random(2).randrange(128_000) for _ in range(size * BLOCK_SIZE)]
    parts = list(slices(keys, size))
    stores = [stored_event(form, part, parent, tokens) for parent, part in parts]
    stored = [payload(at, [event]) for at, event in enumerate(stores)]
    removed = [payload(at, [removed_event(form, part)]) for at, (_, part) in enumerate(parts)]
    # A full cache: each step stores new blocks and, before that, removes as many of the oldest. vLLM 0.32 names each
    # removed block in an event of its own; offload tiers name many in one.
    singles = [payload(at, [removed_event(form, [key]) for key in part]) for at, (_, part) in enumerate(parts)]
    half = len(parts) // 2
    churn_singles, churn = [], []
    for at in range(half):
        old = parts[at][1]
        churn_singles.append(payload(at, [*(removed_event(form, [key]) for key in old), stores[half + at]]))
        churn.append(payload(at, [removed_event(form, old), stores[half + at]]))
    rates: dict[str, float] = {}

    def best(name: str, count: int, seconds: float) -> None:
        rates[name] = max(rates.get(name, 0.0), count / seconds)

    for _ in range(repeats):
        for removals, name in ((removed, "removed"), (singles, "removed_one_per_event")):
            index, stream = new_index(), EventStream(has_replay=True)
            best("stored", blocks, feed(stored, index, stream))
            best(name, blocks, feed(removals, index, stream))
            assert not index.gpu.blocks(REPLICA)
        for payloads, name in ((churn, "together"), (churn_singles, "together_one_per_removal")):
            index, stream = new_index(), EventStream(has_replay=True)
            feed(stored[:half], index, stream)
            best(name, 2 * sum(len(part) for _, part in parts[:half]), feed(payloads, index, stream))
            assert index.gpu.blocks(REPLICA) == sum(len(part) for _, part in parts[:half])
    report(
        "events",
        {
            "form": form,
            "blocks_per_event": size,
            "blocks": blocks,
            "block_size": BLOCK_SIZE,
            "seed": 1,
            "best_of": repeats,
        },
        {f"{name}_blocks_per_cpu_s": int(rate) for name, rate in rates.items()},
    )


class Hashed:
    """A prompt whose keys are known: the index alone is measured."""

    def __init__(self, keys: list[int]) -> None:
        self._keys = keys

    def keys(self, count: int, /) -> Sequence[int]:
        return self._keys


def bench_match(background: int, repeats: int) -> None:
    for replicas in (1, 8, 64):
        for blocks in (512, 8_192):
            _bench_one_prompt(replicas, blocks, background, repeats)


def _bench_one_prompt(replicas: int, blocks: int, background: int, repeats: int) -> None:
    index = CacheIndex()
    tier = index.gpu
    names = [ReplicaId(f"replica-{number}") for number in range(replicas)]
    prompt = hashes(blocks, seed=42)
    others = hashes(background, seed=7)
    for number, name in enumerate(names):
        index.add(name)
        tier.store(name, 0, prompt)
        tier.store(name, 0, others[number::replicas])
    everyone = 0
    for name in names:
        everyone |= tier.bit(name)
    predicted = PredictedBlocks()
    for number, name in enumerate(names):
        predicted.expect(number, tier.bit(name), hashes(blocks, seed=100 + number % 4))
    staggered = hashes(blocks, seed=44)
    for number, name in enumerate(names):
        tier.store(name, 0, staggered[: blocks * (number + 1) // replicas])
    cases = {"hit": prompt, "staggered": staggered, "miss": hashes(blocks, seed=43)}
    for case, keys in cases.items():
        chain = Hashed(keys)
        for also in (None, predicted.holders):

            def match(chain: Hashed = chain, also: Any = also) -> list[tuple[int, int]]:
                return tier.depths(chain, blocks, everyone, also=also)

            seconds = _best_of(match, repeats if case != "miss" else repeats * 20)
            report(
                "match",
                {
                    "replicas": replicas,
                    "prompt_blocks": blocks,
                    "background_blocks": background,
                    "case": case,
                    "with_predicted": also is not None,
                    "seeds": "prompt 42, staggered 44, miss 43, background 7, predicted 100-103",
                    "best_of": repeats,
                },
                {"us": round(seconds * 1e6, 2), "us_per_block": round(seconds * 1e6 / blocks, 4)},
            )


def _best_of(call: Callable[[], object], repeats: int) -> float:
    best = float("inf")
    gc.disable()
    for _ in range(repeats):
        begun = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - begun)
    gc.enable()
    return best


def bench_memory(blocks: int) -> None:
    for holders, replicas in ((1, 8), (8, 8), (8, 64)):
        code = f"from tests.bench.bench_index import measure_memory; measure_memory({blocks}, {holders}, {replicas})"
        subprocess.run([sys.executable, "-c", code], check=True)


def measure_memory(blocks: int, holders: int, replicas: int) -> None:
    """RSS growth of this process. Blocks come in slices, so that no input adds to it."""
    index = CacheIndex()
    names = [ReplicaId(f"replica-{number}") for number in range(replicas)]
    for name in names:
        index.add(name)
        index.gpu.bit(name)
    empty = msgspec.Raw(b"\x90")
    index.apply(names[0], [BlockStored([1], None, empty, 16), BlockRemoved([1])])
    gc.collect()
    before = rss()
    rng = random.Random(5)
    for _ in range(0, blocks, SEQUENCE):
        keys = [rng.getrandbits(64) for _ in range(SEQUENCE)]
        for name in rng.sample(names, holders):
            # Through the wire, as in life: each replica's events bring integers of their own.
            data = payload(0, [stored_event("map", keys, None, [])])
            index.apply(name, decode(data).events)
    gc.collect()
    held = sum(index.gpu.blocks(name) for name in names) / holders
    report(
        "memory",
        {"blocks": blocks, "holders": holders, "replicas": replicas, "seed": 5},
        {"bytes_per_block": round((rss() - before) / held, 1), "MiB": round((rss() - before) / 2**20, 1)},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", choices=["events", "match", "memory", []], default=[])
    parser.add_argument("--blocks", type=int, default=131_072, help="of the events benchmark")
    parser.add_argument("--background", type=int, default=200_000, help="blocks beside the prompt's")
    parser.add_argument("--held", type=int, default=1_000_000, help="blocks of the memory benchmark")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    what = options.what or ["events", "match", "memory"]
    if "events" in what:
        bench_events(options.blocks, options.repeats)
    if "match" in what:
        bench_match(options.background, 20 * options.repeats)
    if "memory" in what:
        bench_memory(options.held)


if __name__ == "__main__":
    main()
