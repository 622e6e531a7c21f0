"""``balancer/dialects.py``: each API is told of errors as its own clients know them."""

import json

import pytest

from balancer.dialects import error_answer
from balancer.errors import BadRequest, NoReplica, RateLimited, RequestError, Unauthorized, UnknownModel, UpstreamFailed
from balancer.openai import error_body


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (BadRequest("no", param="messages"), "invalid_request_error"),
        (Unauthorized("who?"), "authentication_error"),
        (UnknownModel("m?", param="model"), "not_found_error"),
        (RateLimited("slower", retry_after=1), "rate_limit_error"),
        (NoReplica("later", retry_after=2), "overloaded_error"),
        (UpstreamFailed("gone"), "api_error"),
    ],
)
def test_messages_are_refused_in_anthropics_form(error: RequestError, kind: str) -> None:
    told = json.loads(error_answer("/v1/messages", error))
    assert told["type"] == "error"
    assert told["error"] == {"type": kind, "message": error.message, "param": error.param, "code": error.code}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/completions", ""])
def test_all_others_are_refused_in_openais(path: str) -> None:
    error = BadRequest("no", param="prompt")
    assert error_answer(path, error) == error_body(error)
