"""The beginning of an answer, held back until it says whether the engine computes at all.

Knows how an engine that drains or is paused answers (vLLM 0.32): with status 200, and ``abort`` as the reason of the end; and
what is said in place of one that has died. Holds back no more than it takes to tell: a plain body up to a size, and of a stream
what comes before its first output. Never knows where the bytes go.
"""

import re
from enum import Enum, auto
from typing import Final

MAX_HELD: Final = 64 * 1024
"""Bytes; what is longer has begun."""

_ABORTED: Final = re.compile(
    rb'"finish_reason": ?"abort"|"type": ?"message".*"stop_reason": ?null'
    rb'|"message": ?"EngineCore encountered an issue'
)
"""In the OpenAI dialects, and in a whole message of Anthropic's; and the error of a server whose engine has died or is ending
(vLLM 0.32: ``EngineDeadError``, with status 500 or as an event). No text looks so: quotes within a string have a backslash."""

_NOTHING_YET: Final = re.compile(
    rb'\{"type": ?"(?:response\.(?:created|in_progress|queued)|message_start|ping)"'
    rb'|(?=.*"role": ?"assistant")(?=.*"content": ?"")(?=.*"finish_reason": ?null)'
)
"""Events that are sent before any output: the openings of each dialect."""


class Opening(Enum):
    """What is known of an answer by its beginning."""

    UNSAID = auto()
    ABORTED = auto()
    BEGUN = auto()


def of_body(held: bytes, *, is_whole: bool) -> Opening:
    """What the first bytes of a plain answer say; ``is_whole`` when they are all there are."""
    if len(held) > MAX_HELD:
        return Opening.BEGUN
    if not is_whole:
        return Opening.UNSAID
    return Opening.ABORTED if _ABORTED.search(held) else Opening.BEGUN


def of_stream(held: bytes, *, is_whole: bool) -> Opening:
    """What the first bytes of a stream of events say; ``is_whole`` when they are all there are."""
    if len(held) > MAX_HELD:
        return Opening.BEGUN
    for line in held.split(b"\n")[:-1]:
        if line.startswith(b":"):  # a comment, with which a server shows that it is there
            return Opening.BEGUN
        if line.startswith(b"data:") and not _NOTHING_YET.match(line[5:].lstrip()):
            return Opening.ABORTED if _ABORTED.search(line) else Opening.BEGUN
    return Opening.BEGUN if is_whole else Opening.UNSAID
