"""``balancer/strip.py``: what is taken out and put in, and that nothing else changes."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.errors import BadRequest
from balancer.strip import with_field, without

REPORT_MODE = "kv_cache_report_mode"
PLACES = (("vllm_xargs", REPORT_MODE), ("sampling_params", "extra_args", REPORT_MODE), ("kv_transfer_params",))
ASKED = {REPORT_MODE: "full", "other": [1.5]}

NAMES = st.sampled_from(["cache_salt", "a", "é", '"', "{", "}", "\\", ""])
VALUES = st.recursive(
    st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
)
OBJECTS = st.dictionaries(NAMES, VALUES)


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ({"prompt": [1], "vllm_xargs": ASKED}, {"prompt": [1], "vllm_xargs": {"other": [1.5]}}),
        (
            {"token_ids": [1], "sampling_params": {"max_tokens": 1, "extra_args": ASKED}},
            {"token_ids": [1], "sampling_params": {"max_tokens": 1, "extra_args": {"other": [1.5]}}},
        ),
        (
            {"vllm_xargs": {REPORT_MODE: "full"}, "sampling_params": {"extra_args": {REPORT_MODE: "full"}}},
            {"vllm_xargs": {}, "sampling_params": {"extra_args": {}}},
        ),
        ({"kv_transfer_params": {"remote_host": "evil"}, "a": 1}, {"a": 1}),
    ],
)
def test_fields_are_taken_out_wherever_they_are(body: dict[str, Any], left: dict[str, Any]) -> None:
    assert json.loads(without(json.dumps(body).encode(), PLACES)) == left


def test_escapes_do_not_hide_a_field() -> None:
    body = b'{"vllm_x\\u0061rgs":{"kv_cache_report_mod\\u0065":"full"}}'
    assert json.loads(without(body, PLACES)) == {"vllm_xargs": {}}


def test_of_two_keys_the_last_one_counts_as_it_does_for_the_engine_and_neither_is_left() -> None:
    body = b'{"kv_transfer_params":null,"vllm_xargs":{"a":1},"vllm_xargs":{"kv_cache_report_mode":"full"},'
    body += b'"kv_transfer_params":{}}'
    assert without(body, PLACES) == b'{"vllm_xargs":{}}'


def test_other_fields_keep_their_bytes() -> None:
    body = (
        b'{"seed":123456789012345678901234567890,"t":1.10, "vllm_xargs":{"kv_cache_report_mode":"full"}, "x":{"b":  2}}'
    )
    stripped = without(body, PLACES)
    assert b'"seed":123456789012345678901234567890' in stripped
    assert b'"t":1.10' in stripped
    assert b'{"b":  2}' in stripped


@pytest.mark.parametrize(
    "body",
    [
        b'{"prompt":"kv_cache_report_mode"}',
        b'{"messages":[{"content":"\\u00e9"}] ,  "x":1}',
        b'{"kv_cache_report_mode":"full"}',  # engines do not read it there
        b'{"vllm_xargs":"kv_cache_report_mode"}',
        b'{"sampling_params":[{"extra_args":{"kv_cache_report_mode":1}}]}',
        b"[1, 2]",
    ],
)
def test_bodies_without_them_are_the_very_same_bytes(body: bytes) -> None:
    assert without(body, PLACES) is body


@pytest.mark.parametrize("text", [b'"\xed\xa0\x80":1', b'"vllm_xargs":{"\xed\xa0\x80":1}'])
def test_what_the_engine_can_read_and_we_cannot_is_refused(text: bytes) -> None:
    body = b"{" + text + b',"kv_transfer_params":{"remote_host":"evil"}}'
    assert json.loads(body)["kv_transfer_params"]  # Python takes surrogates in UTF-8
    with pytest.raises(BadRequest, match="JSON"):
        without(body, PLACES)


@given(OBJECTS, st.text(), st.sampled_from(["", " ", "\r\n\t"]))
def test_a_salt_is_put_in_and_counts_whatever_the_client_has_sent(
    fields: dict[str, Any], salt: str, blank: str
) -> None:
    plain = json.dumps(fields).encode()
    body = (blank + blank.join(["{", plain[1:-1].decode(), "}"]) + blank).encode()
    salted = with_field(body, "cache_salt", salt)
    assert json.loads(salted) == {**fields, "cache_salt": salt}
    head = body.rstrip()[:-1]
    assert salted.startswith(head)


@given(OBJECTS)
def test_a_clients_salt_can_be_taken_out_first(fields: dict[str, Any]) -> None:
    body = with_field(without(json.dumps(fields).encode(), [("cache_salt",)]), "cache_salt", "ours")
    pairs = json.loads(body, object_pairs_hook=list)
    assert [value for name, value in pairs if name == "cache_salt"] == ["ours"]


@given(st.binary())
def test_no_body_upsets_it(body: bytes) -> None:
    with contextlib.suppress(BadRequest):
        assert without(body, PLACES) is not None


@pytest.mark.parametrize(
    "body", [b'{"a":1.50}', b' { "a": 1.50 }\r\n', b'{"kv_transfer_params": null, "a": 1.50}', b"{}", b"{ }"]
)
def test_an_object_goes_behind_all_other_bytes_and_counts(body: bytes) -> None:
    made = with_field(body, "kv_transfer_params", {"max_load_tokens": 0, "kv_load_tiers": []})
    assert made.startswith(body.rstrip(b" \r\n")[:-1])
    assert json.loads(made) == {**json.loads(body), "kv_transfer_params": {"max_load_tokens": 0, "kv_load_tiers": []}}
