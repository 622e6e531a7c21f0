"""When each request of a trace comes: by its time, or a pause after the answer to the one before it in its conversation.

Knows the trace and how its time is stretched. Never knows fleets; who plays a trace says when an answer was there.
"""

from collections import deque
from collections.abc import Iterator

from simulations.traces.trace import NO_PAUSE, NO_SESSION, Trace


class Arrivals:
    """Mutable: each request comes once."""

    def __init__(self, trace: Trace, scale: float = 1.0, *, closed_loop: bool = False) -> None:
        """``scale`` multiplies the trace's time, pauses excepted: people think as long as they do."""
        self._trace = trace
        self._scale = scale
        self._waiting: dict[int, deque[int]] = {}  # by session, those that wait for their turn
        self._by_itself = self._find() if closed_loop else range(len(trace))

    def _find(self) -> list[int]:
        trace = self._trace
        by_itself = []
        for request, (session, pause) in enumerate(zip(trace.sessions, trace.pauses, strict=True)):
            if session != NO_SESSION and session in self._waiting and pause != NO_PAUSE:
                self._waiting[session].append(request)
                continue
            if session != NO_SESSION:
                self._waiting.setdefault(session, deque())
            by_itself.append(request)
        return by_itself

    def __iter__(self) -> Iterator[tuple[float, int]]:
        """Those that wait for nobody, in their order: when each comes, and which request it is."""
        arrivals, scale = self._trace.arrivals, self._scale
        for request in self._by_itself:
            yield arrivals[request] * scale, request

    def follow(self, request: int, now: float) -> tuple[float, int] | None:
        """The answer to ``request`` is there: when which one comes after it; None if it waits for nobody or there is none."""
        waiting = self._waiting.get(self._trace.sessions[request]) if self._waiting else None
        if not waiting:
            return None
        following = waiting.popleft()
        return now + self._trace.pauses[following], following


def scale_to(trace: Trace, prompt_tokens_per_second: float) -> float:
    """By what the trace's time has to be multiplied for this rate of prompt tokens; 0 of a trace that takes no time."""
    return trace.input_tokens / (prompt_tokens_per_second * trace.seconds) if trace.seconds else 0.0
