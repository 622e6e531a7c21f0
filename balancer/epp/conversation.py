"""One ext_proc stream as it is held: an ``Exchange`` whose orders are obeyed, in their turn.

Knows the stream of bytes and who picks. Never knows what is said. A stream costs two tasks, one that reads and one that waits
for a decision; no message costs one. While a reply cannot be written, nothing is read: what a proxy sends is bounded by the
windows of HTTP/2 then.
"""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import grpc

from balancer.epp.messages import read
from balancer.epp.orders import Ask, Close, End, Give, Moved, Order, Send, Started, Unask
from balancer.epp.picker import Pick, Picker, Refusal
from balancer.epp.stream import Exchange, Rules
from balancer.epp.wire import WireError
from balancer.http.messages import Response

log = logging.getLogger(__name__)

LONGEST_TIMER: Final = 86_400.0
"""Seconds; a request that may take longer has no limit."""

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
_END: Final = grpc.aio.EOF
_PROBLEM: Final = grpc.StatusCode.INVALID_ARGUMENT


class Conversation:
    """One stream. ``run`` it once, and say then that it has ``ended``."""

    def __init__(self, picker: Picker, rules: Rules, piece_bytes: int, context: Context) -> None:
        self._picker = picker
        self._piece_bytes = piece_bytes
        self._context = context
        self._exchange = Exchange(rules)
        self._pick: Pick | None = None
        self._asking: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._writes = asyncio.Lock()
        self._reader: asyncio.Task[Any] | None = None
        self._is_over = False  # by our own will
        self._problem = ""

    async def run(self) -> None:
        """Read until the proxy has nothing more to say, or nothing more is to be said to it."""
        context, exchange = self._context, self._exchange
        self._reader = asyncio.current_task()
        try:
            while not self._is_over:
                data = await context.read()
                if data is _END:
                    break
                try:
                    message = read(data)
                except WireError as error:
                    await self._obey(exchange.broken(str(error)))
                else:
                    await self._obey(exchange.receive(message))
        except asyncio.CancelledError:
            if not self._is_over:
                raise
        except _GONE:
            pass
        async with self._writes:  # gRPC takes no status while a message goes out
            pass
        if self._problem:
            await context.abort(_PROBLEM, self._problem)

    def ended(self) -> None:
        """Whatever was under way is over."""
        for order in self._exchange.closed():
            self._note(order)
        if self._asking is not None:  # it may be giving a body back
            self._asking.cancel()
        if self._timer is not None:
            self._timer.cancel()

    async def dismiss(self, told: Response) -> None:
        """End it: who still waits for a decision is ``told`` that there will be none."""
        assert isinstance(told.body, bytes)
        lines = [("content-type", told.content_type), *told.headers]
        headers = [(name.lower().encode(), value.encode()) for name, value in lines]
        with contextlib.suppress(*_GONE):
            orders = self._exchange.refused(told.status, headers, told.body, "draining")
            if orders and self._asking is not None:
                self._asking.cancel()
            await self._obey(orders)
        self._expire()

    async def _obey(self, orders: Sequence[Order]) -> None:
        for at, order in enumerate(orders):
            if isinstance(order, Send):
                await self._write(order.data, orders[at + 1 :])
            elif isinstance(order, Give):
                for piece in order.pieces(self._piece_bytes):
                    await self._write(piece, orders[at + 1 :])
            else:
                self._note(order)

    async def _write(self, data: bytes, rest: Sequence[Order]) -> None:
        """Send it; if that cannot be, what else was ordered still counts but for what was to be sent."""
        try:
            async with self._writes:
                await self._context.write(data)
        except BaseException:
            for order in rest:
                if not isinstance(order, Send | Give):
                    self._note(order)
            raise

    def _note(self, order: Order) -> None:
        """What has nothing to be sent."""
        pick = self._pick
        match order:
            case Started():
                assert pick is not None
                pick.started()
            case End():
                assert pick is not None
                pick.end(order)
                if self._timer is not None:
                    self._timer.cancel()
            case Ask():
                self._pick = self._picker.pick(order, self._exchange)
                self._asking = asyncio.create_task(self._ask(self._pick))
            case Moved():
                assert pick is not None
                pick.moved(order.place)
            case Unask():
                if self._asking is not None:
                    self._asking.cancel()
            case Close():
                self._is_over, self._problem = True, order.problem

    async def _ask(self, pick: Pick) -> None:
        try:
            found = await pick.run()
            if isinstance(found, Refusal):
                await self._obey(self._exchange.refused(found.status, found.headers, found.body, found.why))
                return
            loop = asyncio.get_running_loop()
            if pick.deadline - loop.time() < LONGEST_TIMER:
                self._timer = loop.call_at(pick.deadline, self._expire)
            await self._obey(self._exchange.decided(found))
        except _GONE:  # whoever reads finds out, too
            return
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("a request could not be given a replica")
            self._fail()

    def _expire(self) -> None:
        self._leave(self._exchange.expired())

    def _fail(self) -> None:
        self._leave(self._exchange.broken("kvlb itself has failed; its log says where"))

    def _leave(self, orders: Sequence[Order]) -> None:
        """End the stream, although nothing has come."""
        for order in orders:
            self._note(order)
        if self._reader is not None and self._is_over:
            self._reader.cancel()


_GONE: Final = (
    grpc.RpcError,
    grpc.aio.AbortError,
    grpc.aio.UsageError,
    grpc.aio.InternalError,
    asyncio.InvalidStateError,
)
"""What grpc.aio raises where a stream is no more."""
