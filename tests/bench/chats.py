"""Chats for real engines: conversations of several turns and single questions, behind prefixes that many share.

Knows bodies of ``/v1/chat/completions`` and when each is sent. All is drawn beforehand: what a conversation's later turns
repeat as answers is the trace's own, never what an engine said, so that every contender is sent the same bytes at the same
times. Never knows who is asked.
"""

import random
from typing import Final

import msgspec

_SYLLABLES: Final = [first + second for first in "bcdfghklmnprstvw" for second in ("a", "e", "i", "o", "u", "an", "er")]
"""As in the corpus of the tiny model's tokenizer (``tests/real/make_tiny_model.py``): a word of theirs is about two tokens."""


class Load(msgspec.Struct, frozen=True):
    """What is asked; lengths are in words.

    Attributes:
        rate: requests a second, in the mean.
        seconds: how long requests are sent for.
        singles: share of the requests that are single questions; the others are turns of conversations.
        systems: different system prompts of conversations; the first one is the most popular.
        documents: different prefixes of single questions; popular in the same way.
        turns: of a conversation, mean, but for what ``most_turns`` cuts off.
        pause: seconds between its turns, mean.
        answer_tokens: length of each answer.
    """

    rate: float
    seconds: float
    singles: float = 0.4
    systems: int = 4
    system_words: int = 400
    documents: int = 6
    document_words: int = 700
    turns: float = 4.0
    most_turns: int = 7
    question_words: int = 120
    single_words: int = 40
    said_words: int = 12
    pause: float = 5.0
    answer_tokens: int = 8


class Chat(msgspec.Struct, frozen=True):
    """One request: when it is sent, in seconds from the beginning, by which conversation, and its body."""

    at: float
    session: str
    body: bytes


def chats(load: Load, model: str, seed: int) -> list[Chat]:
    """What is sent in these seconds, in order.

    Conversations begin long before, as they would have under a steady load: those that are under way at the beginning go on
    with the turns that they have left. Beginnings and single questions are Poisson processes.
    """
    draw = random.Random(seed)
    found = []
    systems = [_words(draw, load.system_words) for _ in range(load.systems)]
    before = 6 * load.turns * load.pause
    for number, begin in enumerate(_arrivals(draw, load.rate * (1 - load.singles) / load.turns, before + load.seconds)):
        at, session = begin - before, f"conversation-{seed}-{number}"
        said = [{"role": "system", "content": draw.choices(systems, _popularity(load.systems))[0]}]
        for _ in range(load.most_turns):
            said.append({"role": "user", "content": _about(draw, load.question_words)})
            if 0 <= at < load.seconds:
                found.append(Chat(at, session, _body(model, said, load.answer_tokens)))
            if draw.random() < 1 / load.turns:
                break
            said.append({"role": "assistant", "content": _words(draw, load.said_words)})
            at += draw.expovariate(1 / load.pause)
    documents = [_words(draw, load.document_words) for _ in range(load.documents)]
    for number, at in enumerate(_arrivals(draw, load.rate * load.singles, load.seconds)):
        asked = [
            {"role": "system", "content": draw.choices(documents, _popularity(load.documents))[0]},
            {"role": "user", "content": _about(draw, load.single_words)},
        ]
        found.append(Chat(at, f"single-{seed}-{number}", _body(model, asked, load.answer_tokens)))
    return sorted(found, key=lambda each: each.at)


def _arrivals(draw: random.Random, rate: float, seconds: float) -> list[float]:
    times, at = [], 0.0
    while rate and (at := at + draw.expovariate(rate)) < seconds:
        times.append(at)
    return times


def _popularity(count: int) -> list[float]:
    return [1 / (1 + place) for place in range(count)]


def _words(draw: random.Random, count: int) -> str:
    return " ".join("".join(draw.choices(_SYLLABLES, k=draw.randint(1, 3))) for _ in range(count))


def _about(draw: random.Random, count: int) -> str:
    return _words(draw, draw.randint(count // 2, count + count // 2))


def _body(model: str, messages: list[dict[str, str]], answer: int) -> bytes:
    return msgspec.json.encode(
        {
            "model": model,
            "messages": messages,
            "max_tokens": answer,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )
