"""Watches the bytes of an answer go by, for what they say of the request: usage and the reason it ended.

Knows server-sent events and plain JSON. Never changes, holds back or copies what is forwarded; keeps at most one unfinished
event, up to a limit, whatever the engine sends.
"""

from typing import Final

from balancer.core import Truth
from balancer.openai import read_answer

MAX_EVENT: Final = 1024 * 1024
"""Longest event that is looked into, in bytes; longer ones pass unread (log-probabilities and images; usage comes apart)."""

BEFORE_OUTPUT: Final = (b'"type":"response.created"', b'"type":"response.in_progress"', b'"type":"response.queued"')
"""Events of a /v1/responses stream that vLLM (0.32) sends before it has computed anything."""

MAX_BODY: Final = 16 * 1024 * 1024
"""Longest plain answer that is looked into, in bytes."""


class StreamWatch:
    """Feed it every chunk of an event stream; ask ``truth`` at the end."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []  # of the event that is not finished
        self._size = 0
        self._is_skipping = False  # within an event that is too long
        self._truth = Truth()
        self.has_output = False
        """Whether the prompt has been computed: an event has come that the engine can only send after that."""
        self.has_failed = False
        """Whether the stream carried an error of the engine instead of the rest of the answer."""
        self.is_done = False
        """Whether the stream said that it is complete (``data: [DONE]``, or an event named for it)."""
        self.has_ended = False
        """Whether the event that said so has come to its own end, too: nothing is left to come."""

    def feed(self, chunk: bytes) -> None:
        if b"\n" not in chunk:
            self._keep(chunk)
            return
        lines = b"".join([*self._parts, chunk]).split(b"\n")
        self._parts, self._size = [], 0
        rest = lines.pop()
        if self._is_skipping:
            del lines[0]
            self._is_skipping = False
        self._keep(rest)
        for line in lines:
            self._line(line)

    def _keep(self, part: bytes) -> None:
        if self._is_skipping or not part:
            return
        self._parts.append(part)
        self._size += len(part)
        if self._size > MAX_EVENT:
            self._parts, self._size = [], 0
            self._is_skipping = True

    def _line(self, line: bytes) -> None:
        if not line.startswith(b"data:") or len(line) > MAX_EVENT:
            if self.is_done and line in (b"", b"\r"):
                self.has_ended = True
            return
        self.has_ended = False
        # Searches in the bytes, not a parse: most events say nothing of interest, and there are hundreds in an answer.
        if not self.has_output and not any(kind in line for kind in BEFORE_OUTPUT):
            self.has_output = True
        if b'"usage":{' in line or b'"usage": {' in line or b'"finish_reason":"' in line:
            self._merge(read_answer(line[5:].strip()))
        elif line.startswith((b"data: [DONE]", b"data:[DONE]")) or b'"type":"message_stop"' in line:
            self.is_done = True
        elif line.startswith((b'data: {"error":', b'data:{"error":')):
            self.has_failed = True
        if b'"type":"response.completed"' in line or b'"type":"response.incomplete"' in line:
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

    has_failed = False
    is_done = True  # its end is that of the transfer, which is watched elsewhere

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._size = 0

    @property
    def has_output(self) -> bool:
        """Whether anything has come: a plain answer is sent when it is complete."""
        return self._size > 0

    def feed(self, chunk: bytes) -> None:
        self._size += len(chunk)
        if self._size <= MAX_BODY:
            self._chunks.append(chunk)
        else:
            self._chunks.clear()

    def truth(self) -> Truth:
        return read_answer(b"".join(self._chunks))
