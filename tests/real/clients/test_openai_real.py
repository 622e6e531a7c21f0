"""The OpenAI SDK before a real engine, directly and through kvlb: the same calls, the same bytes, the same exceptions.

Run by ``scripts/test-real tests/real/clients``. Every call goes through ``witness.Witness.ask``, which holds what is said on
the wire against each other; what the tests look at besides is that the call was one that says something.
"""

import asyncio
import json
from collections.abc import Callable
from typing import Any, Final

import openai
import pydantic
import pytest

from tests.real.clients.wire import value
from tests.real.clients.witness import Witness, events
from tests.real.traffic import WORDS

pytestmark = pytest.mark.real

Call = Callable[[openai.OpenAI], Any]

MODEL: Final = "tiny"
GREEDY: Final[dict[str, Any]] = {"model": MODEL, "temperature": 0}
SLOWLY: Final = {"vllm_xargs": {"seconds_per_token": 0.015}}
"""So that each token comes in an event of its own, and streams can be compared."""

MANY_SCRIPTS: Final = "žluťoučký kůň, 日本語のテキスト, مرحبا, 🦙🇨🇿 e\u0301"
TOLD: Final[list[Any]] = [
    {"role": "system", "content": "sali modo fan " * 30},
    {"role": "user", "content": f"heber kiman: {MANY_SCRIPTS}"},
]
PROMPT: Final = " ".join(WORDS * 4)
IDS: Final = list(range(100, 180))

CITY: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Brno", "Kraków", "東京"]}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER: Final[dict[str, Any]] = {"name": "weather", "description": "What it is like outside", "parameters": CITY}
TOOLS: Final[list[Any]] = [{"type": "function", "function": {**WEATHER, "strict": True}}]
THIS_TOOL: Final[Any] = {"type": "function", "function": {"name": "weather"}}
IN_SCHEMA: Final[Any] = {"type": "json_schema", "json_schema": {"name": "where", "schema": CITY, "strict": True}}


class Where(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    city: str = pydantic.Field(json_schema_extra={"enum": ["Brno", "Kraków", "東京"]})


def client(url: str, name: str = "", **options: Any) -> openai.OpenAI:
    headers = {"X-Request-Id": name} if name else {}
    return openai.OpenAI(base_url=url + "/v1", api_key="any", max_retries=0, default_headers=headers, **options)


def made(call: Call) -> Callable[[str, str], Any]:
    """The call, made by a client of its own; an exception of the SDK is what has come of it, too."""

    def make(url: str, name: str) -> Any:
        with client(url, name) as one:
            try:
                return call(one)
            except openai.OpenAIError as error:
                return error

    return make


def chat(one: openai.OpenAI, **more: Any) -> Any:
    return one.chat.completions.create(**{**GREEDY, "messages": TOLD, "max_tokens": 12, **more})


def streamed_chat(one: openai.OpenAI, **more: Any) -> Any:
    extra = {**SLOWLY, **more.pop("extra_body", {})}
    return list(chat(one, stream=True, extra_body=extra, **more))


def complete(one: openai.OpenAI, **more: Any) -> Any:
    return one.completions.create(**{**GREEDY, "prompt": PROMPT, "max_tokens": 12, **more})


def streamed_completion(one: openai.OpenAI, **more: Any) -> Any:
    return list(complete(one, stream=True, extra_body=SLOWLY, **more))


def respond(one: openai.OpenAI, **more: Any) -> Any:
    return one.responses.create(**{**GREEDY, "input": PROMPT, "max_output_tokens": 12, **more})


def followed_chat(one: openai.OpenAI) -> Any:
    """By the SDK's own reading of a stream, which wants it to come to an end by itself."""
    forced = {**SLOWLY, "structured_outputs": {"choice": ["ra tuner oh"]}}
    with one.chat.completions.stream(**GREEDY, messages=TOLD, max_tokens=40, extra_body=forced) as stream:
        stream.until_done()
        return stream.get_final_completion()


def followed_response(one: openai.OpenAI) -> Any:
    with one.responses.stream(**GREEDY, input=PROMPT, max_output_tokens=12, extra_body=SLOWLY) as stream:
        return stream.get_final_response()


ANSWERED: Final[dict[str, Call]] = {
    "chat": chat,
    "chat, logprobs": lambda one: chat(one, logprobs=True, top_logprobs=3),
    "chat, several samples": lambda one: chat(one, n=3, temperature=0.9, top_p=0.8, seed=7),
    "chat, stop": lambda one: chat(one, stop=["a", "é"], max_tokens=40, presence_penalty=0.5, logit_bias={"300": -5}),
    "chat, streamed": streamed_chat,
    "chat, streamed, usage": lambda one: streamed_chat(one, stream_options={"include_usage": True}),
    "chat, streamed, usage in each": lambda one: streamed_chat(
        one, stream_options={"include_usage": True, "continuous_usage_stats": True}
    ),
    "chat, streamed, logprobs": lambda one: streamed_chat(one, logprobs=True, top_logprobs=2),
    "chat, followed": followed_chat,
    "chat, fields of vLLM": lambda one: chat(
        one, extra_body={"return_token_ids": True, "top_k": 5, "min_tokens": 3, "cache_salt": "pepper", "priority": 0}
    ),
    "chat, fields that nobody knows": lambda one: chat(one, extra_body={"no_such_field": {"a": [1, None, "é"]}}),
    "chat, adapter": lambda one: chat(one, model="ada"),
    "chat, tools": lambda one: chat(one, tools=TOOLS),
    "chat, tool required": lambda one: chat(one, tools=TOOLS, tool_choice="required", max_tokens=60),
    "chat, schema": lambda one: chat(one, response_format=IN_SCHEMA, max_tokens=120),
    "chat, schema, streamed": lambda one: streamed_chat(one, response_format=IN_SCHEMA, max_tokens=120),
    "chat, object": lambda one: chat(one, response_format={"type": "json_object"}, max_tokens=30),
    "completion": complete,
    "completion of ids": lambda one: complete(one, prompt=IDS),
    "completion of texts": lambda one: complete(one, prompt=[PROMPT, MANY_SCRIPTS, "ra"]),
    "completion of lists of ids": lambda one: complete(one, prompt=[IDS, IDS[:40], [7]]),
    "completion, several samples": lambda one: complete(one, n=2, temperature=0.8, seed=3),
    "completion, logprobs, echo": lambda one: complete(one, prompt=MANY_SCRIPTS, echo=True, logprobs=3),
    "completion, prompt logprobs": lambda one: complete(one, prompt=IDS, extra_body={"prompt_logprobs": 1}),
    "completion, streamed": streamed_completion,
    "completion, streamed, usage": lambda one: streamed_completion(one, stream_options={"include_usage": True}),
    "completion of ids, streamed, logprobs": lambda one: streamed_completion(one, prompt=IDS, logprobs=2),
    "response": respond,
    "response, instructions": lambda one: respond(
        one, instructions=MANY_SCRIPTS, input=[{"role": "user", "content": PROMPT}], metadata={"a": "b"}
    ),
    "response, streamed": lambda one: list(respond(one, stream=True, extra_body=SLOWLY)),
    "response, followed": followed_response,
    "response, tool choice": lambda one: respond(
        one,
        tools=[{"type": "function", **WEATHER, "strict": True}],
        tool_choice={"type": "function", "name": "weather"},
        max_output_tokens=120,
    ),
    "response, schema": lambda one: respond(
        one, text={"format": {"type": "json_schema", "name": "where", "schema": CITY}}, max_output_tokens=120
    ),
}


@pytest.mark.parametrize("name", ANSWERED)
def test_what_the_engine_answers_is_what_the_client_gets(witness: Witness, name: str) -> None:
    both = witness.ask(made(ANSWERED[name]))
    assert both.exchange.status == 200, both.exchange.received
    assert type(both.through) is type(both.direct)
    assert not isinstance(both.through, Exception)
    if name.startswith(("chat, streamed", "completion, streamed")):
        assert both.exchange.received.endswith(b"data: [DONE]\n\n")
        assert len(both.through) > 5


REFUSED: Final[dict[str, tuple[Call, type[openai.APIStatusError]]]] = {
    "a parameter out of its range": (lambda one: chat(one, temperature=-4), openai.BadRequestError),
    "a parameter of another type": (lambda one: complete(one, max_tokens="many"), openai.BadRequestError),
    "too many samples": (lambda one: complete(one, n=0), openai.BadRequestError),
    "a prompt that is too long": (lambda one: complete(one, prompt=[5] * 3000), openai.BadRequestError),
    "a text too long": (lambda one: chat(one, messages=[{"role": "user", "content": "ra " * 5000}]), openai.BadRequestError),
    "more tokens than there can be": (lambda one: complete(one, max_tokens=100_000), openai.BadRequestError),
    "an id that no vocabulary has": (lambda one: complete(one, prompt=[1, 999_999]), openai.BadRequestError),
    "a schema that is none": (
        lambda one: chat(one, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "?"}}}),
        openai.BadRequestError,
    ),
    "a tool that there is not": (
        lambda one: chat(one, tools=TOOLS, tool_choice={"type": "function", "function": {"name": "none"}}),
        openai.BadRequestError,
    ),
    "no messages": (lambda one: chat(one, messages=[]), openai.BadRequestError),
    "a role that is none": (lambda one: chat(one, messages=[{"role": 3, "content": {}}]), openai.BadRequestError),
    "refused, streamed": (lambda one: list(chat(one, stream=True, temperature=-4)), openai.BadRequestError),
    "a response of another model's thoughts": (lambda one: respond(one, previous_response_id="resp_0"), openai.NotFoundError),
    "embeddings of a model that makes none": (lambda one: one.embeddings.create(model=MODEL, input="ra"), openai.NotFoundError),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_engine_refuses_is_refused_in_its_words(witness: Witness, name: str) -> None:
    call, expected = REFUSED[name]
    both = witness.ask(made(call))
    assert type(both.direct) is type(both.through) is expected
    assert (both.through.status_code, both.through.body) == (both.direct.status_code, both.direct.body)


OURS: Final[dict[str, tuple[Call, type[openai.APIStatusError]]]] = {
    "a model that nobody serves": (lambda one: chat(one, model="none"), openai.NotFoundError),
    "a model that nobody serves, streamed": (lambda one: list(complete(one, model="none", stream=True)), openai.NotFoundError),
    "a model that nobody serves, responses": (lambda one: respond(one, model="none"), openai.NotFoundError),
    "a path that is not there": (lambda one: one.post("/nowhere", cast_to=object, body={}), openai.NotFoundError),
}  # fmt: skip


@pytest.mark.parametrize("name", OURS)
def test_what_kvlb_refuses_raises_what_the_engine_would(witness: Witness, name: str) -> None:
    call, expected = OURS[name]
    both = witness.ask(made(call), is_ours=True)
    assert type(both.direct) is type(both.through) is expected
    error = json.loads(both.exchange.received)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert both.through.message.endswith(error["message"])
    assert both.through.code == error["code"]
    if error["code"] != "unknown_path":
        assert both.through.request_id == value(both.exchange.asked, b"x-request-id").decode()  # type: ignore[union-attr]


def test_a_tool_is_called_with_arguments_of_its_schema(witness: Witness) -> None:
    choice = {"tools": TOOLS, "tool_choice": THIS_TOOL, "max_tokens": 120}
    both = witness.ask(made(lambda one: chat(one, **choice)))
    (called,) = both.through.choices[0].message.tool_calls
    assert called.function.name == "weather"
    assert json.loads(called.function.arguments)["city"] in CITY["properties"]["city"]["enum"]
    streamed = witness.ask(made(lambda one: streamed_chat(one, **choice)))
    pieces = [
        each.function.arguments or ""
        for event in streamed.through
        for choice in event.choices
        for each in choice.delta.tool_calls or []
    ]
    assert len(pieces) > 2
    assert json.loads("".join(pieces)) == json.loads(called.function.arguments)


def test_what_the_sdk_parses_is_an_object(witness: Witness) -> None:
    def parse(one: openai.OpenAI) -> Any:
        return one.chat.completions.parse(**GREEDY, messages=TOLD, response_format=Where, max_tokens=120)

    both = witness.ask(made(parse))
    assert both.through.choices[0].message.parsed.city in CITY["properties"]["city"]["enum"]


@pytest.mark.parametrize("is_stream", [False, True], ids=["plain", "streamed"])
def test_characters_of_many_bytes_come_whole(witness: Witness, is_stream: bool) -> None:
    """One that is forced on the model: each character of it takes several tokens, so every cut between two of them is tried."""
    forced = {"structured_outputs": {"choice": [MANY_SCRIPTS]}}

    def call(one: openai.OpenAI) -> str:
        if not is_stream:
            return str(chat(one, max_tokens=120, extra_body=forced).choices[0].message.content)
        pieces = streamed_chat(one, max_tokens=120, extra_body=forced)
        return "".join(choice.delta.content or "" for piece in pieces for choice in piece.choices)

    both = witness.ask(made(call))
    assert both.through == both.direct == MANY_SCRIPTS
    assert "日本語".encode()[:3] in both.exchange.received, "escaped, so that no character has several bytes"


def test_a_stream_tells_its_usage_at_its_end(witness: Witness) -> None:
    both = witness.ask(made(ANSWERED["chat, streamed, usage"]))
    *others, last = events(both.exchange)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 12
    assert last["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert not any(each.get("usage") for each in others)


def test_headers_of_the_client_reach_the_engine_as_they_are(witness: Witness) -> None:
    own = {
        "X-Trace-Of-Mine": 'a, b;c="d"',
        "OpenAI-Organization": "org-1",
        "traceparent": f"00-{'a' * 32}-{'b' * 16}-01",
    }

    def call(one: openai.OpenAI) -> Any:
        return one.completions.with_raw_response.create(**GREEDY, prompt=PROMPT, max_tokens=1, extra_headers=own)

    both = witness.ask(made(call))
    told = both.told
    assert told is not None
    for name, wanted in own.items():
        assert value(told.asked, name.lower().encode()) == wanted.encode()
    assert value(told.asked, b"user-agent").startswith(b"OpenAI/Python ")  # type: ignore[union-attr]
    assert both.through.headers["x-request-id"] == value(both.exchange.asked, b"x-request-id").decode()  # type: ignore[union-attr]


def test_models_are_listed_as_the_engine_lists_them(witness: Witness) -> None:
    with client(witness.engine.url) as direct, client(witness.front.url) as through:
        theirs, ours = direct.models.list().data, through.models.list().data
        assert [each.id for each in ours] == [each.id for each in theirs]
        changing = {"created", "permission"}
        assert [each.model_dump(exclude=changing) for each in ours] == [
            each.model_dump(exclude=changing) for each in theirs
        ]
        assert through.models.retrieve("ada").model_dump(exclude=changing) == ours[1].model_dump(exclude=changing)
        with pytest.raises(openai.NotFoundError):
            through.models.retrieve("none")


def test_many_at_once_each_get_their_own_answer(witness: Witness) -> None:
    prompts = [[300 + number, *range(5, 5 + number)] for number in range(60)]

    async def ask(one: openai.AsyncOpenAI, prompt: list[int]) -> str:
        if prompt[0] % 2:
            answer = await one.completions.create(**GREEDY, prompt=prompt, max_tokens=6)
            return str(answer.choices[0].text)
        stream = await one.completions.create(**GREEDY, prompt=prompt, max_tokens=6, stream=True)
        return "".join([choice.text async for piece in stream for choice in piece.choices])

    async def all_at_once(url: str) -> list[str]:
        async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="any", max_retries=0) as one:
            return await asyncio.gather(*(ask(one, prompt) for prompt in prompts))

    theirs, ours = (asyncio.run(all_at_once(url)) for url in (witness.direct.url, witness.front.url))
    assert ours == theirs
    assert len(set(ours)) > len(prompts) // 2
    witness.assert_all_passed(len(prompts))
