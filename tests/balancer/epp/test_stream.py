"""``epp/stream.py``: the right reply to each message in each mode, and one end for each lease whatever comes."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from balancer.core import Fault, Outcome
from balancer.epp.destinations import Place
from balancer.epp.messages import BodyMode, Kind, Message, Modes, Mutation
from balancer.epp.orders import Ask, Close, End, Give, Moved, Order, Placed, Send, Started, Unask
from balancer.epp.stream import Exchange, Rules
from tests.support import ext_proc

HEAD = [(b":method", b"POST"), (b":path", b"/v1/completions"), (b"x-own", b"1")]
BODY = b'{"model":"m","prompt":[1,2,3]}'
A = Place("10.0.0.1", 8000)
FULL, BUFFERED, STREAMED, NONE = (
    BodyMode.FULL_DUPLEX_STREAMED,
    BodyMode.BUFFERED,
    BodyMode.STREAMED,
    BodyMode.NONE,
)
JSON = [(b":status", b"200"), (b"content-type", b"application/json")]
SSE = [(b":status", b"200"), (b"content-type", b"text/event-stream; charset=utf-8")]
USAGE = json.dumps(
    {
        "choices": [{"finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}},
    }
).encode()


def placed(body: bytes | None = BODY, *, is_changed: bool = False) -> Placed:
    return Placed(A, str(A), Mutation([(b"x-gateway-destination-endpoint", b"10.0.0.1:8000")]), body, is_changed, "id")


def head(modes: Modes | None = None, *, is_last: bool = False) -> Message:
    return Message(Kind.REQUEST_HEADERS, HEAD, is_last=is_last, modes=modes or Modes())


def body(data: bytes, *, is_last: bool = False) -> Message:
    return Message(Kind.REQUEST_BODY, body=data, is_last=is_last)


def answer(fields: Sequence[tuple[bytes, bytes]] = JSON, *, is_last: bool = False, **more: Any) -> Message:
    return Message(Kind.RESPONSE_HEADERS, fields, is_last=is_last, **more)


def piece(data: bytes, *, is_last: bool = False) -> Message:
    return Message(Kind.RESPONSE_BODY, body=data, is_last=is_last)


def kinds(orders: Sequence[Order]) -> list[str]:
    """What is ordered; of what is sent, to what it replies."""
    found = []
    for order in orders:
        if isinstance(order, Send):
            found.append(ext_proc.reply(order.data).WhichOneof("response"))
        elif isinstance(order, Give):
            found.append(f"{order.kind.name.lower()}{' last' if order.is_last else ''}")
        else:
            found.append(type(order).__name__)
    return found


def routed(modes: Modes | None = None, rules: Rules | None = None) -> Exchange:
    """A request that was given a replica."""
    exchange = Exchange(rules or Rules())
    exchange.receive(head(modes, is_last=True))
    exchange.decided(placed(b""))
    return exchange


def ends(orders: Sequence[Order]) -> list[End]:
    return [order for order in orders if isinstance(order, End)]


# The request


@given(st.lists(st.binary(max_size=50), max_size=5), st.booleans(), st.integers(1, 60))
def test_where_both_stream_nothing_is_said_before_the_body_is_whole_and_then_all_of_it_is_given_back(
    pieces: list[bytes], has_trailers: bool, size: int
) -> None:
    exchange, orders = Exchange(Rules()), list[Order]()
    orders += exchange.receive(head())
    for each in pieces:
        orders += exchange.receive(body(each))
    assert orders == []
    if has_trailers:
        orders += exchange.receive(Message(Kind.REQUEST_TRAILERS, is_last=True))
    else:
        orders += exchange.receive(body(b"", is_last=True))
    (ask,) = orders
    whole = b"".join(pieces)
    assert isinstance(ask, Ask)
    assert (ask.method, ask.target, ask.fields, ask.body) == ("POST", "/v1/completions", [HEAD[2]], whole)
    orders = list(exchange.decided(placed(ask.body)))
    expected = ["request_headers", "request_body"] if has_trailers else ["request_headers", "request_body last"]
    assert kinds(orders) == [*expected, *(["request_trailers"] if has_trailers else [])]
    given_back = orders[1]
    assert isinstance(given_back, Give)
    told = [
        ext_proc.reply(each).request_body.response.body_mutation.streamed_response for each in given_back.pieces(size)
    ]
    assert b"".join(each.body for each in told) == whole
    assert all(len(each.body) <= size for each in told)
    assert [each.end_of_stream for each in told] == [False] * (len(told) - 1) + [not has_trailers]


@pytest.mark.parametrize("is_changed", [False, True])
def test_where_the_body_is_buffered_its_reply_says_where_it_goes(is_changed: bool) -> None:
    exchange = Exchange(Rules())
    assert kinds(exchange.receive(head(Modes(BUFFERED, FULL)))) == ["request_headers"]
    assert kinds(exchange.receive(body(BODY, is_last=True))) == ["Ask"]
    (order,) = exchange.decided(placed(b"other", is_changed=is_changed))
    assert isinstance(order, Send)
    told = ext_proc.reply(order.data)
    common = told.request_body.response
    assert dict(told.dynamic_metadata["envoy.lb"]) == {"x-gateway-destination-endpoint": "10.0.0.1:8000"}
    named = ext_proc.set_headers(common.header_mutation)
    assert named.pop("content-length", None) == ("5" if is_changed else None)
    assert named == {"x-gateway-destination-endpoint": "10.0.0.1:8000"}
    assert common.body_mutation.body == (b"other" if is_changed else b"")
    assert common.clear_route_cache


@pytest.mark.parametrize("mode", [NONE, STREAMED, BodyMode.GRPC])
def test_where_the_body_is_not_shown_it_is_routed_without(mode: BodyMode) -> None:
    exchange = Exchange(Rules())
    (ask,) = exchange.receive(head(Modes(mode, FULL)))
    assert isinstance(ask, Ask)
    assert ask.body is None
    assert exchange.receive(body(b"early")) == ()
    assert kinds(exchange.decided(placed(None))) == ["request_headers", "request_body"]
    assert kinds(exchange.receive(body(b"x", is_last=True))) == ["request_body"]


def test_a_part_of_a_body_is_none() -> None:
    exchange = Exchange(Rules())
    exchange.receive(head(Modes(BodyMode.BUFFERED_PARTIAL, FULL)))
    (ask,) = exchange.receive(body(b"part of"))
    assert isinstance(ask, Ask)
    assert ask.body is None


def test_a_request_without_a_body_is_asked_for_at_once() -> None:
    exchange = Exchange(Rules())
    (ask,) = exchange.receive(head(is_last=True))
    assert isinstance(ask, Ask)
    assert ask.body == b""
    assert kinds(exchange.decided(placed(b""))) == ["request_headers"]


def test_a_body_that_is_too_large_is_let_go_and_said_so() -> None:
    exchange = Exchange(Rules(max_body_bytes=10))
    exchange.receive(head())
    assert exchange.receive(body(b"x" * 10)) == ()
    (ask,) = exchange.receive(body(b"x"))
    assert isinstance(ask, Ask)
    assert (ask.is_too_large, ask.body) == (True, b"")
    assert kinds(exchange.refused(413, (), b"")) == ["immediate_response"]
    assert exchange.receive(body(b"x", is_last=True)) == ()
    assert exchange.closed() == ()


def test_a_refusal_is_the_answer_and_no_lease() -> None:
    exchange = Exchange(Rules())
    exchange.receive(head(is_last=True))
    (order,) = exchange.refused(429, [(b"retry-after", b"3")], b"{}", "saturated")
    assert isinstance(order, Send)
    told = ext_proc.reply(order.data).immediate_response
    assert (told.status.code, told.body, told.details) == (429, b"{}", "saturated")
    assert ext_proc.set_headers(told.headers) == {"retry-after": "3"}
    assert exchange.refused(429, (), b"") == ()
    assert exchange.closed() == ()


# The answer


def test_an_answer_passes_and_what_it_says_is_heard() -> None:
    exchange = routed()
    assert kinds(exchange.receive(answer())) == ["response_headers"]
    assert kinds(exchange.receive(piece(USAGE[:10]))) == ["response_body", "Started"]
    assert kinds(exchange.receive(piece(USAGE[10:]))) == ["response_body"]
    orders = exchange.receive(piece(b"", is_last=True))
    assert kinds(orders) == ["response_body last", "End"]
    (end,) = ends(orders)
    assert (end.outcome, end.status, end.failure) == (Outcome.OK, 200, None)
    assert end.truth is not None
    assert (end.truth.cached_tokens, end.truth.prompt_tokens) == (2, 3)
    assert exchange.arrived == len(USAGE)
    assert exchange.closed() == ()


def test_a_stream_of_events_is_one() -> None:
    exchange = routed()
    exchange.receive(answer(SSE))
    assert kinds(exchange.receive(piece(b'data: {"a":1}\n\n'))) == ["response_body", "Started"]
    exchange.receive(piece(b"data: [DONE]\n\n"))
    (end,) = ends(exchange.closed())  # it has said its end, whoever closed the stream before HTTP's own
    assert end.outcome is Outcome.OK


def test_a_stream_that_breaks_off_is_no_good_end() -> None:
    exchange = routed()
    exchange.receive(answer(SSE))
    exchange.receive(piece(b'data: {"a":1}\n\n'))
    (end,) = ends(exchange.closed())
    assert end.outcome is Outcome.CANCELLED


@pytest.mark.parametrize("mode", [STREAMED, BUFFERED])
def test_a_body_of_an_answer_that_is_only_shown_goes_on_by_itself(mode: BodyMode) -> None:
    exchange = routed(Modes(FULL, mode))
    exchange.receive(answer())
    orders = exchange.receive(piece(USAGE, is_last=True))
    assert kinds(orders) == ["response_body", "Started", "End"]
    assert isinstance(orders[0], Send)


def test_trailers_end_an_answer() -> None:
    exchange = routed()
    exchange.receive(answer())
    exchange.receive(piece(USAGE))
    assert kinds(exchange.receive(Message(Kind.RESPONSE_TRAILERS, is_last=True))) == ["response_trailers", "End"]


@pytest.mark.parametrize(("status", "outcome"), [(b"204", Outcome.OK), (b"404", Outcome.ERROR)])
def test_an_answer_without_a_body_ends_with_its_headers(status: bytes, outcome: Outcome) -> None:
    (end,) = ends(routed().receive(answer([(b":status", status)], is_last=True)))
    assert (end.outcome, end.failure) == (outcome, None)


def test_an_answer_that_is_not_shown_ends_with_the_stream() -> None:
    exchange = routed(Modes(FULL, NONE))
    assert ends(exchange.receive(answer())) == []
    (end,) = ends(exchange.closed())
    assert (end.outcome, end.status) == (Outcome.OK, 200)


def test_an_answer_is_left_with_its_headers_where_nobody_watches() -> None:
    exchange = routed(rules=Rules(watches=False))
    orders = exchange.receive(answer(SSE))
    assert kinds(orders) == ["response_headers", "End", "Close"]
    assert ends(orders)[0].outcome is Outcome.OK
    assert exchange.receive(piece(b"x")) == ()
    assert exchange.closed() == ()


def test_errors_are_the_replicas() -> None:
    exchange = routed()
    exchange.receive(answer([(b":status", b"503"), (b"retry-after", b"7")]))
    (end,) = ends(exchange.receive(piece(b"{}", is_last=True)))
    assert end.outcome is Outcome.ERROR
    assert end.failure is not None
    assert (end.failure.fault, end.failure.status, end.failure.retry_after) == (Fault.STATUS, 503, 7)


def test_who_has_answered_instead_is_told_before_anything_else() -> None:
    told = {"envoy.lb": {"x-gateway-destination-endpoint-served": "10.0.0.2:8000"}}
    assert kinds(routed().receive(answer(metadata=told))) == ["Moved", "response_headers"]
    same = {"envoy.lb": {"x-gateway-destination-endpoint-served": "10.0.0.1:8000"}}
    assert kinds(routed().receive(answer(metadata=same))) == ["response_headers"]
    (moved, _) = routed().receive(answer([*JSON, (b"x-gateway-destination-endpoint-served", b"10.0.0.2:8000")]))
    assert moved == Moved(Place("10.0.0.2", 8000))


def test_an_answer_of_the_proxys_own_ends_the_asking() -> None:
    exchange = Exchange(Rules())
    exchange.receive(head(is_last=True))
    assert kinds(exchange.receive(answer())) == ["Unask", "response_headers"]
    assert kinds(exchange.receive(piece(b"x", is_last=True))) == ["response_body last"]
    assert kinds(exchange.decided(placed())) == ["End"]
    assert exchange.closed() == ()


def test_a_request_that_has_had_its_time_is_let_go() -> None:
    exchange = routed()
    orders = exchange.expired()
    assert kinds(orders) == ["End", "Close"]
    assert orders[1] == Close()
    assert exchange.expired() == exchange.closed() == ()


# Disorder


DISORDER: list[Callable[[Exchange], Sequence[Order]]] = [
    lambda exchange: exchange.receive(body(b"x")),
    lambda exchange: exchange.receive(piece(b"x")),
    lambda exchange: exchange.receive(Message(Kind.REQUEST_TRAILERS)),
    lambda exchange: exchange.receive(Message(Kind.RESPONSE_TRAILERS)),
    lambda exchange: exchange.receive(Message(Kind.REQUEST_HEADERS, HEAD, is_observed=True)),
    lambda exchange: exchange.broken("nonsense"),
]


@pytest.mark.parametrize("act", DISORDER)
def test_what_may_not_come_first_ends_the_stream(act: Callable[[Exchange], Sequence[Order]]) -> None:
    (close,) = act(Exchange(Rules()))
    assert isinstance(close, Close)
    assert close.problem


@pytest.mark.parametrize("message", [head(), body(b"x")])
def test_what_may_not_come_again_ends_the_stream_and_the_lease(message: Message) -> None:
    assert kinds(routed().receive(message)) == ["End", "Close"]
    answered = routed()
    answered.receive(answer())
    assert kinds(answered.receive(answer())) == ["End", "Close"]


MODES = st.builds(Modes, st.sampled_from(BodyMode), st.sampled_from(BodyMode))
MESSAGES = st.one_of(
    st.builds(
        Message,
        st.sampled_from(Kind),
        st.sampled_from([HEAD, JSON, SSE, [*JSON, (b"x-gateway-destination-endpoint-served", b"10.0.0.9:1")]]),
        st.sampled_from([b"", BODY, USAGE, b"data: [DONE]\n\n"]),
        st.booleans(),
    ),
)
ACTS = st.lists(MESSAGES | st.sampled_from(["decided", "refused", "closed", "expired", "broken"]), max_size=14)


@settings(max_examples=600)
@given(MODES, st.booleans(), st.booleans(), ACTS)
def test_whatever_comes_each_lease_has_one_end(
    modes: Modes, watches: bool, begins_well: bool, acts: list[Message | str]
) -> None:
    exchange = Exchange(Rules(watches=watches, max_body_bytes=100))
    asked = leases = ended = 0
    is_asking = False
    script: list[Message | str] = [*([head(modes, is_last=True), "decided"] if begins_well else [head(modes)]), *acts]
    for act in [*script, "closed", "late"]:
        orders: Sequence[Order] = ()
        if isinstance(act, Message):
            orders = exchange.receive(act)
        elif act in {"decided", "late"}:
            if not is_asking and not (act == "late" and asked and not leases):
                continue
            is_asking, leases = False, leases + 1
            orders = exchange.decided(placed())
        elif act == "refused":
            if not is_asking:
                continue
            is_asking = False
            orders = exchange.refused(503, (), b"")
        elif act == "closed":
            orders = exchange.closed()
        elif act == "expired":
            orders = exchange.expired()
        else:
            orders = exchange.broken("x")
        for order in orders:
            match order:
                case Ask():
                    asked, is_asking = asked + 1, True
                case Unask():
                    assert asked == 1
                case End():
                    ended += 1
                    assert ended <= leases
                case Started() | Moved():
                    assert leases == 1
                    assert ended == 0
        assert asked <= 1
    assert ended == leases
    assert exchange.receive(head()) == ()
