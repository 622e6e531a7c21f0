"""A name server on loopback that says what a test says, over UDP and TCP.

Knows DNS messages by dnspython's own reading. Answers that do not fit a datagram are cut, as real servers do.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import dns.flags
import dns.message
import dns.rcode
import dns.rrset

DATAGRAM = 512


class NameServer:
    """``records`` are (name, type) -> texts; ``rcode`` overrules them; ``ttl`` is that of all. Mutable."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, str], list[str]] = {}
        self.ttl = 0
        self.rcode: dns.rcode.Rcode | None = None
        self.is_silent = False
        self.questions: list[tuple[str, str]] = []
        self.address = ""

    def answer(self, wire: bytes, limit: int | None) -> bytes | None:
        query = dns.message.from_wire(wire)
        (question,) = query.question
        name, kind = question.name.to_text(omit_final_dot=True), dns.rdatatype.to_text(question.rdtype)
        self.questions.append((name, kind))
        if self.is_silent:
            return None
        answer = dns.message.make_response(query)
        found = self.records.get((name, kind))
        if self.rcode is not None:
            answer.set_rcode(self.rcode)
        elif found:
            answer.answer.append(dns.rrset.from_text_list(question.name, self.ttl, "IN", kind, found))
        elif not any(known == name for known, _ in self.records):
            answer.set_rcode(dns.rcode.NXDOMAIN)
        made = answer.to_wire(max_size=65535)
        if limit is not None and len(made) > limit:
            answer.answer.clear()
            answer.flags |= dns.flags.TC
            made = answer.to_wire()
        return made


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, server: NameServer) -> None:
        self._server = server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, address: tuple[str, int]) -> None:
        answer = self._server.answer(data, DATAGRAM)
        if answer is not None:
            self._transport.sendto(answer, address)  # type: ignore[attr-defined]


@contextlib.asynccontextmanager
async def name_server() -> AsyncIterator[NameServer]:
    """One that listens until the block is left."""
    made = NameServer()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            length = int.from_bytes(await reader.readexactly(2))
            answer = made.answer(await reader.readexactly(length), None)
            if answer is not None:
                writer.write(len(answer).to_bytes(2) + answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    loop = asyncio.get_running_loop()
    datagrams, _ = await loop.create_datagram_endpoint(lambda: _Datagrams(made), local_addr=("127.0.0.1", port))
    made.address = f"127.0.0.1:{port}"
    try:
        yield made
    finally:
        datagrams.close()
        server.close()
        await server.wait_closed()
