"""A client that has closed its sending side while its answer is due: still there, or gone?

Knows that both look alike until something is sent (RFC 9293, section 3.6): a socket that is gone resets the connection then,
one that still reads takes it. Never knows what can be sent without harm: that is for ``probe``.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import Final

CLOSED: Final = 7
"""``TCP_CLOSE`` of ``tcp_info.tcpi_state`` (Linux): the other side has reset the connection."""

LOOK_SECONDS: Final = (0.02, 0.1, 0.4)
"""When the effect of a probe is looked for, since it was sent; the last one allows for a long way."""

PROBE_SECONDS: Final = (1.0, 5.0, 25.0, 125.0)
"""Pauses between probes. They are few: clients put up with few."""


def can_be_watched(transport: asyncio.Transport) -> bool:
    """Whether this kind of connection can be half closed, and its state be told."""
    if transport.get_extra_info("sslcontext") is not None or not hasattr(socket, "TCP_INFO"):
        return False
    return transport.get_extra_info("socket").family in {socket.AF_INET, socket.AF_INET6}


class HalfClosed:
    """Probes now and then, and calls ``gone`` once the client is. ``stop`` it when its connection is closed."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: asyncio.Transport,
        probe: Callable[[], bool],
        gone: Callable[[], None],
    ) -> None:
        """``probe`` sends something; it returns whether it may."""
        self._loop = loop
        self._transport = transport
        self._probe = probe
        self._gone = gone
        self._timer: asyncio.TimerHandle | None = None
        self._sent = 0
        self._begin()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _begin(self) -> None:
        if self._probe():
            self._look(0)

    def _look(self, at: int) -> None:
        if self._is_reset():
            self._gone()
        elif at < len(LOOK_SECONDS):
            self._timer = self._loop.call_later(LOOK_SECONDS[at], self._look, at + 1)
        elif self._sent < len(PROBE_SECONDS):
            self._timer = self._loop.call_later(PROBE_SECONDS[self._sent], self._begin)
            self._sent += 1

    def _is_reset(self) -> bool:
        try:
            told = self._transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
        except OSError:
            return True
        return bool(told[0] == CLOSED)
