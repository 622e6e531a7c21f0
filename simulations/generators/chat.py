"""Conversations of several turns behind system prompts that many share, and the same over days."""

import math
from collections.abc import Iterator
from typing import ClassVar

from simulations.generators.base import Settings, Workshop, generators
from simulations.traces.trace import Trace


@generators.register("chat")
class Chat(Settings, frozen=True, kw_only=True):
    """People who talk to a model: each prompt is all that was said before, and a question more.

    Attributes:
        turns: of a conversation, mean.
        systems: different system prompts; the first one is the most popular.
        system_tokens, question_tokens, answer_tokens: medians.
        pause: seconds from an answer to the next question, median.
    """

    turns: float = 4.0
    systems: int = 8
    system_tokens: int = 400
    question_tokens: int = 60
    answer_tokens: int = 200
    pause: float = 20.0

    may_be_zero: ClassVar[frozenset[str]] = Settings.may_be_zero | {"pause", "system_tokens"}

    def generate(self, seed: int) -> Trace:
        return self._made(Workshop("chat", self, seed))

    def _made(self, shop: Workshop) -> Trace:
        systems = [shop.blank.then(shop.length(self.system_tokens, 0)) for _ in range(self.systems)]
        for begin in self._begins(shop):
            said, at, session = systems[shop.popular(self.systems)], begin, shop.session()
            for turn in range(shop.turns(self.turns)):
                pause = shop.time(self.pause) if turn else None
                said, at = shop.ask(
                    at + (pause or 0.0),
                    said.then(shop.length(self.question_tokens)),
                    shop.length(self.answer_tokens),
                    session,
                    pause,
                )
        return shop.done()

    def _begins(self, shop: Workshop) -> Iterator[float]:
        return shop.begins()


@generators.register("diurnal")
class Diurnal(Chat, frozen=True, kw_only=True):
    """Conversations that are more at noon than at night.

    Attributes:
        day: seconds of one; a trace begins at its mean load, and rises.
        swing: by which share of the mean the load rises and falls.
    """

    seconds: float = 7200.0
    day: float = 3600.0
    swing: float = 0.8

    shares: ClassVar[frozenset[str]] = frozenset({"swing"})

    def generate(self, seed: int) -> Trace:
        return self._made(Workshop("diurnal", self, seed))

    def _begins(self, shop: Workshop) -> Iterator[float]:
        at, most = 0.0, self.rate * (1 + self.swing)
        while (at := at + shop.random.expovariate(most)) < self.seconds:
            if shop.random.random() * most < self.rate * (1 + self.swing * math.sin(math.tau * at / self.day)):
                yield at
