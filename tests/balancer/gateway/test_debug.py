"""``gateway/debug.py``: decisions are told as they were made, and explaining one sends nothing."""

import json
from typing import Any

import pytest

from tests.support.gateways import Gateway, gateway, get, post, split
from tests.support.upstream import Received, upstream
from tests.support.waiting import run

BODY = b'{"model":"m","prompt":[1,2,3]}'
ANSWER = b'{"usage":{"prompt_tokens":3,"prompt_tokens_details":{"cached_tokens":1}}}'


async def answer(request: Received) -> None:
    request.answer(ANSWER)


async def told(front: Gateway, data: bytes) -> tuple[str, Any]:
    status, _, body = split(await front.exchange(data))
    return status.split(" ")[1], json.loads(body)


def test_a_request_is_told_with_its_outcome() -> None:
    async def check() -> None:
        async with upstream() as one, upstream() as two, gateway([one.url, two.url]) as front:
            one.answer = two.answer = answer
            await front.exchange(post("/v1/completions", BODY, "x-request-id: r1"))
            await front.exchange(post("/v1/completions", BODY, "x-request-id: r2"))
            status, body = await told(front, get("/debug/decisions?request_id=r1"))
            (decision,) = body["decisions"]
            assert (status, body["kept"]) == ("200", 2)
            assert (decision["request_id"], decision["path"], decision["model"]) == ("r1", "/v1/completions", "m")
            assert (decision["outcome"], decision["truth"]["cached_tokens"]) == ("ok", 1)
            assert decision["why"] == "no signal: all candidates equal"
            assert {each["replica"] for each in decision["candidates"]} == {
                each.url.removeprefix("http://") for each in (one, two)
            }
            assert {each["knowledge"] for each in decision["candidates"]} == {"blind"}
            _, body = await told(front, get("/debug/decisions?limit=1"))
            assert [each["request_id"] for each in body["decisions"]] == ["r2"]

    run(check())


def test_an_engines_error_is_told_with_its_status() -> None:
    async def refuse(request: Received) -> None:
        request.answer(b'{"error":{"message":"no"}}', status="400 Bad Request")

    async def check() -> None:
        async with upstream() as one, gateway([one.url]) as front:
            one.answer = refuse
            await front.exchange(post("/v1/completions", BODY))
            (decision,) = (await told(front, get("/debug/decisions")))[1]["decisions"]
            assert (decision["outcome"], decision["truth"]["status"]) == ("error", 400)

    run(check())


@pytest.mark.parametrize("limit", ["x", "-1", "", "1" * 10, "%C2%B2"])
def test_a_limit_that_is_no_number_is_refused(limit: str) -> None:
    async def check() -> None:
        async with upstream() as one, gateway([one.url]) as front:
            for path in ("decisions", "audit"):
                status, body = await told(front, get(f"/debug/{path}?limit={limit}"))
                assert (status, body["error"]["param"]) == ("400", "limit")
                assert "is not a number from 0 on" in body["error"]["message"]

    run(check())


def test_explaining_sends_nothing_and_leases_nothing() -> None:
    async def check() -> None:
        async with upstream() as one, gateway([one.url]) as front:
            status, body = await told(front, post("/debug/explain", BODY))
            assert (status, body["why"]) == ("200", "it is the only candidate")
            assert (body["prompt_tokens"], body["knows_tokens"], body["outcome"]) == (3, True, None)
            assert body["candidates"][0]["tiers"] == {}
            assert (body["request_id"], body["not_asked"]) == ("", [])
            assert not one.received
            assert front.is_idle()
            assert len(front.service.decisions) == 0

    run(check())


@pytest.mark.parametrize(
    ("query", "body", "status", "param"),
    [
        ("?path=/sleep", BODY, "400", "path"),
        ("", b"{", "400", None),
        ("", b"{}", "400", "prompt"),
        ("?path=/v1/chat/completions", BODY, "400", "messages"),
        ("", b'{"model":"other","prompt":[1]}', "404", "model"),
    ],
)
def test_what_cannot_be_explained_is_refused(query: str, body: bytes, status: str, param: str | None) -> None:
    async def check() -> None:
        async with upstream() as one, gateway([one.url]) as front:
            code, answer = await told(front, post(f"/debug/explain{query}", body))
            assert (code, answer["error"]["param"]) == (status, param)

    run(check())


def test_text_is_tokenised_as_its_path_would() -> None:
    rendered = {"/v1/chat/completions/render": b'{"token_ids":[1,2,3,4,5]}'}

    async def check() -> None:
        async with upstream(paths=rendered) as one, gateway([one.url]) as front:
            body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode()
            _, answer = await told(front, post("/debug/explain?path=/v1/chat/completions", body))
            assert (answer["prompt_tokens"], answer["knows_tokens"]) == (5, True)

    run(check())
