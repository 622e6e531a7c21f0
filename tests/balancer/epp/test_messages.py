"""``epp/messages.py`` against protobuf's own library with Envoy's definitions: both read what the other one has written."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.epp import messages
from balancer.epp.messages import BodyMode, Kind, Message, Modes, Mutation, read
from balancer.epp.wire import WireError, field
from tests.support import ext_proc

NAMES = st.text(st.characters(codec="ascii", categories=["Ll", "Nd"]), min_size=1, max_size=12)
RAW = st.binary(max_size=30)
FIELDS = st.lists(st.tuples(NAMES, RAW), max_size=6)
METADATA = st.dictionaries(
    st.sampled_from(["envoy.lb", "envoy.lb.subset_hint", "other"]),
    st.dictionaries(st.text(max_size=8), st.text(max_size=8) | st.lists(st.text(max_size=8), max_size=3), max_size=3),
    max_size=3,
)
MODES = st.none() | st.tuples(st.sampled_from(BodyMode), st.sampled_from(BodyMode))
KINDS_OF_HEADERS = st.sampled_from([Kind.REQUEST_HEADERS, Kind.RESPONSE_HEADERS])
KINDS_OF_BODIES = st.sampled_from([Kind.REQUEST_BODY, Kind.RESPONSE_BODY])
KINDS_OF_TRAILERS = st.sampled_from([Kind.REQUEST_TRAILERS, Kind.RESPONSE_TRAILERS])


def reply_of(kind: Kind, data: bytes) -> Any:
    """The part of a reply that answers this."""
    told = ext_proc.reply(data)
    assert told.WhichOneof("response") == kind.name.lower()
    return getattr(told, kind.name.lower())


@given(KINDS_OF_HEADERS, FIELDS, st.booleans(), METADATA, MODES, st.booleans())
def test_headers_are_read_as_a_proxy_has_written_them(
    kind: Kind,
    fields: list[tuple[str, bytes]],
    is_last: bool,
    metadata: dict[str, dict[str, Any]],
    modes: tuple[BodyMode, BodyMode] | None,
    is_observed: bool,
) -> None:
    made = ext_proc.ProcessingRequest()
    told = getattr(made, kind.name.lower())
    told.SetInParent()
    told.end_of_stream = is_last
    for name, value in fields:
        told.headers.headers.add(key=name, raw_value=value)
    for name, values in metadata.items():
        made.metadata_context.filter_metadata[name].update(values)
    if modes is not None:
        made.protocol_config.request_body_mode, made.protocol_config.response_body_mode = modes
    made.observability_mode = is_observed
    made.attributes["envoy.filters.http.ext_proc"].update({"request.path": "/"})
    assert read(made.SerializeToString()) == Message(
        kind,
        [(name.encode(), value) for name, value in fields],
        b"",
        is_last,
        {name: values for name, values in metadata.items() if name != "other"},
        None if modes is None else Modes(*modes),
        is_observed,
    )


def test_values_may_be_texts_and_names_of_any_case() -> None:
    made = ext_proc.ProcessingRequest()
    headers = made.request_headers.headers.headers
    headers.add(key="X-One", value="plain")
    headers.add(key="x-two", value="plain", raw_value=b"raw")
    assert read(made.SerializeToString()).fields == [(b"x-one", b"plain"), (b"x-two", b"raw")]


def test_what_is_new_in_headers_is_read_over() -> None:
    header = field(1, b"a") + b"\x28\x07" + field(3, b"b")
    strange = b"\x28\x07" + field(1, header) + field(9, b"x")
    told = read(field(2, field(1, strange + field(1, header))))
    assert told.fields == [(b"a", b"b"), (b"a", b"b")]


@given(KINDS_OF_BODIES, st.binary(max_size=300), st.booleans())
def test_bodies_are_read(kind: Kind, data: bytes, is_last: bool) -> None:
    of = kind.name.lower().partition("_")[0]
    assert read(ext_proc.body(data, is_last=is_last, of=of)) == Message(kind, (), data, is_last)


@given(KINDS_OF_TRAILERS, st.lists(st.tuples(NAMES, st.text(max_size=5)), max_size=3))
def test_trailers_are_read(kind: Kind, fields: list[tuple[str, str]]) -> None:
    told = read(ext_proc.trailers(fields, of=kind.name.lower().partition("_")[0]))
    assert (told.kind, told.is_last) == (kind, True)
    assert told.fields == [(name.encode(), value.encode()) for name, value in fields]


@given(st.binary(max_size=80))
def test_any_bytes_are_a_message_or_an_error(data: bytes) -> None:
    for wrapped in (data, field(2, data), field(2, field(1, data)), field(8, data), field(2, b"") + field(8, data)):
        try:
            read(wrapped)
        except WireError:
            continue


@pytest.mark.parametrize("data", [b"", field(12, b""), field(8, b"")])
def test_a_message_about_nothing_is_an_error(data: bytes) -> None:
    with pytest.raises(WireError):
        read(data)


def mutated(told: Any) -> tuple[list[tuple[bytes, bytes]], list[bytes]]:
    return (
        [(each.header.key.encode(), each.header.raw_value) for each in told.set_headers],
        [name.encode() for name in told.remove_headers],
    )


SET = st.lists(st.tuples(NAMES.map(str.encode), RAW), max_size=4)
REMOVED = st.lists(NAMES.map(str.encode), max_size=3)


@given(KINDS_OF_HEADERS, SET, REMOVED, st.none() | st.text(max_size=200))
def test_replies_to_headers_are_read_by_a_proxy(
    kind: Kind, made: list[tuple[bytes, bytes]], removed: list[bytes], destination: str | None
) -> None:
    chosen = None if destination is None else {"x-gateway-destination-endpoint": destination}
    data = messages.headers_reply(kind, Mutation(made, removed), chosen)
    told = reply_of(kind, data).response
    assert mutated(told.header_mutation) == (made, removed)
    assert all(each.append_action == 2 for each in told.header_mutation.set_headers)
    assert told.clear_route_cache == (chosen is not None)
    metadata = ext_proc.reply(data).dynamic_metadata
    assert dict(metadata) == {} if chosen is None else dict(metadata["envoy.lb"]) == chosen


@given(KINDS_OF_BODIES, SET, st.none() | st.binary(max_size=300))
def test_replies_to_bodies_are_read_by_a_proxy(kind: Kind, made: list[tuple[bytes, bytes]], body: bytes | None) -> None:
    told = reply_of(kind, messages.body_reply(kind, Mutation(made), {"a": "b"}, body)).response
    assert mutated(told.header_mutation)[0] == made
    assert told.clear_route_cache
    assert told.body_mutation.WhichOneof("mutation") == (None if body is None else "body")
    assert told.body_mutation.body == (body or b"")


@given(KINDS_OF_BODIES, st.binary(max_size=300), st.booleans())
def test_pieces_are_read_by_a_proxy(kind: Kind, body: bytes, is_last: bool) -> None:
    told = reply_of(kind, messages.streamed(kind, body, is_last=is_last)).response.body_mutation
    assert told.WhichOneof("mutation") == "streamed_response"
    assert (told.streamed_response.body, told.streamed_response.end_of_stream) == (body, is_last)


@pytest.mark.parametrize("kind", [Kind.REQUEST_TRAILERS, Kind.RESPONSE_TRAILERS])
def test_replies_to_trailers_are_read_by_a_proxy(kind: Kind) -> None:
    assert not reply_of(kind, messages.trailers_reply(kind)).HasField("header_mutation")


@given(st.integers(200, 599), SET, st.binary(max_size=300), st.text(max_size=10))
def test_immediate_answers_are_read_by_a_proxy(
    status: int, made: list[tuple[bytes, bytes]], body: bytes, why: str
) -> None:
    told = ext_proc.reply(messages.immediate(status, made, body, why)).immediate_response
    assert (told.status.code, told.body, told.details) == (status, body, why)
    assert mutated(told.headers) == (made, [])
