"""``logs.py``: whatever is logged is one record, for people and for machines."""

import json
import logging
import sys
from typing import Any

import pytest
from aiohttp.http_exceptions import BadHttpMessage
from hypothesis import given
from hypothesis import strategies as st

from balancer.logs import JsonFormatter, TextFormatter, _shorten, begin_logging

ANY_TEXT = st.text(st.characters(codec=None))


def record(message: str, *args: object, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("balancer.health", logging.WARNING, "", 0, message, args, None)
    vars(made).update(extra)
    made.created = 1_700_000_000.25
    return made


def as_json(made: logging.LogRecord) -> dict[str, Any]:
    line = JsonFormatter().format(made)
    assert "\n" not in line
    told: dict[str, Any] = json.loads(line)
    return told


def test_a_record_for_machines_has_its_fields() -> None:
    assert as_json(record("%s: is gone", "10.0.0.1:8000", request_id="r1", tenant="t")) == {
        "time": "2023-11-14T22:13:20.250Z",
        "level": "warning",
        "logger": "balancer.health",
        "message": "10.0.0.1:8000: is gone",
        "request_id": "r1",
        "tenant": "t",
    }


def test_an_exception_is_within_its_record() -> None:
    try:
        raise ZeroDivisionError("oops")
    except ZeroDivisionError:
        made = record("failed")
        made.exc_info = sys.exc_info()
    assert as_json(made)["exception"].endswith("ZeroDivisionError: oops")
    assert TextFormatter().format(made).count("Traceback") == 1


@given(ANY_TEXT, ANY_TEXT)
def test_whatever_a_client_writes_is_one_record(text: str, value: str) -> None:
    made = record("the model %s", text, request_id=value)
    assert as_json(made)["logger"] == "balancer.health"
    line = TextFormatter().format(made)
    assert len(line.splitlines()) == 1
    assert "\x1b" not in line


def test_what_json_does_not_know_is_told_as_text() -> None:
    assert as_json(record("x", what=ValueError("odd")))["what"] == "odd"
    assert as_json(record("x", what={"deep": "\udcff"}))["what"] == {"deep": "\\udcff"}


@pytest.mark.parametrize("form", ["text", "json"])
def test_the_log_goes_to_stderr_in_the_form_that_was_asked_for(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    try:
        begin_logging("info", form)
        logging.getLogger("balancer").info("begun")
        out, told = capsys.readouterr()
        assert out == ""
        assert told.startswith("{") is (form == "json")
        assert "begun" in told
    finally:
        root.handlers[:] = before
        root.setLevel(level)


@pytest.mark.parametrize("told", ["GET /a?x=%d y HTTP/1.1", "%", "a\nb\0c", "\udcff\x1b[2J"])
def test_what_a_client_got_wrong_is_one_line_of_plain_characters(told: str) -> None:
    error = BadHttpMessage(told)
    told_by = (BadHttpMessage, error, None)
    record = logging.LogRecord("aiohttp.server", logging.ERROR, "", 0, "Error from %s", ("10.0.0.9",), told_by)
    assert _shorten(record)
    line = logging.Formatter("%(levelname)s %(message)s").format(record)
    assert line.startswith("WARNING Error from 10.0.0.9: ")
    assert line.isascii()
    assert line.isprintable()
