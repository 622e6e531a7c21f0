"""Every ending of a stream between Envoy and ``kvlb epp``: whoever goes, no lease is left, and it is known what clients get."""

import asyncio
import contextlib
import random
import shutil
import signal
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from balancer.fleet import Drain
from simulations.demo import free_ports
from simulations.latency import LatencyModel
from tests.support import ext_proc
from tests.support.certificates import Authority, needs_openssl
from tests.support.engines import MODEL, config
from tests.support.envoy import DESTINATION, Wiring, envoy
from tests.support.pickers import COMPLETIONS, Picked, picker, proxied
from tests.support.processes import started, wait_for
from tests.support.several import STAYING, Kvlb, engines, until
from tests.support.upstream import Received, upstream
from tests.support.waiting import eventually, run

PROMPT = list(range(300, 500))
PROCESS = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
SLOW = config(latency=LatencyModel(overhead=0.05, weights=0, token=0, pair=0, context_token=0))
STREAM: dict[str, Any] = {"model": MODEL, "prompt": PROMPT, "max_tokens": 400, "stream": True}


@pytest.mark.parametrize(
    ("fails_open", "request_body", "method", "status"),
    [
        (False, "FULL_DUPLEX_STREAMED", "POST", 500),
        (False, "BUFFERED", "POST", 500),
        (False, "FULL_DUPLEX_STREAMED", "GET", 500),
        (True, "FULL_DUPLEX_STREAMED", "POST", 500),  # what Envoy calls failing open is not, for a body that streams
        (True, "FULL_DUPLEX_STREAMED", "GET", 200),
        (True, "BUFFERED", "POST", 200),
        (True, "BUFFERED", "GET", 200),
    ],
)
def test_a_picker_that_is_not_there(
    fails_open: bool, request_body: str, method: str, status: int, tmp_path: Path
) -> None:
    async def check() -> None:
        async with picker() as made:
            (made.epp_port,) = free_ports(1)
            changes: dict[str, Any] = {"fails_open": fails_open, "request_body": request_body, "cluster": "metadata"}
            async with proxied(made, tmp_path, **changes):
                body = {"prompt": PROMPT, "max_tokens": 1} if method == "POST" else None
                answer = await made.ask(body, COMPLETIONS if body else "/v1/models", method)
                assert answer.status == status

    run(check())


def test_a_client_names_its_own_replica_where_nobody_strips_it_and_the_picker_is_gone(tmp_path: Path) -> None:
    """Why docs/epp.md has Envoy take that header away before anybody looks at it."""

    async def check() -> None:
        async with upstream() as inner, picker() as made:
            (made.epp_port,) = free_ports(1)
            inner.is_question = lambda request: False
            own: dict[str, str] = {DESTINATION: inner.url.partition("://")[2]}
            async with proxied(made, tmp_path, fails_open=True):
                assert (await made.ask(None, "/v1/models", "GET", **own)).status == 200
                assert len(inner.received) == 1
            async with proxied(made, tmp_path, fails_open=True, strips=True):
                assert (await made.ask(None, "/v1/models", "GET", **own)).status == 503
                assert len(inner.received) == 1

    run(check())


def test_a_picker_that_is_killed_takes_no_answer_with_it_that_envoy_may_finish(tmp_path: Path) -> None:
    """As processes, as users start them: the next picker is asked again at once, and begins with nothing in flight."""
    with engines(2) as urls, contextlib.ExitStack() as stack:
        http, port = free_ports(2)
        settings = tmp_path / "kvlb.toml"
        settings.write_text(
            f"[server]\nport = {http}\nexpose_decisions = true\n[epp]\nhost = '127.0.0.1'\nport = {port}\n"
            f"[health]\ninterval_seconds = 0.2\n{STAYING}" + "".join(f"[[replicas]]\nurl = '{url}'\n" for url in urls)
        )
        made = stack.enter_context(envoy(Wiring(port), tmp_path))

        async def ask() -> int:
            async with aiohttp.ClientSession() as session:
                body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 1}
                async with session.post(made.url + COMPLETIONS, json=body) as response:
                    return response.status

        for _ in range(2):
            with started("epp", "--config", str(settings)) as process:
                front = Kvlb(process, f"http://127.0.0.1:{http}", settings)
                wait_for(f"{front.url}/ready", process)
                until(lambda: run(ask()) == 200)
                until(lambda front=front: front.status()["open_leases"] == 0)  # type: ignore[misc]
                process.send_signal(signal.SIGKILL)
                process.wait()
            assert run(ask()) == 500


@contextlib.asynccontextmanager
async def under_way(made: Picked) -> AsyncIterator[aiohttp.ClientResponse]:
    """A stream of which the client has had something."""
    async with made.session.post(made.proxy.url + COMPLETIONS, json=STREAM) as response:
        await response.content.readline()
        assert made.service.open_leases == 1
        yield response


def test_an_envoy_that_is_killed_leaves_nothing_behind(tmp_path: Path) -> None:
    async def check() -> None:
        async with picker([SLOW]) as made, proxied(made, tmp_path), under_way(made) as response:
            made.proxy.process.kill()
            with pytest.raises(aiohttp.ClientError):
                await response.read()
            await made.settled()
            assert await made.outcomes() == {"cancelled": 1}

    run(check())


def test_a_request_that_has_had_its_time_goes_on_without_the_picker(tmp_path: Path) -> None:
    async def check() -> None:
        async with picker([SLOW], timeouts={"total_seconds": 1.0}) as made, proxied(made, tmp_path):
            async with made.session.post(made.proxy.url + COMPLETIONS, json=STREAM) as response:
                await eventually(lambda: made.service.open_leases == 1)
                await made.settled()  # in the middle of the answer
                assert (await response.read()).endswith(b"data: [DONE]\n\n")
            assert await made.outcomes() == {"cancelled": 1}

    run(check(), 60)


def test_a_replica_that_is_not_there_is_told_by_envoys_own_answer(tmp_path: Path) -> None:
    async def check() -> None:
        async with upstream() as one, picker(urls=[one.url]) as made, proxied(made, tmp_path):

            async def resetting(request: Received) -> None:
                request.reset()

            one.answer = resetting
            assert (await made.ask({"prompt": PROMPT})).status == 503
            await made.settled()
            assert await made.outcomes() == {"error": 1}

    run(check())


def test_a_picker_that_ends_leaves_streams_to_envoy(tmp_path: Path) -> None:
    """After the time that it has for that; who waits for a decision is told."""

    async def check() -> None:
        async with upstream() as one, aiohttp.ClientSession() as client:
            manager = picker(urls=[one.url], server={"drain_timeout_seconds": 0.2}, admission={"max_in_flight": 1})
            made = await manager.__aenter__()

            async def begins(request: Received) -> None:
                request.begin_stream()
                request.chunk(b'data: {"choices":[{"text":"a"}]}\n\n')

            one.answer = begins
            async with proxied(made, tmp_path), client.post(made.proxy.url + COMPLETIONS, json=STREAM) as answer:
                first = await answer.content.readline()
                waiting = asyncio.ensure_future(client.post(made.proxy.url + COMPLETIONS, json=STREAM))
                await eventually(lambda: made.service.waiting.has_any)
                await manager.__aexit__(None, None, None)
                assert made.is_idle()
                async with await waiting as refused:
                    assert refused.status == 503
                    assert "shutting down" in (await refused.json())["error"]["message"]
                one.received[0].chunk(b"data: [DONE]\n\n")
                one.received[0].chunk(b"")
                assert (first + await answer.read()).endswith(b"data: [DONE]\n\n")

    run(check(), 60)


class Talk:
    """A stream to the picker without any Envoy, by gRPC's own client."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.call: Any = channel.stream_stream(PROCESS)()

    async def say(self, *messages: bytes) -> None:
        for each in messages:
            await self.call.write(each)

    async def hear(self) -> Any:
        data = await self.call.read()
        return None if data is grpc.aio.EOF else ext_proc.reply(data)


@contextlib.asynccontextmanager
async def talking(made: Picked) -> AsyncIterator[Talk]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{made.epp_port}") as channel:
        yield Talk(channel)


HEAD = [(":method", "POST"), (":path", COMPLETIONS), ("content-type", "application/json")]
BODY = b'{"model":"m","prompt":[1,2,3,4,5,6,7,8]}'


def begun() -> list[bytes]:
    return [ext_proc.headers(HEAD, modes=(ext_proc.FULL, ext_proc.FULL)), ext_proc.body(BODY, is_last=True)]


@pytest.mark.parametrize("ending", ["done", "cancel", "close", "disorder", "nonsense", "observed"])
def test_however_a_stream_ends_its_lease_is_released(ending: str) -> None:
    async def check() -> None:
        async with picker() as made, talking(made) as talk:
            await talk.say(*begun())
            told = await talk.hear()
            common = told.request_headers.response
            assert common.clear_route_cache
            destination = ext_proc.set_headers(common.header_mutation)[DESTINATION]
            assert destination in made.endpoints
            assert dict(told.dynamic_metadata["envoy.lb"]) == {DESTINATION: destination}
            assert (await talk.hear()).request_body.response.body_mutation.streamed_response.body == BODY
            assert made.service.open_leases == 1
            match ending:
                case "done":
                    await talk.call.done_writing()
                case "cancel":
                    talk.call.cancel()
                case "close":
                    await talk.call.write(ext_proc.headers([(":status", "200")], of="response"))
                    await talk.hear()
                    await talk.call.done_writing()
                case "disorder":
                    await talk.say(begun()[0])
                    assert await talk.call.code() is grpc.StatusCode.INVALID_ARGUMENT
                    assert "twice" in await talk.call.details()
                case "nonsense":
                    await talk.say(b"\xff\xff\xff")
                    assert await talk.call.code() is grpc.StatusCode.INVALID_ARGUMENT
                case "observed":
                    await talk.say(b"\x50\x01" + ext_proc.body(BODY))
                    assert await talk.call.code() is grpc.StatusCode.INVALID_ARGUMENT
            await made.settled()

    run(check())


def test_a_client_that_goes_while_its_request_waits_for_a_place_is_forgotten(tmp_path: Path) -> None:
    async def check() -> None:
        admission = {"max_in_flight": 1}
        async with picker([SLOW], admission=admission) as made, proxied(made, tmp_path), under_way(made):
            waiting = asyncio.ensure_future(made.session.post(made.proxy.url + COMPLETIONS, json=STREAM))
            await eventually(lambda: made.service.waiting.has_any)
            waiting.cancel()
            await eventually(lambda: not made.service.waiting.has_any)
            assert made.service.open_leases == 1
        await asyncio.sleep(0)

    run(check())


def test_health_is_asked_by_grpc() -> None:
    async def check() -> None:
        (port,) = free_ports(1)
        async with picker(epp={"health_port": port}) as made:
            for at in (made.epp_port, port):
                async with grpc.aio.insecure_channel(f"127.0.0.1:{at}") as channel:
                    stub = health_pb2_grpc.HealthStub(channel)

                    async def status(service: str, stub: Any = stub) -> int:
                        return int((await stub.Check(health_pb2.HealthCheckRequest(service=service))).status)

                    for name in ("", "liveness", "readiness", PROCESS.split("/")[1], "inference-extension"):
                        assert await status(name) == health_pb2.HealthCheckResponse.SERVING
                    with pytest.raises(grpc.aio.AioRpcError) as told:
                        await status("somebody")
                    assert told.value.code() is grpc.StatusCode.NOT_FOUND
                    watch = stub.Watch(health_pb2.HealthCheckRequest(service="readiness"))
                    assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
                    for live in made.service.router.fleet:
                        made.service.drain(live.replica.endpoint, Drain.ASKED)
                    assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
                    assert await status("readiness") == health_pb2.HealthCheckResponse.NOT_SERVING
                    assert await status("") == health_pb2.HealthCheckResponse.SERVING
                    for live in made.service.router.fleet:
                        made.service.drain(live.replica.endpoint, None)
                    watch.cancel()
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                assert await Talk(channel).call.code() is grpc.StatusCode.UNIMPLEMENTED

    run(check())


def read(name: str) -> bytes:
    return ssl.PEM_cert_to_DER_cert(Path(name).read_text())


def shown(port: int) -> bytes:
    """The certificate that is shown there."""
    return ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate(("127.0.0.1", port)))


@needs_openssl
def test_envoy_asks_over_tls_and_the_certificate_may_change(tmp_path: Path) -> None:
    async def check() -> None:
        cert, key = Authority(tmp_path / "pki").signed("picker")
        async with picker(epp={"cert_file": cert, "key_file": key}) as made:
            async with proxied(made, tmp_path, tls=True):
                await made.complete(PROMPT)
            other, other_key = Authority(tmp_path / "another").signed("picker")
            for new, old in ((other, cert), (other_key, key)):
                shutil.copy(new, old)
            await asyncio.to_thread(until, lambda: shown(made.epp_port) == read(other))
            async with proxied(made, tmp_path, tls=True):
                await made.complete(PROMPT)
            async with proxied(made, tmp_path):
                assert (await made.ask({"prompt": PROMPT})).status == 500

    run(check())


PAIRS = [(4, 4), (2, 4), (4, 0), (2, 1), (0, 0)]
STEPS = (
    lambda dice: ext_proc.headers(HEAD, modes=dice.choice(PAIRS), is_last=dice.random() < 0.2),
    lambda dice: ext_proc.body(dice.choice([b"", BODY[:9], BODY]), is_last=dice.random() < 0.5),
    lambda dice: ext_proc.trailers(),
    lambda dice: ext_proc.headers([(":status", dice.choice(["200", "503"]))], of="response", is_last=dice.random() < 0.2),
    lambda dice: ext_proc.body(b"data: x\n\n", of="response", is_last=dice.random() < 0.4),
    lambda dice: ext_proc.trailers(of="response"),
    lambda dice: dice.randbytes(5),
)  # fmt: skip


def test_after_any_conversations_nothing_is_left() -> None:
    """Over real streams: what comes in any order, most often after a beginning that is right, and is broken off anywhere."""

    async def one(channel: grpc.aio.Channel, dice: random.Random) -> None:
        talk = Talk(channel)
        first = begun() if dice.random() < 0.7 else []
        with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError, grpc.aio.UsageError, asyncio.CancelledError):
            await talk.say(*first)
            if first and dice.random() < 0.7:
                await talk.hear()
            for _ in range(dice.randrange(8)):
                await talk.say(dice.choice(STEPS)(dice))
            if dice.random() < 0.5:
                await talk.call.done_writing()
                while await talk.hear() is not None:
                    pass
        talk.call.cancel()

    async def check() -> None:
        async with picker() as made, grpc.aio.insecure_channel(f"127.0.0.1:{made.epp_port}") as channel:
            for first in range(0, 300, 30):
                await asyncio.gather(*[one(channel, random.Random(seed)) for seed in range(first, first + 30)])
                await made.settled()
            assert sum((await made.outcomes()).values()) > 100

    run(check(), 60)
