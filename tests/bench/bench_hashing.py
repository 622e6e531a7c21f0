"""How long hashing a prompt takes: ``python -m tests.bench.bench_hashing``, one JSON line a case.

cold: a chain of tokens never seen, with an empty memory. warm: the same prompt once more. extended: a prompt that shares
its first nine tenths with a remembered one. Each includes building the ``Chain``; CPU time in milliseconds.
"""

import random
import statistics
import time
from collections.abc import Callable
from typing import get_args

from hashing.chain import Chain, ChainMemory
from hashing.recipes import Algorithm, Recipe
from tests.bench.report import report

REPEATS = 15
VOCABULARY = 128_000


def measure(prepare: Callable[[], ChainMemory], hash_all: Callable[[ChainMemory], object]) -> dict[str, float]:
    times = []
    for _ in range(REPEATS):
        memory = prepare()
        start = time.process_time()
        hash_all(memory)
        times.append((time.process_time() - start) * 1e3)
    return {"min_ms": round(min(times), 3), "median_ms": round(statistics.median(times), 3)}


def case(recipe: Recipe, tokens: list[int]) -> dict[str, dict[str, float]]:
    def filled(prompt: list[int]) -> ChainMemory:
        memory = ChainMemory()
        hash_all(memory, prompt)
        return memory

    def hash_all(memory: ChainMemory, prompt: list[int] = tokens) -> list[int]:
        chain = Chain(recipe, prompt, memory=memory)
        return chain.keys(len(chain))

    known, shared = filled(tokens), tokens[: len(tokens) * 9 // 10]
    return {
        "cold": measure(ChainMemory, hash_all),
        "warm": measure(lambda: known, hash_all),
        "extended": measure(lambda: filled(shared), hash_all),
    }


def main() -> None:
    draw = random.Random(1)
    everything = [draw.randrange(VOCABULARY) for _ in range(131_072)]
    cases: list[tuple[Algorithm, int, int]] = [
        ("sha256", length, size) for length in (8_192, 131_072) for size in (16, 32, 64)
    ]
    cases += [(algorithm, 131_072, 16) for algorithm in get_args(Algorithm) if algorithm != "sha256"]
    for algorithm, length, block_size in cases:
        inputs: dict[str, object] = {
            "algorithm": algorithm,
            "tokens": length,
            "block_size": block_size,
            "repeats": REPEATS,
        }
        report("hashing", inputs, dict(case(Recipe(algorithm, block_size, seed="0"), everything[:length])))


if __name__ == "__main__":
    main()
