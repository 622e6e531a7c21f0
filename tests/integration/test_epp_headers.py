"""What a replica gets of a request that Envoy sends on, byte by byte: headers, ranks, prefill replicas, bodies."""

import json
from pathlib import Path
from typing import Any

import pytest

from balancer.router import Router
from tests.support.pickers import COMPLETIONS, picker, proxied
from tests.support.upstream import Received, upstream
from tests.support.waiting import run

PROMPT = list(range(1, 1025))
MODES = ["FULL_DUPLEX_STREAMED", "BUFFERED"]


@pytest.mark.parametrize("mode", MODES)
def test_a_body_goes_on_byte_by_byte_and_its_headers_but_for_ours(mode: str, tmp_path: Path) -> None:
    async def check() -> None:
        async with upstream() as one, picker(urls=[one.url]) as made, proxied(made, tmp_path, request_body=mode):
            body = b'{ "model":"m",\n"prompt":[1,2,3,4,5] ,"x":"\xc3\xa9"}'
            named: dict[str, str] = {
                "x_own": "kept",
                "x_kvlb_max_wait": "3",
                "x_kvlb_replica": "made up",
                "x_prefiller_host_port": "10.0.0.9:1",
                "x_data_parallel_rank": "5",
                "routing_strategy": "random",
            }
            answer = await made.ask(body, **named)
            assert answer.status == 200, answer
            assert answer.headers["x-kvlb-replica"] == made.endpoints[0]
            (got,) = one.received
            assert got.body == body
            assert got.values("x-own") == ["kept"]
            assert got.values("x-gateway-destination-endpoint") == made.endpoints
            names = {name.lower() for name, _ in got.headers}
            assert not names & {each.replace("_", "-") for each in named if each != "x_own"}
            assert len(got.values("x-request-id")) == 1

    run(check())


def test_who_answers_cannot_say_what_was_decided(tmp_path: Path) -> None:
    async def check() -> None:
        async def lying(request: Received) -> None:
            more = "X-Kvlb-Replica: made up\r\nX-Gateway-Destination-Endpoint: 1.2.3.4:5\r\nX-Own: kept\r\n"
            request.answer(b"{}", headers=f"Content-Type: application/json\r\n{more}")

        server = {"expose_decisions": False}
        async with upstream() as one, picker(urls=[one.url], server=server) as made, proxied(made, tmp_path):
            one.answer = lying
            answer = await made.ask({"prompt": [1, 2, 3]})
            assert answer.headers["x-own"] == "kept"
            assert not {"x-kvlb-replica", "x-gateway-destination-endpoint"} & set(answer.headers)

    run(check())


def test_the_rank_is_named(tmp_path: Path) -> None:
    async def check() -> None:
        async with (
            upstream() as one,
            picker(urls=[one.url], replicas=[{"data_parallel_size": 2}], policy={"name": "round_robin"}) as made,
            proxied(made, tmp_path),
        ):
            for _ in range(4):
                assert (await made.ask({"prompt": PROMPT}, x_data_parallel_rank="9")).status == 200
            assert sorted(got.values("x-data-parallel-rank") for got in one.received) == [["0"], ["0"], ["1"], ["1"]]

    run(check())


def test_replicas_with_keys_are_sent_the_key_of_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = "sk-" + "1" * 20
    monkeypatch.setenv("KEYS", key)

    async def check() -> None:
        sections: dict[str, Any] = {"auth": {"keys_variable": "KEYS"}, "upstream": {"api_key": "theirs"}}
        async with upstream() as one, picker(urls=[one.url], **sections) as made, proxied(made, tmp_path):
            assert (await made.ask({"prompt": PROMPT})).status == 401
            assert (await made.ask({"prompt": PROMPT}, x_api_key=key)).status == 200
            (got,) = one.received
            assert got.values("authorization") == ["Bearer theirs"]
            assert got.values("x-api-key") == []

    run(check())


@pytest.mark.parametrize("response", ["watch", "leave"])
def test_a_prefill_replica_is_named_to_the_sidecar_of_the_decode_replica(response: str, tmp_path: Path) -> None:
    async def check() -> None:
        sections: dict[str, Any] = {
            "replicas": [{"role": "prefill"}, {"role": "decode"}],
            "disaggregation": {"threshold_tokens": 100},
            "epp": {"response": response},
        }
        async with (
            upstream() as prefill,
            upstream() as decode,
            picker(urls=[prefill.url, decode.url], **sections) as made,
            proxied(made, tmp_path),
        ):
            leases: list[int] = []

            async def counting(request: Received) -> None:
                leases.append(made.service.open_leases)
                request.answer(b'{"choices":[{"finish_reason":"stop"}],"usage":{"prompt_tokens":1024}}')

            decode.answer = counting
            answer = await made.ask({"prompt": PROMPT})
            assert answer.status == 200
            assert answer.headers["x-kvlb-replica"] == made.endpoints[1]
            assert answer.headers["x-kvlb-prefill"] == made.endpoints[0]
            short = await made.ask({"prompt": PROMPT[:20]})
            assert "x-kvlb-prefill" not in short.headers
            assert not prefill.received
            first, second = decode.received
            assert first.values("x-prefiller-host-port") == [made.endpoints[0]]
            assert second.values("x-prefiller-host-port") == []
            assert leases == [2, 1]
            await made.settled()
            assert await made.outcomes(COMPLETIONS) == {"ok": 2}
            legs = {
                tuple(labels.values()): value for labels, value in await made.samples("kvlb_disaggregation_legs_total")
            }
            assert {labels: value for labels, value in legs.items() if value} == {
                ("decode", "ok"): 1,
                ("prefill", "ok"): 1,
            }

    run(check())


def test_without_a_prefill_replica_the_decode_replica_does_all(tmp_path: Path) -> None:
    async def check() -> None:
        sections: dict[str, Any] = {
            "replicas": [{"role": "prefill"}, {"role": "decode"}],
            "disaggregation": {"threshold_tokens": 100},
        }
        async with (
            upstream() as prefill,
            upstream() as decode,
            picker(urls=[prefill.url, decode.url], **sections) as made,
            proxied(made, tmp_path, hint=[made.endpoints[1]]),
        ):
            assert (await made.ask({"prompt": PROMPT})).status == 200
            assert decode.received[0].values("x-prefiller-host-port") == []
            await made.settled()

    run(check())


def test_requests_without_a_body_go_by_load(tmp_path: Path) -> None:
    async def check() -> None:
        async with (
            upstream() as one,
            upstream("other") as two,
            picker(urls=[one.url, two.url], policy={"name": "least_load"}) as made,
            proxied(made, tmp_path),
        ):
            for path in ("/v1/models", "/v1/models/m", "/v1/models?limit=2"):
                assert (await made.ask(None, path, "GET")).status == 200
            assert len(one.received) + len(two.received) == 3
            for path, method in (("/metrics", "GET"), ("/v1/models", "DELETE"), ("/v1/models/../sleep", "POST")):
                assert (await made.ask(None, path, method)).status == 404
            await made.settled()

    run(check())


@pytest.mark.parametrize("mode", MODES)
def test_what_an_engine_is_told_to_load_is_put_into_its_body(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Router, "_hint", lambda *arguments: {"max_load_tokens": 0})

    async def check() -> None:
        async with upstream() as one, picker(urls=[one.url]) as made, proxied(made, tmp_path, request_body=mode):
            assert (await made.ask(b'{"model":"m","prompt":[1,2,3]}')).status == 200
            (got,) = one.received
            told = json.loads(got.body)
            assert told.pop("kv_transfer_params") == {"max_load_tokens": 0}
            assert told == {"model": "m", "prompt": [1, 2, 3]}

    run(check())


@pytest.mark.parametrize("mode", MODES)
def test_fields_that_clients_may_not_send_are_taken_out(mode: str, tmp_path: Path) -> None:
    async def check() -> None:
        async with upstream() as one, picker(urls=[one.url]) as made, proxied(made, tmp_path, request_body=mode):
            body = b'{"model":"m","kv_transfer_params":{"remote_host":"10.0.0.9"},"prompt":[1,2,3]}'
            assert (await made.ask(body)).status == 200
            assert json.loads(one.received[0].body) == {"model": "m", "prompt": [1, 2, 3]}

    run(check())


def test_a_subset_in_which_nobody_serves_the_model_can_serve_nothing_now(tmp_path: Path) -> None:
    async def check() -> None:
        async with (
            upstream() as one,
            upstream("other") as two,
            picker(urls=[one.url, two.url]) as made,
            proxied(made, tmp_path),
        ):
            named = {"x_gateway_destination_endpoint_subset": made.endpoints[1]}
            answer = await made.ask({"prompt": [1, 2, 3]}, **named)
            assert (answer.status, answer.json["error"]["code"]) == (503, "no_replica")
            answer = await made.ask({"model": "other", "prompt": [1, 2, 3]}, **named)
            assert (answer.status, answer.headers["x-kvlb-replica"]) == (200, made.endpoints[1])
            assert two.received[0].values("x-gateway-destination-endpoint-subset") == []

    run(check())
