"""Requests whose answers are known before they are asked: the fake engine says the same words for the same prompt.

Knows the fake engine's tokeniser and its words, and the paths' bodies. Never sends anything.
"""

import json
import random
from array import array
from typing import Any, Final

import msgspec
import xxhash

from simulations.fake.samples import Mailbox, Sample
from simulations.fake.server import TOKENIZER, speak

MODEL: Final = "m"
COMPLETIONS: Final = "/v1/completions"
CHAT: Final = "/v1/chat/completions"


class Ask(msgspec.Struct, frozen=True):
    """One request, and what a good answer says."""

    path: str
    body: bytes
    is_streamed: bool
    text: str
    prompt_tokens: int
    completion_tokens: int


class Asker:
    """Makes one request after the other, as chance has it. Prompts grow from earlier ones, as conversations do."""

    def __init__(self, dice: random.Random, *, longest: int = 120) -> None:
        """``longest`` is the most output tokens."""
        self._dice = dice
        self._talks = [self._ids(dice.randrange(20, 200)) for _ in range(12)]
        self._lengths = (1, 3, 12, longest // 3, longest)

    def next(self) -> Ask:
        dice = self._dice
        kind = dice.random()
        is_streamed, count = dice.random() < 0.7, dice.choice(self._lengths)
        if kind < 0.5:
            prompt = self._talk()
            return self._completion(prompt, prompt, is_streamed, count)
        if kind < 0.7:
            text = TOKENIZER.decode(self._talk())
            return self._completion(TOKENIZER.encode(text), text, is_streamed, count)
        if kind < 0.95:
            return self._chat(is_streamed, count)
        # A plain answer of more than a hundred kilobytes, which is passed on as it comes.
        prompt = self._ids(2_000)
        return self._completion(prompt, prompt, False, count, prompt_logprobs=1)

    def _talk(self) -> list[int]:
        at = self._dice.randrange(len(self._talks))
        said = self._talks[at]
        self._talks[at] = said + self._ids(24) if len(said) < 900 else self._ids(60)
        return self._talks[at]

    def _ids(self, count: int) -> list[int]:
        return [self._dice.choice(TOKENIZER.words) for _ in range(count)]

    def _completion(self, ids: list[int], sent: list[int] | str, is_streamed: bool, count: int, **more: Any) -> Ask:
        return self._ask(COMPLETIONS, ids, is_streamed, count, prompt=sent, max_tokens=count, **more)

    def _chat(self, is_streamed: bool, count: int) -> Ask:
        turns = [("system", TOKENIZER.decode(self._talk())), ("user", TOKENIZER.decode(self._ids(12)))]
        messages = [{"role": role, "content": text} for role, text in turns]
        prompt = TOKENIZER.render_chat(turns)
        return self._ask(CHAT, prompt, is_streamed, count, messages=messages, max_completion_tokens=count)

    def _ask(self, path: str, ids: list[int], is_streamed: bool, count: int, **fields: Any) -> Ask:
        fields |= {"model": MODEL, "ignore_eos": True}
        if is_streamed:
            fields |= {"stream": True, "stream_options": {"include_usage": True}}
        return Ask(path, json.dumps(fields).encode(), is_streamed, said(ids, count), len(ids), count)


def said(prompt: list[int], count: int) -> str:
    """What the fake engine answers."""
    sample = Sample("", 0, prompt, Mailbox(), is_streamed=False, ends_at=None)
    sample.seed = xxhash.xxh3_64_intdigest(array("Q", prompt).tobytes(), 0)
    for _ in range(count):
        sample.tokens.append(speak(sample))
    return TOKENIZER.decode(sample.tokens)
