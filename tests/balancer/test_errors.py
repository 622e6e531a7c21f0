"""``balancer/errors.py``: each error that reaches a client has a status and a type that clients know."""

import json

import pytest

from balancer import errors, openai
from balancer.errors import BalancerError, ConfigError, RequestError

STATUS = {
    "BadRequest": 400,
    "PromptTooLong": 400,
    "Unauthorized": 401,
    "Forbidden": 403,
    "UnknownModel": 404,
    "UnknownInstance": 404,
    "UnknownPath": 404,
    "Conflict": 409,
    "BodyTooLarge": 413,
    "UnknownEncoding": 415,
    "HeadTooLarge": 431,
    "RateLimited": 429,
    "Saturated": 429,
    "UpstreamFailed": 502,
    "Contended": 429,
    "NoReplica": 503,
    "NoBrain": 503,
    "UpstreamTimeout": 504,
}


def request_errors() -> dict[str, type[RequestError]]:
    return {each.__name__: each for each in RequestError.__subclasses__()}


def test_every_error_has_its_status() -> None:
    assert {name: each.status for name, each in request_errors().items()} == STATUS


def test_a_message_that_names_replicas_has_one_that_does_not() -> None:
    for name in ("UpstreamFailed", "UpstreamTimeout"):
        error = request_errors()[name]("replica 10.0.0.1:8000 has failed", retry_after=2).without_names()
        assert (error.status, error.retry_after, "10.0.0.1" in error.message) == (STATUS[name], 2, False)
    plain = errors.BadRequest("the body is no JSON")
    assert plain.without_names() is plain


@pytest.mark.parametrize("name", STATUS)
def test_every_error_has_the_openai_shape(name: str) -> None:
    error = request_errors()[name]("the reason", param="model")
    body = json.loads(openai.error_body(error))
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"] == "the reason"
    assert body["error"]["param"] == "model"
    assert body["error"]["type"].endswith("_error")


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    assert errors.__doc__ is not None
    for name, status in STATUS.items():
        line = next(line for line in errors.__doc__.splitlines() if f"-- {name} " in line)
        assert str(status) in line


def test_one_clause_catches_all_of_ours() -> None:
    assert issubclass(ConfigError, BalancerError)
    assert issubclass(RequestError, BalancerError)
