"""The truth machine with vLLM's own schedulers for engines: the same stories and judgement, vLLM's truth and vLLM's bytes.

Knows how ``vllm_engines.py`` is driven. What its block pools hold is what an index that is called exact must hold, after every
one of more than 10,000 steps. Run by ``scripts/test-real tests/real/test_truth_real.py``.
"""

import itertools
import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from hashing.recipes import Recipe
from tests.real.environment import vllm_python
from tests.real.vllm_scheduler import DEFAULTS
from tests.support.publisher import ADAPTER, CPU, GPU, Ask, Kind, Stepped
from tests.support.simulated import MAX_MODEL_LEN
from tests.support.story import walk

pytestmark = pytest.mark.real

SCRIPT = Path(__file__).with_name("vllm_engines.py")
PLAIN = Recipe(block_size=4)
KINDS = (
    Kind("as declared", PLAIN, PLAIN),
    Kind("nothing declared", Recipe(block_size=8), None, num_gpu_blocks=16),
    Kind("a seed that nobody tries", Recipe(block_size=4, seed="77"), PLAIN, num_gpu_blocks=20),
    Kind("short buffer", Recipe(block_size=8), Recipe(block_size=8), buffer=6),
    Kind("no replay", PLAIN, PLAIN, buffer=None),
    Kind("async", PLAIN, PLAIN, async_scheduling=True),
)
WALKS, STEPS = 40, 500


class Host:
    """One process of vLLM's interpreter, with engines that share a PYTHONHASHSEED."""

    def __init__(self, seed: str | None) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
        if seed is not None:
            environment["PYTHONHASHSEED"] = seed
        self._numbers = itertools.count()
        self._process = subprocess.Popen(
            [str(vllm_python()), str(SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def next_number(self) -> int:
        return next(self._numbers)

    def ask(self, engine: int, op: str, **more: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"engine": engine, "op": op, **more}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"vLLM has ended with {self._process.wait()}"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)
        self._process.stdout.close()


class VllmProcess:
    """One engine (``tests.support.publisher.Process``); mutable."""

    def __init__(self, host: Host, kind: Kind) -> None:
        self.recipe = kind.recipe
        self.has_work = False
        self._kind = kind
        self._host = host
        self._number = host.next_number()
        self._requests: list[str] = []
        self._in_flight = 0
        config = {
            **DEFAULTS,
            "block_size": kind.recipe.block_size,
            "num_gpu_blocks": kind.num_gpu_blocks,
            "max_num_batched_tokens": 40 + MAX_MODEL_LEN,
            "max_num_seqs": 4,
            "max_model_len": MAX_MODEL_LEN,
            "async_scheduling": kind.async_scheduling,
        }
        self._ask("start", config=config)

    def requests(self) -> list[str]:
        return self._requests

    def add(self, name: str, ask: Ask) -> None:
        lora = {"name": ADAPTER.name, "path": ADAPTER.path, "id": ADAPTER.id} if ask.has_adapter else None
        self._ask(
            "add",
            id=name,
            tokens=ask.tokens,
            outputs=ask.answer(ask.max_tokens + 1),
            max_tokens=ask.max_tokens,
            stop=[],
            salt=ask.salt,
            lora=lora,
            skip_cache=False,
        )

    def abort(self, name: str) -> None:
        self._ask("abort", id=name)

    def reset(self, *, running: bool) -> None:
        self._ask("reset", running=running)

    def step(self, timestamp: float) -> Stepped:
        self._ask("schedule")
        self._in_flight += 1
        if self._kind.async_scheduling and self._in_flight < 2 and self.has_work:
            return Stepped()
        self._in_flight -= 1
        answer = self._ask("complete", timestamp=timestamp)
        return Stepped(
            payload=bytes.fromhex(answer["payload"]) if answer["payload"] else None,
            held={GPU: Counter(dict(answer["held"])), CPU: Counter()},
            cached_tokens=answer["cached_tokens"],
            finished=tuple(answer["finished"]),
        )

    def end(self) -> None:
        self._host.ask(self._number, "end")

    def _ask(self, op: str, **more: Any) -> dict[str, Any]:
        answer = self._host.ask(self._number, op, **more)
        self.has_work, self._requests = answer["has_work"], answer["requests"]
        return answer


@pytest.fixture(scope="module")
def hosts() -> Iterator[dict[str | None, Host]]:
    hosts = {seed: Host(seed) for seed in (None, "77")}
    yield hosts
    for host in hosts.values():
        host.close()


def test_no_story_finds_a_lie_about_vllms_own_cache(hosts: dict[str | None, Host]) -> None:
    seen: Counter[str] = Counter()
    for seed in range(WALKS):
        started: list[VllmProcess] = []

        def start(kind: Kind, draw: Random, started: list[VllmProcess] = started) -> VllmProcess:
            started.append(VllmProcess(hosts[kind.recipe.seed], kind))
            return started[-1]

        seen += walk(seed, STEPS, KINDS, start)
        for process in started:
            process.end()
    for what, count in sorted(seen.items()):
        print(f"{what}: {count:,}")
    assert seen["engine steps"] >= 10_000
    assert seen["GPU blocks judged"] > 100_000
    assert seen["tokens matched"] > 100_000
    assert seen["restarts"] > 100
    assert seen["blocks restored"] > 1_000
