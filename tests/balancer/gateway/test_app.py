"""``gateway/app.py``: the paths that are served, and that nothing else of an engine can be reached."""

import json
from pathlib import Path
from typing import Any

import pytest

from balancer.http.client import HttpClient
from balancer.http.exchange import NotConnected
from tests.support.gateways import gateway, get, post, split
from tests.support.upstream import Received, upstream
from tests.support.waiting import eventually, run

BODY = b'{"model":"m","prompt":[1,2,3]}'

ADMIN = """
/reset_prefix_cache /sleep /wake_up /pause /resume /abort_requests /inference/v1/abort_requests /v1/load_lora_adapter
/v1/unload_lora_adapter /start_profile /collective_rpc /kv_event_sources /load /version /server_info /docs /openapi.json
/v1%2fmodels //v1/models /v1/completions/../../sleep /v1/completions/%2e%2e/%2e%2e/sleep /metrics/../sleep /
""".split()


ASKED_BY_KVLB = {"/health", "/metrics", "/v1/models", "/version", "/kv_event_sources"}


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
def test_the_engines_administration_cannot_be_reached(method: str) -> None:
    async def check() -> None:
        async with upstream() as replica, gateway([replica.url]) as front:
            asked = len(replica.questions)
            for path in ADMIN:
                answer = await front.exchange(post(path, BODY).replace(b"POST", method.encode(), 1))
                status, _, body = split(answer)
                assert status.split(" ")[1] == "404", path
                error = json.loads(body)["error"]
                assert (error["code"], error["type"]) == ("unknown_path", "invalid_request_error"), path
            assert not replica.received
            assert {question.path for question in replica.questions[asked:]} <= ASKED_BY_KVLB

    run(check())


def test_a_request_without_a_path_is_named_by_its_method() -> None:
    async def check() -> None:
        async with upstream() as replica, gateway([replica.url]) as front:
            answer = await front.exchange(b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\nConnection: close\r\n\r\n")
            assert json.loads(split(answer)[2])["error"]["message"].startswith("there is no CONNECT here; ")

    run(check())


@pytest.mark.parametrize(("method", "path", "allowed"), [
    ("GET", "/v1/completions", "POST"), ("PUT", "/v1/chat/completions", "POST"), ("POST", "/v1/models", "GET, HEAD"),
    ("DELETE", "/health", "GET, HEAD"), ("PATCH", "/v1/completions", "POST"),
])  # fmt: skip
def test_a_wrong_method_is_told_the_right_one(method: str, path: str, allowed: str) -> None:
    async def check() -> None:
        async with upstream() as replica, gateway([replica.url]) as front:
            status, headers, body = split(await front.exchange(get(path, method)))
            assert status == "HTTP/1.1 405 Method Not Allowed"
            assert dict(headers)["Allow"] == allowed
            assert json.loads(body)["error"]["message"] == f"{method} {path} is not served; use {allowed}"

    run(check())


@pytest.mark.parametrize(
    "path", ["/health", "/ping", "/ready", "/metrics", "/v1/models", "/v1/models/m", "/kvlb/status"]
)
def test_what_is_served_here_answers_get_and_head(path: str) -> None:
    async def check() -> None:
        async with upstream() as replica, gateway([replica.url]) as front:
            assert split(await front.exchange(get(path)))[0] == "HTTP/1.1 200 OK"
            status, _headers, body = split(await front.exchange(get(path, "HEAD")))
            assert (status, body) == ("HTTP/1.1 200 OK", b"")

    run(check())


def test_health_is_about_the_gateway_and_ready_about_the_replicas() -> None:
    async def check() -> None:
        async with gateway(["http://127.0.0.1:9"], wait=False) as front:
            await eventually(lambda: "connection refused" in str(front.service.watchers["http://127.0.0.1:9"].problem))
            assert split(await front.exchange(get("/health")))[0] == "HTTP/1.1 200 OK"
            status, headers, body = split(await front.exchange(get("/ready")))
            assert status == "HTTP/1.1 503 Service Unavailable"
            assert dict(headers)["Retry-After"] == "2"
            assert "http://127.0.0.1:9" in json.loads(body)["error"]["message"]

    run(check())


@pytest.mark.parametrize("body", [BODY, b'{"prompt":[1]}'])
def test_before_any_replica_has_answered_the_client_may_come_again(body: bytes) -> None:
    async def check() -> None:
        async with gateway(["http://127.0.0.1:9"], wait=False) as front:
            status, headers, told = split(await front.exchange(post("/v1/completions", body)))
            assert status == "HTTP/1.1 503 Service Unavailable"
            assert int(dict(headers)["Retry-After"]) > 0
            assert json.loads(told)["error"]["code"] == "no_replica"
            assert json.loads(split(await front.exchange(get("/v1/models")))[2]) == {"object": "list", "data": []}

    run(check())


def card(name: str, **fields: Any) -> dict[str, Any]:
    return {"id": name, "object": "model", "root": name, "parent": None, **fields}


def listing(*cards: dict[str, Any]) -> dict[str, bytes]:
    return {"/v1/models": json.dumps({"object": "list", "data": cards}).encode()}


def test_the_models_of_all_replicas_are_one_list() -> None:
    one = listing(card("m", max_model_len=4096, permission=[{"x": 1}]), card("a", parent="m"))
    two = listing(card("m", max_model_len=1024), card("org/b", max_model_len=9))

    async def check() -> None:
        async with (
            upstream(paths=one) as first,
            upstream(paths=two) as second,
            gateway([first.url, second.url]) as front,
        ):
            models = json.loads(split(await front.exchange(get("/v1/models")))[2])
            assert [each["id"] for each in models["data"]] == ["m", "org/b", "a"]
            assert models["data"][0]["max_model_len"] == 1024
            one_of = json.loads(split(await front.exchange(get("/v1/models/org/b")))[2])
            assert one_of == models["data"][1]
            assert split(await front.exchange(get("/v1/models/nope")))[0] == "HTTP/1.1 404 Not Found"

    run(check())


def test_each_model_goes_to_its_own_replicas_and_none_has_to_be_named_if_there_is_one() -> None:
    async def check() -> None:
        async with upstream("m") as first, upstream("other") as second:
            async with gateway([first.url, second.url]) as front:
                for _ in range(3):
                    await front.exchange(post("/v1/completions", b'{"model":"other","prompt":[1]}'))
                assert (len(first.received), len(second.received)) == (0, 3)
                status, _, body = split(await front.exchange(post("/v1/completions", b'{"prompt":[1]}')))
                assert status == "HTTP/1.1 400 Bad Request"
                assert json.loads(body)["error"]["message"] == "model: missing; it must be one of: m, other"
            async with gateway([first.url]) as front:
                answer = split(await front.exchange(post("/v1/completions", b'{"prompt":[1]}')))
                assert answer[0] == "HTTP/1.1 200 OK"
                assert first.received[-1].body == b'{"prompt":[1]}'

    run(check())


def test_a_model_of_an_endpoint_that_has_not_answered_is_not_called_unknown() -> None:
    async def check() -> None:
        async with upstream() as replica, gateway([replica.url, "http://127.0.0.1:9"], wait=False) as front:
            await eventually(lambda: front.service.is_ready)
            status, _, body = split(await front.exchange(post("/v1/completions", b'{"model":"x","prompt":[1]}')))
            assert status == "HTTP/1.1 503 Service Unavailable"
            assert "1 of 2 endpoints cannot be used" in json.loads(body)["error"]["message"]

    run(check())


def test_the_status_page_tells_all_that_is_known() -> None:
    async def check() -> None:
        async with upstream() as replica, gateway([replica.url]) as front:
            await front.exchange(post("/v1/completions", BODY))
            text = split(await front.exchange(get("/kvlb/status")))[2].decode()
            page = json.loads(text)
            assert text.startswith('{\n  "kvlb": ')
            assert page["uptime_seconds"] == round(page["uptime_seconds"], 3)
            assert page["snapshot"]["taken_over_from"] is None
            assert (page["policy"], page["open_leases"], page["endpoints"]) == (
                "predicted_ttft",
                0,
                {replica.url: "ok"},
            )
            (told,) = page["replicas"]
            assert (told["status"], told["models"], told["in_flight"], told["events"]) == ("ready", ["m"], 0, None)
            assert told["knowledge"]["state"] == "blind"
            assert 0 <= told["knowledge"]["for_seconds"] < 60

    run(check())


def test_decisions_are_told_only_if_that_is_set() -> None:
    async def check(expose: bool) -> None:
        async with upstream() as replica, gateway([replica.url], server={"expose_decisions": expose}) as front:
            headers = dict(split(await front.exchange(post("/v1/completions", BODY)))[1])
            assert ("x-kvlb-replica" in headers) is expose

    run(check(True))
    run(check(False))


def test_a_model_that_nobody_serves_is_unknown_once_all_have_been_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(request: Received) -> None:
        request.answer(b"", status="401 Unauthorized")

    async def check() -> None:
        async with upstream() as one, upstream(paths={"/v1/models": refuse}) as locked:
            async with upstream() as gone:
                free = gone.url
            body = post("/v1/completions", b'{"model":"other","prompt":"x"}')
            async with gateway([one.url, locked.url], wait=False) as front:
                await eventually(lambda: all(each.is_heard for each in front.service.watchers.values()))
                status, _, answer = split(await front.exchange(body))
                assert status == "HTTP/1.1 404 Not Found"
                assert b"1 of 2 endpoints cannot be used (see /kvlb/status)" in answer
            async with gateway([one.url, free], wait=False) as front:
                await eventually(lambda: front.service.is_ready)
                assert split(await front.exchange(body))[0] == "HTTP/1.1 503 Service Unavailable"
                monkeypatch.setattr(front.service, "_starting_until", 0.0)
                assert split(await front.exchange(body))[0] == "HTTP/1.1 404 Not Found"

    run(check())


def test_who_is_not_ready_says_why_in_words() -> None:
    async def check() -> None:
        async with upstream() as one:
            url = one.url
        async with gateway([url], wait=False) as front:
            await eventually(lambda: front.service.watchers[url].problem == "connection refused")
            answer = split(await front.exchange(get("/ready")))[2]
            assert f'"no replica can be used: {url}: connection refused"'.encode() in answer

    run(check())


ALL = """GET /health|GET /ping|GET /ready|GET /metrics|GET /v1/models|GET /v1/models/none|GET /kvlb/status|POST /index/query
GET /debug/decisions|GET /index/replicas|GET /none|DELETE /health|GET /v1/completions|OPTIONS /health|OPTIONS /v1/completions
CONNECT a:1""".replace("\n", "|").split("|")


def ids(answer: bytes) -> list[str]:
    return [value for name, value in split(answer)[1] if name.lower() == "x-request-id"]


@pytest.mark.parametrize("asked", ALL)
def test_every_answer_has_the_requests_id_and_none_says_what_it_was_made_with(asked: str) -> None:
    method, _, path = asked.partition(" ")

    async def check() -> None:
        async with upstream() as replica, gateway([replica.url], cors={"origins": ["https://a.example"]}) as front:
            own = await front.exchange(get(path, method, "X-Request-Id: mine", "Origin: https://a.example"))
            assert ids(own) == ["mine"]
            (made,), (other,) = [ids(await front.exchange(get(path, method))) for _ in range(2)]
            assert len(made) == 32
            assert made != other
            assert "server" not in {name.lower() for name, _ in split(own)[1]}

    run(check())


@pytest.mark.parametrize(
    "asked", [get("/metrics"), get("/health", "GET", "Authorization: Bearer no"), b"nonsense\r\n\r\n"]
)
def test_a_refusal_has_an_id_too(asked: bytes, tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text('[[keys]]\ntenant = "a"\nkey = "a-key-that-is-long-enough"\n')

    async def check() -> None:
        async with (
            upstream() as replica,
            gateway([replica.url], auth={"keys_file": str(keys), "open_paths": []}) as front,
        ):
            answer = await front.exchange(asked)
            assert answer.split(b" ")[1] in {b"400", b"401"}
            assert len(ids(answer)) == 1

    run(check())


def test_a_control_plane_that_is_away_is_told_with_the_requests_id(monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*_: object) -> None:
        raise NotConnected("no such file")

    async def check() -> None:
        async with upstream() as replica, gateway([replica.url]) as front:
            monkeypatch.setattr(HttpClient, "exchange", away)
            answer = await front.exchange(get("/metrics", "GET", "x-request-id: mine"))
            assert split(answer)[0] == "HTTP/1.1 503 Service Unavailable"
            assert ids(answer) == ["mine"]

    run(check())


def test_what_the_front_lets_through_is_not_too_long_behind_it() -> None:
    async def check() -> None:
        async with upstream() as replica, gateway([replica.url]) as front:
            for path, status in (("/v1/models", "200"), ("/nowhere", "404")):
                answer = await front.exchange(get(f"{path}?{'a' * 60_000}"))
                first, headers, body = split(answer)
                assert first.split(" ")[1] == status
                assert dict(headers)["Content-Type"].startswith("application/json")
                json.loads(body)

    run(check())
