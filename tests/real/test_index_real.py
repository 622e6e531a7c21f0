"""The index against vLLM's own block pool: fed with the events of vLLM 0.32.0's scheduler, it holds what the pool holds.

Knows the record of ``vllm_scheduler.py`` and how an event travels: encoded as vLLM encodes it, decoded, put in order, applied.
Judged after every step (each hash with its number of copies) and at every single lookup, with the events that vLLM had queued
by then: what the index predicts is what the scheduler found. Run by ``scripts/test-real tests/real/test_index_real.py``.
"""

import functools
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from balancer.matching import usable_blocks
from hashing.chain import Chain
from hashing.extras import Extras, Lora
from hashing.recipes import Recipe
from indexer.events import AllBlocksCleared, KVEvent
from indexer.index import CacheIndex, ReplicaId
from indexer.stream import Apply, EventStream, Replay, Step
from indexer.wire import decode
from tests.real.records import as_counter, as_sent, run_scheduler
from tests.real.vllm_scheduler import Case, Record, make_case

pytestmark = pytest.mark.real

STEPS = 1000
ONE, ANOTHER = ReplicaId("one"), ReplicaId("another")

CASES: dict[str, dict[str, Any]] = {
    "small pool": {"seed": 101},
    "tight pool that preempts": {"seed": 102, "num_gpu_blocks": 40, "max_num_seqs": 32, "load": 0.5},
    "larger pool, blocks of 32": {"seed": 103, "num_gpu_blocks": 120, "block_size": 32, "load": 0.5},
    "small budget, so prompts in chunks": {"seed": 104, "max_num_batched_tokens": 48, "max_num_seqs": 6},
    "async scheduling": {"seed": 105, "async_scheduling": True, "max_in_flight": 2, "num_gpu_blocks": 50, "load": 0.5},
    "sequences up to max_model_len": {"seed": 106, "max_model_len": 100, "num_gpu_blocks": 30, "load": 0.5},
}


@functools.cache
def recorded(name: str) -> tuple[Case, list[Record]]:
    """The case and what vLLM did with it; asked for once, however many tests look at it."""
    case = make_case(steps=STEPS, **CASES[name])
    return case, run_scheduler(case, "--lookups")


class Lookups:
    """What vLLM's lookups found, to be held against the index; mutable."""

    def __init__(self, case: Case) -> None:
        self.judged: Counter[str] = Counter()
        self._recipe = Recipe(block_size=case["config"]["block_size"])
        self._requests = {operation["id"]: operation for operation in case["operations"] if operation["op"] == "add"}
        self._pending: list[Record] = []

    def add(self, lookup: Record) -> None:
        self._pending.append(lookup)

    def judge(self, index: CacheIndex, queued: int) -> None:
        """Those that vLLM made when exactly ``queued`` events were waiting to be published."""
        while self._pending and self._pending[0]["events"] == queued:
            lookup = self._pending.pop(0)
            predicted = self._predict(index, lookup)
            assert predicted == lookup["hit"], f"{lookup}: predicted {predicted}"
            self.judged["lookups"] += 1
            self.judged["hits"] += predicted > 0
            self.judged["of requests with outputs"] += lookup["tokens"] > len(self._requests[lookup["id"]]["tokens"])

    def _predict(self, index: CacheIndex, lookup: Record) -> int:
        request = self._requests[lookup["id"]]
        tokens = (request["tokens"] + request["outputs"])[: lookup["tokens"]]
        lora = Lora(request["lora"]["name"], request["lora"]["path"]) if request["lora"] else None
        chain = Chain(self._recipe, tokens, Extras(lora=lora, salt=request["salt"]))
        limit = usable_blocks(len(tokens), self._recipe.block_size)
        [(_, blocks)] = index.gpu.depths(chain, limit, index.gpu.bit(ONE))
        return blocks * self._recipe.block_size

    def assert_all_judged(self) -> None:
        assert not self._pending, f"{len(self._pending)} lookups at a moment that never came"


def deliver(index: CacheIndex, stream: EventStream, sequence: int, payload: bytes) -> Iterator[int]:
    """One batch on its way into the index, event by event; yields how many of its events are applied."""
    batch = decode(payload)
    assert not batch.skipped
    steps = stream.receive(sequence, batch)
    assert steps == [Apply([batch])]
    yield 0
    for count, event in enumerate(batch.events, 1):
        index.apply(ONE, [event])
        yield count


@pytest.mark.parametrize("name", CASES)
def test_the_index_holds_what_the_pool_holds_and_predicts_every_lookup(name: str) -> None:
    case, records = recorded(name)
    index, stream, lookups = CacheIndex(), EventStream(has_replay=True), Lookups(case)
    index.add(ONE)
    assert stream.connected() == [Replay(0)]
    assert stream.replay_ended() == []
    sequence = 0
    seen: Counter[str] = Counter()
    for at, record in enumerate(records):
        if record["op"] == "lookup":
            lookups.add(record)
        if record["op"] != "complete":
            continue
        payload = as_sent(record)
        if payload is None:
            lookups.judge(index, 0)
        else:
            for applied in deliver(index, stream, sequence, payload):
                lookups.judge(index, applied)
            sequence += 1
        held = as_counter(record)
        assert index.gpu.held(ONE) == held, f"record {at} of {len(records)}"
        assert index.gpu.blocks(ONE) == len(held)
        assert index.gpu.copies(ONE) == held.total() < case["config"]["num_gpu_blocks"]
        seen.update(event["type"] for event in record["events"])
        seen["steps with copies"] += held.total() > len(held)
        while index.has_retired:
            index.sweep()
    index.check()
    lookups.assert_all_judged()
    assert index.gpu.unknown_removals == 0
    print(f"{name}: {sequence} batches, {dict(seen)}, {dict(lookups.judged)}")
    for what in ("BlockStored", "BlockRemoved", "AllBlocksCleared", "steps with copies"):
        assert seen[what] > 0, f"the case never exercised {what!r}"
    assert lookups.judged["lookups"] > 100
    assert lookups.judged["hits"] > 50


class LossyPublisher:
    """vLLM's publisher as seen through a link that drops messages, live and replayed; mutable."""

    def __init__(self, draw: random.Random, loss: float) -> None:
        self.sent: list[bytes] = []
        self.lost = 0
        self._draw = draw
        self._loss = loss

    def connect(self, stream: EventStream) -> Iterator[Step]:
        return self._answer(stream, stream.connected())

    def publish(self, payload: bytes, stream: EventStream) -> Iterator[Step]:
        self.sent.append(payload)
        return self._answer(stream, stream.receive(len(self.sent) - 1, decode(payload)) if self._arrives() else [])

    def recheck(self, stream: EventStream) -> Iterator[Step]:
        return self._answer(stream, stream.recheck())

    def _answer(self, stream: EventStream, steps: list[Step]) -> Iterator[Step]:
        """The steps, and those that come of the replays they ask for."""
        while steps:
            asked = [step.start for step in steps if isinstance(step, Replay)]
            yield from (step for step in steps if not isinstance(step, Replay))
            steps = self._replay(stream, asked[-1]) if asked else []

    def _replay(self, stream: EventStream, start: int) -> list[Step]:
        steps: list[Step] = []
        for sequence in range(start, len(self.sent)):
            if sequence == start or self._arrives():  # a pipe that has been emptied takes at least one message
                steps += stream.replayed(sequence, decode(self.sent[sequence]))
            if any(isinstance(step, Replay) for step in steps):  # the rest would answer the old question
                return steps
        return steps + stream.replay_ended()

    def _arrives(self) -> bool:
        is_lost = self._draw.random() < self._loss
        self.lost += is_lost
        return not is_lost


def apply(index: CacheIndex, steps: Iterable[Step]) -> None:
    for step in steps:
        assert isinstance(step, Apply), step
        events: list[KVEvent] = [event for batch in step.batches for event in batch.events]
        index.apply(ONE, events)


@pytest.mark.parametrize("name", ["small pool", "async scheduling"])
def test_the_index_heals_from_a_lossy_link(name: str) -> None:
    _, records = recorded(name)
    index, stream = CacheIndex(), EventStream(has_replay=True)
    index.add(ONE)
    publisher = LossyPublisher(random.Random(7), loss=0.2)
    apply(index, publisher.connect(stream))
    compared = 0
    for record in records:
        payload = as_sent(record) if record["op"] == "complete" else None
        if payload is None:
            continue
        apply(index, publisher.publish(payload, stream))
        if stream.next_sequence == len(publisher.sent):
            assert index.gpu.held(ONE) == as_counter(record)
            compared += 1
    for _ in range(5):  # as after silence: the last batches may be the ones that were lost
        apply(index, publisher.recheck(stream))
    last = next(record for record in reversed(records) if record["op"] == "complete")
    assert index.gpu.held(ONE) == as_counter(last)
    assert stream.is_complete
    assert publisher.lost > 50
    assert compared > len(publisher.sent) // 2


def test_two_replicas_in_one_index_do_not_disturb_each_other() -> None:
    """Both hold the same hashes; now and then the one is cleared while the other lives on."""
    _, records = recorded("small pool")
    index = CacheIndex()
    index.add(ONE)
    index.add(ANOTHER)
    for at, record in enumerate(record for record in records if record["op"] == "complete"):
        payload = as_sent(record)
        if payload is not None:
            events = decode(payload).events
            index.apply(ONE, events)
            index.apply(ANOTHER, [*events, *([AllBlocksCleared()] if at % 50 == 49 else [])])
        assert index.gpu.held(ONE) == as_counter(record)
        if at % 50 == 49:
            index.sweep()
    index.check()
