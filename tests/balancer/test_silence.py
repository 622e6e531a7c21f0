"""``balancer/silence.py``: a replica that computes and publishes nothing is told once, with what may be wrong."""

import msgspec
import pytest

from balancer.core import Decision, Truth
from balancer.silence import SILENT_AFTER, Silence, likely_causes
from indexer.index import ReplicaId
from tests.support.routing import replica

A = ReplicaId("a")
PLAIN = Decision(
    lease=1,
    replica=replica("a"),
    prompt_tokens=40,
    cached_tokens=0,
    is_predicted=False,
    knows_tokens=True,
    policy="p",
    candidates=(),
)


def serve(silence: Silence, count: int, *, lengths: tuple[int, ...] = (40,), truth: Truth | None = None, cached: int = 0,
          is_good: bool = True) -> list[ReplicaId]:  # fmt: skip
    told = []
    for _ in range(count):
        silence.sent(msgspec.structs.replace(PLAIN, cached_tokens=cached), lengths, 16)
        told.append(silence.ended(1, is_good=is_good, truth=truth))
    return [each for each in told if each is not None]


def test_it_is_told_once_after_so_many_requests() -> None:
    silence = Silence()
    assert serve(silence, SILENT_AFTER - 1) == []
    assert serve(silence, 1) == [A]
    assert serve(silence, 200) == []
    assert silence.unheard(A) == SILENT_AFTER + 200


def test_an_event_begins_the_count_anew() -> None:
    silence = Silence()
    serve(silence, SILENT_AFTER - 1)
    silence.heard(A)
    assert silence.unheard(A) == 0
    assert serve(silence, SILENT_AFTER - 1) == []
    assert serve(silence, 1) == [A]


@pytest.mark.parametrize(
    "case",
    [
        {"lengths": (15,)},
        {"lengths": ()},
        {"lengths": (40,), "cached": 32},
        {"lengths": (15, 15, 15, 15)},
        {"truth": Truth(cached_tokens=32)},
        {"is_good": False},
    ],
    ids=["short", "tokens unknown", "known to be cached", "many short ones", "cached, says the engine", "failed"],
)
def test_requests_that_need_not_fill_a_block_do_not_count(case: dict[str, object]) -> None:
    silence = Silence()
    assert serve(silence, 2 * SILENT_AFTER, **case) == []  # type: ignore[arg-type]
    assert silence.unheard(A) == 0


def test_a_lease_that_was_not_counted_is_nobodys() -> None:
    assert Silence().ended(7, is_good=True, truth=None) is None


def test_one_that_is_gone_leaves_nothing() -> None:
    silence = Silence()
    serve(silence, 3)
    silence.forget(A)
    assert silence.unheard(A) == 0


@pytest.mark.parametrize(
    ("topic", "is_dialling", "is_connected", "words"),
    [
        ("", False, False, "nobody answers at tcp://e:5557: check host, port and firewall"),
        ("", True, False, "nothing connects to tcp://e:5557"),
        ("kv", False, True, "its topic may not begin with 'kv' (replicas.topic)"),
        ("", False, True, "is connected, but the port may be another engine's"),
    ],
)
def test_causes_are_named_with_what_to_look_at(topic: str, is_dialling: bool, is_connected: bool, words: str) -> None:
    assert words in likely_causes("tcp://e:5557", topic, is_dialling=is_dialling, is_connected=is_connected)
