"""A client that takes nothing on trust: every byte of an answer is read by h11, and how it ended is kept.

Knows one request's bytes and its patience. Never judges what an answer says.
"""

import asyncio
import contextlib
import random
from typing import Final

import h11

from tests.chaos.asks import Ask

CHUNK: Final = 65_536


class Answer:
    """One answer as it came. Mutable while it comes. Times are seconds from the request."""

    def __init__(self) -> None:
        self.status = 0
        self.body = bytearray()
        self.is_whole = False
        """Whether its framing says that it has come to its end."""
        self.has_begun = False
        """Whether any byte of it has come."""
        self.failure = ""
        """Why it is not whole."""
        self.has_hung = False
        """Whether nothing more came for as long as the client would wait."""
        self.first_at = 0.0
        self.ended_at = 0.0


class _Stale(Exception):
    """A kept connection was closed before any byte of an answer: who keeps connections has to ask again (RFC 9112, 9.3.1)."""


class _Wire:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.talk = h11.Connection(h11.CLIENT)
        self.is_used = False


class Client:
    """Asks one address. Half of its requests go by connections that were used before, where there are any."""

    def __init__(self, address: tuple[str, int], dice: random.Random, patience: float, idle: float) -> None:
        """Seconds until the first byte, and between two."""
        self._address = address
        self._dice = dice
        self._patience = patience
        self._idle = idle
        self._kept: list[_Wire] = []
        self.stale = 0
        """How often a kept connection was closed by the other side just as it was used."""

    async def ask(self, ask: Ask) -> Answer:
        loop = asyncio.get_running_loop()
        began, answer = loop.time(), Answer()
        while True:
            try:
                await self._try(ask, answer, began)
            except _Stale:
                self.stale += 1
                continue
            answer.ended_at = loop.time() - began
            return answer

    async def _try(self, ask: Ask, answer: Answer, began: float) -> None:
        wire: _Wire | None = None
        try:
            wire = await self._connected()
            head = [("Host", "chaos"), ("Content-Type", "application/json"), ("Content-Length", str(len(ask.body)))]
            if self._dice.random() < 0.3:
                head.append(("Connection", "close"))
            data = wire.talk.send(h11.Request(method="POST", target=ask.path, headers=head))
            data = (data or b"") + (wire.talk.send(h11.Data(data=ask.body)) or b"")
            wire.writer.write(data + (wire.talk.send(h11.EndOfMessage()) or b""))
            await self._read(wire, answer, began)
        except TimeoutError:
            answer.has_hung = True
            answer.failure = "nothing came"
        except (OSError, h11.RemoteProtocolError) as error:
            if wire is not None and wire.is_used and not answer.has_begun:
                raise _Stale from error
            answer.failure = f"{type(error).__name__}: {error}"
        finally:
            if wire is not None and not self._keep(wire, answer):
                wire.writer.close()

    async def _connected(self) -> _Wire:
        while self._kept and self._dice.random() < 0.5:
            wire = self._kept.pop(self._dice.randrange(len(self._kept)))
            if not wire.reader.at_eof():  # by all that is known here
                return wire
            wire.writer.close()
        async with asyncio.timeout(self._patience):
            return _Wire(*await asyncio.open_connection(*self._address))

    async def _read(self, wire: _Wire, answer: Answer, began: float) -> None:
        loop = asyncio.get_running_loop()
        while True:
            event = wire.talk.next_event()
            if event is h11.NEED_DATA:
                async with asyncio.timeout(self._idle if answer.has_begun else self._patience):
                    data = await wire.reader.read(CHUNK)
                if data and not answer.has_begun:
                    answer.has_begun, answer.first_at = True, loop.time() - began
                if not data and wire.is_used and not answer.has_begun:
                    raise _Stale
                wire.talk.receive_data(data)
            elif isinstance(event, h11.Response):
                answer.status = event.status_code
            elif isinstance(event, h11.Data):
                answer.body += event.data
            elif isinstance(event, h11.EndOfMessage):
                answer.is_whole = True
                return
            elif not isinstance(event, h11.InformationalResponse):
                raise h11.RemoteProtocolError(f"the connection was closed before an answer ({event!r})")

    def _keep(self, wire: _Wire, answer: Answer) -> bool:
        if not answer.is_whole or wire.talk.our_state is not h11.DONE or wire.talk.their_state is not h11.DONE:
            return False
        wire.talk.start_next_cycle()
        wire.is_used = True
        self._kept.append(wire)
        return True

    async def close(self) -> None:
        for wire in self._kept:
            wire.writer.close()
            with contextlib.suppress(OSError):
                await wire.writer.wait_closed()
