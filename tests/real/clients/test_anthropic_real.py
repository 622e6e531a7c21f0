"""The Anthropic SDK before a real engine, directly and through kvlb: the same calls, the same bytes, the same exceptions.

Run by ``scripts/test-real tests/real/clients``. As ``test_openai_real``: what is said on the wire is compared in
``witness.Witness.ask``.
"""

import asyncio
import json
from collections.abc import Callable
from typing import Any, Final

import anthropic
import pytest

from tests.real.clients.wire import value
from tests.real.clients.witness import Witness, events

pytestmark = pytest.mark.real

Call = Callable[[anthropic.Anthropic], Any]

MODEL: Final = "tiny"
MANY_SCRIPTS: Final = "žluťoučký kůň, 日本語のテキスト, مرحبا, 🦙🇨🇿 e\u0301"
SYSTEM: Final = "sali modo fan " * 30
SAID: Final[list[Any]] = [
    {"role": "user", "content": "heber kiman"},
    {"role": "assistant", "content": "luhan panfa"},
    {"role": "user", "content": [{"type": "text", "text": MANY_SCRIPTS}, {"type": "text", "text": "bertu"}]},
]
GREEDY: Final[dict[str, Any]] = {"temperature": 0}
SLOWLY: Final[dict[str, Any]] = {**GREEDY, "vllm_xargs": {"seconds_per_token": 0.015}}
"""So that each token comes in an event of its own, and streams can be compared."""

CITIES: Final = ["Brno", "Kraków", "東京"]
TOOLS: Final[list[Any]] = [
    {
        "name": "weather",
        "description": "What it is like outside",
        "input_schema": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": CITIES}},
            "required": ["city"],
            "additionalProperties": False,
        },
        "strict": True,
    }
]


def client(url: str, name: str = "", **options: Any) -> anthropic.Anthropic:
    headers = {"X-Request-Id": name} if name else {}
    return anthropic.Anthropic(base_url=url, api_key="any", max_retries=0, default_headers=headers, **options)


def made(call: Call) -> Callable[[str, str], Any]:
    """The call, made by a client of its own; an exception of the SDK is what has come of it, too."""

    def make(url: str, name: str) -> Any:
        with client(url, name) as one:
            try:
                return call(one)
            except anthropic.AnthropicError as error:
                return error

    return make


def say(one: anthropic.Anthropic, **more: Any) -> Any:
    asked = {"model": MODEL, "system": SYSTEM, "messages": SAID, "max_tokens": 12, "extra_body": GREEDY}
    return one.messages.create(**{**asked, **more})


def streamed(one: anthropic.Anthropic, **more: Any) -> Any:
    return list(say(one, stream=True, **{"extra_body": SLOWLY, **more}))


def followed(one: anthropic.Anthropic) -> Any:
    """By the SDK's own reading of a stream."""
    asked: dict[str, Any] = {"model": MODEL, "system": SYSTEM, "messages": SAID, "max_tokens": 12}
    with one.messages.stream(**asked, extra_body=SLOWLY) as stream:
        return "".join(stream.text_stream), stream.get_final_message()


ANSWERED: Final[dict[str, Call]] = {
    "message": say,
    "message, sampled": lambda one: say(one, extra_body={"temperature": 0.7, "top_p": 0.9, "top_k": 1}),
    "message, stop": lambda one: say(one, stop_sequences=["a"], max_tokens=40),
    "message, system of blocks": lambda one: say(one, system=[{"type": "text", "text": SYSTEM}]),
    "message, fields of others": lambda one: say(
        one, metadata={"user_id": "u"}, extra_body={**GREEDY, "cache_salt": "pepper", "no_such_field": [None, "é"]}
    ),
    "message, adapter": lambda one: say(one, model="ada"),
    "message, streamed": streamed,
    "message, followed": followed,
    "message, tools": lambda one: say(one, tools=TOOLS),
    "message, any tool": lambda one: say(one, tools=TOOLS, tool_choice={"type": "any"}, max_tokens=60),
    "message, beta": lambda one: one.beta.messages.create(
        model=MODEL, messages=SAID, max_tokens=4, betas=["some-beta-2026-01-01"], extra_body=GREEDY
    ),
    "count of tokens": lambda one: one.messages.count_tokens(model=MODEL, system=SYSTEM, messages=SAID, tools=TOOLS),
}


@pytest.mark.parametrize("name", ANSWERED)
def test_what_the_engine_answers_is_what_the_client_gets(witness: Witness, name: str) -> None:
    both = witness.ask(made(ANSWERED[name]))
    assert both.exchange.status == 200, both.exchange.received
    assert type(both.through) is type(both.direct)
    assert not isinstance(both.through, Exception)
    assert value(both.exchange.asked, b"anthropic-version")
    if name.endswith(("streamed", "followed")):
        told = events(both.exchange)
        assert (told[0]["type"], told[-1]["type"]) == ("message_start", "message_stop")
        assert len(told) > 8


REFUSED: Final[dict[str, tuple[Call, type[anthropic.APIStatusError]]]] = {
    "no room for an answer": (lambda one: say(one, max_tokens=-1), anthropic.BadRequestError),
    "a parameter of another type": (lambda one: say(one, extra_body={"max_tokens": "many"}), anthropic.BadRequestError),
    "a text too long": (
        lambda one: say(one, messages=[{"role": "user", "content": "ra " * 5000}]),
        anthropic.BadRequestError,
    ),
    "a role that is none": (lambda one: say(one, messages=[{"role": 3, "content": "ra"}]), anthropic.BadRequestError),
    "refused, streamed": (lambda one: streamed(one, max_tokens=-1), anthropic.BadRequestError),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_engine_refuses_is_refused_in_its_words(witness: Witness, name: str) -> None:
    call, expected = REFUSED[name]
    both = witness.ask(made(call))
    assert type(both.direct) is type(both.through) is expected
    assert (both.through.status_code, both.through.body) == (both.direct.status_code, both.direct.body)


@pytest.mark.parametrize("call", [say, streamed], ids=["plain", "streamed"])
def test_what_kvlb_refuses_raises_what_the_engine_would(witness: Witness, call: Callable[..., Any]) -> None:
    both = witness.ask(made(lambda one: call(one, model="none")), is_ours=True)
    assert type(both.direct) is type(both.through) is anthropic.NotFoundError
    told = json.loads(both.exchange.received)
    error = told["error"]
    assert (told["type"], error["type"]) == ("error", "not_found_error")
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"] in both.through.message


@pytest.mark.parametrize("is_stream", [False, True], ids=["plain", "streamed"])
def test_a_tool_is_called_with_arguments_of_its_schema(witness: Witness, is_stream: bool) -> None:
    choice: dict[str, Any] = {"tools": TOOLS, "tool_choice": {"type": "tool", "name": "weather"}, "max_tokens": 120}
    both = witness.ask(made(lambda one: (streamed if is_stream else say)(one, **choice)))
    if is_stream:
        pieces = [each.delta for each in both.through if each.type == "content_block_delta"]
        called = json.loads("".join(each.partial_json for each in pieces if each.type == "input_json_delta"))
    else:
        (block,) = both.through.content
        assert (block.type, block.name, both.through.stop_reason) == ("tool_use", "weather", "tool_use")
        called = block.input
    assert called["city"] in CITIES


def test_many_at_once_each_get_their_own_answer(witness: Witness) -> None:
    prompts = [f"ra {number} " * (1 + number % 7) for number in range(40)]

    async def ask(one: anthropic.AsyncAnthropic, at: int) -> str:
        said: Any = [{"role": "user", "content": prompts[at]}]
        if at % 2:
            answer = await one.messages.create(model=MODEL, messages=said, max_tokens=6, extra_body=GREEDY)
            return "".join(block.text for block in answer.content if block.type == "text")
        async with one.messages.stream(model=MODEL, messages=said, max_tokens=6, extra_body=GREEDY) as stream:
            return "".join([text async for text in stream.text_stream])

    async def all_at_once(url: str) -> list[str]:
        async with anthropic.AsyncAnthropic(base_url=url, api_key="any", max_retries=0) as one:
            return await asyncio.gather(*(ask(one, at) for at in range(len(prompts))))

    theirs, ours = (asyncio.run(all_at_once(url)) for url in (witness.direct.url, witness.front.url))
    assert ours == theirs
    assert len(set(ours)) > len(prompts) // 2
    witness.assert_all_passed(len(prompts))
