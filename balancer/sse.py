"""Watches the bytes of an answer go by, for what they say of the request: usage and the reason it ended.

Knows server-sent events and plain JSON. Never changes, holds back or copies what is forwarded; keeps at most one unfinished
event, up to a limit, whatever the engine sends.
"""

from typing import Final

from balancer.core import Truth
from balancer.openai import read_answer

MAX_EVENT: Final = 1024 * 1024
"""Longest event that is looked into, in bytes; longer ones pass unread (log-probabilities and images; usage comes apart)."""

MAX_BODY: Final = 16 * 1024 * 1024
"""Longest plain answer that is looked into, in bytes."""


class StreamWatch:
    """Feed it every chunk of an event stream; ask ``truth`` at the end."""

    def __init__(self) -> None:
        self._rest = b""
        self._is_skipping = False  # within an event that is too long
        self._truth = Truth()
        self.is_done = False
        """Whether the stream said that it is complete (``data: [DONE]``, or an event named for it)."""

    def feed(self, chunk: bytes) -> None:
        # Most chunks are whole events without usage: three searches, and nothing is kept.
        lines = (self._rest + chunk).split(b"\n")
        self._rest = lines.pop()
        if self._is_skipping and lines:
            lines = lines[1:]
            self._is_skipping = False
        if len(self._rest) > MAX_EVENT:
            self._rest = b""
            self._is_skipping = True
        for line in lines:
            self._line(line)

    def _line(self, line: bytes) -> None:
        if not line.startswith(b"data:") or len(line) > MAX_EVENT:
            return
        if b'"usage":{' in line or b'"usage": {' in line or b'"finish_reason":"' in line:
            self._merge(read_answer(line[5:].strip()))
        elif line.startswith((b"data: [DONE]", b"data:[DONE]")) or b'"type":"message_stop"' in line:
            self.is_done = True
        if b'"type":"response.completed"' in line:
            self.is_done = True

    def _merge(self, seen: Truth) -> None:
        known = self._truth
        self._truth = Truth(
            prompt_tokens=known.prompt_tokens if seen.prompt_tokens is None else seen.prompt_tokens,
            cached_tokens=known.cached_tokens if seen.cached_tokens is None else seen.cached_tokens,
            completion_tokens=known.completion_tokens if seen.completion_tokens is None else seen.completion_tokens,
            finish_reason=seen.finish_reason or known.finish_reason,
        )

    def truth(self) -> Truth:
        return self._truth


class BodyWatch:
    """Feed it every chunk of a plain JSON answer; ask ``truth`` at the end."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> None:
        self._size += len(chunk)
        if self._size <= MAX_BODY:
            self._chunks.append(chunk)
        else:
            self._chunks.clear()

    def truth(self) -> Truth:
        return read_answer(b"".join(self._chunks))
