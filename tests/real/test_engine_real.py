"""The simulated replica against vLLM's own scheduler: the same operations, and after each one the same state and events."""

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest

from hashing.extras import Extras, Lora
from hashing.recipes import Recipe
from indexer.events import BlockStored, KVEvent
from simulations.engine import Engine
from simulations.engine_values import EngineConfig, EngineRequest, ScheduledStep
from simulations.sequences import TokenPrompt
from tests.real.records import run_scheduler
from tests.real.vllm_scheduler import Case, Operation, Record, make_case, steps_of_load

pytestmark = pytest.mark.real


class Shelf:
    """A connector that can load all blocks but those whose key is a multiple."""

    def __init__(self, modulus: int) -> None:
        self._modulus = modulus

    def reach(self, keys: Sequence[int], first: int, last: int) -> int:
        return next((at - first for at in range(first, last) if keys[at] % self._modulus == 0), last - first)


class Replay:
    """Our engine behind the operations of a case; mutable."""

    def __init__(self, case: Case) -> None:
        config = dict(case["config"])
        shelf = config.pop("shelf", None)
        connector = Shelf(shelf) if isinstance(shelf, int) else None
        recipe = Recipe(block_size=config.pop("block_size"))  # type: ignore[arg-type]
        self._engine = Engine(EngineConfig(recipe=recipe, **config), connector)  # type: ignore[arg-type]
        self._size = recipe.block_size
        self._begun = self._ended = 0
        self._loads: list[tuple[int, str]] = []
        self._operations = case["operations"]
        self._outputs: dict[str, Iterator[int]] = {}
        self._in_flight: deque[ScheduledStep] = deque()

    def records(self) -> Iterator[Record]:
        for operation in self._operations:
            match operation["op"]:
                case "add":
                    self._add(operation)
                case "abort":
                    self._engine.abort(operation["id"])
                case "reset":
                    done = self._engine.reset_prefix_cache(reset_running_requests=operation["running"])
                    yield {"op": "reset", "done": done}
                case "schedule":
                    yield self._schedule()
                case "complete":
                    yield self._complete()
            self._engine.check()

    def _add(self, operation: Operation) -> None:
        lora = Lora(**operation["lora"]) if operation["lora"] else None
        self._outputs[operation["id"]] = iter(operation["outputs"])
        self._engine.add(
            EngineRequest(
                id=operation["id"],
                prompt=TokenPrompt(operation["tokens"], Extras(lora=lora, salt=operation["salt"])),
                max_tokens=operation["max_tokens"],
                skip_cache=operation["skip_cache"],
                stop_token_ids=tuple(operation["stop"]),
            )
        )

    def _schedule(self) -> Record:
        step = self._engine.schedule()
        self._in_flight.append(step)
        for name, tokens in step.loads.items():
            self._loads.append((self._begun + steps_of_load(tokens // self._size), name))
        self._begun += 1
        running, waiting, free = self._engine.queues()
        return {
            "op": "schedule",
            "scheduled": [list(item) for item in step.num_scheduled_tokens.items()],
            "sampled": sorted(step.sampled),
            "running": running,
            "waiting": waiting,
            "free": free,
            "loads": [[name, tokens // self._size] for name, tokens in step.loads.items()],
            "has_work": self._engine.has_work,
        }

    def _complete(self) -> Record:
        result = self._engine.complete(self._in_flight.popleft(), lambda name: next(self._outputs[name]))
        for due, name in self._loads:
            if due <= self._ended:
                self._engine.loaded(name)
        self._loads = [each for each in self._loads if each[0] > self._ended]
        self._ended += 1
        return {
            "op": "complete",
            "events": [as_vllm_writes(event) for event in result.events],
            "cached": [list(item) for item in sorted(self._engine.cached().items())],
            "tokens": result.tokens,
            "cached_tokens": result.cached_tokens,
            "finished": result.finished,
            "has_work": self._engine.has_work,
            "queries": self._engine.prefix_cache_queries,
            "hits": self._engine.prefix_cache_hits,
            "preemptions": self._engine.num_preemptions,
        }


def compare(case: Case) -> Counter[str]:
    """Assert that both do the same, operation by operation; returns what happened on the way."""
    seen: Counter[str] = Counter()
    theirs = run_scheduler(case)
    for at, (their, our) in enumerate(zip(theirs, Replay(case).records(), strict=True)):
        if "shelf" in case["config"]:  # while all wait for loads, vLLM takes empty steps, and ours none
            their.pop("has_work", None)
            our.pop("has_work", None)
        assert our == their, f"record {at} of {len(theirs)} ({their['op']})"
        seen.update(what_happened(their))
    return seen


def as_vllm_writes(event: KVEvent) -> dict[str, Any]:
    """The event's map form; vLLM writes the fields of an adapter even when there is none."""
    written: dict[str, Any] = msgspec.msgpack.decode(msgspec.msgpack.encode(event))
    return {"lora_id": None, "lora_name": None, **written} if isinstance(event, BlockStored) else written


def what_happened(record: Record) -> dict[str, int]:
    if record["op"] == "reset":
        return {"resets done": record["done"], "resets refused": not record["done"]}
    if record["op"] == "schedule":
        unfinished = len(record["scheduled"]) - len(record["sampled"])
        waiting = bool(record["waiting"])
        return {"steps": 1, "chunks": unfinished, "steps with requests waiting": waiting, "loads": len(record["loads"])}
    return {
        **Counter(event["type"] for event in record["events"]),
        "requests with a hit": sum(1 for tokens in record["cached_tokens"].values() if tokens),
        "steps with copies": any(copies > 1 for _, copies in record["cached"]),
        "stopped": sum(1 for reason in record["finished"].values() if reason == "stop"),
        "finished": len(record["finished"]),
    }


CASES: dict[str, dict[str, Any]] = {
    "small pool": {"seed": 1},
    "larger pool": {"seed": 2, "num_gpu_blocks": 400, "load": 0.5},
    "tight pool that preempts": {"seed": 3, "num_gpu_blocks": 40, "max_num_seqs": 32, "load": 0.5},
    "small budget": {"seed": 4, "max_num_batched_tokens": 48, "max_num_seqs": 6},
    "admits by first chunk": {
        "seed": 5,
        "reserve_full_prompt": False,
        "max_num_batched_tokens": 64,
        "num_gpu_blocks": 45,
    },
    "blocks of 32": {"seed": 6, "block_size": 32, "num_gpu_blocks": 40, "load": 0.5},
    "sequences up to max_model_len": {"seed": 7, "max_model_len": 100, "num_gpu_blocks": 30},
    "async": {"seed": 11, "async_scheduling": True, "max_in_flight": 2},
    "async, tight pool": {"seed": 12, "async_scheduling": True, "max_in_flight": 2, "num_gpu_blocks": 40, "load": 0.5},
    "async, small budget": {"seed": 13, "async_scheduling": True, "max_in_flight": 2, "max_num_batched_tokens": 48},
    "async, up to max_model_len": {
        "seed": 14,
        "async_scheduling": True,
        "max_in_flight": 2,
        "max_model_len": 100,
        "num_gpu_blocks": 30,
    },
    "async, three in flight": {"seed": 15, "async_scheduling": True, "max_in_flight": 3, "num_gpu_blocks": 50},
    "pipeline parallel: two in flight, not async": {"seed": 16, "max_in_flight": 2, "num_gpu_blocks": 50},
    "loads": {"seed": 21, "shelf": 7},
    "loads into a tight pool": {"seed": 22, "shelf": 7, "num_gpu_blocks": 40, "max_num_seqs": 32, "load": 0.5},
    "loads, small budget": {"seed": 23, "shelf": 4, "max_num_batched_tokens": 48, "max_num_seqs": 6},
    "loads, admits by first chunk": {
        "seed": 24,
        "shelf": 7,
        "reserve_full_prompt": False,
        "max_num_batched_tokens": 64,
        "num_gpu_blocks": 45,
    },
    "loads, async": {"seed": 25, "shelf": 7, "async_scheduling": True, "max_in_flight": 2, "num_gpu_blocks": 60},
}


@pytest.mark.parametrize("name", CASES)
def test_the_simulated_replica_does_what_vllm_does(name: str) -> None:
    seen = compare(make_case(steps=1000, **CASES[name]))
    for what in (
        "BlockStored",
        "BlockRemoved",
        "AllBlocksCleared",
        "chunks",
        "requests with a hit",
        "steps with copies",
    ):
        assert seen[what] > 0, f"the case never exercised {what!r}"
    assert (seen["loads"] > 50) is ("shelf" in CASES[name])
