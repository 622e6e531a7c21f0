"""Hybrid models against vLLM's own classes: its lookup among several cache groups, and its scheduler with such a cache.

Two judges. One asks vLLM 0.32.0's coordinators for the hit among blocks put there at random, every kind of group, draft models
included. The other runs its scheduler through a thousand steps of churn and holds every single lookup against what kvlb
predicts from the events alone: recipe, step of the hashes, groups and rule are all found out by them.
Run by ``scripts/test-real tests/real/test_hybrid_real.py``.
"""

import functools
import json
import random
from collections import Counter
from collections.abc import Sequence
from math import lcm
from typing import Any

import pytest

from hashing.chain import Chain
from hashing.extras import Extras, Lora
from hashing.own import LearnedKeys, OwnChain
from hashing.recipes import Recipe
from indexer.hits import matches
from indexer.hybrid import FULL_ATTENTION, GroupSpec, hit_rule
from indexer.index import CacheIndex, ReplicaId, TierIndex
from indexer.recognition import KeyState, Recognition
from indexer.wire import decode
from tests.real.records import as_counter, as_sent, run_scheduler, run_script
from tests.real.vllm_scheduler import Case, Record, make_case

pytestmark = pytest.mark.real

Group = dict[str, Any]
ONE, ANOTHER = ReplicaId("one"), ReplicaId("another")
STEPS = 1000
LOOKUPS = 6000


def full(block_size: int, kind: str = "full_attention") -> Group:
    return {"kind": kind, "block_size": block_size, "window": None}


def sliding(block_size: int, window: int) -> Group:
    return {"kind": "sliding_window", "block_size": block_size, "window": window}


def chunked(block_size: int, chunk: int) -> Group:
    return {"kind": "chunked_local_attention", "block_size": block_size, "window": chunk}


def mamba(block_size: int, mode: str = "align") -> Group:
    return {"kind": "mamba", "block_size": block_size, "window": None, "mode": mode}


# -- single lookups --------------------------------------------------------------------------------------------------------

GROUPS: list[tuple[list[Group], int]] = [
    ([full(16), sliding(16, 64)], 16),
    ([full(16), sliding(16, 40)], 16),
    ([full(16), sliding(16, 1)], 16),
    ([full(16), sliding(16, 64), sliding(16, 40)], 16),
    ([full(16), sliding(16, 64), sliding(16, 64)], 16),
    ([full(32), sliding(16, 64)], 16),
    ([full(16), sliding(32, 64)], 16),
    ([full(16), sliding(64, 65), sliding(16, 40)], 16),
    ([sliding(16, 64)], 16),
    ([sliding(16, 64), sliding(16, 24)], 16),
    ([full(16, "mla_attention"), full(32), sliding(16, 50)], 16),
    ([full(16), mamba(16)], 16),
    ([full(16), mamba(64)], 16),
    ([full(32), mamba(64)], 16),
    ([full(64), mamba(64)], 16),
    ([full(16), mamba(16, "all")], 16),
    ([full(32), mamba(32, "all"), mamba(32, "all")], 32),
    ([mamba(16)], 16),
    ([full(16), sliding(16, 64), mamba(32)], 16),
    ([full(32), sliding(16, 64), mamba(32)], 16),
    ([full(48), sliding(32, 70), mamba(96)], 16),
    ([full(16), chunked(16, 64)], 16),
    ([full(16), chunked(16, 72)], 16),
    ([chunked(16, 64)], 16),
]


class Lookup:
    """A cache filled at random, and a prompt of which it holds some."""

    def __init__(self, draw: random.Random) -> None:
        groups, self.hash_size = draw.choice(GROUPS)
        self.groups = [dict(group) for group in groups]
        # vLLM 0.32 asserts that no draft model stands beside chunked local attention.
        can_draft = not any(group["kind"] == "chunked_local_attention" for group in groups)
        self.has_eagle = can_draft and draw.random() < 0.4
        attention = [group for group in self.groups if group["kind"] != "mamba"]
        if self.has_eagle and attention and draw.random() < 0.6:
            draw.choice(attention)["eagle"] = True
        self.tokens = draw.randint(1, 400)
        self.held = [self._held(draw, group) for group in self.groups]

    def _held(self, draw: random.Random, group: Group) -> list[int]:
        m = group["block_size"] // self.hash_size
        whole = draw.choice((0.9, 0.95, 1, 1) if group["kind"] in FULL_ATTENTION else (0.2, 0.5, 0.8, 0.9, 0.97, 1))
        places = range(self.tokens // self.hash_size)
        # Ends of prompts are cached inside longer blocks.
        return [at for at in places if draw.random() < (0.08 if (at + 1) % m else whole)]

    def question(self) -> dict[str, Any]:
        return {
            "groups": self.groups,
            "hash_size": self.hash_size,
            "hit_size": lcm(*(group["block_size"] for group in self.groups)),
            "tokens": self.tokens,
            "held": self.held,
            "eagle": self.has_eagle,
        }

    def specs(self) -> tuple[GroupSpec, ...]:
        drafts = [group.get("eagle", False) for group in self.groups]
        all_draft = self.has_eagle and not any(drafts)  # vLLM: none is marked, so all of them are meant
        return tuple(
            GroupSpec(at, group["kind"], group["block_size"], group["window"], all_draft or drafts[at])
            for at, group in enumerate(self.groups)
        )

    def answer(self) -> int:
        """By the rule, with another replica in the same tables that holds less."""
        tier = TierIndex()
        bits = [tier.bit(replica) for replica in (ANOTHER, ONE)]
        for group, places in enumerate(self.held):
            tier.store(ONE, group, [at + 1 for at in places])
            tier.store(ANOTHER, group, [at + 1 for at in places if at % 5])
        found = matches(hit_rule(self.specs(), self.hash_size), tier, _Numbers(), self.tokens, bits)
        return dict(found).get(bits[1], 0)


class _Numbers:
    """A chain whose keys are 1, 2, 3 ..."""

    def keys(self, count: int) -> Sequence[int]:
        return range(1, count + 1)


@pytest.mark.parametrize("seed", [1, 2])
def test_every_lookup_finds_what_vllm_finds(seed: int) -> None:
    draw = random.Random(seed)
    lookups = [Lookup(draw) for _ in range(LOOKUPS)]
    hits = json.loads(run_script("vllm_groups.py", [lookup.question() for lookup in lookups]))
    seen: Counter[str] = Counter()
    for lookup, hit in zip(lookups, hits, strict=True):
        assert lookup.answer() == hit, lookup.question()
        seen["hits"] += hit > 0
        seen["of draft models"] += hit > 0 and lookup.has_eagle
        seen["inside a block"] += any(hit % group["block_size"] for group in lookup.groups)
    print(dict(seen))
    assert min(seen["hits"], seen["of draft models"], seen["inside a block"] * 10) > LOOKUPS // 10


# -- the scheduler ---------------------------------------------------------------------------------------------------------

CASES: dict[str, dict[str, Any]] = {
    "window 64, little retained": {"groups": [full(16), sliding(16, 64)], "retention": 0},
    "window 64, dense": {"groups": [full(16), sliding(16, 64)]},
    "window 40, dense, preempting": {"groups": [full(16), sliding(16, 40)], "num_gpu_blocks": 60, "load": 0.5},
    "window 40, async scheduling": {
        "groups": [full(16), sliding(16, 40)],
        "retention": 0,
        "async_scheduling": True,
        "max_in_flight": 2,
    },
    "three groups, little retained": {"groups": [full(16), sliding(16, 64), sliding(16, 40)], "retention": 0},
    "three groups, dense": {"groups": [full(16), sliding(16, 64), sliding(16, 40)], "num_gpu_blocks": 150},
    "two groups alike": {"groups": [full(16), sliding(16, 64), sliding(16, 64)], "retention": 64},
    "longer blocks of full attention": {"groups": [full(32), sliding(16, 64)], "hash_size": 16, "retention": 0},
    "longer blocks of the window": {"groups": [full(16), sliding(32, 64)], "hash_size": 16},
    "a window alone": {"groups": [sliding(16, 64)]},
    "mamba": {"groups": [full(16), mamba(16)], "hash_size": 16, "retention": 0},
    "mamba, blocks of 64 hashed by 16": {"groups": [full(64), mamba(64)], "hash_size": 16, "retention": 0},
    "mamba, dense, two block sizes": {"groups": [full(32), mamba(64)], "hash_size": 16},
    "mamba and a window": {"groups": [full(32), sliding(16, 64), mamba(32)], "hash_size": 16, "retention": 0},
    "mamba, every state": {"groups": [full(16), mamba(16, "all")]},
}


class Judge:
    """Predicts every lookup of a record from the events alone; mutable."""

    def __init__(self, case: Case, declared: Recipe | None) -> None:
        self.judged: Counter[str] = Counter()
        requests = [operation for operation in case["operations"] if operation["op"] == "add"]
        adapters = {request["lora"]["name"]: request["lora"]["path"] for request in requests if request["lora"]}
        self.recognition = Recognition(declared, [Lora(*adapter) for adapter in adapters.items()])
        self.index = CacheIndex()
        self.index.add(ONE)
        self._requests = {request["id"]: request for request in requests}
        self._pending: list[Record] = []

    def lookup(self, record: Record) -> None:
        self._pending.append(record)

    def complete(self, record: Record) -> None:
        payload = as_sent(record)
        events = decode(payload).events if payload else []
        passed, is_void = self.recognition.read(events)
        if is_void:
            self.index.forget(ONE)
        self._judge(0)
        for count, event in enumerate(passed, 1):
            self.index.apply(ONE, [event])
            if passed is events:
                self._judge(count)
        self.index.sweep()
        if self.recognition.state is KeyState.LEARNED:
            # Events are told in other pieces then: what a lookup in the middle of a batch may know cannot be said.
            self.judged["in the middle"] += len(self._pending)
            self._pending.clear()
            return
        assert not self._pending
        held = sum((self.index.gpu.held(ONE, group) for group in self.index.gpu.groups), Counter())
        assert held == as_counter(record)

    def _judge(self, queued: int) -> None:
        while self._pending and self._pending[0]["events"] == queued:
            lookup = self._pending.pop(0)
            self.judged["lookups"] += 1
            if self.recognition.doubt or self.recognition.unplaced:
                self.judged["in doubt"] += 1
                continue
            predicted = self._predict(lookup)
            assert predicted == lookup["hit"], f"{lookup}: predicted {predicted}"
            self.judged["hits"] += predicted > 0
            self.judged["less than full attention"] += predicted < self._of_full_attention(lookup)

    def _chain(self, lookup: Record) -> Chain | OwnChain:
        request = self._requests[lookup["id"]]
        tokens = (request["tokens"] + request["outputs"])[: lookup["tokens"]]
        lora = Lora(request["lora"]["name"], request["lora"]["path"]) if request["lora"] else None
        extras, recipe = Extras(lora=lora, salt=request["salt"]), self.recognition.recipe
        assert recipe is not None
        return OwnChain(recipe, tokens, extras) if isinstance(recipe, LearnedKeys) else Chain(recipe, tokens, extras)

    def _predict(self, lookup: Record) -> int:
        if self.recognition.rule is None:
            return 0
        bit = self.index.gpu.bit(ONE)
        found = matches(self.recognition.rule, self.index.gpu, self._chain(lookup), lookup["tokens"], [bit])
        return dict(found).get(bit, 0)

    def _of_full_attention(self, lookup: Record) -> int:
        specs = self.recognition.groups.specs
        if not specs or specs[0].kind not in FULL_ATTENTION:
            return 0
        rule = hit_rule((specs[0],), self._chain(lookup).block_size)
        bit = self.index.gpu.bit(ONE)
        return dict(matches(rule, self.index.gpu, self._chain(lookup), lookup["tokens"], [bit])).get(bit, 0)


@functools.cache
def recorded(name: str) -> tuple[Case, list[Record]]:
    """The case and what vLLM did with it; asked for once."""
    case = make_case(seed=201, steps=STEPS, **{"num_gpu_blocks": 120, **CASES[name]})
    return case, run_scheduler(case, "--lookups")


def judged(name: str, declared: Recipe | None) -> Judge:
    case, records = recorded(name)
    judge = Judge(case, declared)
    for record in records:
        if record["op"] == "lookup":
            judge.lookup(record)
        elif record["op"] == "complete":
            judge.complete(record)
    print(f"{name}: {dict(judge.judged)}; {judge.recognition}, {judge.recognition.groups}")
    assert not judge.recognition.doubt
    return judge


@pytest.mark.parametrize("name", CASES)
def test_the_events_alone_predict_every_lookup(name: str) -> None:
    case, _ = recorded(name)
    judge = judged(name, Recipe(block_size=case["config"]["block_size"]))
    assert judge.recognition.state is KeyState.PROVEN
    assert judge.recognition.recipe == Recipe(block_size=case["config"].get("hash_size", 16))
    sizes = [spec.block_size for _, spec in sorted(judge.recognition.groups.specs.items())]
    assert sizes == [group["block_size"] for group in case["config"].get("groups", [])]
    assert judge.judged["in doubt"] <= 5
    assert judge.judged["hits"] > 30


@pytest.mark.parametrize("name", CASES)
def test_learned_keys_predict_every_lookup_unless_they_say_that_something_is_missing(name: str) -> None:
    """As of an engine whose root nobody knows; of blocks of several lengths its events do not tell enough to place them all."""
    judge = judged(name, None)
    assert judge.recognition.state is KeyState.LEARNED
    assert judge.judged["hits"] > 10 or "hash_size" in CASES[name]
