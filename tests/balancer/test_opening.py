"""``balancer/opening.py``: an answer of an engine that drains is known before the client has a byte, others pass."""

import pytest

from balancer.opening import MAX_HELD, Opening, of_body, of_stream

ROLE = b'data: {"id":"1","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
ABORT = b'data: {"id":"1","choices":[{"index":0,"delta":{"content":""},"logprobs":null,"finish_reason":"abort"}]}\n\n'
TOKEN = b'data: {"id":"1","choices":[{"index":0,"delta":{"content":"Hi"},"logprobs":null,"finish_reason":null}]}\n\n'
TEXT = b'data: {"id":"1","choices":[{"index":0,"text":"Hi","logprobs":null,"finish_reason":null}]}\n\n'
CREATED = b'event: response.created\ndata: {"type":"response.created","sequence_number":0,"response":{"output":[]}}\n\n'
START = b'event: message_start\ndata: {"type":"message_start","message":{"role":"assistant","stop_reason":null}}\n\n'
FULL = b'{"id":"1","choices":[{"index":0,"text":"","finish_reason":"abort"}],"usage":{"completion_tokens":0}}'
MESSAGE = b'{"id":"1","type":"message","role":"assistant","content":[{"type":"text","text":""}],"stop_reason":null}'


@pytest.mark.parametrize("body", [FULL, FULL.replace(b":", b": "), MESSAGE])
def test_a_plain_answer_that_was_aborted_is_known_when_it_is_whole(body: bytes) -> None:
    assert of_body(body, is_whole=True) is Opening.ABORTED
    assert of_body(body[:-1], is_whole=False) is Opening.UNSAID


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        FULL.replace(b"abort", b"stop"),
        MESSAGE.replace(b"null", b'"end_turn"'),
        FULL.replace(b"abort", b"stop").replace(b'"text":""', rb'"text":"{\"finish_reason\":\"abort\"}"'),
    ],
)
def test_every_other_plain_answer_is_the_clients(body: bytes) -> None:
    assert of_body(body, is_whole=True) is Opening.BEGUN


@pytest.mark.parametrize("opening", [b"", ROLE, b"\n", b"event: x\n"])
def test_a_stream_that_is_aborted_at_once_is_known(opening: bytes) -> None:
    whole = opening + ABORT + b"data: [DONE]\n\n"
    assert of_stream(whole, is_whole=True) is Opening.ABORTED
    at = len(opening) + ABORT.index(b"\n") + 1
    for cut in range(at):
        assert of_stream(whole[:cut], is_whole=False) is Opening.UNSAID
    assert of_stream(whole[:at], is_whole=False) is Opening.ABORTED


@pytest.mark.parametrize("opening", [ROLE, CREATED, START])
@pytest.mark.parametrize("output", [TOKEN, TEXT, b'data: {"error":{}}\n', b"data: [DONE]\n", b": ping\n"])
def test_a_stream_passes_with_its_first_output(opening: bytes, output: bytes) -> None:
    assert of_stream(opening, is_whole=False) is Opening.UNSAID
    assert of_stream(opening + output, is_whole=False) is Opening.BEGUN
    assert of_stream(opening + output + ABORT, is_whole=False) is Opening.BEGUN


@pytest.mark.parametrize("of", [of_body, of_stream])
def test_nothing_is_held_without_end(of: object) -> None:
    assert of(b"data: " + b"x" * MAX_HELD, is_whole=False) is Opening.BEGUN  # type: ignore[operator]
    assert of_stream(ROLE, is_whole=True) is Opening.BEGUN
