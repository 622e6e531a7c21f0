"""``balancer/gateway/legs.py``: what each of two replicas is sent, and what becomes of one leg when the other one fails."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from balancer.http.client import EndpointPool
from balancer.http.exchange import NotConnected
from indexer.index import ReplicaId
from tests.support.gateways import Gateway, close, gateway, post, split
from tests.support.upstream import Answer, Received, Upstream, upstream
from tests.support.waiting import eventually, run

CHAT = "/v1/chat/completions"
BODY = b'{"messages":[{"role":"user","content":"hi"}],  "max_completion_tokens":50,"stream":false,"x" : 1e3}'
PARAMS = b'{"remote_engine_id":"e", "remote_block_ids":[[1]],"remote_host":"10.9.9.9","remote_port":5600,"new":{"a":1}}'
USAGE = b'"usage":{"prompt_tokens":4,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":3}}'
PREFILLED = b'{"id":"1","choices":[{"finish_reason":"length"}],%b,"kv_transfer_params":%b}' % (USAGE, PARAMS)
ANSWER = (
    b'{"id":"chatcmpl-x", "choices":[{"message":{"content":"Hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":4,'
    b'"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":0}},"kv_transfer_params":{"remote_host":"10.9.9.9"}}'
)


async def prefills(request: Received) -> None:
    request.answer(PREFILLED)


async def answers(request: Received) -> None:
    request.answer(ANSWER)


def failing(status: str, headers: str = "") -> Answer:
    async def answer(request: Received) -> None:
        request.answer(
            b'{"error":{"message":"no"}}', status=status, headers=f"Content-Type: application/json\r\n{headers}"
        )

    return answer


async def resets(request: Received) -> None:
    request.reset()


async def says_nothing(request: Received) -> None: ...


async def aborts(request: Received) -> None:
    request.answer(b'{"choices":[{"finish_reason":"abort"}]}')


async def garbles(request: Received) -> None:
    request.answer(b"<html>")


@contextlib.asynccontextmanager
async def two(
    *, connector: str = "nixl", decodes: int = 1, prefill_count: int = 1, is_ending: bool = False, **settings: Any
) -> AsyncIterator[tuple[Gateway, list[Upstream], list[Upstream]]]:
    """A gateway, its prefill replicas and its decode replicas."""
    sections = {name: settings.pop(name) for name in list(settings) if isinstance(settings[name], dict)}
    async with contextlib.AsyncExitStack() as stack:
        first = [await stack.enter_async_context(upstream()) for _ in range(prefill_count)]
        second = [await stack.enter_async_context(upstream()) for _ in range(decodes)]
        for each in first:
            each.answer = prefills
            each.paths["/query"] = b'{"0":{"engine_id":"engine-of-p","worker_addr":{}}}'
        for each in second:
            each.answer = answers
        replicas = [
            {"url": e.url, "role": "prefill", "transfer": {"bootstrap": e.url, "address": "10.0.0.1:1"}} for e in first
        ]
        replicas += [{"url": e.url, "role": "decode", "transfer": {"address": "10.0.0.2:2"}} for e in second]
        section = {"name": connector, "threshold_tokens": 0, **settings}
        made = await stack.enter_async_context(gateway(replicas, disaggregation=section, **sections))
        yield made, first, second
        if not is_ending:
            await eventually(made.is_idle)


async def ask(front: Gateway, *headers: str, body: bytes = BODY) -> tuple[int, list[tuple[str, str]], bytes]:
    first, fields, told = split(await front.exchange(post(CHAT, body, *headers)))
    return int(first.split()[1]), fields, told


def test_what_each_of_them_is_sent() -> None:
    async def check() -> None:
        async with two() as (front, (p,), (d,)):
            status, headers, body = await ask(front, "X-Request-Id: mine", "Authorization: Bearer k", "X-Other: 1")
            assert status == 200
            first, second = p.received[0], d.received[0]
            assert json.loads(first.body) == {
                "messages": [{"role": "user", "content": "hi"}],
                "max_completion_tokens": 1,
                "max_tokens": 1,
                "stream": False,
                "x": 1e3,
                "kv_transfer_params": {
                    "do_remote_decode": True,
                    "do_remote_prefill": False,
                    "remote_engine_id": None,
                    "remote_block_ids": None,
                    "remote_host": None,
                    "remote_port": None,
                },
            }
            assert second.body == BODY[:-1] + b',"kv_transfer_params":' + PARAMS + b"}"
            for each in (first, second):
                assert each.target == CHAT
                assert each.values("x-request-id") == ["mine"]
                assert each.values("authorization") == ["Bearer k"]
                assert each.values("x-other") == ["1"]
            told = json.loads(body)
            assert told["kv_transfer_params"] is None
            assert told["usage"]["prompt_tokens_details"]["cached_tokens"] == 3
            assert told["usage"]["completion_tokens"] == 7
            assert b"10.9.9.9" not in body
            fields = {name.lower(): value for name, value in headers}
            assert fields["x-kvlb-prefill"] == p.url[7:]
            assert fields["x-kvlb-replica"] == d.url[7:]
            assert int(fields["content-length"]) == len(body)

    run(check())


def test_who_may_not_know_the_fleet_sees_one_answer() -> None:
    async def check() -> None:
        async with two(server={"expose_decisions": False}) as (front, (p,), _):
            _, headers, body = await ask(front)
            assert not [name for name, _ in headers if name.lower().startswith("x-kvlb")]
            p.answer = failing("400 Bad Request", "Server: uvicorn\r\n")
            status, headers, body = await ask(front)
            assert (status, body) == (400, b'{"error":{"message":"no"}}')
            assert not [name for name, _ in headers if name.lower() in {"server", "x-kvlb-replica"}]

    run(check())


def test_an_id_that_names_both_stays_between_the_engines() -> None:
    async def check() -> None:
        async with two(connector="p2p_nccl") as (front, (p,), (d,)):

            async def echoes(request: Received) -> None:
                own = request.values("x-request-id")[0]
                request.answer(
                    json.dumps({"id": f"chatcmpl-{own}", "choices": []}).encode(),
                    headers=f"Content-Type: application/json\r\nX-Request-Id: {own}\r\n",
                )

            p.answer = d.answer = echoes
            _, headers, body = await ask(front, "X-Request-Id: mine", "X-Request-Id: twice")
            ids = [each.received[0].values("x-request-id") for each in (p, d)]
            assert ids[0] == ids[1]
            assert len(ids[0]) == 1
            assert ids[0][0].startswith("___prefill_addr_10.0.0.1:1___decode_addr_10.0.0.2:2_")
            assert json.loads(body)["id"] == "chatcmpl-mine"
            assert [value for name, value in headers if name.lower() == "x-request-id"] == ["mine"]

    run(check())


def test_both_legs_of_mooncake_are_under_way_together() -> None:
    async def check() -> None:
        async with two(connector="mooncake") as (front, (p,), (d,)):
            together = asyncio.Barrier(2)

            async def meets(request: Received) -> None:
                await together.wait()
                request.answer(ANSWER.replace(b'{"remote_host":"10.9.9.9"}', b"null"))

            p.answer = d.answer = meets
            status, _, _ = await ask(front)
            assert status == 200
            first, second = (json.loads(each.received[0].body)["kv_transfer_params"] for each in (p, d))
            assert first["transfer_id"] == second["transfer_id"]
            assert second["remote_engine_id"] == "engine-of-p"
            assert second["remote_bootstrap_addr"] == p.url
            assert json.loads(p.received[0].body)["ignore_eos"] is True
            again, _, _ = await ask(front)
            assert again == 200
            third = json.loads(p.received[1].body)["kv_transfer_params"]
            assert third["transfer_id"] != first["transfer_id"]

    run(check())


@pytest.mark.parametrize("connector", ["shared", "lmcache_mp"])
def test_a_decode_replica_that_stands_still_before_its_store_is_left(connector: str) -> None:
    async def check() -> None:
        async with two(connector=connector, decodes=2) as (front, (p,), decodes):
            stuck: list[Received] = []

            async def hangs_once(request: Received) -> None:
                if stuck:
                    await answers(request)
                stuck.append(request)

            stalls = front.service.care.stalls
            stalls._seconds = 0.5
            for each in decodes:
                each.answer = hangs_once
                stalls.told(ReplicaId(each.url.removeprefix("http://")))
            status, _, body = await ask(front)
            assert status == 200
            assert json.loads(body)["usage"]["completion_tokens"] == 7
            assert [len(each.received) for each in decodes] == [1, 1]
            await eventually(stuck[0].gone.is_set)
            assert len(p.received) <= 2

    run(check())


def test_another_prefill_replica_is_tried_where_the_engine_of_one_cannot_be_asked_for_its_name() -> None:
    async def check() -> None:
        async with two(connector="mooncake", prefill_count=2, policy={"name": "round_robin"}) as (front, (p, q), (d,)):
            p.paths["/query"] = b"{}"
            for _ in range(3):
                status, _, _ = await ask(front)
                assert status == 200
            asked = [json.loads(each.body) for each in d.received]
            assert {each["kv_transfer_params"]["remote_bootstrap_addr"] for each in asked} == {q.url}
            assert (len(p.received), len(q.received)) == (0, 3)
            assert not sum(value for _, value in await front.samples("kvlb_disaggregation_alone_total"))
            q.paths["/query"] = b"{}"
            await eventually(front.is_idle)

            async def alone() -> bool:
                assert (await ask(front))[0] == 200
                return d.received[-1].body == BODY

            until = asyncio.get_running_loop().time() + 15
            while not await alone():  # what an engine is called is remembered for a moment
                assert asyncio.get_running_loop().time() < until
            found = await front.samples("kvlb_disaggregation_alone_total")
            assert [labels["reason"] for labels, value in found if value] == ["no_engine"]

    run(check())


def test_what_was_sent_from_one_engine_to_the_other_is_not_told_as_cached() -> None:
    """The decode engine counts it so, and its answer may be there before that of the prefill engine."""

    async def check() -> None:
        async with two(connector="mooncake") as (front, (p,), (d,)):
            told = asyncio.Event()

            async def is_late(request: Received) -> None:
                await told.wait()
                request.answer(PREFILLED)

            async def counts_all(request: Received) -> None:
                request.answer(ANSWER.replace(b'"cached_tokens":0', b'"cached_tokens":4'))

            p.answer, d.answer = is_late, counts_all
            reader, writer = await front.send(post(CHAT, BODY))
            answer = b""
            while b"kv_transfer_params" not in answer:
                answer += await reader.read(65536)
            told.set()
            await close(writer)
            _, _, body = split(answer)
            assert json.loads(body)["usage"]["prompt_tokens_details"]["cached_tokens"] == 0

    run(check())


@pytest.mark.parametrize("connector", ["nixl", "mooncake"])
@pytest.mark.parametrize(
    "bad",
    [
        failing("500 Internal Server Error"),
        failing("503 Busy"),
        failing("429 Too Many"),
        resets,
        aborts,
        garbles,
        says_nothing,
    ],
    ids=["500", "503", "429", "reset", "abort", "garbled", "silent"],
)
def test_a_prefill_that_fails_costs_time_and_nothing_else(connector: str, bad: Answer) -> None:
    async def check() -> None:
        async with two(connector=connector, prefill_seconds=0.3) as (front, (p,), (d,)):
            p.answer = bad

            async def waits(request: Received) -> None:
                if b"do_remote_prefill" in request.body:
                    await request.gone.wait()  # for blocks that never come
                else:
                    await answers(request)

            if connector == "mooncake":
                d.answer = waits
            status, _, body = await ask(front)
            assert status == 200
            assert json.loads(body)["usage"]["completion_tokens"] == 7
            assert d.received[-1].body == BODY, "its own bytes, and no word of a transfer"
            alone = await front.samples("kvlb_disaggregation_alone_total")
            assert [labels["reason"] for labels, value in alone if value] == ["failed"]

    run(check())


@pytest.mark.parametrize("connector", ["nixl", "mooncake"])
@pytest.mark.parametrize("status", [400, 404, 413, 422])
def test_a_refusal_of_the_prompt_is_the_clients(connector: str, status: int) -> None:
    async def check() -> None:
        async with two(connector=connector) as (front, (p,), (d,)):
            p.answer, d.answer = failing(f"{status} No"), says_nothing
            told, _, body = await ask(front)
            assert (told, body) == (status, b'{"error":{"message":"no"}}')
            if connector == "nixl":
                assert not d.received
            else:
                await asyncio.wait_for(d.received[0].gone.wait(), 5)

    run(check())


def test_another_prefill_replica_is_tried_and_no_third() -> None:
    async def check() -> None:
        async with two(prefill_count=3) as (front, prefill, (d,)):
            for each in prefill:
                each.answer = failing("503 Busy")
            status, _, _ = await ask(front)
            assert status == 200
            assert sum(len(each.received) for each in prefill) == 2
            assert d.received[0].body == BODY

    run(check())


def test_what_was_computed_goes_to_another_decode_replica_if_the_first_is_not_there() -> None:
    async def check() -> None:
        async with two(decodes=2, policy={"name": "round_robin"}) as (front, (p,), decode):
            port = int(decode[0].url.rpartition(":")[2])
            for _ in range(2):  # one of the two is chosen first, whichever it is
                connect = EndpointPool.connect

                async def refuses(pool: EndpointPool, seconds: float, connect: Any = connect) -> Any:
                    if pool._address[1] == port:
                        raise NotConnected("nobody is there")
                    return await connect(pool, seconds)

                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(EndpointPool, "connect", refuses)
                    patch.setattr(EndpointPool, "take", lambda pool, after: None)
                    status, _, _ = await ask(front)
                assert status == 200
            assert len(p.received) == 2, "each prompt was computed once"
            assert not decode[0].received
            assert all(PARAMS in each.body for each in decode[1].received)

    run(check())


def test_a_decode_replica_that_cannot_fetch_computes_and_is_not_blamed() -> None:
    async def check() -> None:
        async with two(ejection={"consecutive_failures": 1}) as (front, _, (d,)):

            async def fails(request: Received) -> None:
                with_params = b"remote_host" in request.body
                await (failing("500 Internal Server Error") if with_params else answers)(request)

            d.answer = fails
            for _ in range(3):
                status, _, _ = await ask(front)
                assert status == 200
            assert len(d.received) == 6
            assert not list(front.service.router.ejections)

    run(check())


def test_all_the_time_that_a_request_has_is_for_both_legs() -> None:
    async def check() -> None:
        async with two(timeouts={"total_seconds": 0.3}) as (front, (p,), (d,)):
            p.answer = says_nothing
            status, _, _ = await ask(front)
            assert status == 504
            assert not d.received
            await asyncio.wait_for(p.received[0].gone.wait(), 5)

    run(check())


@pytest.mark.parametrize("connector", ["nixl", "mooncake"])
def test_a_client_that_leaves_ends_what_is_under_way(connector: str) -> None:
    async def check() -> None:
        async with two(connector=connector) as (front, (p,), (d,)):
            asked = asyncio.Event()

            async def begins(request: Received) -> None:
                asked.set()

            p.answer, d.answer = begins, says_nothing
            _, writer = await front.send(post(CHAT, BODY))
            await asked.wait()
            await eventually(lambda: d.received or connector == "nixl")
            await close(writer)
            if connector == "nixl":
                await asyncio.wait_for(p.received[0].gone.wait(), 5)
                assert not d.received
            else:  # whoever waits for blocks holds their places until they come
                await asyncio.wait_for(d.received[0].gone.wait(), 5)
                assert not p.received[0].gone.is_set()
                p.received[0].answer(PREFILLED)
            await eventually(front.is_idle)

    run(check())


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages":[],"kv_transfer_params":{"do_remote_prefill":true,"remote_host":"evil"}}',
        b'{"messages":[],"vllm_xargs":{"kv_transfer_params":["evil"]}}',
        b'{"messages":[],"kv_transfer_params":null,"kv_transfer_params":{"remote_host":"evil"}}',
    ],
)
def test_parameters_of_clients_reach_neither_leg(body: bytes) -> None:
    async def check() -> None:
        async with two() as (front, (p,), (d,)):
            status, _, _ = await ask(front, "x-prefiller-host-port: evil:1", body=body)
            assert status == 200
            for each in (p.received[0], d.received[0]):
                assert b"evil" not in each.body
                assert not each.values("x-prefiller-host-port")
            assert d.received[0].body.endswith(PARAMS + b"}")

    run(check())


def test_who_may_say_whence_a_cache_comes_is_not_split() -> None:
    async def check() -> None:
        async with two(clients={"transfer_params": "pass"}) as (front, (p,), (d,)):
            body = b'{"messages":[], "kv_transfer_params":{"remote_host":"own"}}'
            status, _, _ = await ask(front, body=body)
            assert status == 200
            assert d.received[0].body == body
            assert not p.received
            alone = await front.samples("kvlb_disaggregation_alone_total")
            assert [labels["reason"] for labels, value in alone if value] == ["body"]

    run(check())


@pytest.mark.parametrize("connector", ["nixl", "mooncake"])
def test_a_gateway_that_ends_leaves_no_lease_behind(connector: str) -> None:
    async def check() -> None:
        asked = asyncio.Event()

        async def begins(request: Received) -> None:
            asked.set()

        ends = {"drain_timeout_seconds": 0.1}
        async with two(connector=connector, server=ends, is_ending=True) as (front, (p,), (d,)):
            p.answer, d.answer = begins, says_nothing
            reader, writer = await front.send(post(CHAT, BODY))
            await asked.wait()
            fleet = front.service.router.fleet
            ending = asyncio.ensure_future(reader.read())
        assert fleet.open_leases == 0
        assert b"503" in (await ending).partition(b"\r\n")[0]
        await close(writer)

    run(check())
