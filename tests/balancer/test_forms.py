"""``balancer/forms.py``: what is read of a form is what the engine reads, and what could be read otherwise is refused."""

import contextlib
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer import forms
from balancer.errors import BadRequest

CONTENT_TYPE = "multipart/form-data; boundary=x"
FILE = (
    b'--x\r\nContent-Disposition: form-data; name="file"; filename="a b.wav"\r\nContent-Type: audio/wav\r\n\r\n%s\r\n'
)
MODEL = b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper\r\n'
END = b"--x--\r\n"


def model(body: bytes, content_type: str = CONTENT_TYPE) -> bytes | None:
    return forms.read(content_type, body).get("model")


@pytest.mark.parametrize(
    "content_type",
    [
        CONTENT_TYPE,
        'multipart/form-data; boundary="x"',
        "Multipart/Form-Data;BOUNDARY=x; charset=utf-8",
        "multipart/mixed; a=b; boundary=x",
    ],
)
def test_a_boundary_may_be_written_in_several_ways(content_type: str) -> None:
    assert model(b"ignored\r\n" + MODEL + END, content_type) == b"whisper"


@pytest.mark.parametrize(
    "content_type",
    [
        "multipart/form-data",
        "multipart/form-data; boundary=",
        "multipart/form-data; boundary=x; boundary=y",
        "multipart/form-data; boundary*=utf-8''x; boundary=x",
        "multipart/form-data; boundary=x; charset=utf-7",
        "multipart/form-data; boundary=x; charset=utf-8; charset=utf-16",
    ],
)
def test_a_form_with_two_boundaries_or_another_alphabet_is_refused(content_type: str) -> None:
    with pytest.raises(BadRequest, match="form"):
        model(MODEL + END, content_type)


@pytest.mark.parametrize(
    "disposition",
    [
        b'Content-Disposition: form-data; name="model"',
        b"content-disposition:form-data;name=model\r\nContent-Type: text/plain",
        b'Content-Type: text/plain\r\nContent-Disposition: form-data; name="model"; filename="m"; filename*=utf-8\'\'m',
    ],
)
def test_clients_write_names_in_several_ways(disposition: bytes) -> None:
    assert model(b"--x\r\n" + disposition + b"\r\n\r\nwhisper\r\n" + END) == b"whisper"


@pytest.mark.parametrize(
    "disposition",
    [
        b'Content-Disposition: form-data; name = "model"',
        b"Content-Disposition: form-data; name*=utf-8''model",
        b'Content-Disposition: form-data; name*0="mod"; name*1="el"',
        b'Content-Disposition: form-data; name="other"; name="model"',
        b'Content-Disposition: form-data; NAME="model"',
        b'Content-Disposition: form-data; name="mod\\el"',
        b'Content-Disposition: form-data; filename="a\\"; name="model"',
        b'Content-Disposition: form-data; name="other"\r\nContent-Disposition: form-data; name="model"',
        b'Content-Disposition: form-data;\r\n name="model"',
        b'Content-Disposition : form-data; name="model"',
        b'X: y\nContent-Disposition: form-data; name="model"',
        b'Content-Disposition: form-data; name="other" x; name="model"',
    ],
)
def test_a_name_that_another_reader_could_see_is_refused(disposition: bytes) -> None:
    with pytest.raises(BadRequest, match="form"):
        model(b"--x\r\n" + disposition + b"\r\n\r\nspoofed\r\n" + END)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--x",
        MODEL,  # has no end
        b"--x\r\n\r\n\r\n" * forms.MAX_PARTS + MODEL + END,
        b"--x\r\n" + b"X: y\r\n" * forms.MAX_PART_HEAD + MODEL[5:] + END,
        MODEL.replace(b"--x\r\n", b"--xy\r\n") + END,
        b'--x\r\nContent-Disposition: form-data; name="prompt"\r\n\r\n'
        + MODEL
        + END,  # two parts, or one with a part in it
    ],
)
def test_a_form_with_more_than_one_reading_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest, match="form"):
        model(body)


def test_what_a_file_holds_is_not_taken_for_a_part() -> None:
    held = b'Content-Disposition: form-data; name="model"\r\n\r\nspoofed\r\n'
    assert forms.read(CONTENT_TYPE, FILE % held + MODEL + END) == {"file": held, "model": b"whisper"}
    assert model(FILE % held + END) is None


def test_the_last_of_two_parts_counts_as_it_does_for_the_engine() -> None:
    assert model(MODEL + MODEL.replace(b"whisper", b"other") + END) == b"other"


def test_long_values_are_known_by_name_alone() -> None:
    assert forms.read(CONTENT_TYPE, FILE % (b"s" * (forms.MAX_VALUE + 1)) + END) == {"file": None}
    assert forms.read(CONTENT_TYPE, FILE % b"" + END) == {"file": b""}


@given(st.binary() | st.lists(st.sampled_from([b"--x", b"\r\n", b"--", b"Content-Disposition:", b"a"])).map(b"".join))
def test_no_form_gives_anything_but_values_or_a_refusal(body: bytes) -> None:
    with contextlib.suppress(BadRequest):
        assert len(forms.read(CONTENT_TYPE, body)) <= body.count(b"--x")


@pytest.mark.parametrize("line", [b"name=model\r\n", b"\r\n--x", b"\r\n--x\r\n\r\n", b"\r\n\r\n", b"\r\n--", b";a=b"])
def test_a_form_takes_no_longer_than_its_length(line: bytes) -> None:
    began = time.perf_counter()
    with pytest.raises(BadRequest):
        forms.read(CONTENT_TYPE, b"--x\r\n" + line * 25_000)
    assert time.perf_counter() - began < 1.0
