"""``balancer/http/parsing.py``: the same bytes are the same messages however they come, and nothing ambiguous is a message."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from balancer.errors import BadRequest, HeadTooLarge, RequestError
from balancer.http.fields import lines
from balancer.http.messages import Request
from balancer.http.parsing import MAX_FIELDS, MAX_HEAD_BYTES, AnswerReader, BadAnswer, RequestReader

LIMIT = 1_000

# What is said, and what it means

TOKEN = st.text("abcXYZ019-_!#$%&'*+.^`|~", min_size=1, max_size=12).map(str.encode)
VALUE = st.binary(max_size=30).map(lambda each: bytes(byte for byte in each if byte >= 0x20 and byte != 0x7F).strip())
RESERVED = {b"host", b"content-length", b"transfer-encoding", b"expect", b"connection", b"upgrade", b"proxy-connection"}
FIELDS = st.lists(st.tuples(TOKEN, VALUE).filter(lambda field: field[0].lower() not in RESERVED), max_size=6)
TARGET = st.text("abz09/-._~%?&=", max_size=20).map(lambda each: "/" + each)
BODY = st.binary(max_size=200)
CUTS = st.lists(st.integers(0, 2_000), max_size=8)


@st.composite
def chunked(draw: st.DrawFn, body: bytes) -> bytes:
    """The body in chunks, with what chunks may have beside it."""
    said = b""
    while body:
        size = draw(st.integers(1, len(body)))
        zeros, extension = draw(st.sampled_from([b"", b"0", b"000"])), draw(st.sampled_from([b"", b";a", b';a="b"']))
        said += b"%b%x%b\r\n%b\r\n" % (zeros, size, extension, body[:size])
        body = body[size:]
    return said + b"0\r\n" + draw(st.sampled_from([b"", b"T: 1\r\n", b"Authorization: x\r\nHost: b\r\n"])) + b"\r\n"


@st.composite
def requests(draw: st.DrawFn) -> tuple[bytes, tuple[Any, ...]]:
    """A request as it is sent, and what it means."""
    method, target, fields, body = draw(st.sampled_from(["GET", "POST"])), draw(TARGET), draw(FIELDS), draw(BODY)
    head = b"%b %b HTTP/1.1\r\nHost: a\r\n" % (method.encode(), target.encode())
    head += draw(st.sampled_from([b"", b"", b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"]))
    if draw(st.booleans()):
        said = lines(fields) + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    else:
        said = lines(fields) + b"transfer-ENCODING: Chunked\r\n\r\n" + draw(chunked(body))
    path, _, query = target.partition("?")
    return head + said, (method, path, query, fields, body)


def cut(data: bytes, at: Sequence[int]) -> list[bytes]:
    places = sorted({0, len(data), *(each % (len(data) + 1) for each in at)})
    return [data[start:end] for start, end in pairwise(places)]


def meaning(request: Request) -> tuple[Any, ...]:
    own = [field for field in request.headers if field[0].lower() not in RESERVED]
    return request.method, request.path, request.query, own, request.body


def read(pieces: Sequence[bytes], limit: int = LIMIT) -> tuple[list[Request], type[RequestError] | None]:
    reader = RequestReader(limit)
    for piece in pieces:
        try:
            reader.feed(piece)
        except RequestError as error:
            assert reader.is_over
            return reader.ready, type(error)
    return reader.ready, None


Said = tuple[bytes, tuple[Any, ...]]


@given(st.lists(requests(), max_size=4), CUTS)
def test_requests_are_read_whatever_pieces_they_come_in(said: list[Said], at: list[int]) -> None:
    found, error = read(cut(b"".join(data for data, _ in said), at))
    assert error is None
    assert [meaning(each) for each in found] == [meant for _, meant in said]


@given(
    st.lists(requests(), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0), st.binary(max_size=4)), max_size=3),
    CUTS,
)
@example([], [(0, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nxGET")], [30, 40])
def test_no_bytes_are_read_in_two_ways(said: list[Said], changes: list[tuple[int, bytes]], at: list[int]) -> None:
    """Whatever is sent, and however it is cut: nothing but a refusal is raised, and it means the same."""
    data = b"".join(each for each, _ in said)
    for at_most, new in changes:
        place = at_most % (len(data) + 1)
        data = data[:place] + new + data[place + len(new) // 2 :]
    whole, cut_up = read([data]), read(cut(data, at))
    assert [meaning(each) for each in whole[0]] == [meaning(each) for each in cut_up[0]]
    assert whole[1] == cut_up[1]


@given(requests(), CUTS)
def test_what_was_read_is_read_alike_by_the_next_one(said: Said, at: list[int]) -> None:
    """As it goes on, with a length of its own, it is one request and the same."""
    (first,), _ = read(cut(said[0], at))
    kept = [field for field in first.headers if field[0].lower() not in RESERVED]
    target = f"{first.path}?{first.query}" if first.query else first.path
    again = f"{first.method} {target} HTTP/1.1\r\nHost: b\r\n".encode() + lines(kept)
    (second,), error = read([again + b"Content-Length: %d\r\n\r\n" % len(first.body) + first.body])
    assert (meaning(second), error) == (meaning(first), None)


HEAD = b"POST / HTTP/1.1\r\nHost: a\r\n"
CHUNKS = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
SMUGGLED = b"GET /evil HTTP/1.1\r\nHost: a\r\n\r\n"


@pytest.mark.parametrize(
    "said",
    [
        HEAD + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
        HEAD + b"Content-Length: 4\r\nContent-Length: 4\r\n\r\nbody",
        HEAD + b"Content-Length: 4\r\nContent-Length: 5\r\n\r\nbody!",
        HEAD + b"Content-Length: 4, 4\r\n\r\nbody",
        HEAD + b"Content-Length: +4\r\n\r\nbody",
        HEAD + b"Content-Length: 0x4\r\n\r\nbody",
        HEAD + b"Content-Length: 4 \t4\r\n\r\nbody",
        HEAD + b"Content-Length: " + b"9" * 30 + b"\r\n\r\n",
        HEAD + b"Content-Length:\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
        HEAD + b" Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"X: y\r\n Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"X: y\r\n\tz\r\n\r\n",
        HEAD + b"X: a\nContent-Length: 4\r\n\r\nbody",
        HEAD + b"X: a\rContent-Length: 4\r\n\r\nbody",
        HEAD + b"X: a\0b\r\n\r\n",
        HEAD + b"X\0: a\r\n\r\n",
        HEAD + b": a\r\n\r\n",
        HEAD + b"Content-Length: 4\n\nbody",
        b"POST / HTTP/1.1\nHost: a\n\n",
        b"POST / HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /\r\n\r\n",
        b"POST / HTTP/2.0\r\nHost: a\r\n\r\n",
        b"POST / HTTP/1.2\r\nHost: a\r\n\r\n",
        b"POST /a b HTTP/1.1\r\nHost: a\r\n\r\n",
        b"POST /a\0 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        CHUNKS + b"f" * 17 + b"\r\n",
        CHUNKS + b"-1\r\n",
        CHUNKS + b"1 \r\nx\r\n0\r\n\r\n",
        CHUNKS + b"1\nx\r\n0\r\n\r\n",
        CHUNKS + b"1\r\nxy0\r\n\r\n",
        CHUNKS + b"1;a\nb\r\nx\r\n0\r\n\r\n",
        CHUNKS + b"\r\n",
    ],
)
def test_what_could_be_cut_in_two_ways_is_refused(said: bytes) -> None:
    for pieces in ([said + SMUGGLED], [bytes([byte]) for byte in said + SMUGGLED]):
        found, error = read(pieces)
        assert (found, error) == ([], BadRequest)


def test_what_follows_a_last_request_is_nobodys() -> None:
    last = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    for behind in (b"", SMUGGLED, b"\r\n", b"\0\0"):
        found, error = read([last + behind, SMUGGLED])
        assert ([each.path for each in found], error) == (["/"], None)
        assert not found[0].keeps_alive


def test_trailers_are_no_headers() -> None:
    (request,), _ = read([CHUNKS + b"1\r\nx\r\n0\r\nAuthorization: evil\r\nHost: b\r\n\r\n"])
    assert b"authorization" not in request.named
    assert (request.named[b"host"], request.body) == (b"a", b"x")


@pytest.mark.parametrize("begun", [b"GET /", b"GET / HTTP/1.1\r\nX: ", CHUNKS + b"1;", CHUNKS + b"0\r\nX: "])
def test_what_is_read_over_has_an_end(begun: bytes) -> None:
    """A target, a header, a chunk's extension or a trailer without end: refused before much of it has come."""
    _, error = read([begun, *[b"a" * 1_000] * (MAX_HEAD_BYTES // 100)])
    assert error in {BadRequest, HeadTooLarge}


@pytest.mark.parametrize("count", [MAX_FIELDS, MAX_FIELDS + 1])
def test_headers_are_counted(count: int) -> None:
    found, error = read([b"GET / HTTP/1.1\r\nHost: a\r\n" + b"A: b\r\n" * (count - 1) + b"\r\n"])
    assert len(found) == (count == MAX_FIELDS)
    assert (error is None) == (count == MAX_FIELDS)


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        (b"/a?b=c&d", "/a", "b=c&d"),
        (b"http://host/a?b", "/a", "b"),
        (b"http://host", "/", ""),
        (b"*", "*", ""),
        (b"/a?b?c", "/a", "b?c"),
        (b"/http://x", "/http://x", ""),
    ],
)
def test_every_form_of_target_has_its_path(target: bytes, path: str, query: str) -> None:
    (request,), _ = read([b"OPTIONS %b HTTP/1.1\r\nHost: a\r\n\r\n" % target])
    assert (request.path, request.query) == (path, query)


# Answers


def receive(pieces: Sequence[bytes], *, to_head: bool = False) -> tuple[Any, ...]:
    """(head, body, whole) of the first answer, or ("bad",)."""
    reader = AnswerReader()
    reader.begin(to_head=to_head)
    body = b""
    for piece in pieces:
        try:
            reader.feed(piece)
        except BadAnswer:
            return ("bad",)
        body += b"".join(reader.pieces)
        reader.pieces.clear()
        if reader.is_complete:
            break
    head = reader.head
    return (None if head is None else (head.status, list(head.headers))), body, reader.is_complete


@st.composite
def answers(draw: st.DrawFn) -> tuple[bytes, tuple[Any, ...]]:
    status, fields, body = draw(st.sampled_from([200, 201, 400, 503])), draw(FIELDS), draw(BODY)
    said = draw(st.sampled_from([b"", b"HTTP/1.1 100 Continue\r\n\r\n"]))
    said += b"HTTP/1.1 %d Some Reason\r\n" % status
    if draw(st.booleans()):
        framing = (b"Content-Length", b"%d" % len(body))
        said += lines([*fields, framing]) + b"\r\n" + body
    else:
        framing = (b"Transfer-Encoding", b"chunked")
        said += lines([*fields, framing]) + b"\r\n" + draw(chunked(body))
    return said, ((status, [*fields, framing]), body, True)


@given(answers(), CUTS)
def test_answers_are_read_whatever_pieces_they_come_in(said: Said, at: list[int]) -> None:
    assert receive(cut(said[0], at)) == said[1]


@given(answers(), st.integers(0), st.binary(min_size=1, max_size=4), CUTS)
def test_no_bytes_of_an_answer_are_read_in_two_ways(said: Said, at_most: int, new: bytes, at: list[int]) -> None:
    place = at_most % len(said[0])
    data = said[0][:place] + new + said[0][place + len(new) // 2 :]
    whole, cut_up = receive([data]), receive(cut(data, at))
    if ("bad",) in (whole, cut_up) and whole != cut_up:
        assert {whole[-1], cut_up[-1]} <= {"bad", False}, "one of them took it for whole"
    else:
        assert whole == cut_up


@given(st.lists(answers(), min_size=2, max_size=4))
def test_answers_of_one_connection_follow_each_other(said: list[Said]) -> None:
    reader = AnswerReader()
    for data, ((status, _), body, _) in said:
        reader.begin()
        reader.feed(data)
        assert reader.head is not None
        assert (reader.head.status, b"".join(reader.pieces)) == (status, body)
        assert reader.is_complete
        assert reader.is_reusable
        reader.pieces.clear()


@given(st.lists(st.binary(max_size=60), max_size=6))
def test_nothing_but_a_refusal_is_ever_raised(pieces: list[bytes]) -> None:
    read(pieces)
    receive(pieces)
    receive([b"HTTP/1.1 200 OK\r\n", *pieces], to_head=True)
    read([b"POST / HTTP/1.1\r\n", *pieces])
