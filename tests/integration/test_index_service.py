"""``kvlb index`` as a process: started, asked by peers' clients, read out and stopped."""

import json
import resource
import signal
import socket
import time
import urllib.request
from array import array
from collections.abc import Iterator

import pytest

from hashing.chain import Chain
from hashing.own import local_hashes
from hashing.recipes import Recipe
from tests.support.processes import finished, stopped
from tests.support.publishing import BLOCK, Engine, IndexClient, chain, fresh, index_process


@pytest.fixture(scope="module")
def index() -> Iterator[IndexClient]:
    with index_process("--log-level", "warning", "--max-body-bytes", "100000") as (client, _):
        yield client


def test_it_says_where_it_listens_and_stops_when_it_is_asked_to() -> None:
    with index_process() as (client, process):
        assert client.get("/health") == {"status": "ok"}
        assert client.get("/")["paths"]["/register"] == "POST"
        with Engine(client) as engine:
            engine.register()
            index_query = client.post("/index/query", model_name=engine.model, token_ids=[1])
            assert index_query[0] == 200
            tenant = {"model_name": engine.model, "tenant_id": 99}
            assert client.post("/register", instance_id=1, endpoint=engine.publisher.events, **tenant)[0] == 201
            for path in ("/query", "/index/query"):
                assert client.post(path, token_ids=[1], **tenant)[0] == 200
            client.post("/unregister", model_name=engine.model, instance_id=engine.instance)
            time.sleep(0.3)  # for lines that must not come
        code, told = stopped(process, signal.SIGTERM)
    assert code == 0
    assert (
        f": registered, with events from {engine.publisher.events} and replays from {engine.publisher.replay}" in told
    )
    assert ": unregistered; what it held is forgotten" in told
    assert "begins anew" not in told
    assert f"the index listens on {client.url}; POST /register the engines' publishers" in told


def test_it_may_open_as_many_files_as_the_system_allows() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        with index_process() as (_, process):
            assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE)[0] > 256
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_port_in_use_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, lines = finished("index", "--port", str(port))
    assert (code, lines) == (2, [f"kvlb: server.port: 127.0.0.1:{port} is in use; choose another one with --port"])


def signed_local_hashes(tokens: list[int]) -> list[int]:
    return [int.from_bytes(each, "big", signed=True) for each in local_hashes(array("I", tokens), BLOCK)]


def test_a_prompt_is_found_by_local_hashes_as_by_its_tokens(index: IndexClient) -> None:
    with Engine(index) as engine:
        engine.register()
        prompt = fresh(6)
        engine.store(prompt)
        by_tokens = engine.settled().query(prompt)
        body = {"model_name": engine.model, "block_hashes": signed_local_hashes(prompt)}
        assert index.post("/query_by_hash", **body) == (200, by_tokens)
        assert by_tokens["scores"] == {str(engine.instance): {"0": 6 * BLOCK}}
        body["block_hashes"] = [each & (1 << 64) - 1 for each in signed_local_hashes(prompt)]
        assert index.post("/query_by_hash", **body) == (200, by_tokens), "unsigned, too"
        body["block_hashes"] = [1, 2]
        assert index.post("/query_by_hash", **body)[1]["scores"] == {}


def test_a_declared_recipe_is_proven_by_the_first_event(index: IndexClient) -> None:
    with Engine(index) as engine:
        engine.register(vllm_version="0.32.0")
        prompt = fresh(3)
        own = Chain(Recipe.for_version("0.32.0", block_size=BLOCK), array("I", prompt))
        engine.store(prompt, list(own.keys(3)))
        engine.wait(lambda: engine.blocks(prompt) == 3)
        (row,) = [row for row in index.get("/index/replicas")["replicas"] if row["models"] == [engine.model]]
        assert (row["knowledge"], row["keys"], row["tiers"]["GPU"]["blocks"]) == ("exact", "engine", 3)
        answer = index.post("/index/query", model=engine.model, block_hashes=list(own.keys(3)))[1]
        assert answer["replicas"][0]["matched_tokens"]["GPU"] == 3 * BLOCK
        body = {"model_name": engine.model, "block_hashes": signed_local_hashes(prompt)}
        answer = index.post("/query_by_hash", **body)[1]
        assert answer["scores"] == {}
        assert "ask by token_ids" in answer["warnings"][0], "no answer is silently wrong"


def test_a_wrong_declaration_is_found_out(index: IndexClient) -> None:
    with Engine(index) as engine:
        engine.register(vllm_version="0.32.0")
        prompt = fresh(3)
        engine.store(prompt)
        assert engine.settled().blocks(prompt) == 3
        (worker,) = [each for each in index.get("/workers") if each["instance_id"] == engine.instance]
        assert worker["listeners"]["0"]["knowledge"] == "learned"


def test_learned_keys_are_a_warning_only_where_somebody_said_how_the_engine_hashes() -> None:
    with index_process() as (client, process), Engine(client) as plain, Engine(client) as declared:
        plain.register()
        declared.register(vllm_version="0.32.0")  # it hashes in another way
        names = []
        for engine in (plain, declared):
            engine.store(fresh(3))
            engine.settled()
            names.append(f"{engine.model}")
        deadline = time.monotonic() + 20
        lines: list[str] = []
        assert process.stderr is not None
        while sum("its cache is known as learned" in line for line in lines) < 2:
            assert time.monotonic() < deadline
            lines.append(process.stderr.readline())
    told = [line for line in lines if "its cache is known as learned" in line]
    levels = {name: next(line for line in told if name in line) for name in names}
    assert "INFO" in levels[plain.model]
    assert "WARNING" in levels[declared.model]


def test_the_dump_has_what_was_stored_and_ends_with_its_end(index: IndexClient) -> None:
    with Engine(index) as engine:
        engine.register()
        engine.store(fresh(700))
        engine.settled()
        for path in ("/dump", "/index/dump"):
            with urllib.request.urlopen(index.url + path) as response:
                lines = [json.loads(line) for line in response]
            assert lines[0]["format"] == "kvlb index dump 1"
            (name,) = [row["replica"] for row in lines[0]["replicas"] if row["replica"].startswith(engine.model)]
            assert sum(len(line["keys"]) for line in lines[1:-1] if name in line["replicas"]) == 701
            assert lines[-1]["end"] is True


def test_metrics_have_the_index_and_the_requests(index: IndexClient) -> None:
    with Engine(index) as engine:
        engine.register()
        engine.store(fresh(5))
        engine.settled()
        page = index.ask("GET", "/metrics")[1]
        (line,) = [line for line in page.splitlines() if line.startswith("kvlb_index_blocks") and engine.model in line]
        assert line.endswith(" 6.0")
        assert 'kvlb_index_listeners{status="active"} ' in page
        assert 'kvlb_index_requests_total{path="/register",status="201"} ' in page


def test_bodies_that_cannot_be_used_are_refused_in_one_sentence(index: IndexClient) -> None:
    for path in ("/register", "/unregister", "/query", "/query_by_hash", "/index/query"):
        for body in (b"", b"nonsense", b"[]", b'{"model_name": 5}', b"[" * 50_000):
            status, answer = index.ask("POST", path, body)
            assert status == 400, (path, body)
            assert isinstance(answer["error"], str)
    assert index.ask("POST", "/query", b" " * 100_001)[0] == 413
    assert index.post("/query", model_name="nobody", token_ids=[1])[0] == 404
    assert index.post("/unregister", model_name="nobody", instance_id=1)[0] == 404
    assert index.ask("GET", "/query")[0] == 405
    assert index.ask("POST", "/nowhere", b"")[0] == 404
    assert index.get("/peers") == []


def test_an_address_that_is_taken_by_another_publisher_is_refused(index: IndexClient) -> None:
    with Engine(index) as engine, Engine(index, model=engine.model) as other:
        engine.register()
        engine.register()
        other.instance = engine.instance
        body = {"instance_id": engine.instance, "model_name": engine.model, "endpoint": other.publisher.events}
        status, answer = index.post("/register", **body)
        assert (status, answer["code"]) == (409, "conflict")


def test_an_engine_that_nobody_can_reach_is_pending_until_it_is_there(index: IndexClient) -> None:
    with Engine(index) as engine:
        engine.publisher.stop()
        fields = {"instance_id": engine.instance, "model_name": engine.model}
        assert (
            index.post(
                "/register", endpoint=engine.publisher.events, replay_endpoint=engine.publisher.replay, **fields
            )[0]
            == 201
        )
        assert engine.statuses() == {"pending"}
        engine.publisher.start()
        prompt = fresh(2)
        engine.store(prompt, chain(prompt))
        engine.wait(lambda: engine.statuses() == {"active"})
        assert engine.settled().blocks(prompt) == 2
