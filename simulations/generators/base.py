"""What a generator of workloads is, and what all of them are made with: texts that grow, lengths, and times by chance.

Knows lengths and what begins alike. Never knows words: a text is a row of block ids. A generator is a frozen struct of
settings; the same settings and the same seed give the same trace, on every machine.
"""

import math
from bisect import bisect
from collections.abc import Iterator
from itertools import accumulate, count
from random import Random
from typing import ClassVar, Final, Protocol

import msgspec

from balancer.errors import ConfigError
from balancer.registry import Registry
from simulations.traces.trace import Trace, TraceBuilder

DECODE_SECONDS: Final = 0.02
"""A token of an answer takes so long, where a time has to be said for a turn that waits for an answer."""

MAX_SESSIONS: Final = 10_000_000


class Generator(Protocol):
    """Makes traces. A frozen ``msgspec.Struct`` whose fields are its settings, each with a default."""

    def generate(self, seed: int) -> Trace:
        """One trace; the same for the same seed."""
        ...


generators: Registry[Generator] = Registry(
    "generator", package="simulations.generators", group="kvlb.trace_generators", method="generate"
)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What all of ours have.

    Attributes:
        seconds: from the first arrival on, new conversations begin for so long.
        rate: of those, in one second.
        block_size: tokens of one block.
        spread: how far lengths and pauses lie apart: the standard deviation of their logarithms; 0 makes them all alike.
    """

    seconds: float = 600.0
    rate: float = 1.0
    block_size: int = 16
    spread: float = 0.6

    may_be_zero: ClassVar[frozenset[str]] = frozenset({"spread"})
    shares: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self) -> None:
        """Raises ``ConfigError`` where a setting cannot be."""
        for name in self.__struct_fields__:
            value = getattr(self, name)
            least = name in self.may_be_zero or name in self.shares
            if not math.isfinite(value) or value < 0 or (value == 0 and not least):
                raise ConfigError(f"generator.{name}: must be {'0 or more' if least else 'above 0'}, got {value}")
            if name in self.shares and value > 1:
                raise ConfigError(f"generator.{name}: must be a share from 0 to 1, got {value}")
        if self.rate * self.seconds > MAX_SESSIONS:
            raise ConfigError(
                f"generator.rate: {self.rate:g} a second for {self.seconds:g} seconds are more than {MAX_SESSIONS:,}; "
                "lower one of them"
            )


class Text:
    """What a prompt says, as far as it is asked: its blocks. Immutable; what grows out of it begins as it does.

    The same ``key`` behind the same text is the same text again; without a key each is another.
    """

    __slots__ = ("_blocks", "_grown", "_numbers", "_partial", "_size", "tokens")

    def __init__(self, numbers: Iterator[int], block_size: int, tokens: int = 0, blocks: tuple[int, ...] = ()) -> None:
        self.tokens = tokens
        self._numbers = numbers
        self._size = block_size
        self._blocks = blocks
        self._partial: int | None = None
        self._grown: dict[object, Text] = {}

    def then(self, tokens: int, key: object = None) -> "Text":
        """This, and so many tokens more."""
        if key is not None and key in self._grown:
            return self._grown[key]
        total = self.tokens + tokens
        fresh = total // self._size - len(self._blocks)
        grown = Text(
            self._numbers, self._size, total, self._blocks + tuple([next(self._numbers) for _ in range(fresh)])
        )
        if key is not None:
            self._grown[key] = grown
        return grown

    def ids(self) -> list[int]:
        """Of its blocks, a last partial one included."""
        ids = list(self._blocks)
        if self.tokens % self._size:
            if self._partial is None:
                self._partial = next(self._numbers)
            ids.append(self._partial)
        return ids


class Workshop:
    """One trace in the making: its texts, its chance and its requests. Mutable."""

    def __init__(self, name: str, settings: Settings, seed: int) -> None:
        self.random = Random(seed)
        self.settings = settings
        self.blank = Text(count(), settings.block_size)
        self.builder = TraceBuilder(name, settings.block_size, is_chained=True)
        self._sessions = count()
        self._popularity: dict[int, list[float]] = {}

    def length(self, median: float, at_least: int = 1) -> int:
        """Tokens, half of the time more than ``median``."""
        return max(at_least, round(self.time(median)))

    def time(self, median: float) -> float:
        """The same in seconds."""
        spread = self.settings.spread
        return median * self.random.lognormvariate(0, spread) if spread else median

    def turns(self, mean: float) -> int:
        """1 or more, each as likely to be the last one as any other."""
        turns = 1
        while self.random.random() > 1 / max(1.0, mean):
            turns += 1
        return turns

    def popular(self, of: int) -> int:
        """A number below ``of``: the first one twice as often as the second, three times as often as the third (Zipf's law)."""
        if of not in self._popularity:
            self._popularity[of] = list(accumulate(1 / rank for rank in range(1, of + 1)))
        shares = self._popularity[of]
        return bisect(shares, self.random.random() * shares[-1], hi=of - 1)

    def begins(self) -> Iterator[float]:
        """When conversations begin: by chance, at the settings' rate."""
        at = 0.0
        while (at := at + self.random.expovariate(self.settings.rate)) < self.settings.seconds:
            yield at

    def session(self) -> int:
        """The number of another conversation."""
        return next(self._sessions)

    def ask(
        self, at: float, prompt: Text, answer: int, session: int | None = None, pause: float | None = None
    ) -> tuple[Text, float]:
        """One more request; the prompt with its answer, and about when that is there."""
        self.builder.add(at, prompt.tokens, answer, prompt.ids(), session=session, pause=pause)
        return prompt.then(answer), at + answer * DECODE_SECONDS

    def done(self) -> Trace:
        """The trace.

        Raises:
            ConfigError: chance brought no request.
        """
        if not len(self.builder):
            raise ConfigError(
                "generator.seconds: too short for a request at this rate; give more seconds or a higher rate"
            )
        return self.builder.build()
