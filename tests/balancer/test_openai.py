"""``balancer/openai.py``: every shape of body is read as vLLM reads it, and nothing but its model can be at fault."""

import json
import re
import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer import forms, openai
from balancer.conversations import MAX_NAME
from balancer.core import Truth
from balancer.errors import BadRequest, UnknownModel
from balancer.media import NO_MEDIA, UNKNOWN_MEDIA, Media
from balancer.openai import PATHS, Inbound, Kind, read, read_answer
from hashing.extras import MultimodalItem
from hashing.memory import ChainMemory
from hashing.token_text import TokenText

COMPLETIONS, CHAT, GENERATE = "/v1/completions", "/v1/chat/completions", "/inference/v1/generate"
CHAT_PATHS = [CHAT, "/v1/responses", "/v1/messages"]


def of(path: str, **fields: Any) -> Inbound:
    return read(path, "application/json", json.dumps({"model": "m", **fields}).encode())


def long(path: str, body: bytes) -> Inbound:
    """The same, with long lists of ids read apart from the rest, once anew and once as they are remembered."""
    memory = ChainMemory()

    def read_ids(body: bytes, begin: int, end: int) -> TokenText | None:
        return TokenText.read(body, begin, end, memory)

    cold, warm = (read(path, "application/json", body, read_ids) for _ in range(2))
    assert listed(cold) == listed(warm)
    return cold


def listed(inbound: Inbound) -> Inbound:
    return msgspec.structs.replace(inbound, token_ids=tuple(list(each) for each in inbound.token_ids))


# Prompts


@pytest.mark.parametrize(
    ("prompt", "ids", "has_text"),
    [
        ([1, 2, 3], ([1, 2, 3],), False),
        ([[1, 2], [3]], ([1, 2], [3]), False),
        ("text", (), True),
        (["text", "more"], (), True),
        ([[1, 2], []], ([1, 2],), False),
        ([], (), True),
        (None, (), True),
        ([1, "two"], (), True),
        ([1.5], (), True),
        ({"odd": 1}, (), True),
    ],
)
def test_a_completion_has_four_shapes_of_prompt(prompt: Any, ids: tuple[list[int], ...], has_text: bool) -> None:
    inbound = of(COMPLETIONS, prompt=prompt)
    assert (inbound.token_ids, inbound.has_text, inbound.model) == (ids, has_text, "m")


def test_the_answer_for_several_prompts_cannot_be_compared() -> None:
    assert of(COMPLETIONS, prompt=[[1, 2]]).is_comparable
    assert not of(COMPLETIONS, prompt=[[1, 2], [3]]).is_comparable


@pytest.mark.parametrize("path", CHAT_PATHS)
def test_a_conversation_is_text(path: str) -> None:
    inbound = of(path, messages=[{"role": "user", "content": "hi"}])
    assert (inbound.kind, inbound.token_ids, inbound.has_text) == (Kind.CHAT, (), True)


def test_tokens_in_are_never_text() -> None:
    assert of(GENERATE, token_ids=[1, 2]).token_ids == ([1, 2],)
    assert not of(GENERATE, token_ids="nonsense").has_text


def test_pictures_among_ids_are_told_with_them() -> None:
    features = {"mm_hashes": {"image": ["cat"]}, "mm_placeholders": {"image": [{"offset": 1, "length": 2}]}}
    inbound = of(GENERATE, token_ids=[1, 9, 9, 2], features=features)
    assert (inbound.token_ids, inbound.media) == (([1, 9, 9, 2],), Media((MultimodalItem("cat", 1, 2),)))
    assert of(GENERATE, token_ids=[1, 2], features=[{"mm": 1}]).media == UNKNOWN_MEDIA
    assert of(GENERATE, token_ids=[1, 2], features=None).media == NO_MEDIA
    assert of(COMPLETIONS, prompt=[1, 2], features=features).media == NO_MEDIA, "there it is no field of vLLM's"


def test_pictures_that_the_engine_has_to_load_make_ids_worthless() -> None:
    parts = [{"type": "image_url", "url": "http://pictures/cat.png"}]
    assert of(GENERATE, token_ids=[1, 2], content_parts=parts).token_ids == ()
    assert of(GENERATE, token_ids=[1, 2], content_parts=None).token_ids == ([1, 2],)


def test_ids_that_will_be_truncated_are_not_the_prompt() -> None:
    inbound = of(COMPLETIONS, prompt=[1, 2, 3], truncate_prompt_tokens=2)
    assert (inbound.token_ids, inbound.has_text) == ((), True)


@pytest.mark.parametrize("path", [path for path, kind in PATHS.items() if kind is Kind.OPAQUE])
def test_other_bodies_are_asked_for_their_model_alone(path: str) -> None:
    assert of(path, prompt=[1, 2], input="x") == Inbound(Kind.OPAQUE, "m")


# What else matters


@pytest.mark.parametrize(("salt", "read_as"), [("s", "s"), ("", None), (None, None), (7, None)])
def test_a_salt_is_a_text_that_is_not_empty(salt: Any, read_as: str | None) -> None:
    assert of(COMPLETIONS, prompt=[1], cache_salt=salt).salt == read_as


@pytest.mark.parametrize(
    ("path", "fields", "reads_cache"),
    [
        (COMPLETIONS, {"prompt": [1]}, True),
        (COMPLETIONS, {"prompt": [1], "prompt_logprobs": 0}, False),
        (COMPLETIONS, {"prompt": [1], "echo": True}, True),
        (COMPLETIONS, {"prompt": [1], "logprobs": 3}, True),
        (COMPLETIONS, {"prompt": [1], "echo": True, "logprobs": 0}, False),
        (CHAT, {"messages": [], "echo": True, "top_logprobs": 2}, False),
        (CHAT, {"messages": [], "echo": True, "logprobs": True}, False),  # vLLM: top_logprobs is 0 unless it is said
        (CHAT, {"messages": [], "echo": True, "top_logprobs": None}, True),
        (GENERATE, {"token_ids": [1], "sampling_params": {"prompt_logprobs": 1}}, False),
        (GENERATE, {"token_ids": [1], "sampling_params": {"skip_reading_prefix_cache": True}}, False),
        (
            GENERATE,
            {"token_ids": [1], "sampling_params": {"skip_reading_prefix_cache": False, "prompt_logprobs": 1}},
            True,
        ),
        (GENERATE, {"token_ids": [1], "sampling_params": "odd"}, True),
    ],
)
def test_who_wants_the_prompts_probabilities_reads_no_cache(
    path: str, fields: dict[str, Any], reads_cache: bool
) -> None:
    assert of(path, **fields).reads_cache is reads_cache


@pytest.mark.parametrize(
    ("fields", "is_comparable"),
    [
        ({"n": 1}, True),
        ({"n": None}, True),
        ({"n": 2}, False),
        ({"n": []}, False),
        ({"n": {}}, False),
        ({"use_beam_search": True}, False),
        ({"sampling_params": {"n": 3}}, False),
        ({"sampling_params": {"n": [3]}}, False),
    ],
)
def test_several_samples_cannot_be_compared(fields: dict[str, Any], is_comparable: bool) -> None:
    assert of(COMPLETIONS, prompt=[1], **fields).is_comparable is is_comparable


def test_the_last_of_two_equal_fields_counts_as_it_does_in_vllm() -> None:
    assert read(COMPLETIONS, "application/json", b'{"model": "a", "model": "b", "prompt": [1]}').model == "b"


@pytest.mark.parametrize("path", PATHS)
def test_what_names_a_conversation_is_read_on_every_path(path: str) -> None:
    assert of(path, session_id="one").conversation == {"session_id": "one"}
    assert of(path, prompt_cache_key="two", session_id="").conversation == {"session_id": "", "prompt_cache_key": "two"}
    assert of(path).conversation == {}


@pytest.mark.parametrize("name", [b"null", b"7", b'["a"]', b'{"a":1}', b'"\xff"', b'"%b"' % (b"x" * MAX_NAME)])
def test_what_is_no_short_text_names_no_conversation_and_is_no_error(name: bytes) -> None:
    body = b'{"model":"m","messages":[],"session_id":%b,"prompt_cache_key":"k"}' % name
    assert read(CHAT, "application/json", body).conversation == {"prompt_cache_key": "k"}


def test_a_long_prompt_does_not_hide_its_conversation() -> None:
    body = b'{"prompt":%b,"session_id":"s"}' % json.dumps([7] * 4_000).encode()
    assert long(COMPLETIONS, body).conversation == {"session_id": "s"}


def test_a_model_may_be_left_out() -> None:
    assert read(COMPLETIONS, "application/json", b'{"prompt": [1]}').model is None


# What is refused


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "the body is not valid JSON"),
        (b"{", "the body is not valid JSON"),
        (b"[]", "the body must be a JSON object"),
        (b'"x"', "the body must be a JSON object"),
        (b'{"model": 3}', "model: expected a string"),
        (b'{"model": ["m"]}', "model: expected a string"),
        (b'{"model": "\xff"}', "the body is not valid JSON"),
        (b'{"prompt": ' + b"[" * 100_000, "the body is not valid JSON"),
    ],
)
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, "/v1/embeddings"])
def test_a_body_whose_model_cannot_be_read_is_refused(path: str, body: bytes, message: str) -> None:
    with pytest.raises(BadRequest, match=message) as told:
        read(path, "application/json", body)
    assert "\n" not in told.value.message


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
NAMES = st.sampled_from([field.encode_name for field in msgspec.structs.fields(openai._Body)])
BODIES = st.dictionaries(NAMES | st.text(), VALUES, max_size=6).map(lambda fields: json.dumps(fields).encode())


@given(
    st.sampled_from(sorted(PATHS)), st.binary() | BODIES, st.sampled_from(["application/json", "multipart/form-data"])
)
def test_no_body_gives_anything_but_a_refusal(path: str, body: bytes, content_type: str) -> None:
    try:
        inbound = read(path, content_type, body)
    except BadRequest:
        return
    assert inbound.model is None or isinstance(inbound.model, str)


@given(
    st.lists(st.integers(0, 2**32 - 1), min_size=1)
    | st.lists(st.lists(st.integers(0, 2**32 - 1), min_size=1), min_size=1)
)
def test_token_ids_come_through_as_they_are(prompt: list[Any]) -> None:
    ids = of(COMPLETIONS, prompt=prompt).token_ids
    assert list(ids) == ([prompt] if isinstance(prompt[0], int) else prompt)


FORM = "/v1/audio/transcriptions"
MODEL_PART = b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\n%s\r\n'


def form(*models: bytes) -> Inbound:
    body = b"".join(MODEL_PART % model for model in models) + b"--x--"
    return read(FORM, "multipart/form-data; boundary=x", body)


def test_a_form_says_its_model_in_a_part() -> None:
    assert form(b"whisper").model == "whisper"
    assert form(b"").model is form().model is None
    assert form(b"one", b"two").model == "two"


def test_a_form_with_a_model_that_is_too_long_is_refused() -> None:
    with pytest.raises(BadRequest, match="model"):
        form(b"m" * (forms.MAX_VALUE + 1))


def test_only_where_engines_take_forms_a_body_is_one() -> None:
    with pytest.raises(BadRequest, match="JSON"):
        read(COMPLETIONS, "multipart/form-data; boundary=x", MODEL_PART % b"m" + b"--x--")
    assert read(COMPLETIONS, "multipart/form-data; boundary=x", b'{"model":"m"}').model == "m"


# Huge bodies


def test_many_prompts_are_routed_by_load() -> None:
    assert len(of(COMPLETIONS, prompt=[[7]] * openai.MAX_PROMPTS).token_ids) == openai.MAX_PROMPTS
    more = of(COMPLETIONS, prompt=[[7]] * (openai.MAX_PROMPTS + 1))
    assert (more.token_ids, more.has_text) == ((), False)


def test_brackets_in_a_text_are_text() -> None:
    assert of(COMPLETIONS, prompt="[" * 1000).has_text
    assert of(COMPLETIONS, prompt=["[", "[" * 1000]).has_text


@pytest.mark.parametrize(("path", "name"), [(COMPLETIONS, "prompt"), (GENERATE, "token_ids")])
def test_a_prompt_of_many_megabytes_is_routed_by_load(path: str, name: str) -> None:
    ids = b"1234567," * (openai.MAX_PROMPT_BYTES // 8)
    assert read(path, "", b'{"%b":[%b1]}' % (name.encode(), ids[:-800])).token_ids
    huge = read(path, "", b'{"%b":[%b1]}' % (name.encode(), ids))
    assert (huge.token_ids, huge.has_text) == ((), False)


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, GENERATE])
def test_what_is_not_small_where_it_should_be_is_not_taken_apart(path: str) -> None:
    names = [
        field.encode_name for field in msgspec.structs.fields(openai._Body) if field.name not in {"prompt", "token_ids"}
    ]
    nested = b"[" + b"[]," * 100_000 + b"[]]"
    fields = [b'"%b":%b' % (name.encode(), nested) for name in names if name not in {"model", "sampling_params"}]
    fields.append(b'"sampling_params":{"n":%b}' % nested)
    body = b'{"model":"m",%b}' % b",".join(fields)
    tracemalloc.start()
    try:
        inbound = read(path, "application/json", body)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 100_000
    assert not inbound.is_comparable


def test_an_endless_name_is_no_model() -> None:
    assert read(COMPLETIONS, "", b'{"model":"%b"}' % (b"m" * 4000)).model == "m" * 4000
    with pytest.raises(BadRequest, match="model: expected a string"):
        read(COMPLETIONS, "", b'{"model":"%b"}' % (b"m" * openai.MAX_MODEL_BYTES))


# Long lists of ids


values = st.sampled_from(
    [
        "[1,2,3]",
        "[ 7 , 8 ]",
        "[1,2,]",
        "[1.5]",
        "[-1]",
        '["a]", 1]',
        "[[1,2],[3]]",
        "[]",
        "null",
        '"text"',
        "{}",
        "4702394921427289928",
    ]
)
names = st.sampled_from(
    [
        '"prompt"',
        '"token_ids"',
        '"x"',
        r'"\"prompt"',
        r'"\"token_ids"',
        '"truncate_prompt_tokens"',
        '"content_parts"',
        '"echo"',
    ]
)
fields_ = st.lists(st.tuples(names, values | st.sampled_from(['{"prompt": [4]}', '{"token_ids":[4]}'])), max_size=4)


@given(path=st.sampled_from([COMPLETIONS, GENERATE, CHAT]), fields=fields_, tail=st.sampled_from(["}", "", "]}", ",}"]))
def test_long_lists_are_read_as_short_ones_are(path: str, fields: list[tuple[str, str]], tail: str) -> None:
    body = ('{"model":"m"' + "".join(f", {name} : {value}" for name, value in fields) + tail).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(openai, "LONG", 1)
        try:
            expected = read(path, "application/json", body)
        except BadRequest as refused:
            with pytest.raises(BadRequest, match=re.escape(refused.message)):
                long(path, body)
        else:
            assert listed(long(path, body)) == listed(expected)


@pytest.mark.parametrize(("path", "name"), [(COMPLETIONS, "prompt"), (GENERATE, "token_ids")])
def test_a_long_list_is_not_taken_apart(path: str, name: str) -> None:
    (ids,) = long(path, json.dumps({"model": "m", name: list(range(5_000)), "echo": True}).encode()).token_ids
    assert isinstance(ids, TokenText)
    assert ids[4_998:] == [4_998, 4_999]


# Answers


@pytest.mark.parametrize(
    ("answer", "truth"),
    [
        (
            {
                "choices": [{"finish_reason": "length"}],
                "usage": {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}},
            },
            Truth(9, 4, 2, "length"),
        ),
        (
            {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": None}},
            Truth(9, None, 2),
        ),
        (
            {"usage": {"input_tokens": 9, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 4}}},
            Truth(9, 4, 2),
        ),
        (
            {"type": "response.completed", "response": {"usage": {"input_tokens": 9, "output_tokens": 2}}},
            Truth(9, None, 2),
        ),
        (
            {"usage": {"input_tokens": 5, "output_tokens": 2, "cache_read_input_tokens": 4}},
            Truth(9, 4, 2),
        ),
        ({"choices": [{"finish_reason": None}]}, Truth()),
        ({"usage": None}, Truth()),
        ({"usage": {"prompt_tokens": "many"}}, Truth()),
        ([], Truth()),
    ],
)
def test_usage_is_read_in_every_dialect(answer: Any, truth: Truth) -> None:
    assert read_answer(json.dumps(answer).encode()) == truth


@given(st.binary() | VALUES.map(lambda value: json.dumps(value).encode()))
def test_any_answer_can_be_read(body: bytes) -> None:
    read_answer(body)


@pytest.mark.parametrize("odd", ["\udcff", "a\nb\0c", "é"])
def test_an_error_can_say_anything(odd: str) -> None:
    told = json.loads(openai.error_body(UnknownModel(f"the model '{odd}' is not served here")))
    assert told["error"]["message"].startswith("the model '")
