"""Prefill on one engine and decode on another: the client gets what one engine alone would have said, and nothing else."""

import asyncio
import json
import random
import re
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from balancer.gateway import bootstrap
from balancer.http.client import EndpointPool
from indexer.index import ReplicaId
from simulations.demo import free_ports
from simulations.fake.transfers import ConnectorName
from simulations.fake_engine import running
from simulations.latency import LatencyModel
from tests.support.disaggregated import CONNECTORS, Pair, pair, text
from tests.support.engines import Fleet, config, fleet
from tests.support.gateways import SPLIT, close, get, post
from tests.support.processes import ask as ask_process
from tests.support.processes import started, wait_for
from tests.support.waiting import eventually, run

COMPLETIONS = "/v1/completions"
IDS = list(range(300, 400))  # 100 tokens: six blocks of 16, and 4 more
TEXT = "alpha beta gamma delta " * 20

PATHS: dict[str, tuple[str, dict[str, Any]]] = {
    "ids": (COMPLETIONS, {"prompt": IDS, "max_tokens": 7}),
    "text": (COMPLETIONS, {"prompt": TEXT, "max_tokens": 7, "min_tokens": 5, "logprobs": 2}),
    "chat": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": TEXT}], "max_completion_tokens": 7, "tool_choice": "required"},
    ),
    "responses": ("/v1/responses", {"input": TEXT, "max_output_tokens": 7}),
    "messages": ("/v1/messages", {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 7}),
    "tokens in": ("/inference/v1/generate", {"token_ids": IDS, "sampling_params": {"max_tokens": 7}}),
}


def whole_or_streamed(path: str, body: dict[str, Any], *, is_stream: bool) -> dict[str, Any]:
    if not is_stream:
        return body
    options = {} if path in {"/v1/responses", "/v1/messages"} else {"stream_options": {"include_usage": True}}
    return {**body, "stream": True, **options}


@pytest.mark.parametrize("connector", ["nixl", "mooncake"])
def test_with_several_processes_both_legs_are_the_brains_choice(
    connector: ConnectorName, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SPLIT, "1")

    async def check() -> None:
        async with pair(connector) as two, fleet(config()) as one:
            for _ in range(2):
                headers, told = await two.fleet.post(COMPLETIONS, {"prompt": IDS, "max_tokens": 5})
                assert text(told) == text((await one.post(COMPLETIONS, {"prompt": IDS, "max_tokens": 5}))[1])
                await two.fleet.settle()
            assert headers["x-kvlb-prefill"] == two.prefill.url[7:]
            assert headers["x-kvlb-cached-tokens"] == "96"
            assert two.decode.rank().engine.loaded_tokens == 99 + (99 - 96)
            await eventually(two.is_at_rest)

    run(check())


def test_the_command_line_of_another_router_serves_with_processes_of_its_own() -> None:
    async def check() -> None:
        engine = config(connector="nixl")
        async with running(engine) as first, running(engine) as second, fleet(config()) as one:
            (port,) = free_ports(1)
            words = ["serve", "--port", str(port), "--processes", "2", "--expose-decisions", "--vllm-pd-disaggregation"]
            words += ["--prefill", first.url, "--decode", second.url, "--kv-connector", "nixl"]
            with started(*words) as process:
                url = f"http://127.0.0.1:{port}"
                await asyncio.to_thread(wait_for, f"{url}/ready", process)
                ids = IDS * 4  # the threshold is that of the settings
                body = {"model": "m", "prompt": ids, "max_tokens": 5}
                await eventually_in_thread(lambda: "x-kvlb-prefill" in ask_process(url + COMPLETIONS, body)[1])
                told, headers = await asyncio.to_thread(ask_process, url + COMPLETIONS, {**body, "prompt": [7, *ids]})
                assert headers["x-kvlb-prefill"] == first.url[7:]
                expected = json.loads((await one.post(COMPLETIONS, {"prompt": [7, *ids], "max_tokens": 5}))[1])
                assert told["choices"][0]["text"] == expected["choices"][0]["text"]

                def counted() -> bool:
                    with urllib.request.urlopen(url + "/metrics", timeout=10) as page:
                        name = b'kvlb_disaggregation_legs_total{leg="decode",outcome="ok"} '
                        return bool(re.search(name + rb"[1-9]", page.read()))

                await eventually_in_thread(counted)

    run(check(), 90)


async def eventually_in_thread(condition: Callable[[], bool], seconds: float = 30) -> None:
    """As ``eventually``, of a condition that asks another process."""
    until = time.monotonic() + seconds
    while not await asyncio.to_thread(condition):
        assert time.monotonic() < until, f"still false after {seconds:g} s"
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("connector", CONNECTORS)
def test_two_engines_say_what_one_says_alone(connector: ConnectorName, is_stream: bool) -> None:
    async def check() -> None:
        async with pair(connector) as two, fleet(config()) as one:
            for _ in range(2):  # the second time both of them hold it
                for path, body in PATHS.values():
                    asked = whole_or_streamed(path, body, is_stream=is_stream)
                    _, told = await two.fleet.post(path, asked, **{"X-Request-Id": "mine"})
                    _, expected = await one.post(path, asked, **{"X-Request-Id": "mine"})
                    assert text(told) == text(expected) != ""
                    assert usage(told) == usage(expected), "as if one engine had counted"
                    for inner in (b"prefill_addr", b"remote_", b"kvlb-", two.prefill.url[7:].encode()):
                        assert inner not in told
                    assert told.count(b"mine") == expected.count(b"mine")
                await two.fleet.settle()
                await eventually(two.is_at_rest)
            count = len(PATHS) * 2
            assert await two.counted("legs") == {"prefill ok": count, "decode ok": count}
            assert await two.counted("alone") == await two.counted("silent_misses") == {}
            decode, prefill = two.decode.rank().engine, two.prefill.rank().engine
            assert decode.prefix_cache_queries == prefill.prefix_cache_queries, "each prompt was looked up at both"
            held = decode.prefix_cache_hits + decode.loaded_tokens
            assert decode.prefix_cache_queries - held <= 16 * count, "at most the last block of each is computed again"

    run(check(), 60)


def usage(body: bytes) -> list[Any]:
    """Every ``usage`` in an answer, wherever it stands."""
    lines = [body] if body.startswith(b"{") else [x[6:] for x in body.split(b"\n") if x.startswith(b"data: {")]
    found = []
    for line in lines:
        told = json.loads(line)
        parts = (told, told.get("response"), told.get("message"))
        found += [each["usage"] for each in parts if isinstance(each, dict) and each.get("usage")]
    return found


def test_the_prefill_leg_is_one_token_and_the_decode_leg_the_clients_own() -> None:
    async def check() -> None:
        async with pair("nixl") as two:
            limits = {"max_tokens": 40, "min_tokens": 30, "stream": True, "stream_options": {"include_usage": True}}
            _, told = await two.fleet.post(COMPLETIONS, {"prompt": IDS, **limits})
            assert b'"completion_tokens":40' in told
            figures = [each.rank().figures().generation_tokens for each in (two.prefill, two.decode)]
            assert figures == [1, 40]

    run(check())


def test_each_leg_goes_where_its_prompt_lies() -> None:
    """What prefill replicas hold decides over the first leg, what decode replicas hold over the second."""

    async def check() -> None:
        async with pair("nixl", prefills=3, decodes=3, policy={"name": "cache_aware"}) as fleet_of_six:
            went: set[tuple[str, str]] = set()
            prompts = [[*range(300 + 40 * at, 340 + 40 * at)] * 3 for at in range(4)]
            for prompt in prompts:
                headers, _ = await fleet_of_six.fleet.post(COMPLETIONS, {"prompt": prompt, "max_tokens": 2})
                await fleet_of_six.fleet.settle()
                for _ in range(3):
                    again, _ = await fleet_of_six.fleet.post(COMPLETIONS, {"prompt": prompt, "max_tokens": 2})
                    for name in ("x-kvlb-prefill", "x-kvlb-replica"):
                        assert again[name] == headers[name]
                    assert again["x-kvlb-cached-tokens"] == "112", "what the prefill replica holds of it"
                    assert again["x-kvlb-predicted"] == "exact"
                went.add((headers["x-kvlb-prefill"], headers["x-kvlb-replica"]))
            assert len(went) > 1
            exact, compared = fleet_of_six.fleet.exact_share()
            assert exact == compared == 16, "predictions for prefill replicas are held against what they report"

    run(check())


@pytest.mark.parametrize(
    ("body", "is_split"),
    [
        ({"prompt": IDS}, True),
        ({"prompt": IDS[:49]}, False),
        ({"prompt": IDS[:50]}, True),
        ({"prompt": [IDS, IDS]}, False),
        ({"prompt": [TEXT, TEXT]}, False),
        ({"prompt": IDS, "n": 2}, False),
        ({"prompt": IDS, "prompt_logprobs": 1}, False),
    ],
)
def test_what_is_short_or_cannot_be_split_is_computed_by_the_decode_replica(
    body: dict[str, Any], is_split: bool
) -> None:
    async def check() -> None:
        async with pair("nixl", threshold_tokens=50) as two:
            headers, told = await two.fleet.post(COMPLETIONS, {"max_tokens": 3, **body})
            assert ("x-kvlb-prefill" in headers) is is_split
            assert headers["x-kvlb-replica"] == two.decode.url[7:]
            assert (two.prefill.rank().engine.prefix_cache_queries > 0) is is_split
            async with fleet(config()) as one:
                assert text(told) == text((await one.post(COMPLETIONS, {"max_tokens": 3, **body}))[1])
            await eventually(two.is_at_rest)

    run(check())


def test_a_prompt_that_the_decode_replica_mostly_holds_is_not_split_again() -> None:
    async def check() -> None:
        async with pair("nixl", threshold_tokens=50) as two:
            first, _ = await two.fleet.post(COMPLETIONS, {"prompt": IDS, "max_tokens": 3})
            await two.fleet.settle()
            second, _ = await two.fleet.post(COMPLETIONS, {"prompt": [*IDS, 7, 8, 9], "max_tokens": 3})
            assert "x-kvlb-prefill" in first
            assert "x-kvlb-prefill" not in second
            assert second["x-kvlb-cached-tokens"] == "96"

    run(check())


def test_engines_own_figures_say_whether_what_was_computed_is_fetched() -> None:
    """NIXL's tell it nowhere else."""

    async def check() -> None:
        async with pair("nixl") as two:
            replica = ReplicaId(two.decode.url[7:])
            accounts = two.front.service.witness.accounts
            await eventually(lambda: replica in accounts and accounts[replica].last is not None)
            for at in range(5):
                await two.fleet.post(COMPLETIONS, {"prompt": [at, *IDS], "max_tokens": 2})
            await eventually(lambda: accounts[replica].fetched >= 5 * 96)
            assert accounts[replica].expected == 5 * 101

    run(check())


def test_the_prompts_tokens_can_be_passed_on_with_it() -> None:
    async def check() -> None:
        async with pair("nixl", pass_tokens=True) as two, fleet(config()) as one:
            body = {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 5}
            _, told = await two.fleet.post("/v1/chat/completions", body)
            _, expected = await one.post("/v1/chat/completions", body)
            assert text(told) == text(expected)
            assert b'"prompt_token_ids":null' in told
            assert two.decode.rank().engine.loaded_tokens > 50

    run(check())


def test_a_shared_store_serves_several_prompts_and_samples_of_one_request() -> None:
    async def check() -> None:
        async with pair("shared") as two, fleet(config()) as one:
            for more in ({"n": 2}, {"prompt": [IDS, IDS[10:]]}):
                body = {"prompt": IDS, "max_tokens": 3, **more}
                headers, told = await two.fleet.post(COMPLETIONS, body)
                assert "x-kvlb-prefill" in headers
                said = [choice["text"] for choice in json.loads(told)["choices"]]
                expected = json.loads((await one.post(COMPLETIONS, body))[1])
                assert said == [choice["text"] for choice in expected["choices"]]
                assert len(said) == 2
                assert two.prefill.rank().figures().generation_tokens <= 3

    run(check())


def test_the_access_log_names_both(tmp_path: Path) -> None:
    async def check() -> None:
        log = tmp_path / "access"
        async with pair("nixl", log={"access": str(log)}) as two:
            for _ in range(2):
                await two.fleet.post(COMPLETIONS, {"prompt": IDS, "max_tokens": 2})
                await two.fleet.settle()
            await eventually(lambda: log.exists() and log.read_text().count("\n") == 2)
            lines = [json.loads(line) for line in log.read_text().splitlines()]
            assert [line["prefill"] for line in lines] == [two.prefill.url[7:]] * 2
            assert [line["replica"] for line in lines] == [two.decode.url[7:]] * 2
            second = lines[1]
            assert (second["cached_tokens"], second["predicted_cached_tokens"]) == (96, 96)
            assert second["stages"]["prefill"] >= 0
            status = json.loads((await two.front.exchange(get("/kvlb/status"))).partition(b"\r\n\r\n")[2])
            assert [each["role"] for each in status["replicas"]] == ["prefill", "decode"]

    run(check())


def test_a_gateway_is_not_ready_while_nobody_can_answer() -> None:
    async def check() -> None:
        async with pair("nixl") as two:
            assert (await two.front.exchange(get("/ready"))).startswith(b"HTTP/1.1 200 ")
            await two.decode.kill()
            await two.fleet.wait_usable(1)
            assert (await two.front.exchange(get("/ready"))).startswith(b"HTTP/1.1 503 ")

    run(check())


def test_replicas_that_only_prefill_answer_nobody() -> None:
    async def check() -> None:
        async with pair("nixl") as two:
            await two.decode.kill()
            await two.fleet.wait_usable(1)
            answer = await two.front.exchange(post(COMPLETIONS, b'{"model":"m","prompt":[1,2,3]}'))
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert two.prefill.rank().engine.prefix_cache_queries == 0

    run(check())


# Faults


async def ask(two: Pair, **fields: Any) -> tuple[int, bytes]:
    body = {"model": "m", "prompt": IDS, "max_tokens": 5, **fields}
    answer = await two.front.exchange(post(COMPLETIONS, json.dumps(body).encode()))
    return int(answer.split()[1]), answer.partition(b"\r\n\r\n")[2]


async def right(one: Fleet, body: bytes) -> bool:
    return text(body) == text((await one.post(COMPLETIONS, {"prompt": IDS, "max_tokens": 5}))[1])


@pytest.mark.parametrize("connector", ["nixl", "mooncake", "shared"])
def test_without_prefill_replicas_decode_replicas_do_it_alone(connector: ConnectorName) -> None:
    async def check() -> None:
        async with pair(connector) as two, fleet(config()) as one:
            await two.prefill.kill()
            for _ in range(3):  # before anybody has noticed, and after that
                status, body = await ask(two)
                assert status == 200
                assert await right(one, body)
            await eventually(two.is_at_rest)
            assert sum((await two.counted("alone")).values()) <= 3

    run(check())


def test_the_other_prefill_replica_is_tried_before_that() -> None:
    async def check() -> None:
        async with pair("nixl", prefills=2) as two, fleet(config()) as one:
            await two.prefill.kill()
            for at in range(4):
                status, body = await ask(two, prompt=IDS)
                assert (at, status, await right(one, body)) == (at, 200, True)
            assert await two.counted("alone") == {}
            assert (await two.counted("legs"))["prefill ok"] == 4
            await eventually(two.is_at_rest)

    run(check())


def test_a_refusal_of_the_prefill_replica_is_the_clients() -> None:
    async def check() -> None:
        too_long = config(max_model_len=64)
        async with pair("nixl", engine=too_long, decode_engine=config()) as two:
            status, body = await ask(two, prompt=IDS)
            assert status == 400
            assert b"maximum context length is 64 tokens" in body
            assert two.decode.rank().engine.prefix_cache_queries == 0, "it was never asked"
            assert await two.counted("legs") == {"prefill refused": 1}
            await eventually(two.is_at_rest)

    run(check())


@pytest.mark.parametrize("connector", ["nixl", "mooncake"])
def test_a_prefill_replica_that_was_started_again_is_asked_again_or_left_out(
    connector: ConnectorName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has another engine id now: what was remembered of the old one must not be sent."""
    monkeypatch.setattr(bootstrap, "FRESH_SECONDS", 0.0)  # no real engine starts within a moment

    async def check() -> None:
        async with pair(connector) as two, fleet(config()) as one:
            assert (await ask(two))[0] == 200
            await two.prefill.kill()
            await two.prefill.start()
            for at in range(6):
                status, body = await ask(two, prompt=IDS)
                assert (at, status, await right(one, body)) == (at, 200, True)
            await two.fleet.wait_usable(2)
            await eventually(two.is_at_rest)
            assert "transfer" not in await two.counted("alone")

    run(check())


def test_a_prefill_that_dies_after_its_answer_costs_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's decode engine fails then with status 500: the request is computed by it alone."""

    async def check() -> None:
        async with pair("nixl") as two, fleet(config()) as one:
            transfers = two.prefill.process.transfers
            ended = transfers.ended

            def dies(*args: Any) -> Any:
                told = ended(*args)
                transfers.close()
                return told

            monkeypatch.setattr(transfers, "ended", dies)
            status, body = await ask(two)
            assert status == 200
            assert await right(one, body)
            assert await two.counted("alone") == {"transfer": 1}
            assert (await two.counted("legs"))["decode transfer"] == 1
            assert not two.front.service.router.ejections, "nobody is blamed for it"

    run(check())


def test_a_prefill_without_parameters_is_noticed(caplog: pytest.LogCaptureFixture) -> None:
    async def check() -> None:
        async with pair("nixl") as two, fleet(config()) as one:
            two.prefill.process.transfers.connector = ""
            for _ in range(3):
                status, body = await ask(two)
                assert status == 200
                assert await right(one, body)
            assert await two.counted("alone") == {"no_params": 3}

    run(check())
    assert [each.getMessage() for each in caplog.records if "has answered a prefill without" in each.getMessage()][
        1:
    ] == []


def test_what_was_not_fetched_from_a_store_is_noticed(caplog: pytest.LogCaptureFixture) -> None:
    async def check() -> None:
        async with pair("shared") as two, fleet(config()) as one:
            two.decode.process.transfers._store = "another"  # two engines that do not share their directory
            status, body = await ask(two)
            assert status == 200
            assert await right(one, body)
            assert await two.counted("silent_misses") == {"whole": 1}
            assert await two.counted("expected_tokens") == {"": 100}
            assert await two.counted("fetched_tokens") == {}

    run(check())
    assert any("has fetched 0 of 100 tokens" in each.getMessage() for each in caplog.records)


SLOW = LatencyModel(overhead=0.05, weights=0, token=0, pair=0, context_token=0)


@pytest.mark.parametrize("connector", CONNECTORS)
@pytest.mark.parametrize("seconds", [0.0, 0.02, 0.06, 0.12])
def test_a_client_that_leaves_at_any_time_leaves_nothing_behind(connector: ConnectorName, seconds: float) -> None:
    async def check() -> None:
        slow = config(latency=SLOW, lease_seconds=0.5)
        async with pair(connector, engine=slow) as two:
            body = json.dumps({"model": "m", "prompt": IDS, "max_tokens": 50, "stream": True}).encode()
            _, writer = await two.front.send(post(COMPLETIONS, body))
            await asyncio.sleep(seconds)
            await close(writer)
            await eventually(two.is_at_rest)
            assert (await ask(two))[0] == 200

    run(check())


def test_what_is_computed_for_a_client_that_has_left_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the two legs: five hundred times must not fill the prefill cache."""

    async def check() -> None:
        async with pair("nixl", engine=config(lease_seconds=3600)) as two:
            arrived = asyncio.Event()
            connect, port = EndpointPool.connect, two.decode.config.port

            async def waits(pool: EndpointPool, seconds: float) -> Any:
                if pool._address[1] == port:
                    arrived.set()
                    await asyncio.sleep(60)
                return await connect(pool, seconds)

            for at in range(20):
                monkeypatch.setattr(EndpointPool, "connect", waits)
                monkeypatch.setattr(EndpointPool, "take", lambda pool, after: None)
                arrived.clear()
                body = json.dumps({"model": "m", "prompt": [at, *IDS], "max_tokens": 50}).encode()
                _, writer = await two.front.send(post(COMPLETIONS, body))
                await arrived.wait()
                monkeypatch.setattr(EndpointPool, "connect", connect)
                await close(writer)
                await eventually(two.is_at_rest)
            assert await two.counted("released_prefills") == {"": 20}
            assert await two.counted("stranded_prefills") == {}

    run(check())


@pytest.mark.parametrize("connector", CONNECTORS)
def test_two_and_two_under_load_lose_nothing_when_one_of_each_kind_dies(connector: ConnectorName) -> None:
    async def check() -> None:
        patient = {"connect_seconds": 60.0}  # all of them share one loop here
        engine = config(lease_seconds=1.0, transfer_patience=2.0)
        async with pair(connector, prefills=2, decodes=2, engine=engine, timeouts=patient) as four:
            failed: list[int] = []

            async def user(number: int) -> None:
                chance = random.Random(number)
                for turn in range(12):
                    ids = [*range(300 + number, 380 + number), *chance.choices(range(300, 900), k=20)]
                    status, body = await ask(four, prompt=ids, stream=bool(turn % 2))
                    if status != 200:
                        failed.append(status)
                    else:
                        assert text(body)

            users = [asyncio.ensure_future(user(number)) for number in range(8)]
            await asyncio.sleep(0.1)
            await four.prefills[1].kill()
            await asyncio.sleep(0.1)
            await four.decodes[1].kill()
            await asyncio.gather(*users)
            assert not failed
            await eventually(four.is_at_rest)
            assert (await four.counted("legs"))["decode ok"] > 50

    run(check(), 90)


def test_what_may_have_expired_is_never_fetched() -> None:
    """An engine answers 200 with the words of somebody else then."""

    async def check() -> None:
        async with pair("nixl", dispatch_seconds=1e-9) as two, fleet(config()) as one:
            status, body = await ask(two)
            assert status == 200
            assert await right(one, body)
            assert await two.counted("alone") == {"expired": 1}
            await eventually(two.is_at_rest)
            assert await two.counted("released_prefills") == {"": 1}

    run(check())


def test_decisions_say_that_a_request_was_split() -> None:
    async def check() -> None:
        async with pair("nixl") as two:
            await two.fleet.post(COMPLETIONS, {"prompt": IDS, "max_tokens": 2})
            page = (await two.front.exchange(get("/debug/decisions"))).partition(b"\r\n\r\n")[2]
            told = json.loads(page)["decisions"]
            whys = {each["replica"]: each["why"] for each in told}
            assert whys[two.decode.url[7:]].endswith("; a prefill replica computes its prompt first")
            assert "prefill" not in whys[two.prefill.url[7:]]

    run(check())
