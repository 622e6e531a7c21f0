"""What the APIs that are forwarded have each in a form of its own: errors, before an answer and in the middle of a stream.

Knows the forms. Never knows when there is an error.
"""

from typing import Any, Final

import msgspec

from balancer.errors import RequestError
from balancer.openai import error_body, message_of

MESSAGES: Final = "/v1/messages"
RESPONSES: Final = "/v1/responses"


_ANTHROPIC: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
"""By status, what Anthropic's API calls an error; all others are an ``api_error``."""


def error_answer(path: str, error: RequestError) -> bytes:
    """The body of an error that is told instead of an answer of ``path``: Anthropic's clients look for a type, too."""
    if path != MESSAGES:
        return error_body(error)
    kind = _ANTHROPIC.get(error.status, "api_error")
    told = {"type": kind, "message": message_of(error), "param": error.param, "code": error.code}
    return msgspec.json.encode({"type": "error", "error": told})


def error_event(path: str, error: RequestError) -> bytes:
    """The last event of a stream of ``path`` that has failed; no ``[DONE]``, or whatever else says whole, follows it."""
    if path == MESSAGES:
        return _event({"type": "error", "error": {"type": "api_error", "message": message_of(error)}})
    if path == RESPONSES:
        return _event({"type": "error", "code": error.code, "message": message_of(error), "param": error.param})
    return b"data: " + error_body(error) + b"\n\n"


def _event(data: dict[str, Any]) -> bytes:
    return b"event: error\ndata: " + msgspec.json.encode(data) + b"\n\n"
