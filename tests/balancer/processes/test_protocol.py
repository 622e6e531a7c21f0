"""``balancer/processes/protocol.py``: what is sent is what comes, in bytes that stay, and garbage is known as such."""

import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer import errors
from balancer.admission import Urgency
from balancer.core import Failure, Fault, Outcome, Replica, Truth
from balancer.disaggregation.counts import Alone, Ending, Leg, LegsCounted, Miss
from balancer.disaggregation.roles import Part, Role, Transfer
from balancer.errors import RateLimited, RequestError
from balancer.limits import Rates
from balancer.processes import protocol
from balancer.processes.frames import ProtocolError
from balancer.processes.protocol import (
    Abandon,
    Adopt,
    Cancel,
    Chains,
    Charge,
    Done,
    Enter,
    FleetView,
    FromBrain,
    FromGateway,
    Hello,
    Hold,
    Known,
    Leave,
    Loads,
    Refused,
    Release,
    Report,
    Route,
    Routed,
    Spend,
    Started,
    Suspect,
)
from balancer.request_counts import Counted, Histogram, OfPolicy
from balancer.retries import Verdict
from balancer.stages import Stage
from balancer.timings import Timed
from hashing.extras import Lora
from hashing.own import LearnedKeys
from hashing.recipes import Recipe
from indexer.index import ReplicaId

A = ReplicaId("a:1")

FROM_GATEWAY: list[FromGateway] = [
    Hello("0.1", 7, 1),
    Route(
        3, "m", (40, 8), 12, True, False, 5.5, (A,), "id", "/v1/completions", "salt", "t", Urgency.LOW, 4.5,
        [Chains(2, Lora("l", "/p"), [protocol.packed([1, 2**64 - 1]), b""])], False, 2**64 - 1,
    ),
    Route(4, "m", (), 0, False, True, None, (), "", "", None, "", Urgency.NORMAL, 0.0, [], part=Part.PREFILL, takes_hint=False),
    Cancel(3),
    Started(3),
    Release(3, Outcome.OK, Truth(9, 4, 2, "stop", 200), None),
    Release(3, Outcome.ERROR, None, Failure(Fault.STATUS, 503, 2.0)),
    Adopt(5, A, 77),
    Enter(6, "key", "tenant", Rates(requests_per_minute=2.5), 1.25),
    Spend(7, 6, 100, 1.5),
    Charge(6, 3),
    Leave(6),
    Hold(3, "key", "tenant", Rates(concurrent_requests=1), 1.5),
    Suspect("http://a:1", has_answered=True),
    Report(
        Counted({("m", "/p", Outcome.OK): 2}, {("/p", "404"): 1}, {"key.x": 1}, {("m", A): 9}, {("m", A): 4},
                {"m": Histogram((0.5, 1.0), [1, 0, 2], 3.5)}, 1, {"p": OfPolicy({Outcome.OK: 2}, 9, 4, 8, 5)},
                LegsCounted({(Leg.PREFILL, Ending.OK): 2}, {Alone.NOBODY: 1}, {Miss.WHOLE: 1}, 9, 8, 1, 1)),
        Timed({Stage.HASH: [0, 1]}, {Stage.HASH: 20}),
        {(Fault.CONNECT, Verdict.RETRY): 1},
        {"cached": 2},
        {"sent": 3},
        4,
        {3: 100},
    ),
]  # fmt: skip

FROM_BRAIN: list[FromBrain] = [
    Routed(3, A, 32, 16, True, True, 10, 20, 30, "random", is_split=True),
    Routed(3, A, 32, 16, True, True, 10, 20, 30, hint={"max_load_tokens": 0, "kv_load_tiers": [{"medium": "CPU"}]}),
    Refused(3, "Saturated", "busy", "model", 2, ""),
    Done(7),
    FleetView(
        [
            Known(
                Replica(
                    A,
                    "http://a:1",
                    models=("m",),
                    adapters=(Lora("l"),),
                    recipe=Recipe(),
                    role=Role.PREFILL,
                    transfer=Transfer(bootstrap="http://a:2"),
                    connectors=("OffloadingConnector",),
                    release=(0, 32),
                ),
                0,
                True,
                -1e9,
            ),
            Known(Replica(ReplicaId("b:1"), "http://b:1"), None, False, 5.0),
        ],
        {0: Recipe("xxhash", root=b"12345678" * 2)},
        {1: LearnedKeys(32, tells_extras=False)},
        {"http://a:1": 2},
        True,
    ),
    Loads([1, 0]),
    Abandon(3),
]


def body(message: FromGateway | FromBrain) -> bytes:
    return protocol.encode(message)[4:]


@pytest.mark.parametrize("message", FROM_GATEWAY, ids=lambda message: type(message).__name__)
def test_what_a_gateway_says_is_what_the_brain_hears(message: FromGateway) -> None:
    assert protocol.from_gateway(body(message)) == message


@pytest.mark.parametrize("message", FROM_BRAIN, ids=lambda message: type(message).__name__)
def test_what_the_brain_says_is_what_a_gateway_hears(message: FromBrain) -> None:
    assert protocol.from_brain(body(message)) == message


def test_there_is_a_sample_of_every_message() -> None:
    assert {type(each) for each in FROM_GATEWAY} == set(FromGateway.__args__)
    assert {type(each) for each in FROM_BRAIN} == set(FromBrain.__args__)


@pytest.mark.parametrize(
    ("message", "golden"),
    [
        (Started(3), "0000000392" "03" "03"),
        (Release(3, Outcome.OK, None, None), "00000008" "9504" "03" "a26f6b" "c0" "c0"),
        (Suspect("e", has_answered=False), "00000005" "930a" "a165" "c2"),
        (Loads([1, 0]), "00000005" "9224" "92" "0100"),
        (
            Routed(3, A, 32, 16, True, True, 10, 20, 30, "p"),
            "00000012" "9d20" "03" "a3613a31" "20" "10" "c3" "c3" "0a" "14" "1e" "a170" "c2" "80",
        ),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_the_bytes_are_those_of_msgpack_behind_their_length(message: FromGateway | FromBrain, golden: str) -> None:
    assert protocol.encode(message).hex() == golden


def kinds() -> list[type[RequestError]]:
    return [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, RequestError)]


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.__name__)
def test_an_error_is_the_same_on_the_other_side(kind: type[RequestError]) -> None:
    error = kind("why", param="model", retry_after=3)
    if isinstance(error, RateLimited):
        error.limit = "key.tokens_per_minute"
    refused = protocol.from_brain(body(protocol.refusal(9, error)))
    assert isinstance(refused, Refused)
    found = protocol.error_of(refused)
    assert type(found) is kind
    assert (refused.call, vars(found)) == (9, vars(error))


def test_half_a_character_is_told_to_the_caller() -> None:
    with pytest.raises(ProtocolError):
        protocol.encode(Suspect("\ud800", has_answered=True))


def either(data: bytes) -> None:
    for decode in (protocol.from_gateway, protocol.from_brain):
        with contextlib.suppress(ProtocolError):
            decode(data)


@given(st.binary(max_size=200))
def test_garbage_is_no_message(data: bytes) -> None:
    either(data)


def plain() -> Any:
    numbers = st.integers(-(2**63), 2**64 - 1) | st.floats() | st.booleans()
    leaf = st.none() | numbers | st.text(max_size=8) | st.binary(max_size=8)
    names = st.text(max_size=3)
    return st.recursive(leaf, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(names, inner, max_size=3))


@given(st.sampled_from([*FROM_GATEWAY, *FROM_BRAIN]), st.data())
def test_messages_with_something_else_in_them_are_read_or_refused(message: Any, data: st.DataObject) -> None:
    parts = msgspec.msgpack.decode(body(message))
    at = data.draw(st.integers(0, len(parts) - 1))
    parts[at] = data.draw(plain())
    either(msgspec.msgpack.encode(parts))
    either(body(message)[: data.draw(st.integers(0, len(body(message))))])


def test_a_nest_without_end_is_no_message() -> None:
    either(b"\x91" * 1_000_000)
