"""The event loop that every long-running command uses.

Knows that uvloop is used where it is installed, how the loop shares the interpreter with other threads, and how a process is
asked to stop.
"""

import asyncio
import signal
import sys
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")


SWITCH_SECONDS: Final = 0.0005
"""How long the thread that reads events may keep the interpreter from the loop; Python's own 5 ms add up over a request."""


def run_loop(main: Coroutine[Any, Any, T]) -> T:
    """Run to the end, on uvloop where there is one."""
    try:
        from uvloop import new_event_loop  # noqa: PLC0415 - optional
    except ImportError:
        new_event_loop = None  # type: ignore[assignment]
    sys.setswitchinterval(SWITCH_SECONDS)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)


class StopSignals:
    """How urgently the process has been asked to stop. Make it in the running loop.

    SIGTERM sets ``asked``; SIGINT, or a second signal of any kind, ``soon`` as well; whatever comes after that ``now``.
    """

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.soon = asyncio.Event()
        self.now = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.receive, number)

    def receive(self, number: int) -> None:
        """One more signal has come."""
        if self.soon.is_set():
            self.now.set()
        elif self.asked.is_set() or number == signal.SIGINT:
            self.soon.set()
        self.asked.set()


def stop_signal() -> asyncio.Event:
    """Set by SIGINT or SIGTERM from here on. Call it in the running loop."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    return stop
