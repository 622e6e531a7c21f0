"""Publishers: numbering, both framings of a replay, losses on the way, and ports that are free afterwards."""

import asyncio
import errno

import pytest
import zmq
import zmq.asyncio

from simulations.fake.publisher import BUFFER_STEPS, END_MARKER, EventPublisher
from simulations.fake.releases import Release
from tests.simulations.fake.samples import run, until

ANY = "tcp://127.0.0.1:*"


async def ask_replay(endpoint: str, *request: bytes) -> list[list[bytes]]:
    """Everything that is answered, end marker included."""
    with zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.RCVHWM, 0)
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.connect(endpoint)
        await dealer.send_multipart(list(request))
        answers: list[list[bytes]] = []
        while not answers or answers[-1][-2] != END_MARKER:
            answers.append(await dealer.recv_multipart())
        return answers


def number(sequence: int) -> bytes:
    return sequence.to_bytes(8, "big")


def test_subscribers_get_topic_number_and_payload() -> None:
    async def test() -> None:
        publisher = EventPublisher(Release(), ANY, None, "kv")
        with zmq.asyncio.Context() as context, context.socket(zmq.SUB) as sub:
            sub.setsockopt(zmq.LINGER, 0)
            sub.setsockopt(zmq.SUBSCRIBE, b"kv")
            sub.connect(publisher.events)
            received: list[list[bytes]] = []

            async def read() -> None:
                while True:
                    received.append(await sub.recv_multipart())

            reading = asyncio.create_task(read())
            # What is sent before the subscription has arrived is lost, as with vLLM: go on until one comes through.
            while not received:
                publisher.publish(b"early")
                await asyncio.sleep(0.001)
            next_one = publisher.next_sequence
            publisher.drop_next(1)
            publisher.publish(b"lost")
            publisher.publish(b"late")
            await until(lambda: received[-1][2] == b"late")
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        assert received[-1] == [b"kv", number(next_one + 1), b"late"]
        assert b"lost" not in [payload for _, _, payload in received]
        publisher.close()

    run(test)


@pytest.mark.parametrize(
    ("version", "topic", "end"),
    [("0.24.0", [], [b"", END_MARKER, b""]), ("0.26.0", [b"kv"], [b"", b"", END_MARKER, b""])],
)
def test_a_replay_begins_where_it_was_asked_to(version: str, topic: list[bytes], end: list[bytes]) -> None:
    async def test() -> None:
        publisher = EventPublisher(Release(version), ANY, ANY, "kv")
        assert publisher.replay is not None
        publisher.drop_next(1)
        for payload in (b"zero", b"one", b"two"):
            publisher.publish(payload)
        answers = await ask_replay(publisher.replay, b"", number(1))
        assert answers == [[b"", *topic, number(1), b"one"], [b"", *topic, number(2), b"two"], end]
        # Lost on the way is not lost here, and a start of any length is a number.
        assert (await ask_replay(publisher.replay, b"", b""))[0] == [b"", *topic, number(0), b"zero"]
        assert await ask_replay(publisher.replay, b"", number(3)) == [end]
        publisher.forget_buffer()
        assert await ask_replay(publisher.replay, b"", number(0)) == [end]
        publisher.close()

    run(test)


def test_a_replay_has_only_the_last_batches() -> None:
    async def test() -> None:
        publisher = EventPublisher(Release(), ANY, ANY, "")
        assert publisher.replay is not None
        for _ in range(BUFFER_STEPS + 5):
            publisher.publish(b"")
        publisher.publish(b"newest")
        oldest = publisher._buffer[0][0]
        assert oldest == 6
        assert (await ask_replay(publisher.replay, b"", number(BUFFER_STEPS + 5)))[0][-1] == b"newest"
        publisher.close()

    run(test)


def test_a_request_of_another_form_is_not_answered() -> None:
    async def test() -> None:
        publisher = EventPublisher(Release(), ANY, ANY, "")
        assert publisher.replay is not None
        with zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as dealer:
            dealer.setsockopt(zmq.LINGER, 0)
            dealer.connect(publisher.replay)
            await dealer.send_multipart([number(0)])
            await dealer.send_multipart([b"", number(0)])
            # Only the second is: its end marker is the first thing that comes.
            assert (await dealer.recv_multipart())[-2] == END_MARKER
            assert not await dealer.poll(0)
        publisher.close()

    run(test)


def test_a_closed_publisher_leaves_its_ports_free() -> None:
    async def test() -> None:
        first = EventPublisher(Release(), ANY, ANY, "")
        events, replay = first.events, first.replay
        with pytest.raises(OSError, match="in use") as caught:
            EventPublisher(Release(), ANY, events, "")
        assert (caught.value.errno, caught.value.strerror) == (errno.EADDRINUSE, f"{events}: Address already in use")
        first.close()
        second = EventPublisher(Release(), events, replay, "")
        assert (second.events, second.next_sequence) == (events, 0)
        second.close()

    run(test)
