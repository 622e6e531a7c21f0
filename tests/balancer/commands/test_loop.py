"""``balancer/commands/loop.py``: each further signal is more urgent."""

import asyncio
import signal

import pytest

from balancer.commands.loop import StopSignals


@pytest.mark.parametrize(
    ("signals", "urgency"),
    [
        ([], ""),
        ([signal.SIGTERM], "asked"),
        ([signal.SIGINT], "asked soon"),
        ([signal.SIGTERM, signal.SIGTERM], "asked soon"),
        ([signal.SIGTERM, signal.SIGINT], "asked soon"),
        ([signal.SIGINT, signal.SIGINT], "asked soon now"),
        ([signal.SIGTERM, signal.SIGTERM, signal.SIGTERM], "asked soon now"),
    ],
)
def test_each_further_signal_is_more_urgent(signals: list[int], urgency: str) -> None:
    async def check() -> None:
        stop = StopSignals()
        for number in signals:
            stop.receive(number)
        assert [name for name in ("asked", "soon", "now") if getattr(stop, name).is_set()] == urgency.split()

    asyncio.run(check())
