"""``balancer/tokens.py``: a text becomes ids if a replica says them in time, and is served if it does not."""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import aiohttp
import pytest

from balancer import openai
from balancer.media import Media
from balancer.settings import TokenizerSettings
from balancer.tokens import FIRST_PAUSE, KNOWN_SECONDS, LONGEST_PAUSE, Tokenizer
from hashing.extras import MultimodalItem
from tests.support.gateways import gateway, post, split
from tests.support.upstream import OK, Received, Upstream, upstream
from tests.support.waiting import run

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
TEXT = {"model": "m", "prompt": "one two"}
TALK = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


async def ask(tokenizer: Tokenizer, replica: Upstream, path: str, fields: dict[str, Any]) -> list[list[int]]:
    body = json.dumps(fields).encode()
    inbound = openai.read(path, "application/json", body)
    prompts = await tokenizer.token_ids(replica.url, path, inbound, body, {"Authorization": "Bearer x"})
    return [list(prompt.tokens) for prompt in prompts]


def with_tokenizer(
    check: Callable[[Tokenizer, Upstream], Awaitable[None]], paths: dict[str, Any], **settings: Any
) -> None:
    async def begin() -> None:
        async with (
            upstream(paths=paths) as replica,
            aiohttp.ClientSession(skip_auto_headers=("User-Agent",)) as session,
        ):
            await check(Tokenizer(session, TokenizerSettings(**settings)), replica)

    run(begin())


def asked(replica: Upstream) -> list[str]:
    return [question.path for question in replica.questions]


def test_a_completion_is_rendered_as_a_list_and_a_conversation_as_one() -> None:
    async def check(tokenizer: Tokenizer, replica: Upstream) -> None:
        assert await ask(tokenizer, replica, COMPLETIONS, TEXT) == [[1, 2], [3]]
        assert await ask(tokenizer, replica, CHAT, TALK) == [[7, 8]]
        assert asked(replica) == ["/v1/completions/render", "/v1/chat/completions/render"]
        assert json.loads(replica.questions[0].body) == TEXT
        assert replica.questions[0].values("Authorization") == ["Bearer x"]

    completions = b'[{"token_ids":[1,2]},{"token_ids":[3],"features":null}]'
    with_tokenizer(check, {f"{COMPLETIONS}/render": completions, f"{CHAT}/render": b'{"token_ids":[7,8],"x":1}'})


def test_the_same_text_is_asked_once() -> None:
    async def check(tokenizer: Tokenizer, replica: Upstream) -> None:
        for _ in range(3):
            assert await ask(tokenizer, replica, COMPLETIONS, TEXT) == [[1]]
        assert len(replica.questions) == 1
        assert dict(tokenizer.counters) == {"asked": 1, "cached": 2}

    with_tokenizer(check, {f"{COMPLETIONS}/render": b'[{"token_ids":[1]}]'})


def test_what_a_template_makes_of_a_text_is_believed_for_a_while() -> None:
    """It may write the date."""
    now, today = [100.0], [1]

    async def render(request: Received) -> None:
        request.answer(json.dumps([{"token_ids": today}]).encode())

    async def check(tokenizer: Tokenizer, replica: Upstream) -> None:
        tokenizer._clock = lambda: now[0]
        assert await ask(tokenizer, replica, COMPLETIONS, TEXT) == [[1]]
        today[0], now[0] = 2, 100.0 + KNOWN_SECONDS - 1
        assert await ask(tokenizer, replica, COMPLETIONS, TEXT) == [[1]]
        now[0] += 1
        assert await ask(tokenizer, replica, COMPLETIONS, TEXT) == [[2]]
        assert len(tokenizer._known) == 1
        now[0] += 5
        body = json.dumps(TEXT).encode()
        inbound = openai.read(COMPLETIONS, "application/json", body)
        (prompt,) = await tokenizer.token_ids(replica.url, COMPLETIONS, inbound, body, {})
        assert prompt.rendered_at == 100.0 + KNOWN_SECONDS, "when it was asked for, not when it was remembered"

    with_tokenizer(check, {f"{COMPLETIONS}/render": render})


def test_what_only_steers_the_sampling_makes_no_other_question() -> None:
    async def check(tokenizer: Tokenizer, replica: Upstream) -> None:
        for limit in (1, 2, 3):
            assert await ask(tokenizer, replica, COMPLETIONS, {**TEXT, "max_tokens": limit, "seed": limit}) == [[1]]
        assert len(replica.questions) == 1
        await ask(tokenizer, replica, COMPLETIONS, {**TEXT, "add_special_tokens": False})
        assert len(replica.questions) == 2, "but this changes the tokens"
        await ask(tokenizer, replica, COMPLETIONS, {**TEXT, "cache_salt": "other"})
        assert len(replica.questions) == 3, "and with another salt it is nobody's business what was asked before"

    with_tokenizer(check, {f"{COMPLETIONS}/render": b'[{"token_ids":[1]}]'})


def test_the_same_body_on_another_path_is_another_question() -> None:
    async def check(tokenizer: Tokenizer, replica: Upstream) -> None:
        both = {**TEXT, **TALK}
        assert await ask(tokenizer, replica, COMPLETIONS, both) == [[1]]
        assert await ask(tokenizer, replica, CHAT, both) == [[2]]

    with_tokenizer(check, {f"{COMPLETIONS}/render": b'[{"token_ids":[1]}]', f"{CHAT}/render": b'{"token_ids":[2]}'})


PICTURE = {"type": "image_url", "image_url": {"url": "http://pictures/cat.png"}}
LOOK = {"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "look"}, PICTURE]}]}


def test_what_lies_in_a_prompt_besides_text_is_told_with_its_ids() -> None:
    features = {"mm_hashes": {"image": ["cat"]}, "mm_placeholders": {"image": [{"offset": 1, "length": 2}]}}
    answer = json.dumps({"token_ids": [1, 9, 9, 2], "features": features}).encode()

    async def check(tokenizer: Tokenizer, replica: Upstream) -> None:
        body = json.dumps(LOOK).encode()
        inbound = openai.read(CHAT, "application/json", body)
        for _ in range(2):
            (prompt,) = await tokenizer.token_ids(replica.url, CHAT, inbound, body, {})
            assert list(prompt.tokens) == [1, 9, 9, 2]
            assert prompt.media == Media((MultimodalItem("cat", 1, 2),))
        (asked_for,) = replica.questions
        assert json.loads(asked_for.body) == {**LOOK, "mm_payload": "none"}, "nobody needs its pixels"

    with_tokenizer(check, {f"{CHAT}/render": answer})


@pytest.mark.parametrize(
    "fields",
    [
        TALK,
        {**TALK, "input": "hi"},
        {"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]},
        {"model": "m", "messages": 5},
        {"model": "m", "messages": [5]},
    ],
)
def test_text_is_rendered_as_it_came(fields: dict[str, Any]) -> None:
    async def check(tokenizer: Tokenizer, replica: Upstream) -> None:
        assert await ask(tokenizer, replica, CHAT, fields) == [[7]]
        assert json.loads(replica.questions[0].body) == fields

    with_tokenizer(check, {f"{CHAT}/render": b'{"token_ids":[7],"features":null}'})


@pytest.mark.parametrize("status", ["404 Not Found", "403 Forbidden", "405 Method Not Allowed", "501 Not Implemented"])
def test_an_engine_without_render_is_asked_to_tokenise(status: str) -> None:
    async def nothing_here(request: Received) -> None:
        request.answer(b"{}", status=status)

    async def tokens(request: Received) -> None:
        fields = json.loads(request.body)
        request.answer(json.dumps({"tokens": [len(fields.get("prompt", "")), int("messages" in fields)]}).encode())

    async def check(tokenizer: Tokenizer, replica: Upstream) -> None:
        two = {"model": "m", "prompt": ["one", "three"], "max_tokens": 3, "add_special_tokens": False}
        assert await ask(tokenizer, replica, COMPLETIONS, two) == [[3, 0], [5, 0]]
        assert json.loads(replica.questions[1].body).keys() == {"model", "add_special_tokens", "prompt"}
        assert await ask(tokenizer, replica, COMPLETIONS, TEXT) == [[7, 0]]
        assert asked(replica).count("/v1/completions/render") == 1, "it has said that there is no such path"
        assert await ask(tokenizer, replica, CHAT, {**TALK, "temperature": 1, "tools": []}) == [[0, 1]]
        assert json.loads(replica.questions[-1].body).keys() == {"model", "messages", "tools"}
        tokenizer.forget_endpoint(replica.url)
        await ask(tokenizer, replica, COMPLETIONS, {**TEXT, "prompt": "new"})
        assert asked(replica).count("/v1/completions/render") == 2, "another engine may be there now"

    with_tokenizer(check, {f"{COMPLETIONS}/render": nothing_here, f"{CHAT}/render": nothing_here, "/tokenize": tokens})


def test_what_tokenize_cannot_render_is_not_asked() -> None:
    async def check(tokenizer: Tokenizer, replica: Upstream) -> None:
        assert await ask(tokenizer, replica, "/v1/responses", {"model": "m", "input": "hi"}) == []
        assert await ask(tokenizer, replica, "/v1/messages", {**TALK, "system": "s"}) == []
        assert dict(tokenizer.counters) == {"untellable": 2}
        assert "/tokenize" not in asked(replica)

    with_tokenizer(check, {"/tokenize": b'{"tokens":[1]}'})


async def _silence(request: Received) -> None: ...


async def _break_off(request: Received) -> None:
    request.reset()


def _says(body: bytes, status: str = "200 OK") -> Callable[[Received], Awaitable[None]]:
    async def answer(request: Received) -> None:
        request.answer(body, status=status)

    return answer


BLIND: dict[str, Any] = {"health": {"interval_seconds": 3600}}
"""Settings of a gateway that finds out about failures by its requests alone."""

FAILURES: dict[str, Callable[[Received], Awaitable[None]]] = {
    "silence": _silence,
    "reset": _break_off,
    "400": _says(b"{}", "400 Bad Request"),
    "503": _says(b"{}", "503 Busy"),
    "no json": _says(b"<html>"),
    "no ids": _says(b'[{"token_ids":"x"}]'),
    "negative ids": _says(b'[{"token_ids":[-1]}]'),
    "ids beyond 32 bits": _says(b'[{"token_ids":[4294967296]}]'),
}


@pytest.mark.parametrize("name", FAILURES)
def test_what_cannot_be_tokenised_is_still_served(name: str) -> None:
    async def check() -> None:
        async with (
            upstream(paths={f"{COMPLETIONS}/render": FAILURES[name]}) as replica,
            gateway([replica.url], tokenizer={"timeout_seconds": 0.05}) as front,
        ):
            body = json.dumps(TEXT).encode()
            for count in (1, 2):
                status, headers, answer = split(await front.exchange(post(COMPLETIONS, body)))
                assert (status, answer) == ("HTTP/1.1 200 OK", OK)
                assert dict(headers)["x-kvlb-predicted"] == "unknown"
                assert front.service.tokenizer.counters["failed"] == count
            assert front.is_idle()

    run(check())


def test_where_nobody_listens_another_replica_is_asked() -> None:
    async def check() -> None:
        paths = {f"{COMPLETIONS}/render": b'[{"token_ids":[1,2,3]}]'}
        async with contextlib.AsyncExitStack() as stack:
            gone = await stack.enter_async_context(upstream(paths=paths))
            async with upstream(paths=paths) as stays, gateway([gone.url, stays.url], **BLIND) as front:
                await stack.aclose()
                for at in range(6):  # each is asked first about as often as the other
                    body = json.dumps({**TEXT, "prompt": str(at)}).encode()
                    status, headers, _ = split(await front.exchange(post(COMPLETIONS, body)))
                    assert status == "HTTP/1.1 200 OK"
                    assert dict(headers)["x-kvlb-prompt-tokens"] == "3"
                assert len(stays.received) == 6

    run(check())


HUNG = {f"{COMPLETIONS}/render": _silence}
ANSWERS = {f"{COMPLETIONS}/render": b'[{"token_ids":[1,2,3]}]'}


def text(at: int) -> dict[str, Any]:
    return {**TEXT, "prompt": str(at)}


def test_a_tokeniser_that_hangs_holds_up_two_requests() -> None:
    async def check() -> None:
        settings = {"timeout_seconds": 0.05}
        async with upstream(paths=HUNG) as replica, gateway([replica.url], tokenizer=settings) as front:
            front.service.tokenizer._clock = lambda: 1000.0
            for at in range(5):
                status, _, _ = split(await front.exchange(post(COMPLETIONS, json.dumps(text(at)).encode())))
                assert status == "HTTP/1.1 200 OK"
            assert asked(replica).count(f"{COMPLETIONS}/render") == 2
            assert dict(front.service.tokenizer.counters) == {"failed": 2, "paused": 3}

    run(check())


def test_another_tokeniser_is_asked_meanwhile() -> None:
    async def check() -> None:
        settings = {"timeout_seconds": 0.5}
        async with (
            upstream(paths=HUNG) as hangs,
            upstream(paths=ANSWERS) as answers,
            gateway([hangs.url, answers.url], tokenizer=settings) as front,
        ):
            front.service.tokenizer._clock = lambda: 1000.0
            for at in range(40):  # each is asked first about as often as the other, until one has hung twice
                await front.exchange(post(COMPLETIONS, json.dumps(text(at)).encode()))
            assert asked(hangs).count(f"{COMPLETIONS}/render") == 2
            assert dict(front.service.tokenizer.counters) == {"failed": 2, "asked": 38}

    run(check())


def test_pauses_grow_and_one_request_tries_after_each() -> None:
    now, hangs = [1000.0], [True]

    async def perhaps(request: Received) -> None:
        if not hangs[0]:
            request.answer(b'[{"token_ids":[1]}]')

    async def check(tokenizer: Tokenizer, replica: Upstream) -> None:
        tokenizer._clock = lambda: now[0]
        pauses = []
        for _ in range(7):
            while tokenizer.is_paused(replica.url):
                now[0] += 1
            before = len(replica.questions)
            await asyncio.gather(*(ask(tokenizer, replica, COMPLETIONS, text(at)) for at in range(5)))
            tried = len(replica.questions) - before
            pauses.append((tried, tokenizer._pauses[replica.url].until - now[0]))
        assert pauses == [(5, FIRST_PAUSE), (1, 10.0), (1, 20.0), (1, 40.0), *[(1, LONGEST_PAUSE)] * 3]
        hangs[0] = False
        now[0] += LONGEST_PAUSE
        assert await ask(tokenizer, replica, COMPLETIONS, text(8)) == [[1]]
        assert await ask(tokenizer, replica, COMPLETIONS, text(9)) == [[1]], "it is well again"

    with_tokenizer(check, {f"{COMPLETIONS}/render": perhaps}, timeout_seconds=0.05)


def test_another_engine_at_the_address_is_not_paused() -> None:
    async def check(tokenizer: Tokenizer, replica: Upstream) -> None:
        for at in range(3):
            await ask(tokenizer, replica, COMPLETIONS, text(at))
        assert tokenizer.is_paused(replica.url)
        tokenizer.forget_endpoint(replica.url)
        assert not tokenizer.is_paused(replica.url)

    with_tokenizer(check, HUNG, timeout_seconds=0.05)


def test_memory_stays_within_its_bound() -> None:
    async def tokens(request: Received) -> None:
        request.answer(json.dumps([{"token_ids": list(range(100))}]).encode())

    async def check(tokenizer: Tokenizer, replica: Upstream) -> None:
        texts = [{**TEXT, "prompt": str(at)} for at in range(8)]
        for text in texts:
            await ask(tokenizer, replica, COMPLETIONS, text)
        assert len(tokenizer._known) == 3
        await ask(tokenizer, replica, COMPLETIONS, texts[-3])
        await ask(tokenizer, replica, COMPLETIONS, texts[0])
        await ask(tokenizer, replica, COMPLETIONS, texts[-3])
        assert tokenizer.counters["cached"] == 2, "what was used last is kept"

    with_tokenizer(check, {f"{COMPLETIONS}/render": tokens}, cache_bytes=3 * 720)


def test_a_text_asked_for_twice_at_once_is_counted_once() -> None:
    async def tokens(request: Received) -> None:
        await asyncio.sleep(0)
        request.answer(b'[{"token_ids":[1,2,3]}]')

    async def check(tokenizer: Tokenizer, replica: Upstream) -> None:
        found: Sequence[list[list[int]]] = await asyncio.gather(
            *(ask(tokenizer, replica, COMPLETIONS, TEXT) for _ in range(5))
        )
        assert list(found) == [[[1, 2, 3]]] * 5
        for at in range(40):  # a bound that is wrong by what was counted twice would empty the memory below zero
            await ask(tokenizer, replica, COMPLETIONS, {**TEXT, "prompt": str(at)})
        held = sum(200 + 112 + 4 * 3 for _ in tokenizer._known)
        assert tokenizer._known_bytes == held <= 1000

    with_tokenizer(check, {f"{COMPLETIONS}/render": tokens}, cache_bytes=1000)


def test_no_memory_means_none() -> None:
    async def check(tokenizer: Tokenizer, replica: Upstream) -> None:
        for _ in range(2):
            assert await ask(tokenizer, replica, COMPLETIONS, TEXT) == [[1]]
        assert len(replica.questions) == 2

    with_tokenizer(check, {f"{COMPLETIONS}/render": b'[{"token_ids":[1]}]'}, cache_bytes=0)


@pytest.mark.parametrize(
    "extra",
    [
        {"documents": [{"text": "x"}]},
        {"reasoning_effort": "low"},
        {"truncate_prompt_tokens": 4},
        {"some_new_field": 1},
        {"tools": [{}], "tool_choice": "none"},
        {"kv_transfer_params": {"prompt_token_ids": [1]}},
    ],
)
def test_what_tokenize_cannot_be_told_is_not_tokenised(extra: dict[str, Any]) -> None:
    """Its ids would be those of another prompt; without any, the request is routed by load, and nothing is promised."""

    async def check(tokenizer: Tokenizer, replica: Upstream) -> None:
        assert await ask(tokenizer, replica, CHAT, {**TALK, **extra}) == []
        assert "/tokenize" not in asked(replica)
        assert dict(tokenizer.counters) == {"untellable": 1}, "it has not failed: nobody was asked"
        assert await ask(tokenizer, replica, CHAT, {**TALK, "temperature": 0.5, "documents": None}) == [[9]]

    with_tokenizer(check, {"/tokenize": b'{"tokens":[9]}'})


NAMED_TOOL = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    "extra",
    [
        {"tools": [NAMED_TOOL], "tool_choice": "auto"},
        {"tools": [NAMED_TOOL], "tool_choice": "required"},
        {"tools": [NAMED_TOOL], "tool_choice": NAMED_TOOL},
        {"tool_choice": "none"},
        {"response_format": {"type": "json_object"}, "structured_outputs": {"json": {}}, "guided_json": {}},
        {"parallel_tool_calls": False, "include_reasoning": True, "service_tier": "auto"},
        {"skip_special_tokens": True, "return_token_ids": True, "echo": False, "bad_words": ["x"]},
    ],
    ids=str,
)
def test_what_only_shapes_the_answer_need_not_be_told(extra: dict[str, Any]) -> None:
    """Nearly every request of agents has one of these; the engine's own prompt is the same without them."""

    async def check(tokenizer: Tokenizer, replica: Upstream) -> None:
        assert await ask(tokenizer, replica, CHAT, {**TALK, **extra}) == [[9]]
        assert json.loads(replica.questions[-1].body).keys() == {"model", "messages", *(extra.keys() & {"tools"})}
        assert dict(tokenizer.counters) == {"asked": 1}

    with_tokenizer(check, {"/tokenize": b'{"tokens":[9]}'})


@pytest.mark.parametrize("fields", [{"tool_choice": "required"}, {"response_format": {"type": "json_object"}}])
def test_what_some_templates_write_into_the_prompt_is_another_question_where_it_is_rendered(
    fields: dict[str, Any],
) -> None:
    async def check(tokenizer: Tokenizer, replica: Upstream) -> None:
        await ask(tokenizer, replica, CHAT, TALK)
        await ask(tokenizer, replica, CHAT, {**TALK, **fields})
        assert asked(replica) == [f"{CHAT}/render"] * 2

    with_tokenizer(check, {f"{CHAT}/render": b'{"token_ids":[7]}'})


def test_images_are_not_tokenised_by_tokenize() -> None:
    async def check(tokenizer: Tokenizer, replica: Upstream) -> None:
        parts = [{"type": "text", "text": "what is this?"}, {"type": "image_url", "image_url": {"url": "data:,"}}]
        body = {**TALK, "messages": [{"role": "user", "content": parts}]}
        assert await ask(tokenizer, replica, CHAT, body) == []
        assert await ask(tokenizer, replica, CHAT, {**body, "messages": [{"role": "user", "content": parts[:1]}]}) == [
            [9]
        ]

    with_tokenizer(check, {"/tokenize": b'{"tokens":[9]}'})
