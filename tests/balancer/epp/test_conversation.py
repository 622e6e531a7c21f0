"""``epp/conversation.py``: what a stream does while its proxy does not take what it is sent, and when it is gone."""

import asyncio
from typing import Any

import grpc
import pytest

from balancer.core import Outcome
from balancer.epp.conversation import Conversation
from balancer.epp.destinations import Place
from balancer.epp.messages import Mutation
from balancer.epp.orders import Ask, End, Placed
from balancer.epp.stream import Rules
from tests.support import ext_proc
from tests.support.waiting import eventually, run

HEAD = [(":method", "POST"), (":path", "/v1/completions")]
A = Place("10.0.0.1", 8000)
PIECE = 1024


class Pick:
    """Gives whoever asks the same replica, once it may."""

    def __init__(self, asked: Ask, may: asyncio.Event) -> None:
        self.asked = asked
        self.may = may
        self.deadline = float("inf")
        self.ends: list[End] = []
        self.was_cancelled = False

    async def run(self) -> Placed:
        try:
            await self.may.wait()
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise
        return Placed(A, str(A), Mutation(), self.asked.body, False, "id")

    def started(self) -> None:
        pass

    def end(self, ended: End) -> None:
        self.ends.append(ended)


class Picker:
    def __init__(self) -> None:
        self.may = asyncio.Event()
        self.may.set()
        self.picks: list[Pick] = []

    def pick(self, asked: Ask, answer: object) -> Pick:
        self.picks.append(Pick(asked, self.may))
        return self.picks[-1]


class Context:
    """A proxy at the other end: it says what a test puts into ``said``, and takes what it is sent while it ``takes``."""

    def __init__(self, *said: bytes) -> None:
        self.said: asyncio.Queue[Any] = asyncio.Queue()
        for each in said:
            self.said.put_nowait(each)
        self.takes = asyncio.Event()
        self.takes.set()
        self.heard: list[Any] = []
        self.reads = 0
        self.is_gone = False

    async def read(self) -> Any:
        self.reads += 1
        return await self.said.get()

    async def write(self, data: bytes) -> None:
        await self.takes.wait()
        if self.is_gone:
            raise asyncio.InvalidStateError("RPC already finished.")
        self.heard.append(ext_proc.reply(data))


def stream(picker: Picker, context: Context) -> Conversation:
    return Conversation(picker, Rules(), PIECE, context)  # type: ignore[arg-type]


def begun(size: int = 10) -> list[bytes]:
    return [ext_proc.headers(HEAD, modes=(4, 4)), ext_proc.body(b"x" * size, is_last=True)]


def test_while_a_proxy_takes_nothing_it_is_not_read() -> None:
    async def check() -> None:
        picker, context = Picker(), Context(*begun())
        made = stream(picker, context)
        task = asyncio.create_task(made.run())
        await eventually(lambda: len(context.heard) == 2)
        context.takes.clear()
        context.said.put_nowait(ext_proc.headers([(":status", "200")], of="response"))
        for _ in range(20):
            context.said.put_nowait(ext_proc.body(b"data: x\n\n", of="response"))
        await eventually(lambda: context.said.qsize() == 20)
        for _ in range(50):
            await asyncio.sleep(0)
        assert context.said.qsize() == 20  # the reply to the headers has not been taken
        context.takes.set()
        context.said.put_nowait(grpc.aio.EOF)
        await task
        made.ended()
        assert len(context.heard) == 2 + 21
        assert [each.outcome for each in picker.picks[0].ends] == [Outcome.CANCELLED]

    run(check())


def test_a_large_body_goes_back_in_pieces_each_as_the_last_one_is_taken() -> None:
    async def check() -> None:
        picker, context = Picker(), Context(*begun(10 * PIECE + 1))
        context.takes.clear()
        made = stream(picker, context)
        task = asyncio.create_task(made.run())
        await eventually(lambda: picker.picks)
        assert context.heard == []
        context.takes.set()
        await eventually(lambda: len(context.heard) == 12)
        pieces = [each.request_body.response.body_mutation.streamed_response for each in context.heard[1:]]
        assert [len(each.body) for each in pieces] == [PIECE] * 10 + [1]
        assert [each.end_of_stream for each in pieces] == [False] * 10 + [True]
        context.said.put_nowait(grpc.aio.EOF)
        await task
        made.ended()

    run(check())


@pytest.mark.parametrize("may", [False, True])
def test_a_proxy_that_is_gone_while_it_is_written_to_ends_its_lease(may: bool) -> None:
    async def check() -> None:
        picker, context = Picker(), Context(*begun())
        if not may:
            picker.may.clear()
        context.takes.clear()
        made = stream(picker, context)
        task = asyncio.create_task(made.run())
        await eventually(lambda: picker.picks)
        for _ in range(10):
            await asyncio.sleep(0)
        context.is_gone = True
        context.takes.set()
        context.said.put_nowait(grpc.aio.EOF)
        await task
        made.ended()
        (pick,) = picker.picks
        await eventually(lambda: len(pick.ends) == may)
        await eventually(lambda: pick.was_cancelled != may)

    run(check())


def test_what_fails_within_kvlb_ends_the_stream_with_an_error() -> None:
    async def check() -> None:
        class Broken(Picker):
            def pick(self, asked: Ask, answer: object) -> Pick:
                pick = super().pick(asked, answer)

                async def fails() -> Placed:
                    raise RuntimeError("a mistake of ours")

                pick.run = fails  # type: ignore[method-assign]
                return pick

        told: list[tuple[Any, str]] = []

        class Telling(Context):
            async def abort(self, code: Any, details: str) -> None:
                told.append((code, details))

        context = Telling(*begun())
        await asyncio.wait_for(stream(Broken(), context).run(), 10)
        assert [details for _, details in told] == ["kvlb itself has failed; its log says where"]

    run(check())
