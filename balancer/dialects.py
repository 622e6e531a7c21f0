"""What the APIs that are forwarded have each in a form of its own: the error in the middle of a stream.

Knows the three forms. Never knows when there is an error.
"""

from typing import Any, Final

import msgspec

from balancer.errors import RequestError
from balancer.openai import error_body, message_of

MESSAGES: Final = "/v1/messages"
RESPONSES: Final = "/v1/responses"


def error_event(path: str, error: RequestError) -> bytes:
    """The last event of a stream of ``path`` that has failed; no ``[DONE]``, or whatever else says whole, follows it."""
    if path == MESSAGES:
        return _event({"type": "error", "error": {"type": "api_error", "message": message_of(error)}})
    if path == RESPONSES:
        return _event({"type": "error", "code": error.code, "message": message_of(error), "param": error.param})
    return b"data: " + error_body(error) + b"\n\n"


def _event(data: dict[str, Any]) -> bytes:
    return b"event: error\ndata: " + msgspec.json.encode(data) + b"\n\n"
