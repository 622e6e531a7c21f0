"""``balancer/sse.py``: the same truth however the bytes are cut, and never more memory than the limits say."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.core import Truth
from balancer.sse import MAX_BODY, MAX_EVENT, BodyWatch, StreamWatch


def event(content: Any, name: str | None = None) -> bytes:
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + json.dumps(content, separators=(",", ":")).encode() + b"\n\n"


USAGE = {"prompt_tokens": 40, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 32}}
CHAT = (
    event({"choices": [{"delta": {"role": "assistant"}, "finish_reason": None}]})
    + event({"choices": [{"delta": {"content": 'the "usage":{ of words'}, "finish_reason": None}]})
    + b": a comment\n\n"
    + event({"choices": [{"delta": {}, "finish_reason": "stop"}]})
    + event({"choices": [], "usage": USAGE})
    + b"data: [DONE]\n\n"
)
MESSAGES = (
    event({"type": "message_start", "message": {"usage": {"input_tokens": 40, "output_tokens": 0}}}, "message_start")
    + event({"type": "content_block_delta", "delta": {"text": "hi"}}, "content_block_delta")
    + event(
        {
            "type": "message_delta",
            "usage": {"input_tokens": 8, "output_tokens": 3, "cache_read_input_tokens": 32},
        },
        "message_delta",
    )
    + event({"type": "message_stop"}, "message_stop")
)
RESPONSES = event({"type": "response.created", "response": {"usage": None}}, "response.created") + event(
    {
        "type": "response.completed",
        "response": {"usage": {"input_tokens": 40, "output_tokens": 3, "input_tokens_details": {"cached_tokens": 32}}},
    },
    "response.completed",
)
STREAMS = {
    "chat": (CHAT, Truth(40, 32, 3, "stop")),
    "messages": (MESSAGES, Truth(40, 32, 3)),
    "responses": (RESPONSES, Truth(40, 32, 3)),
}


def watch(*chunks: bytes) -> StreamWatch:
    made = StreamWatch()
    for chunk in chunks:
        made.feed(chunk)
    return made


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_says_its_usage_and_its_end(name: str) -> None:
    stream, truth = STREAMS[name]
    seen = watch(stream)
    assert seen.truth() == truth
    assert seen.is_done


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_cut_short_is_not_done(name: str) -> None:
    assert not watch(STREAMS[name][0][:-25]).is_done


@given(st.sampled_from(sorted(STREAMS)), st.lists(st.integers(0, 700)), st.booleans())
def test_any_chunking_gives_the_same_truth(name: str, cuts: list[int], has_carriage_returns: bool) -> None:
    stream, truth = STREAMS[name]
    if has_carriage_returns:
        stream = stream.replace(b"\n", b"\r\n")
    edges = [0, *sorted(cuts), len(stream)]
    seen = watch(*(stream[start:end] for start, end in pairwise(edges)))
    assert seen.truth() == truth
    assert seen.is_done


def padded(size: int) -> bytes:
    """An event with usage in one line of exactly ``size`` bytes."""
    line = event({"usage": USAGE, "pad": ""}).rstrip(b"\n")
    return line[:-2] + b"x" * (size - len(line)) + line[-2:] + b"\n\n"


@pytest.mark.parametrize("step", [100_000, MAX_EVENT + 1, 4 * MAX_EVENT])
@pytest.mark.parametrize(("size", "is_read"), [(MAX_EVENT, True), (MAX_EVENT + 1, False), (3 * MAX_EVENT, False)])
def test_an_event_over_the_limit_passes_unread_however_it_is_cut(step: int, size: int, is_read: bool) -> None:
    stream = padded(size)
    seen = watch(*(stream[at : at + step] for at in range(0, len(stream), step)))
    assert seen.truth() == (Truth(40, 32, 3) if is_read else Truth())


def test_the_rest_of_an_event_over_the_limit_is_not_taken_for_an_event() -> None:
    seen = watch(b"data: " + b"x" * MAX_EVENT, event({"usage": USAGE}))
    assert seen.truth() == Truth()


def test_what_follows_an_event_over_the_limit_is_read() -> None:
    stream = padded(2 * MAX_EVENT + 7) + CHAT
    seen = watch(*(stream[at : at + 65_536] for at in range(0, len(stream), 65_536)))
    assert seen.truth() == Truth(40, 32, 3, "stop")


def test_a_stream_without_line_ends_takes_no_memory() -> None:
    seen = watch(*[b"x" * 65_536] * 64)
    assert sum(len(part) for part in seen._parts) <= MAX_EVENT


def test_a_long_event_in_small_pieces_costs_no_more_than_its_length() -> None:
    """Kept in pieces until its end: joining at every piece would copy a megabyte tens of thousands of times."""
    seen = watch(*[b"x" * 16] * 1000)
    assert len(seen._parts) == 1000


def test_what_comes_before_the_prompt_is_computed_is_no_output() -> None:
    seen = watch(event({"type": "response.created"}), event({"type": "response.in_progress"}))
    assert not seen.has_output
    seen.feed(event({"type": "response.output_text.delta", "delta": "x"}))
    assert seen.has_output


def test_an_error_in_the_stream_is_no_success_although_it_ends_well() -> None:
    seen = watch(event({"error": {"message": "EngineCore encountered an issue"}}), b"data: [DONE]\n\n")
    assert seen.has_failed
    assert not watch(CHAT).has_failed


@given(st.lists(st.binary()))
def test_no_bytes_upset_the_watch(chunks: list[bytes]) -> None:
    watch(*chunks).truth()


def test_a_body_is_read_from_its_chunks() -> None:
    body = json.dumps({"usage": USAGE, "choices": [{"finish_reason": "stop"}]}).encode()
    seen = BodyWatch()
    for at in range(0, len(body), 7):
        seen.feed(body[at : at + 7])
    assert seen.truth() == Truth(40, 32, 3, "stop")


def test_a_body_over_the_limit_is_not_kept() -> None:
    seen = BodyWatch()
    for _ in range(MAX_BODY // (1 << 20) + 3):
        seen.feed(b"x" * (1 << 20))
    assert seen._chunks == []
    assert seen.truth() == Truth()


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_has_ended_with_its_last_byte_and_not_before(name: str) -> None:
    whole, _ = STREAMS[name]
    seen = StreamWatch()
    for at in range(len(whole)):
        assert not seen.has_ended, whole[:at]
        seen.feed(whole[at : at + 1])
    assert seen.has_ended


def test_what_follows_the_end_is_no_end() -> None:
    assert watch(b"data: [DONE]\r\n\r\n").has_ended
    assert not watch(b"data: [DONE]\n\n", b'data: {"choices":[]}\n').has_ended
