"""A model of one vLLM publisher: its batches with their numbers, the buffer they are replayed from, and its engines.

Knows the publisher of vLLM 0.11 - 0.32 (``vllm/distributed/kv_events.py``): numbers from 0 with every process, a bounded
buffer, a batch with each step that had something to tell. Keeps the truth: what each tier held, with copies, after every batch
that was published. Never knows a subscriber, a clock or kvlb's index, nor what kind of engine it publishes for.
"""

from collections import Counter, deque
from collections.abc import Callable
from random import Random
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from balancer.hashes import PromptHashes
from hashing.chain import Chain
from hashing.extras import Extras, Lora
from hashing.recipes import Recipe
from indexer.index import Tier
from simulations.fake.releases import Release
from tests.support.network import END_MARKER

GPU, CPU = Tier(), Tier("CPU")
ADAPTER: Final = Lora("ad", "/adapters/ad", 1)
UNREADABLE: Final = {"type": "BlockStored", "block_hashes": "none", "parent_block_hash": None, "token_ids": 7}

Held: TypeAlias = dict[Tier, Counter[int]]


class Kind(msgspec.Struct, frozen=True):
    """How an engine is set up.

    ``recipe`` is how it really hashes, ``declared`` what a gateway is told of it. ``has_random_root`` draws the root anew for
    each process. ``buffer`` counts batches; None is an engine without a replay socket. ``offloads`` is the capacity of its CPU
    tier in blocks.
    """

    name: str
    recipe: Recipe
    declared: Recipe | None
    version: str = "0.32.0"
    has_int_hashes: bool = True
    has_random_root: bool = False
    buffer: int | None = 10_000
    num_gpu_blocks: int = 24
    async_scheduling: bool = False
    offloads: int = 0


class Ask(msgspec.Struct, frozen=True):
    """A request as a client sends it."""

    tokens: tuple[int, ...]
    salt: str | None = None
    has_adapter: bool = False
    max_tokens: int = 4

    @property
    def extras(self) -> Extras:
        return Extras(lora=ADAPTER if self.has_adapter else None, salt=self.salt)

    def answer(self, count: int) -> list[int]:
        """The next token follows from those before it: the same prompt gets the same answer, and shares its blocks."""
        tokens = list(self.tokens)
        for _ in range(count):
            tokens.append(200 + (sum(tokens) * 31 + len(tokens)) % 5)
        return tokens[len(self.tokens) :]


class Stepped(msgspec.Struct, frozen=True):
    """What one step of an engine brought.

    ``payload`` is the batch that it publishes, None when there is nothing to tell; ``held`` is what its tiers hold with that
    batch. ``cached_tokens`` has the requests that got their first token, ``finished`` those that ended.
    """

    payload: bytes | None = None
    held: Held = {}
    cached_tokens: dict[str, int] = {}
    finished: tuple[str, ...] = ()


class Process(Protocol):
    """An engine's process, as far as its clients and its cache go."""

    @property
    def recipe(self) -> Recipe:
        """How it really hashes."""
        ...

    @property
    def has_work(self) -> bool:
        """Whether it would take a step by itself."""
        ...

    def requests(self) -> list[str]:
        """The ids of those that wait or run."""
        ...

    def add(self, name: str, ask: Ask) -> None: ...

    def abort(self, name: str) -> None: ...

    def reset(self, *, running: bool) -> None:
        """``reset_prefix_cache``, with ``reset_running_requests`` or without."""
        ...

    def step(self, timestamp: float) -> Stepped: ...


Start: TypeAlias = Callable[[Kind, Random], Process]
"""Starts a process of a kind."""


class Life:
    """One engine process and its publisher, from start to end; mutable."""

    def __init__(self, kind: Kind, number: int, process: Process) -> None:
        self.kind = kind
        self.number = number
        self.process = process
        self.release = Release(kind.version)
        self.buffer: deque[tuple[int, bytes]] = deque(maxlen=kind.buffer or 0)
        self.first_unreadable: int | None = None
        """The first batch of which nobody can read everything."""
        self.is_doubtful = False
        """Whether a replay has lied about where its buffer begins."""
        self.was_silent = False
        """Whether a replay was not answered in time."""
        self._held: list[Held] = []
        self._asks: dict[str, Ask] = {}
        self._names: dict[Any, _Names] = {}

    @property
    def sent(self) -> int:
        """How many batches have been published: the number of the next one."""
        return len(self._held)

    def truth(self, sequence: int) -> Held:
        """What each tier held after this batch; before the first one: nothing."""
        return self._held[sequence] if sequence >= 0 else {GPU: Counter(), CPU: Counter()}

    def add(self, ask: Ask) -> str:
        """Queue a request; returns its id."""
        name = f"r{self.number}-{len(self._asks)}"
        self.process.add(name, ask)
        self._asks[name] = ask
        return name

    def ask(self, name: str) -> Ask:
        return self._asks[name]

    def asks(self) -> list[Ask]:
        """Every prompt so far, the latest last."""
        return list(self._asks.values())

    def step(self, timestamp: float, *, is_readable: bool = True) -> Stepped:
        """One step of the engine; what it publishes is numbered and kept, and has a fault when not ``is_readable``."""
        stepped = self.process.step(timestamp)
        if stepped.payload is None:
            return stepped
        if not is_readable:
            stepped = msgspec.structs.replace(stepped, payload=_with_fault(stepped.payload))
            self.first_unreadable = self.sent if self.first_unreadable is None else self.first_unreadable
        assert stepped.payload is not None
        self.buffer.append((self.sent, stepped.payload))
        self._held.append(stepped.held)
        return stepped

    def answer(self, start: int) -> list[list[bytes]]:
        """The messages of a whole replay, without its end marker."""
        topic = [b""] if self.release.has_replay_topic else []
        return [
            [b"", *topic, sequence.to_bytes(8, "big"), payload]
            for sequence, payload in self.buffer
            if sequence >= start
        ]

    def end_of_answer(self) -> list[bytes]:
        return [b"", *([b""] if self.release.has_replay_topic else []), END_MARKER, b""]

    def names(self, recipe: Any) -> dict[int, int]:
        """What the engine's keys of all its prompts and answers are called under another recipe."""
        names = self._names.setdefault(recipe, _Names())
        for ask in self._asks.values():
            names.add(self.process.recipe, recipe, ask)
        return names.known

    def cached_tokens(self, ask: Ask, sequence: int) -> int:
        """What the engine would find cached of this prompt, as of this batch."""
        recipe, held = self.process.recipe, self.truth(sequence)[GPU]
        usable = (len(ask.tokens) - 1) // recipe.block_size
        found = 0
        for key in Chain(recipe, ask.tokens, ask.extras).keys(usable)[:usable]:
            if not held[key]:
                break
            found += recipe.block_size
        return found


class _Names:
    """The keys of one recipe, by the keys of another; mutable."""

    def __init__(self) -> None:
        self.known: dict[int, int] = {}
        self._done: set[Ask] = set()

    def add(self, ours: Recipe, theirs: Any, ask: Ask) -> None:
        if ask in self._done:
            return
        self._done.add(ask)
        tokens = [*ask.tokens, *ask.answer(ask.max_tokens)]
        count = len(tokens) // ours.block_size
        [chain] = PromptHashes([tokens], ask.salt, None).chains(theirs, ask.extras.lora)
        keys = Chain(ours, tokens, ask.extras).keys(count)
        self.known.update(zip(keys, chain.keys(count), strict=True))


class Publisher:
    """An address and the engines that live behind it, one after the other; mutable."""

    def __init__(self, address: str, kind: Kind, start: Start, draw: Random) -> None:
        self.address = address
        self.kind = kind
        self._start = start
        self.lives = [Life(kind, 0, start(kind, draw))]

    @property
    def life(self) -> Life:
        return self.lives[-1]

    def restart(self, draw: Random, kind: Kind | None = None) -> None:
        """The process ends, and another begins: perhaps another engine altogether."""
        self.kind = kind or self.kind
        self.lives.append(Life(self.kind, len(self.lives), self._start(self.kind, draw)))


def _with_fault(payload: bytes) -> bytes:
    """The payload with an event in its middle that cannot be read."""
    timestamp, events, rank = msgspec.msgpack.decode(payload)
    events[len(events) // 2] = UNREADABLE
    return msgspec.msgpack.encode([timestamp, events, rank])
