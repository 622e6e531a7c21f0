"""What became of every request, in one word each.

Knows what a good answer says, and how a stream says that it has broken off. Never knows which faults there were.
"""

import json
from collections import Counter
from enum import StrEnum
from typing import Any, Final

from tests.chaos.asks import CHAT, Ask
from tests.chaos.client import Answer

DONE: Final = b"data: [DONE]"


class Ending(StrEnum):
    """How a request ended, from its client's side."""

    WHOLE = "whole"  # complete, and right to the last token
    TOLD = "told"  # broken off after the first byte, and told so
    ABORTED = "aborted"  # ended by the engine, which says so (finish_reason "abort")
    REFUSED = "refused"  # an error in place of an answer
    FAILED = "failed"  # no answer, and no byte of one
    HUNG = "hung"  # nothing more came for longer than every limit that is set
    WRONG = "wrong"  # it looks whole and is not, or has broken off without a word


GOOD: Final = frozenset({Ending.WHOLE, Ending.TOLD, Ending.ABORTED})
"""Endings that there may be while some replica is healthy."""


class _Bad(Exception):
    """The answer is not what it should be."""


class Ledger:
    """Counts endings, and keeps what must not be. Changes with ``add``."""

    def __init__(self) -> None:
        self.endings: Counter[Ending] = Counter()
        self.violations: list[str] = []
        self.excused = 0
        """Requests that have failed while no replica was well all the time."""
        self.longest_first = 0.0
        """Seconds; the longest wait for a first byte, of those that have had one."""
        self.waited: list[float] = []
        """Waits for the first byte."""

    def add(self, ask: Ask, answer: Answer, at: float, *, was_anybody_well: bool) -> Ending:
        """``at`` is when it was asked, in seconds of the run; somebody was well if one replica was so from then on."""
        ending, why = judge(ask, answer)
        self.endings[ending] += 1
        if answer.has_begun:
            self.waited.append(answer.first_at)
            self.longest_first = max(self.longest_first, answer.first_at)
        has_failed = ending in {Ending.REFUSED, Ending.FAILED} or (ending is Ending.HUNG and not answer.has_begun)
        if has_failed and not was_anybody_well:
            self.excused += 1
        elif ending not in GOOD:
            kind = "stream" if ask.is_streamed else "plain"
            told = f"{at:.1f} s: {kind} {ask.path} of {ask.completion_tokens} tokens, after {answer.ended_at:.1f} s"
            self.violations.append(f"{told}: {ending}: {why}")
        return ending


def judge(ask: Ask, answer: Answer) -> tuple[Ending, str]:
    """How it ended, and why, for people."""
    if answer.has_hung:
        return Ending.HUNG, f"{answer.failure}, behind {bytes(answer.body[-100:])!r}"
    if not answer.has_begun:
        return Ending.FAILED, answer.failure
    if not answer.status:
        return Ending.WRONG, f"half a head: {answer.failure}"
    if answer.status != 200:
        return Ending.REFUSED, f"{answer.status} {bytes(answer.body[:300])!r}"
    try:
        return (_stream if ask.is_streamed else _plain)(ask, answer)
    except (_Bad, ValueError, LookupError, TypeError) as error:
        return Ending.WRONG, f"{error!r} ({answer.failure or 'whole'}), at the end: {bytes(answer.body[-300:])!r}"


def _plain(ask: Ask, answer: Answer) -> tuple[Ending, str]:
    if not answer.is_whole:
        return Ending.TOLD, answer.failure  # a length that is not reached, or chunks without the last one
    told = json.loads(answer.body)
    (choice,) = told["choices"]
    text = choice["message"]["content"] if ask.path == CHAT else choice["text"]
    return _ended(ask, text, choice["finish_reason"], told["usage"])


def _ended(ask: Ask, text: str, reason: str | None, usage: dict[str, Any] | None) -> tuple[Ending, str]:
    if reason == "abort":
        if not ask.text.startswith(text):
            raise _Bad("it says something else")
        return Ending.ABORTED, ""
    if text != ask.text or reason != "length" or usage is None:
        raise _Bad(f"{len(text)} characters of {len(ask.text)}, {reason}, {usage}")
    if (usage["prompt_tokens"], usage["completion_tokens"]) != (ask.prompt_tokens, ask.completion_tokens):
        raise _Bad(f"{usage} in place of {ask.prompt_tokens} and {ask.completion_tokens}")
    return Ending.WHOLE, ""


def _stream(ask: Ask, answer: Answer) -> tuple[Ending, str]:
    events = bytes(answer.body).split(b"\n\n")
    rest = events.pop()
    error = _error(events[-1]) if events else None
    if not answer.is_whole:
        if error is None or rest:
            raise _Bad("it breaks off without a word")
        del events[-1]
        if events and not _is_json(events[-1]):
            del events[-1]  # cut in its middle
        text, _, _ = _said(ask, [event for event in events if event])
        if not ask.text.startswith(text):
            raise _Bad("what came before it broke off is something else")
        return Ending.TOLD, str(error)
    if events[-1] != DONE or rest:
        raise _Bad("a stream without its end")
    return _ended(ask, *_said(ask, events[:-1]))


def _is_json(event: bytes) -> bool:
    try:
        json.loads(event.removeprefix(b"data: "))
    except ValueError:
        return False
    return True


def _error(event: bytes) -> dict[str, Any] | None:
    if not (event.startswith(b'data: {"error":') and _is_json(event)):
        return None
    found = json.loads(event[6:])["error"]
    return found if isinstance(found, dict) and found.get("message") else None


def _said(ask: Ask, events: list[bytes]) -> tuple[str, str | None, dict[str, Any] | None]:
    """(text, why it ended, usage) of the events."""
    text, reason, usage = "", None, None
    for event in events:
        if not event.startswith(b"data: "):
            raise _Bad(f"no event: {event[:80]!r}")
        told = json.loads(event[6:])
        usage = told.get("usage") or usage
        for choice in told["choices"]:
            text += (choice["delta"].get("content") or "") if ask.path == CHAT else choice["text"]
            reason = choice["finish_reason"] or reason
    return text, reason, usage
