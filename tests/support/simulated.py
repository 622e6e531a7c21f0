"""An engine's process for ``tests.support.publisher``, played by ``simulations.engine``.

Knows the simulated engine (held against vLLM's own scheduler by tests/real), the encoder of each release, and what an
offloading connector tells of its CPU tier. Never knows sequence numbers or subscribers.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Iterator, Sequence
from random import Random
from typing import Final

import msgspec

from indexer.events import EMPTY, BlockRemoved, BlockStored, KVEvent
from simulations.engine import Engine
from simulations.engine_values import EngineConfig, EngineRequest, ScheduledStep
from simulations.fake.encoding import EventEncoder
from simulations.fake.releases import Release
from simulations.sequences import TokenPrompt
from tests.support.publisher import ADAPTER, CPU, GPU, Ask, Kind, Stepped

MAX_MODEL_LEN: Final = 64


class SimulatedProcess:
    """One process; mutable."""

    def __init__(self, kind: Kind, draw: Random) -> None:
        root = draw.randbytes(kind.recipe.digest_bytes) if kind.has_random_root else kind.recipe.root
        self.recipe = msgspec.structs.replace(kind.recipe, root=root)
        self._kind = kind
        self._engine = Engine(
            EngineConfig(
                recipe=self.recipe,
                num_gpu_blocks=kind.num_gpu_blocks,
                max_num_batched_tokens=40,
                max_num_seqs=4,
                max_model_len=MAX_MODEL_LEN,
                async_scheduling=kind.async_scheduling,
            )
        )
        self._encoder = EventEncoder(
            Release(kind.version),
            self.recipe,
            has_int_hashes=kind.has_int_hashes,
            lora_paths={ADAPTER.name: ADAPTER.path or ""},
        )
        self._answers: dict[str, Iterator[int]] = {}
        self._in_flight: deque[ScheduledStep] = deque()
        self._cpu: OrderedDict[int, None] = OrderedDict()

    @property
    def has_work(self) -> bool:
        return self._engine.has_work

    def requests(self) -> list[str]:
        running, waiting, _ = self._engine.queues()
        return running + waiting

    def add(self, name: str, ask: Ask) -> None:
        self._engine.add(EngineRequest(name, TokenPrompt(ask.tokens, ask.extras), ask.max_tokens))
        self._answers[name] = iter(ask.answer(ask.max_tokens))

    def abort(self, name: str) -> None:
        self._engine.abort(name)

    def reset(self, *, running: bool) -> None:
        self._engine.reset_prefix_cache(reset_running_requests=running)

    def step(self, timestamp: float) -> Stepped:
        self._in_flight.append(self._engine.schedule())
        if self._kind.async_scheduling and len(self._in_flight) < 2 and self._engine.has_work:
            return Stepped()
        result = self._engine.complete(self._in_flight.popleft(), lambda name: next(self._answers[name]))
        events = [*result.events, *self._offload(result.events)]
        return Stepped(
            payload=self._encoder.encode(timestamp, events, 0) if events else None,
            held={GPU: self._engine.cached(), CPU: Counter(self._cpu.keys())},
            cached_tokens=result.cached_tokens,
            finished=tuple(result.finished),
        )

    def _offload(self, events: Sequence[KVEvent]) -> list[KVEvent]:
        """What an offloading connector tells with the same step: places only, of blocks that the GPU has just described."""
        told: list[KVEvent] = []
        for event in events:
            if isinstance(event, BlockStored) and self._kind.offloads:
                new = [key for key in event.block_hashes if key not in self._cpu]
                self._cpu.update(dict.fromkeys(new))
                told += [BlockStored([key], None, EMPTY, 0, medium="CPU", group_idx=0) for key in new]
        surplus = max(0, len(self._cpu) - self._kind.offloads)
        gone = [self._cpu.popitem(last=False)[0] for _ in range(surplus)]
        return [*told, BlockRemoved(gone, "CPU", 0)] if gone else told
