"""``balancer/conversations.py``: what names a conversation, and that no two of them share a number."""

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.conversations import Conversations, SessionSettings, numbered
from balancer.errors import ConfigError
from balancer.settings import convert, load

PLAIN = Conversations(SessionSettings())


def test_a_header_or_a_field_names_it() -> None:
    number = PLAIN.number({b"x-session-id": b"one"}, {}, "t")
    assert 0 < number < 2**64
    assert PLAIN.number({}, {"session_id": "one"}, "t") == number
    assert PLAIN.number({}, {"prompt_cache_key": "one"}, "t") == number
    assert PLAIN.number({b"x-session-id": b"two"}, {}, "t") != number


@pytest.mark.parametrize("headers", [{}, {b"x-session-id": b""}, {b"x-request-id": b"one"}])
def test_where_nobody_says_there_is_none(headers: dict[bytes, bytes]) -> None:
    assert PLAIN.number(headers, {}, "t") == 0
    assert PLAIN.number(headers, {"session_id": ""}, "t") == 0


def test_the_first_that_is_there_counts_and_headers_come_first() -> None:
    own = Conversations(SessionSettings(headers=("X-Chat", "X-User"), fields=("prompt_cache_key",)))
    both = {b"x-user": b"u", b"x-chat": b"c"}
    assert own.number(both, {"prompt_cache_key": "k"}, "") == numbered(b"c", "")
    assert own.number({b"x-user": b"u", b"x-chat": b""}, {"prompt_cache_key": "k"}, "") == numbered(b"u", "")
    assert own.number({b"x-session-id": b"s"}, {"session_id": "s", "prompt_cache_key": "k"}, "") == numbered(b"k", "")


def test_none_can_be_read_at_all() -> None:
    off = Conversations(SessionSettings(headers=(), fields=()))
    assert off.number({b"x-session-id": b"one"}, {"session_id": "one"}, "t") == 0


@given(st.tuples(st.binary(max_size=6), st.text(max_size=6)), st.tuples(st.binary(max_size=6), st.text(max_size=6)))
def test_two_have_one_number_only_if_name_and_tenant_are_the_same(
    one: tuple[bytes, str], other: tuple[bytes, str]
) -> None:
    assert (numbered(*one) == numbered(*other)) == (one == other)


def test_a_name_does_not_run_into_the_tenant() -> None:
    assert numbered(b"bc", "a") != numbered(b"c", "ab")
    assert numbered(b"1:a", "") != numbered(b"", "1:a")


def test_every_process_makes_the_same_number() -> None:
    code = "from balancer.conversations import numbered; print(numbered(b'one', 't'))"
    told = [subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout for _ in range(2)]
    assert {int(each) for each in told} == {numbered(b"one", "t")}


@pytest.mark.parametrize(
    ("sessions", "told"),
    [
        (
            {"headers": ["x session"]},
            r"sessions.headers\[0\]: 'x session' cannot be the name of a header; give one like",
        ),
        ({"headers": ["x-a", ""]}, r"sessions.headers\[1\]: '' cannot be the name of a header"),
        (
            {"fields": ["session_id", "user"]},
            r"sessions.fields\[1\]: 'user' is not read from bodies; use session_id or",
        ),
        ({"headers": "x-session-id"}, "sessions.headers: expected `array`, got `str`"),
        ({"header": ["x"]}, "sessions.header: unknown setting; did you mean headers?"),
    ],
)
def test_what_cannot_be_one_is_refused(sessions: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        convert({"sessions": sessions})


def test_the_settings_are_read_from_a_file() -> None:
    made = load('[sessions]\nheaders = ["x-user-id"]\nfields = []').sessions
    assert made == SessionSettings(headers=("x-user-id",), fields=())
