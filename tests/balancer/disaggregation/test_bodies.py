"""``balancer/disaggregation/bodies.py``: one token on the prefill leg whatever the client says, then its own words."""

import json
from typing import Any

import msgspec
import pytest

from balancer.disaggregation.bodies import can_split, decode_body, prefill_body, read_answered, releasing_body
from balancer.disaggregation.plan import Answered, Leg
from balancer.strip import members

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
GENERATE = "/inference/v1/generate"
LEG = Leg({"do_remote_decode": True})
CLIENT = {
    "model": "m",
    "stream": True,
    "stream_options": {"include_usage": True},
    "min_tokens": 50,
    "n": 3,
    "stop": ["x"],
    "logprobs": True,
    "top_logprobs": 5,
    "temperature": 0.7,
    "seed": 12345678901234567890,
}


def prefill(path: str, fields: dict[str, Any], leg: Leg = LEG) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(prefill_body(path, members(json.dumps(fields).encode()), leg))
    return made


@pytest.mark.parametrize(
    ("path", "limits", "expected"),
    [
        (COMPLETIONS, {"max_tokens": 500}, {"max_tokens": 1}),
        (COMPLETIONS, {}, {"max_tokens": 1}),
        (CHAT, {"max_completion_tokens": 500}, {"max_tokens": 1, "max_completion_tokens": 1}),
        (CHAT, {"max_tokens": 9, "max_completion_tokens": None}, {"max_tokens": 1, "max_completion_tokens": None}),
        (CHAT, {}, {"max_tokens": 1}),
        ("/v1/responses", {"max_output_tokens": 500}, {"max_output_tokens": 1, "store": False}),
        ("/v1/messages", {"max_tokens": 500}, {"max_tokens": 1}),
    ],
)
def test_the_prefill_leg_has_one_token_whatever_limits_the_client_sets(
    path: str, limits: dict[str, Any], expected: dict[str, Any]
) -> None:
    made = prefill(path, {**CLIENT, **limits})
    assert made == {
        "model": "m",
        "stream": False,
        "temperature": 0.7,
        "seed": 12345678901234567890,
        "kv_transfer_params": {"do_remote_decode": True},
        **expected,
    }


def test_the_limits_of_tokens_in_are_within_its_sampling() -> None:
    sampling = {"max_tokens": 500, "min_tokens": 50, "n": 2, "prompt_logprobs": 1, "temperature": 0.0}
    made = prefill(GENERATE, {"token_ids": [1, 2], "sampling_params": sampling, "stream": True}, Leg())
    assert made == {"token_ids": [1, 2], "sampling_params": {"max_tokens": 1, "temperature": 0.0}, "stream": False}
    bare = prefill(GENERATE, {"token_ids": [1]}, Leg(ends_by_length=True))
    assert bare["sampling_params"] == {"max_tokens": 1, "ignore_eos": True}


def test_what_templates_read_stays_on_the_prefill_leg() -> None:
    kept = {
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "tool_choice": "required",
        "response_format": {"type": "json_object"},
        "chat_template_kwargs": {"thinking": True},
        "reasoning_effort": "high",
        "cache_salt": "pepper",
    }
    made = prefill(CHAT, {"messages": [], **kept, "echo": True, "structured_outputs": {"json": {}}})
    assert {name: made[name] for name in kept} == kept
    assert not {"echo", "structured_outputs"} & made.keys()


def test_a_leg_may_have_to_end_by_length_and_to_name_its_tokens() -> None:
    made = prefill(CHAT, {"stop_token_ids": [7], "ignore_eos": False}, Leg(ends_by_length=True, returns_tokens=True))
    assert made["ignore_eos"] is True
    assert "stop_token_ids" not in made
    assert made["return_token_ids"] is True


@pytest.mark.parametrize("body", [b'{"model":"m",  "max_tokens" : 7}', b'{"model":"m",  "max_tokens" : 7} \r\n'])
def test_the_decode_leg_is_the_clients_own_body_and_what_the_prefill_said(body: bytes) -> None:
    params = msgspec.Raw(b'{"remote_port":5600, "new_in_0.40": [1]}')
    made = decode_body(body, members(body), Leg(params))
    assert made == b'{"model":"m",  "max_tokens" : 7,"kv_transfer_params":{"remote_port":5600, "new_in_0.40": [1]}}'
    assert decode_body(body, members(body), Leg()) is body


def test_parameters_of_the_client_never_mix_with_ours() -> None:
    body = b'{"kv_transfer_params":null,"model":"m","kv_transfer_params":null}'
    made = decode_body(body, members(body), Leg({"a": 1}))
    assert made == b'{"model":"m","kv_transfer_params":{"a":1}}'
    assert decode_body(b"{}", {}, Leg({"a": 1})) == b'{"kv_transfer_params":{"a":1}}'
    assert b"evil" not in prefill_body(COMPLETIONS, members(b'{"kv_transfer_params":{"evil":1}}'), Leg())


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        (CHAT, b'{"messages":[]}', True),
        (CHAT, b'{"messages":[],"kv_transfer_params":null}', True),
        (CHAT, b'{"messages":[],"kv_transfer_params":{"do_remote_prefill":true}}', False),
        ("/v1/responses", b'{"previous_response_id":"r"}', False),
        ("/v1/embeddings", b"{}", False),
        (COMPLETIONS, b'{"prompt":[1,2]}', True),
        (COMPLETIONS, b'{"prompt":[ [1,2],[3]]}', False),
        (COMPLETIONS, b'{"prompt":["a","b"]}', False),
    ],
)
def test_what_cannot_be_computed_elsewhere_is_not_split(path: str, body: bytes, expected: bool) -> None:
    assert can_split(path, members(body)) is expected


def test_several_prompts_can_be_split_where_each_can_be_fetched_by_itself() -> None:
    assert can_split(COMPLETIONS, members(b'{"prompt":["a","b"]}'), shares=True)


def test_an_answer_says_what_it_takes_to_fetch_its_blocks() -> None:
    usage = '"usage":{"prompt_tokens":9,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":4}}'
    body = f'{{"kv_transfer_params":{{"a" : 1}},"choices":[{{"finish_reason":"length","prompt_token_ids":[1,2]}}],{usage}}}'
    assert read_answered(body.encode()) == Answered(
        msgspec.Raw(b'{"a" : 1}'), msgspec.Raw(b"[1,2]"), prompt_tokens=9, cached_tokens=4, finish_reason="length"
    )
    chat = read_answered(b'{"kv_transfer_params":null,"prompt_token_ids":[3],"choices":[{}]}')
    assert chat == Answered(None, msgspec.Raw(b"[3]"))
    assert read_answered(b'{"kv_transfer_params":{}}') == Answered()
    for broken in (b"", b"[]", b"\xff", b'{"choices":3}'):
        assert read_answered(broken) is None


def test_a_release_names_a_model_that_nobody_serves() -> None:
    made = json.loads(releasing_body(Leg(msgspec.Raw(b'{"remote_port":1}'))))
    assert made["kv_transfer_params"] == {"remote_port": 1}
    assert " " in made["model"]
