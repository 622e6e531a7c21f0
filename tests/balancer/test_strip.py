"""``balancer/strip.py``: the one thing that is taken out of a client's body, and nothing else."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.strip import REPORT_MODE, without_report_mode

ASKED = {REPORT_MODE: "full", "other": [1.5]}


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
    ],
)
def test_the_report_mode_is_taken_out_wherever_engines_read_it(body: dict[str, Any], left: dict[str, Any]) -> None:
    assert json.loads(without_report_mode(json.dumps(body).encode())) == left


def test_escapes_do_not_hide_it() -> None:
    body = b'{"vllm_x\\u0061rgs":{"kv_cache_report_mod\\u0065":"full"}}'
    assert json.loads(without_report_mode(body)) == {"vllm_xargs": {}}


def test_the_last_of_two_keys_counts_as_it_does_for_the_engine() -> None:
    body = b'{"vllm_xargs":{"a":1},"vllm_xargs":{"kv_cache_report_mode":"full"}}'
    assert json.loads(without_report_mode(body)) == {"vllm_xargs": {}}


def test_other_fields_keep_their_bytes() -> None:
    body = (
        b'{"seed":123456789012345678901234567890,"t":1.10, "vllm_xargs":{"kv_cache_report_mode":"full"}, "x":{"b":  2}}'
    )
    stripped = without_report_mode(body)
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
        b"[1, 2] kv_cache_report_mode",
        b"",
    ],
)
def test_bodies_without_it_are_the_very_same_bytes(body: bytes) -> None:
    assert without_report_mode(body) is body


@given(st.binary())
def test_no_body_upsets_it(body: bytes) -> None:
    without_report_mode(body + b"kv_cache_report_mode")
