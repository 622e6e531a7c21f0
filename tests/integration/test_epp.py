"""``kvlb epp`` behind a real Envoy, before fake engines: Envoy 1.40 does what is known of it, and clients get what is right."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.engines import MODEL, config
from tests.support.envoy import DESTINATION
from tests.support.pickers import COMPLETIONS, picker, proxied
from tests.support.waiting import eventually, run

PROMPT = list(range(300, 500))
CLUSTERS = ["original_dst", "metadata", "header"]
NOWHERE = "127.0.0.1:9"
ONE, TWO = "sk-" + "1" * 20, "sk-" + "2" * 20


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_a_prompt_goes_where_it_lies_and_the_engine_finds_it(cluster: str, tmp_path: Path) -> None:
    async def check() -> None:
        async with picker() as made, proxied(made, tmp_path, cluster=cluster):
            prompts = [[start + at for at in range(200)] for start in range(300, 6300, 1000)]
            held = {}
            for at, prompt in enumerate(prompts):
                first = await made.complete(prompt)
                assert first.cached_tokens == 0
                held[at] = first.headers["x-kvlb-replica"]
            for at, prompt in reversed(list(enumerate(prompts))):
                again = await made.complete(prompt)
                assert again.headers["x-kvlb-replica"] == held[at]
                assert again.cached_tokens == int(again.headers["x-kvlb-cached-tokens"]) == 192
                assert again.headers["x-kvlb-predicted"] == "exact"
            await made.settled()
            assert await made.outcomes(COMPLETIONS) == {"ok": 12}
            assert sum(each.exact for each in made.service.router.caches.audit.tallies.values()) == 12

    run(check())


@pytest.mark.parametrize("request_body", ["FULL_DUPLEX_STREAMED", "BUFFERED"])
@pytest.mark.parametrize("response_body", ["FULL_DUPLEX_STREAMED", "STREAMED", "BUFFERED", "NONE"])
def test_all_modes_of_bodies_serve(request_body: str, response_body: str, tmp_path: Path) -> None:
    async def check() -> None:
        async with picker() as made:
            async with proxied(made, tmp_path, request_body=request_body, response_body=response_body):
                await made.complete(PROMPT)
                assert (await made.complete(PROMPT)).cached_tokens == 192
                assert (await made.ask(None, "/v1/models", "GET")).json["data"][0]["id"] == MODEL
            await made.settled()
            assert await made.outcomes() == {"ok": 3}

    run(check())


def test_a_body_of_twelve_megabytes_arrives_whole(tmp_path: Path) -> None:
    async def check() -> None:
        text = "kvlb " * (12 * 1024 * 1024 // 5)
        async with picker(tokenizer={"enabled": False}) as made:
            for request_body in ("FULL_DUPLEX_STREAMED", "BUFFERED"):
                async with proxied(made, tmp_path, request_body=request_body):
                    answer = await made.ask({"prompt": text})
                    assert answer.status == 400, answer  # the engine's own: it has read all of it
                    assert str(config().max_model_len) in answer.json["error"]["message"]
            await made.settled()
            assert await made.outcomes() == {"error": 2}

    run(check(), 60)


def test_a_body_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    async def check() -> None:
        async with (
            picker(server={"max_body_bytes": 10_000}) as made,
            proxied(made, tmp_path),
        ):
            answer = await made.ask(b'{"prompt": "' + b"x" * 2_000_000 + b'"}')
            assert (answer.status, answer.json["error"]["code"]) == (413, "body_too_large")
            assert (await made.complete(PROMPT)).status == 200

    run(check())


def test_a_stream_passes_event_by_event_and_its_usage_is_heard(tmp_path: Path) -> None:
    async def check() -> None:
        slow = [config(), config()]
        async with picker(slow) as made, proxied(made, tmp_path):
            await made.complete(PROMPT)
            body = {
                "model": MODEL,
                "prompt": PROMPT,
                "max_tokens": 40,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
            async with made.session.post(made.proxy.url + COMPLETIONS, json=body) as response:
                pieces = [piece async for piece in response.content.iter_any()]
            assert b"".join(pieces).endswith(b"data: [DONE]\n\n")
            assert b"".join(pieces).count(b"data: ") == 42
            await made.settled()
            assert await made.outcomes() == {"ok": 2}
            tallies = made.service.router.caches.audit.tallies.values()
            assert sum(each.compared for each in tallies) == sum(each.exact for each in tallies) == 2
            seconds = await made.samples("kvlb_time_to_first_byte_seconds_count")
            assert sum(value for _, value in seconds) == 2

    run(check())


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_a_client_cannot_say_where_its_request_goes(cluster: str, tmp_path: Path) -> None:
    async def check() -> None:
        async with picker() as made, proxied(made, tmp_path, cluster=cluster):
            own: dict[str, str] = {DESTINATION: NOWHERE, "x_prefiller_host_port": NOWHERE, "x_data_parallel_rank": "7"}
            answer = await made.ask({"prompt": PROMPT, "max_tokens": 1}, **own)
            assert answer.status == 200
            assert (await made.ask(None, "/v1/models", "GET", **own)).status == 200

    run(check())


def test_a_list_of_endpoints_is_not_understood_by_original_dst(tmp_path: Path) -> None:
    """Hence the default names one."""

    async def check() -> None:
        async with picker(epp={"fallbacks": 1}) as made, proxied(made, tmp_path):
            assert (await made.ask({"prompt": PROMPT})).status == 503
            await made.settled()

    run(check())


def test_the_next_best_answers_where_the_chosen_one_is_unknown_to_envoy(tmp_path: Path) -> None:
    """And the picker hears of it: the lease is that of who has answered."""

    async def check() -> None:
        async with picker(epp={"fallbacks": 2}) as made:
            async with proxied(made, tmp_path, cluster="metadata"):
                first = await made.complete(PROMPT)
            holder = first.headers["x-kvlb-replica"]
            (other,) = set(made.endpoints) - {holder}
            async with proxied(made, tmp_path, cluster="metadata", endpoints=[other], tells_served=True):
                answer = await made.complete(PROMPT)
                assert answer.cached_tokens == 0  # another one has answered
                assert "x-gateway-destination-endpoint-served" not in answer.headers
            await made.settled()
            assert await made.outcomes() == {"ok": 2, "unreachable": 1}
            tallies = made.service.router.caches.audit.tallies.values()
            assert sum(each.compared for each in tallies) == 1  # nothing was predicted of the other one

    run(check())


def test_without_metadata_envoy_goes_round_and_the_picker_hears_of_it(tmp_path: Path) -> None:
    async def check() -> None:
        async with picker() as made:
            changes: dict[str, Any] = {"allows_metadata": False, "tells_served": True}
            async with proxied(made, tmp_path, cluster="metadata", **changes):
                for _ in range(6):
                    await made.complete(PROMPT)
            await made.settled()
            found = await made.outcomes()
            assert found["ok"] == 6
            assert 0 < found["unreachable"] < 6  # Envoy takes each in its turn, whatever it was told

    run(check())


def test_a_hint_of_the_proxy_limits_the_choice(tmp_path: Path) -> None:
    async def check() -> None:
        async with picker() as made:
            for endpoint in made.endpoints:
                async with proxied(made, tmp_path, hint=[endpoint, NOWHERE]):
                    for start in range(0, 4000, 500):
                        answer = await made.complete(list(range(300 + start, 400 + start)))
                        assert answer.headers["x-kvlb-replica"] == endpoint
            async with proxied(made, tmp_path, hint=[NOWHERE]):
                answer = await made.ask({"prompt": PROMPT})
                assert (answer.status, answer.json["error"]["code"]) == (503, "no_replica")
            async with proxied(made, tmp_path, hint=[]):
                assert (await made.ask({"prompt": PROMPT})).status == 503
            await made.settled()

    run(check())


def test_a_hint_in_a_header_limits_the_choice_where_metadata_do_not(tmp_path: Path) -> None:
    async def check() -> None:
        async with picker() as made, proxied(made, tmp_path):
            for endpoint in made.endpoints:
                named = {"x_gateway_destination_endpoint_subset": endpoint}
                answer = await made.ask({"prompt": PROMPT}, **named)
                assert answer.headers["x-kvlb-replica"] == endpoint
            answer = await made.ask({"prompt": PROMPT}, x_gateway_destination_endpoint_subset=NOWHERE)
            assert answer.status == 503

    run(check())


def test_refusals_have_the_shape_that_clients_know(tmp_path: Path) -> None:
    async def check() -> None:
        sections: dict[str, Any] = {"limits": {"key": {"requests_per_minute": 4}}}
        async with picker(**sections) as made, proxied(made, tmp_path):
            answer = await made.ask(b"{")
            assert (answer.status, answer.json["error"]["type"]) == (400, "invalid_request_error")
            assert answer.headers["content-type"] == "application/json"
            answer = await made.ask({"model": "nobody's", "prompt": PROMPT})
            assert (answer.status, answer.json["error"]["code"]) == (404, "model_not_found")
            answer = await made.ask({}, "/v1/messages")
            assert (answer.status, answer.json["type"]) == (400, "error")  # Anthropic's shape
            answer = await made.ask({}, "/sleep")
            assert (answer.status, answer.json["error"]["code"]) == (404, "unknown_path")
            answer = await made.ask({"prompt": PROMPT})
            assert (answer.status, answer.json["error"]["code"]) == (429, "rate_limit_exceeded")
            assert int(answer.headers["retry-after"]) > 0
            assert answer.headers["x-request-id"]

    run(check())


def test_a_body_is_salted_for_its_tenant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both modes give the body back as it shall be, not as it came."""
    monkeypatch.setenv("KEYS", f"one:{ONE},two:{TWO}")
    monkeypatch.setenv("SECRET", "s" * 32)

    async def check(request_body: str) -> None:
        sections: dict[str, Any] = {
            "auth": {"keys_variable": "KEYS"},
            "tenants": {"isolation": True, "secret_variable": "SECRET"},
        }
        async with picker([config()], **sections) as made, proxied(made, tmp_path, request_body=request_body):
            assert (await made.ask({"prompt": PROMPT})).status == 401

            async def cached(key: str) -> int:
                answer = await made.ask({"prompt": PROMPT, "max_tokens": 1}, authorization=f"Bearer {key}")
                assert answer.status == 200, answer
                return answer.cached_tokens

            assert [await cached(key) for key in (ONE, ONE, TWO, TWO)] == [0, 192, 0, 192]
            await made.settled()

    for mode in ("FULL_DUPLEX_STREAMED", "BUFFERED"):
        run(check(mode))


def test_a_compressed_body_goes_on_as_it_was_read(tmp_path: Path) -> None:
    import gzip

    async def check() -> None:
        body = gzip.compress(json.dumps({"model": MODEL, "prompt": PROMPT, "max_tokens": 1}).encode())
        async with picker() as made:
            for mode in ("FULL_DUPLEX_STREAMED", "BUFFERED"):
                async with proxied(made, tmp_path, request_body=mode):
                    answer = await made.ask(body, content_encoding="gzip")
                    assert answer.status == 200, answer

    run(check())


def test_clients_that_leave_leave_nothing_behind(tmp_path: Path) -> None:
    async def check() -> None:
        from simulations.latency import LatencyModel

        slow = LatencyModel(overhead=0.05, weights=0, token=0, pair=0, context_token=0)
        async with picker([config(latency=slow), config(latency=slow)]) as made, proxied(made, tmp_path):
            body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 500, "stream": True}
            for chunks in (0, 3):
                response = await made.session.post(made.proxy.url + COMPLETIONS, json=body)
                for _ in range(chunks):
                    await response.content.readline()
                assert made.service.open_leases == 1
                response.close()
                await made.settled()
            assert await made.outcomes() == {"cancelled": 2}

    run(check())


def test_leaving_early_ends_the_lease_with_the_answers_headers(tmp_path: Path) -> None:
    async def check() -> None:
        async with picker(epp={"response": "leave"}) as made:
            for mode in ("FULL_DUPLEX_STREAMED", "STREAMED", "NONE"):
                async with proxied(made, tmp_path, response_body=mode):
                    await made.complete(PROMPT)
                    body = {"prompt": PROMPT, "max_tokens": 30, "stream": True}
                    answer = await made.ask(body)
                    assert answer.body.endswith(b"data: [DONE]\n\n")
                await made.settled()
            assert await made.outcomes() == {"ok": 6}
            assert made.service.router.caches.audit.tallies == {} or not any(
                each.compared for each in made.service.router.caches.audit.tallies.values()
            )

    run(check())


def test_the_control_plane_is_beside_it(tmp_path: Path) -> None:
    async def check() -> None:
        async with picker() as made, proxied(made, tmp_path):
            await made.complete(PROMPT)
            async with made.session.get(f"{made.url}/ready") as response:
                assert response.status == 200
            async with made.session.get(f"{made.url}/kvlb/status") as response:
                assert len((await response.json())["replicas"]) == 2
            async with made.session.post(made.url + COMPLETIONS, json={}) as response:
                assert response.status == 404
                assert "proxy" in (await response.json())["error"]["message"]
            await eventually(made.is_idle)

    run(check())


def test_configurations_without_trailers_are_none(tmp_path: Path) -> None:
    """Envoy refuses them where bodies stream both ways, so that nobody can have forgotten them."""

    async def check() -> None:
        async with picker() as made:
            with pytest.raises(AssertionError, match="trailer"):
                async with proxied(made, tmp_path, trailers="SKIP"):
                    pass

    run(check())
