"""What has come of the legs of split requests, counted where they are sent.

Knows numbers by their labels, all of fixed lists. Never knows where they are told. Changes with every call but the questions.
"""

from collections import Counter
from enum import StrEnum
from typing import Final

import msgspec

SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
"""Bounds of the time that a leg takes."""


class Leg(StrEnum):
    """The two parts of a split request."""

    PREFILL = "prefill"
    DECODE = "decode"


class Ending(StrEnum):
    """How a leg ended."""

    OK = "ok"
    REFUSED = "refused"  # a status of 4xx, which is the client's
    FAILED = "failed"  # an error of the replica's own, no answer, or one that broke off
    TRANSFER = "transfer"  # a status of 500 to a decode leg with parameters: what was computed could not be fetched
    CANCELLED = "cancelled"  # the client has left, or the other leg has failed


class Alone(StrEnum):
    """Why a decode replica computes a prompt that was to be computed elsewhere."""

    NOBODY = "nobody"  # no prefill replica can take it
    FAILED = "failed"  # those that were tried have failed
    NO_PARAMS = "no_params"  # the prefill has answered without what it takes to fetch the blocks
    NO_ENGINE = "no_engine"  # its bootstrap server does not tell its engine's id
    EXPIRED = "expired"  # so much time has passed that the blocks may be gone
    TRANSFER = "transfer"  # they could not be fetched
    BODY = "body"  # the request cannot be split


class Miss(StrEnum):
    """The likely cause why a decode replica has computed what it was to fetch."""

    BLOCK_SIZE = "block_size"  # the two replicas have blocks of different sizes
    MODEL = "model"  # they do not serve the same base models
    PREFILL = "prefill"  # the prefill leg's prompt had another length
    WHOLE = "whole"  # nothing was fetched: the engines' settings, their connection, or a store that has lost it
    PART = "part"  # some of it was


class LegsCounted(msgspec.Struct):
    """Numbers of legs by their labels. Changes."""

    legs: dict[tuple[Leg, Ending], int] = {}
    alone: dict[Alone, int] = {}
    misses: dict[Miss, int] = {}
    expected_tokens: int = 0
    """Tokens that decode replicas were to fetch, of answers that say how many they had."""
    fetched_tokens: int = 0
    """Tokens of these that they had."""
    released: int = 0
    """Prefills whose blocks were given back because nobody would fetch them."""
    stranded: int = 0
    """Prefills whose blocks stay until their engine gives them up."""
    seconds: dict[Leg, list[float]] = {}
    """By leg: how often each range of ``SECONDS`` has come, and their sum at the end."""


class LegCounts:
    """Counts."""

    def __init__(self) -> None:
        self.legs: Counter[tuple[Leg, Ending]] = Counter()
        self.alone: Counter[Alone] = Counter()
        self.misses: Counter[Miss] = Counter()
        self.expected_tokens = self.fetched_tokens = self.released = self.stranded = 0
        self.seconds: dict[Leg, list[float]] = {}

    def __repr__(self) -> str:
        return f"<LegCounts of {self.legs.total()} legs>"

    def ended(self, leg: Leg, ending: Ending, seconds: float | None = None) -> None:
        """A leg has ended; ``seconds`` are until the prompt was computed, or fetched, if it was."""
        self.legs[leg, ending] += 1
        if seconds is not None:
            series = self.seconds.setdefault(leg, [0.0] * (len(SECONDS) + 2))
            series[next((at for at, bound in enumerate(SECONDS) if seconds <= bound), len(SECONDS))] += 1
            series[-1] += seconds

    def proved(self, expected: int, fetched: int, miss: Miss | None) -> None:
        """A decode replica has told how much of what it was to fetch it had; ``miss`` is why not all."""
        self.expected_tokens += expected
        self.fetched_tokens += fetched
        if miss is not None:
            self.misses[miss] += 1

    def take(self) -> LegsCounted:
        """All that was counted since the last time; it is for the caller now."""
        taken = LegsCounted(
            dict(self.legs),
            dict(self.alone),
            dict(self.misses),
            self.expected_tokens,
            self.fetched_tokens,
            self.released,
            self.stranded,
            self.seconds,
        )
        self.__init__()  # type: ignore[misc]  # as at the beginning
        return taken

    def add(self, counted: LegsCounted) -> None:
        """Another process has counted this."""
        self.legs.update(counted.legs)
        self.alone.update(counted.alone)
        self.misses.update(counted.misses)
        self.expected_tokens += counted.expected_tokens
        self.fetched_tokens += counted.fetched_tokens
        self.released += counted.released
        self.stranded += counted.stranded
        for leg, theirs in counted.seconds.items():
            mine = self.seconds.setdefault(leg, [0.0] * (len(SECONDS) + 2))
            self.seconds[leg] = [a + b for a, b in zip(mine, theirs, strict=True)]
