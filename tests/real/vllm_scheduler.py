"""vLLM's own scheduler, in process and without a model, fed with a list of operations: the judge of ``simulations.engine``.

Run by vLLM's interpreter; nothing of this project is imported, and vLLM only when it runs. A test imports ``make_case``, which
needs the standard library alone::

    python vllm_scheduler.py < case.json > record.jsonl
    python vllm_scheduler.py --seed 3 --steps 1500 > record.jsonl     # makes its own case
    python vllm_scheduler.py --lookups < case.json > record.jsonl     # with what each lookup in the cache found

**Case** (one JSON object): ``config`` has the fields of ``Config`` below, ``operations`` is a list of

- ``{"op": "add", "id", "tokens", "outputs", "max_tokens", "stop", "salt", "lora": {"name", "path", "id"} | null,
  "skip_cache"}``: a request arrives; ``outputs`` are the tokens that the absent model will sample for it, one after the other
- ``{"op": "abort", "id"}``, possibly of a request that has ended
- ``{"op": "reset", "running": bool}``: ``reset_prefix_cache``, with ``reset_running_requests`` or not
- ``{"op": "schedule"}`` and ``{"op": "complete"}``: begin a step; end the oldest step in flight

**Record** (one JSON object a line, one line an operation that is neither add nor abort):

- ``{"op": "reset", "done": bool}``
- ``{"op": "schedule", "scheduled": [[id, tokens], ...], "sampled": [id, ...], "running": [id, ...], "waiting": [id, ...],
  "free": [block, ...], "loads": [[id, blocks], ...], "has_work": bool}``: order matters everywhere but in ``sampled``, which
  is sorted; ``loads`` are those that begin with this step; ``has_work`` is whether the engine would take another step by itself
- ``{"op": "complete", "events": [event, ...], "cached": [[key, copies], ...], "tokens": {id: token}, "cached_tokens": {id: n},
  "finished": {id: reason}, "has_work": bool, "queries": n, "hits": n, "preemptions": n}``: ``events`` is the batch that is
  published with this step (empty: none is), each in vLLM's map form; ``cached`` is ``BlockPool.cached_block_hash_to_block`` at
  that moment, sorted, keys in 64 bits, all groups together: an index that has applied all batches so far holds the same,
  whatever is in flight.
- ``{"op": "lookup", "id", "tokens": n, "events": n, "hit": n}``, with ``--lookups`` only, before the ``schedule`` that made
  it: the request had ``tokens`` tokens, prompt and outputs, of which the cache had ``hit``; by then ``events`` events had
  been queued for the next batch. Requests that do not read the cache make none; those that are preempted or cannot be
  admitted make several.
"""

import argparse
import json
import os
import random
import sys
import tempfile
from collections import Counter, deque
from collections.abc import Iterator
from math import lcm
from pathlib import Path
from typing import Any, NotRequired, TypedDict

Operation = dict[str, Any]
Record = dict[str, Any]


class Config(TypedDict):
    """``groups`` are those of ``vllm_groups.py``; without any there is one, of full attention. ``retention`` is vLLM's
    ``prefix_cache_retention_interval``. With ``shelf`` there is a connector that can load all blocks but those whose key is a
    multiple of it; ``steps_of_load`` says how long that takes."""

    block_size: int
    num_gpu_blocks: int
    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int
    async_scheduling: bool
    reserve_full_prompt: bool
    groups: NotRequired[list[dict[str, Any]]]
    hash_size: NotRequired[int]
    retention: NotRequired[int]
    shelf: NotRequired[int]


def steps_of_load(blocks: int) -> int:
    """After how many further steps the end of which it is there, that was begun with this one."""
    return blocks % 4


class Case(TypedDict):
    config: Config
    operations: list[Operation]


DEFAULTS: Config = {
    "block_size": 16,
    "num_gpu_blocks": 80,
    "max_num_batched_tokens": 256,
    "max_num_seqs": 16,
    "max_model_len": 512,
    "async_scheduling": False,
    "reserve_full_prompt": True,
}


# -- the case --------------------------------------------------------------------------------------------------------------


def make_case(seed: int, steps: int, *, load: float = 0.3, max_in_flight: int = 1, **config: Any) -> Case:
    """A random case that repeats from its seed.

    ``load`` is the chance of an arrival before each step. ``max_in_flight`` above 1 begins steps before earlier ones have
    ended, at random.
    """
    full: Config = {**DEFAULTS, **config}  # type: ignore[typeddict-item]  # keywords name its keys
    return {"config": full, "operations": list(_operations(random.Random(seed), steps, load, max_in_flight, full))}


def _operations(
    draw: random.Random, steps: int, load: float, max_in_flight: int, config: Config
) -> Iterator[Operation]:
    clients = _Clients(draw, config)
    in_flight = 0
    for _ in range(steps):
        if draw.random() < load:
            yield from clients.arrivals()
        yield from clients.disturbances()
        yield {"op": "schedule"}
        in_flight += 1
        while in_flight >= max_in_flight or (in_flight and draw.random() < 0.3):
            if draw.random() < 0.02:
                yield clients.abort()
            yield {"op": "complete"}
            in_flight -= 1
    yield from ({"op": "complete"} for _ in range(in_flight))


class _Clients:
    """Who sends requests: documents with common beginnings, repeats, conversations that go on; mutable."""

    def __init__(self, draw: random.Random, config: Config) -> None:
        self._draw = draw
        self._size = config["block_size"]
        self._limit = config["max_model_len"] - 1
        self._longest = self._limit * 2 // 3
        self._documents = [self._tokens(self._longest) for _ in range(6)]
        self._past: list[Operation] = []

    def arrivals(self) -> Iterator[Operation]:
        kind = self._draw.random()
        if kind < 0.25 and self._past:  # the same again, perhaps several at once
            request = self._draw.choice(self._past[-20:])
            for _ in range(self._draw.choice((1, 1, 2, 3))):
                yield self._send(request)
        elif kind < 0.5 and self._past:  # the next turn: what was said and answered, and something new
            before = self._draw.choice(self._past[-20:])
            said = before["tokens"] + before["outputs"][: before["max_tokens"]]
            yield self._send(self._request(said + self._tokens(self._draw.randint(1, 30)), before))
        else:
            for _ in range(self._draw.choice((1, 1, 1, 4))):
                yield self._send(self._request(self._opening(), None))

    def disturbances(self) -> Iterator[Operation]:
        if self._draw.random() < 0.03:
            yield self.abort()
        if self._draw.random() < 0.02:
            yield {"op": "reset", "running": False}
        if self._draw.random() < 0.008:
            yield {"op": "reset", "running": True}

    def abort(self) -> Operation:
        return {"op": "abort", "id": self._draw.choice(self._past[-12:])["id"] if self._past else "nobody"}

    def _opening(self) -> list[int]:
        document = self._draw.choice(self._documents)
        cut = self._draw.randint(1, self._longest)
        if self._draw.random() < 0.5:
            cut = max(1, cut // self._size) * self._size
        return document[:cut] + (self._tokens(self._draw.randint(1, 40)) if self._draw.random() < 0.4 else [])

    def _request(self, tokens: list[int], before: Operation | None) -> Operation:
        draw = self._draw
        outputs = self._tokens(60)
        lora = {"name": f"ad{draw.randint(1, 2)}", "path": "/adapters/one", "id": 7} if draw.random() < 0.15 else None
        return {
            "op": "add",
            "tokens": tokens[: self._limit],
            "outputs": outputs,
            "max_tokens": draw.randint(1, 60),
            "stop": [draw.choice(outputs)] if draw.random() < 0.2 else [],
            "salt": before["salt"]
            if before
            else draw.choice(("salt one", "salt two"))
            if draw.random() < 0.15
            else None,
            "lora": before["lora"] if before else lora,
            "skip_cache": draw.random() < 0.07,
        }

    def _send(self, request: Operation) -> Operation:
        sent = {**request, "id": f"r{len(self._past)}"}
        self._past.append(sent)
        return sent

    def _tokens(self, count: int) -> list[int]:
        return [self._draw.randrange(1000) for _ in range(count)]


# -- the judge -------------------------------------------------------------------------------------------------------------


def records(case: Case, *, with_lookups: bool = False) -> Iterator[Record]:
    """What vLLM does with the case."""
    engine = Judge(case["config"])
    for operation in case["operations"]:
        match operation["op"]:
            case "add":
                engine.add(operation)
            case "abort":
                engine.abort(operation["id"])
            case "reset":
                yield {"op": "reset", "done": engine.reset(operation["running"])}
            case "schedule":
                step = engine.schedule()
                if with_lookups:
                    yield from engine.lookups
                yield step
            case "complete":
                yield engine.complete()


class Recorder:
    """Stands where the event publisher stands; mutable."""

    def __init__(self) -> None:
        self.batches: list[Any] = []

    def publish(self, batch: Any) -> None:
        self.batches.append(batch)

    def take(self) -> list[Any]:
        events = [event for batch in self.batches for event in batch.events]
        self.batches = []
        return events


class Judge:
    """``vllm.v1.core.sched`` with a model that is not there; mutable."""

    def __init__(self, config: Config) -> None:
        from vllm.utils.hashing import get_hash_fn_by_name
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash

        hash_function = get_hash_fn_by_name("sha256")
        init_none_hash(hash_function)
        self._hasher = get_request_block_hasher(config.get("hash_size", config["block_size"]), hash_function)
        self._scheduler = _make_scheduler(config)
        self._recorder = self._scheduler.kv_event_publisher = Recorder()
        self._outputs: dict[str, list[int]] = {}
        self._in_flight: deque[tuple[Any, set[str]]] = deque()
        self._counts: Counter[str] = Counter(queries=0, hits=0, preemptions=0)
        self._begun = self._ended = 0  # steps
        self._loads: list[tuple[int, str]] = []  # the step with whose end each has come, and for whom
        self._shelf = None
        if "shelf" in config:
            self._shelf = self._scheduler.connector = _make_shelf(config["shelf"], config["block_size"])
        self.lookups: list[Record] = []  # of the last step
        self._watch_preemptions()
        self._watch_lookups()

    def _watch_preemptions(self) -> None:
        original = self._scheduler._preempt_request

        def count_and_preempt(*args: Any, **kwargs: Any) -> None:
            self._counts["preemptions"] += 1
            original(*args, **kwargs)

        self._scheduler._preempt_request = count_and_preempt

    def _watch_lookups(self) -> None:
        manager = self._scheduler.kv_cache_manager
        original = manager.get_computed_blocks

        def look_up_and_note(request: Any) -> Any:
            queued = len(manager.block_pool.kv_event_queue)
            found = original(request)
            if manager.prefix_cache_lookup_enabled(request):
                self.lookups.append(
                    {
                        "op": "lookup",
                        "id": request.request_id,
                        "tokens": request.num_tokens,
                        "events": queued,
                        "hit": found[1],
                    }
                )
            return found

        manager.get_computed_blocks = look_up_and_note

    def add(self, operation: Operation) -> None:
        from vllm.lora.request import LoRARequest
        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request

        lora = operation["lora"]
        self._outputs[operation["id"]] = operation["outputs"]
        self._scheduler.add_request(
            Request(
                request_id=operation["id"],
                prompt_token_ids=list(operation["tokens"]),
                sampling_params=SamplingParams(
                    max_tokens=operation["max_tokens"],
                    stop_token_ids=operation["stop"],
                    prompt_logprobs=1 if operation["skip_cache"] else None,
                ),
                pooling_params=None,
                lora_request=LoRARequest(lora["name"], lora["id"], lora["path"]) if lora else None,
                cache_salt=operation["salt"],
                block_hasher=self._hasher,
            )
        )

    def abort(self, request_id: str) -> None:
        from vllm.v1.request import RequestStatus

        self._scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)

    def reset(self, running: bool) -> bool:
        try:
            return bool(self._scheduler.reset_prefix_cache(reset_running_requests=running))
        except RuntimeError:  # while something is being loaded; those that ran are preempted all the same
            return False

    def schedule(self) -> Record:
        scheduler = self._scheduler
        self.lookups = []
        step = scheduler.schedule()
        begun: list[tuple[str, int]] = []
        if self._shelf is not None:
            begun, self._shelf.begun = self._shelf.begun, []
            self._loads += [(self._begun + steps_of_load(blocks), name) for name, blocks in begun]
        self._begun += 1
        sampled = {name for name in step.num_scheduled_tokens if not scheduler.requests[name].is_prefill_chunk}
        self._in_flight.append((step, sampled))
        free = scheduler.kv_cache_manager.block_pool.free_block_queue.get_all_free_blocks()
        return {
            "op": "schedule",
            "scheduled": [list(item) for item in step.num_scheduled_tokens.items()],
            "sampled": sorted(sampled),
            "running": [request.request_id for request in scheduler.running],
            "waiting": [request.request_id for request in (*scheduler.kv_holding_waiting, *scheduler.waiting)],
            "free": [block.block_id for block in free],
            "loads": [list(each) for each in begun],
            "has_work": scheduler.has_requests(),
        }

    def complete(self) -> Record:
        step, sampled = self._in_flight.popleft()
        outputs = [
            output
            for client in self._scheduler.update_from_output(step, self._model_output(step, sampled)).values()
            for output in self._count_lookups(client)
        ]
        return {
            "op": "complete",
            "events": [_as_map(event) for event in self._recorder.take()],
            "cached": sorted(self._cached().items()),
            "tokens": {output.request_id: output.new_token_ids[0] for output in outputs},
            "cached_tokens": {
                output.request_id: output.prefill_stats.num_cached_tokens
                for output in outputs
                if output.prefill_stats is not None
            },
            "finished": {
                output.request_id: str(output.finish_reason) for output in outputs if output.finish_reason is not None
            },
            "has_work": self._scheduler.has_requests(),
            **self._counts,
        }

    def _model_output(self, step: Any, sampled: set[str]) -> Any:
        from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

        names = list(step.num_scheduled_tokens)
        come = [name for due, name in self._loads if due <= self._ended]
        self._loads = [each for each in self._loads if each[0] > self._ended]
        self._ended += 1
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=[[self._next_token(name)] if name in sampled else [] for name in names],
            kv_connector_output=KVConnectorOutput(finished_recving=set(come)) if come else None,
        )

    def _next_token(self, request_id: str) -> int:
        request = self._scheduler.requests.get(request_id)
        return self._outputs[request_id][request.num_output_tokens] if request else 0

    def _count_lookups(self, client: Any) -> list[Any]:
        stats = client.scheduler_stats
        if stats is not None and stats.prefix_cache_stats is not None:
            self._counts["queries"] += stats.prefix_cache_stats.queries
            self._counts["hits"] += stats.prefix_cache_stats.hits
        return list(client.outputs)

    def _cached(self) -> Counter[int]:
        from vllm.v1.core.kv_cache_utils import get_block_hash, maybe_convert_block_hash

        table = self._scheduler.kv_cache_manager.block_pool.cached_block_hash_to_block._cache
        cached: Counter[int] = Counter()
        for name, held in table.items():
            key = maybe_convert_block_hash(get_block_hash(name))
            cached[key] += len(held) if isinstance(held, dict) else 1
        return cached


def _make_shelf(modulus: int, block_size: int) -> Any:
    """A connector that looks for blocks as vLLM's OffloadingConnector does, and moves none."""
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata
    from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

    class Shelf(KVConnectorBase_V1):  # type: ignore[misc]  # vLLM has no types here
        def __init__(self) -> None:
            self.begun: list[tuple[str, int]] = []
            self._found: dict[str, list[int]] = {}
            self._coming: dict[str, list[int]] = {}

        def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
            if request.skip_reading_prefix_cache:
                return 0, False
            first, last = num_computed_tokens // block_size, request.num_tokens // block_size
            found = []
            for name in request.block_hashes[first:last]:
                key = maybe_convert_block_hash(name)
                if key % modulus == 0:
                    break
                found.append(key)
            if any(key in keys for keys in self._coming.values() for key in found):
                return None, False
            self._found[request.request_id] = found
            return len(found) * block_size, bool(found)

        def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
            if num_external_tokens:
                self._coming[request.request_id] = self._found[request.request_id]
                self.begun.append((request.request_id, num_external_tokens // block_size))

        def update_connector_output(self, connector_output: Any) -> None:
            for name in connector_output.finished_recving or ():
                del self._coming[name]

        def get_loaded_kv_cache_group_ids(self, request: Any) -> tuple[int, ...]:
            return (0,)

        def build_connector_meta(self, scheduler_output: Any) -> Any:
            return KVConnectorMetadata()

        def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None: ...
        def wait_for_layer_load(self, layer_name: str) -> None: ...
        def save_kv_layer(self, *args: Any, **kwargs: Any) -> None: ...
        def wait_for_save(self) -> None: ...

    return Shelf()


def _make_scheduler(config: Config) -> Any:
    from vllm.config import CacheConfig, KVEventsConfig, ModelConfig, SchedulerConfig, VllmConfig
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.structured_output import StructuredOutputManager
    from vllm_groups import make_groups  # type: ignore[import-not-found]  # beside this file, where no package is

    with tempfile.TemporaryDirectory() as folder:
        _write_model(Path(folder), config["max_model_len"])
        model = ModelConfig(
            model=folder,
            tokenizer=folder,
            skip_tokenizer_init=True,
            dtype="float32",
            max_model_len=config["max_model_len"],
        )
    vllm_config = VllmConfig(
        model_config=model,
        scheduler_config=SchedulerConfig(
            max_model_len=config["max_model_len"],
            is_encoder_decoder=False,
            max_num_batched_tokens=config["max_num_batched_tokens"],
            max_num_seqs=config["max_num_seqs"],
            scheduler_reserve_full_isl=config["reserve_full_prompt"],
        ),
        cache_config=CacheConfig(block_size=config["block_size"], enable_prefix_caching=True),
        kv_events_config=KVEventsConfig(enable_kv_cache_events=True, publisher="null"),
    )
    # The CPU platform switches it off while the config is made (vLLM 0.32.0, vllm/platforms/cpu.py); GPUs leave it on.
    vllm_config.scheduler_config.async_scheduling = config["async_scheduling"]
    vllm_config.cache_config.num_gpu_blocks = config["num_gpu_blocks"]
    groups = config.get("groups") or [{"kind": "full_attention", "block_size": config["block_size"]}]
    mamba = [group.get("mode", "align") for group in groups if group["kind"] == "mamba"]
    vllm_config.cache_config.mamba_cache_mode = mamba[0] if mamba else "none"
    return (AsyncScheduler if config["async_scheduling"] else Scheduler)(
        vllm_config=vllm_config,
        kv_cache_config=KVCacheConfig(
            num_blocks=config["num_gpu_blocks"],
            kv_cache_tensors=[],
            kv_cache_groups=make_groups(groups),
            prefix_cache_retention_interval=config.get("retention"),
        ),
        structured_output_manager=StructuredOutputManager(vllm_config),
        block_size=lcm(*(group["block_size"] for group in groups)),
        hash_block_size=config.get("hash_size"),
        log_stats=True,
    )


def _write_model(folder: Path, max_model_len: int) -> None:
    model = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "num_hidden_layers": 1,
        "vocab_size": 1024,
        "max_position_embeddings": max_model_len,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(model))


def _as_map(event: Any) -> dict[str, Any]:
    import msgspec

    decoded: dict[str, Any] = msgspec.msgpack.decode(msgspec.msgpack.encode(event))
    return decoded


def main() -> int:
    parser = argparse.ArgumentParser(description="feed vLLM's scheduler; see the head of this file")
    parser.add_argument("--seed", type=int, help="make a case instead of reading one")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--lookups", action="store_true", help="record what each lookup in the cache found")
    arguments = parser.parse_args()
    case: Case = json.load(sys.stdin) if arguments.seed is None else make_case(arguments.seed, arguments.steps)
    # vLLM logs to stdout and asks the network for models unless told otherwise.
    os.environ.update(HF_HUB_OFFLINE="1", VLLM_LOGGING_LEVEL="ERROR", VLLM_NO_USAGE_STATS="1")
    os.environ.pop("PYTHONHASHSEED", None)
    record_file = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with record_file:
        for record in records(case, with_lookups=arguments.lookups):
            record_file.write(json.dumps(record) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
