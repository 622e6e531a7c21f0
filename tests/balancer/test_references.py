"""``balancer/references.py``: names of what an engine keeps are found wherever it would look, and words of clients are not."""

import json
from typing import Any

import pytest

from balancer.errors import BadRequest
from balancer.references import named

IMAGE = {"type": "image_url", "image_url": None, "uuid": "theirs"}
CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("path", "fields", "found"),
    [
        (CHAT, {"messages": [{"role": "user", "content": [IMAGE]}]}, "uuid"),
        (f"{CHAT}/batch", {"messages": [[{"role": "user", "content": [IMAGE]}]]}, "uuid"),
        ("/inference/v1/generate", {"content_parts": [{"type": "image_url", "url": None, "uuid": "x"}]}, "uuid"),
        ("/inference/v1/generate", {"features": {"mm_hashes": {"image": ["x"]}}}, "features"),
        ("/v1/embeddings", {"input": [{"role": "user", "content": [IMAGE]}]}, "uuid"),
        ("/v1/score", {"data_1": {"content": [IMAGE]}}, "uuid"),
        ("/v1/responses", {"previous_response_id": "resp_1"}, "previous_response_id"),
        (CHAT, {"messages": [{"content": 'is "uuid": a name? {"uuid": 1}'}]}, None),
        (CHAT, {"messages": [{"content": 'é \\"uuid\\": \\\\"uuid": x'}]}, None),
        (CHAT, {"tools": [{"function": {"parameters": {"properties": {"uuid": {"type": "string"}}}}}]}, None),
        ("/v1/messages", {"messages": [{"content": [{"type": "tool_use", "input": {"uuid": "mine"}}]}]}, None),
        ("/v1/responses", {"previous_response_id": None}, None),
        (CHAT, {"messages": ["uuid", ["uuid"]], "uuid ": 1}, None),
    ],
)
def test_names_are_found_and_words_are_not(path: str, fields: dict[str, Any], found: str | None) -> None:
    for ascii_only in (True, False):
        assert named(path, json.dumps(fields, ensure_ascii=ascii_only).encode()) == found


@pytest.mark.parametrize("name", [b"\\u0075uid", b"uui\\u0064", b"\\u0075\\u0075\\u0069\\u0064"])
def test_escapes_and_blanks_do_not_hide_a_name(name: bytes) -> None:
    assert named(CHAT, b'{"messages":[{"content":[{"%s" \n : "x"}]}]}' % name) == "uuid"


def test_what_cannot_be_read_is_refused() -> None:
    with pytest.raises(BadRequest):
        named(CHAT, b'{"\xed\xa0\x80":1,"uuid":1}')
