"""Records what another program finds in the same traces: kvcache-simulator (PyPI, Apache-2.0).

In an environment that has it, from the root of the checkout:
``python tests/golden/record_bounds.py [FILE ...] > tests/golden/bounds_kvcache_simulator_0.1.3.json``. Each FILE is a trace
in Mooncake's form (``.jsonl`` or ``.jsonl.gz``, 512 tokens a block); they are not kept here, and known by their digests. It
measures the second half of the requests, and takes a partial last block for one that can be hit.
"""

import gzip
import hashlib
import json
import random
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

SIZES = (200, 1638, 6553, 26214)


def made_up() -> list[dict[str, Any]]:
    """Requests in Mooncake's form: conversations that grow, some of which begin with one of three system prompts."""
    dice = random.Random(23)
    systems = [[100 * at + step for step in range(5 + 7 * at)] for at in range(3)]
    sessions: list[list[int]] = []
    records = []
    fresh = 1000
    for at in range(4000):
        if sessions and dice.random() < 0.6:
            path = sessions[max(len(sessions) - 1 - int(dice.expovariate(0.02)), 0)]
            del path[max(len(path) - dice.randrange(3), 1) :]
        else:
            path = list(systems[dice.randrange(3)]) if dice.random() < 0.7 else []
            sessions.append(path)
        grown = dice.randrange(1, 9)
        path.extend(range(fresh, fresh + grown))
        fresh += grown
        tokens = 512 * len(path) - dice.choice((0, 1, 200, 511))
        records.append({"timestamp": 100 * at, "input_length": tokens, "output_length": 10, "hash_ids": list(path)})
    return records


def found(lines: list[str]) -> dict[str, Any]:
    from kvcache_sim.plan import build_execution_plan  # type: ignore[import-not-found]
    from kvcache_sim.policies import simulate_ceiling, simulate_policy  # type: ignore[import-not-found]
    from kvcache_sim.trace import parse_trace_lines  # type: ignore[import-not-found]

    plan = build_execution_plan(parse_trace_lines(lines, block_size=512))
    sizes = {}
    for size in SIZES:
        results = [simulate_policy(plan, policy, size) for policy in ("lru", "optimal")]
        if (
            results[0].measurementMode == "fixed_window"
        ):  # it measures nothing where the cache was not full by the middle
            sizes[size] = [result.hitTokens for result in results]
    ceiling = simulate_ceiling(plan)
    return {"tokens": ceiling.totalTokens, "ceiling": ceiling.hitTokens, "lru and belady by blocks": sizes}


def main() -> None:
    golden = {"made up": found([json.dumps(record) for record in made_up()])}
    for name in sys.argv[1:]:
        data = Path(name).read_bytes()
        text = gzip.decompress(data).decode() if name.endswith(".gz") else data.decode()
        golden[Path(name).name] = {"sha256": hashlib.sha256(data).hexdigest(), **found(text.splitlines())}
    of = {"made by": f"kvcache-simulator {version('kvcache-simulator')}", "hit tokens of": golden}
    print(json.dumps(of, indent=2))


if __name__ == "__main__":
    main()
