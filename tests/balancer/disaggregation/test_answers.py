"""``balancer/disaggregation/answers.py``: nothing in an answer tells that two engines have made it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.disaggregation.answers import AnswerFilter

LEG_ID, OWN_ID = b"___prefill_addr_10.0.0.1:1___decode_addr_10.0.0.2:1_0f", b"mine"
DETAILS = b'{"prompt_tokens":100,"prompt_tokens_details":{"cached_tokens":0,"new":1}}'


def whole(body: bytes, **how: object) -> bytes:
    made = AnswerFilter(is_stream=False, **how)  # type: ignore[arg-type]
    return made.feed(body[:5], is_last=False) + made.feed(body[5:], is_last=True)


def test_parameters_of_a_transfer_never_reach_the_client() -> None:
    body = (
        b'{"id":"1","choices":[{"text":"kv_transfer_params"}],"kv_transfer_params":{"remote_host":"10.0.0.1"},"x": 1}'
    )
    told = json.loads(whole(body))
    assert told == {"id": "1", "choices": [{"text": "kv_transfer_params"}], "kv_transfer_params": None, "x": 1}


def test_an_answer_with_nothing_to_hide_keeps_its_bytes() -> None:
    body = b'{"id" :"1", "kv_transfer_params": null,  "usage":{"prompt_tokens":1}}'
    assert whole(body, cached_tokens=3) == body
    broken = b'{"kv_transfer_params":{"a'
    assert whole(broken) == broken


def test_cached_tokens_are_those_of_the_engine_that_computed_the_prompt() -> None:
    told = json.loads(whole(b'{"usage":%b,"kv_transfer_params":null}' % DETAILS, cached_tokens=64))
    assert told["usage"]["prompt_tokens_details"] == {"cached_tokens": 64, "new": 1}
    unknown = b'{"usage":%b}' % DETAILS
    assert whole(unknown) == unknown
    without = b'{"usage":{"prompt_tokens":9,"prompt_tokens_details":null}}'
    assert whole(without, cached_tokens=64) == without, "an engine that does not tell them alone does not here"


def test_the_dialects_of_anthropic_and_of_responses_have_them_elsewhere() -> None:
    usage = b'{"input_tokens":100,"output_tokens":7,"cache_creation_input_tokens":0,"cache_read_input_tokens":0}'
    told = json.loads(whole(b'{"usage":%b}' % usage, cached_tokens=64))["usage"]
    assert (told["input_tokens"], told["cache_read_input_tokens"]) == (36, 64)
    event = b'data: {"type":"response.completed","response":{"usage":{"input_tokens_details":{"cached_tokens":0}}}}\n\n'
    made = AnswerFilter(is_stream=True, cached_tokens=64).feed(event, is_last=True)
    assert json.loads(made[6:])["response"]["usage"]["input_tokens_details"]["cached_tokens"] == 64
    delta = b'data: {"type":"message_delta","delta":{"kv_transfer_params":{"a":1}}}\n\n'
    assert b'"a"' not in AnswerFilter(is_stream=True).feed(delta, is_last=True)


STREAM = (
    b'event: x\ndata: {"id":"cmpl-%b","choices":[{"text":"a"}]}\n\n'
    b': comment\r\n\r\ndata: {"id":"cmpl-%b","choices":[],"usage":%b}\n\ndata: [DONE]\n\n' % (LEG_ID, LEG_ID, DETAILS)
)


@given(st.lists(st.integers(1, len(STREAM) - 1), unique=True).map(sorted))
def test_a_stream_may_be_cut_anywhere(cuts: list[int]) -> None:
    made = AnswerFilter(is_stream=True, ids=(LEG_ID, OWN_ID), cached_tokens=64)
    pieces = [STREAM[a:b] for a, b in zip([0, *cuts], [*cuts, len(STREAM)], strict=True)]
    got = b"".join([made.feed(each, is_last=False) for each in pieces]) + made.feed(b"", is_last=True)
    assert b"prefill_addr" not in got
    assert got.count(b"cmpl-mine") == 2
    assert b'"cached_tokens":64' in got
    assert got.startswith(b"event: x\ndata: ")
    assert got.endswith(b"data: [DONE]\n\n")
    assert b": comment\r\n\r\n" in got


def test_a_stream_goes_out_line_by_line_as_it_comes() -> None:
    made = AnswerFilter(is_stream=True)
    assert made.feed(b'data: {"a"', is_last=False) == b""
    assert made.feed(b":1}\n\nda", is_last=False) == b'data: {"a":1}\n\n'
    assert made.feed(b"ta: 2", is_last=True) == b"data: 2"


@pytest.mark.parametrize("is_stream", [True, False])
def test_how_many_were_cached_may_be_known_late(is_stream: bool) -> None:
    made = AnswerFilter(is_stream=is_stream)
    made.feed(b"data: 1\n" if is_stream else b"", is_last=False)
    made.cached_tokens = 64
    line = (b"data: " if is_stream else b"") + b'{"usage":%b}' % DETAILS
    assert b'"cached_tokens":64' in made.feed(line, is_last=True)
