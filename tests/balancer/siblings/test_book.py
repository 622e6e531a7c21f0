"""``balancer/siblings/book.py``: what a sibling's report comes to, for how long, and which ones count nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.siblings import book as module
from balancer.siblings.book import Book, Heard, Loads
from balancer.siblings.others import Grown, Others
from balancer.siblings.report import NOTHING, After, ModelLoad, ReplicaLoad, Report
from indexer.index import ReplicaId

A, B = ReplicaId("a:8000"), ReplicaId("b:8000")
HERE, THERE = "http://one", "http://two"
IDLE = {A: ReplicaLoad(), B: ReplicaLoad()}


def busy(in_flight: int = 4, **more: int) -> ReplicaLoad:
    return ReplicaLoad(in_flight=in_flight, waiting=1, queued_tokens=1000, active_tokens=8000, **more)


def report(sequence: int = 1, gateway: str = "other", **changes: object) -> Report:
    told: dict[str, object] = {"replicas": {A: busy(), B: ReplicaLoad()}, **changes}
    return Report(gateway=gateway, sequence=sequence, **told)  # type: ignore[arg-type]


def made(*addresses: str) -> Book:
    book = Book("self", 0.5)
    book.set(addresses or [HERE])
    return book


def hear(book: Book, what: Report, at: float, address: str = HERE, then: Loads = IDLE) -> Heard:
    return book.heard(address, what, then, at, at + 0.01)


def at(book: Book, now: float, replica: ReplicaId = A, own: int = 0) -> int:
    """Requests of others there."""
    found = book.others(now)[0].get(replica)
    return 0 if found is None else found.requests(own)


def test_a_report_counts_in_full_then_less_and_then_nothing() -> None:
    book = made()
    assert hear(book, report(), 10.0).is_counted
    assert [at(book, 10.0 + age) for age in (0.0, 0.5, 1.5)] == [4, 4, 4]
    assert at(book, 13.25) == 2  # 6.5 intervals: half way between 3 and 10
    assert at(book, 15.0) == 0
    assert not book.others(15.0)[0]
    (told,) = book.told(12.0)
    assert told.age == 2.0
    assert 0 < told.weight < 1
    assert told.results == {"counted": 1}


@given(st.floats(0, 100), st.floats(0, 100))
def test_the_older_the_less(one: float, other: float) -> None:
    book = made()
    younger, older = sorted((one, other))
    assert 1 >= book.weight(younger) >= book.weight(older) >= 0


def test_what_others_have_is_the_sum_over_all_of_them() -> None:
    book = made(HERE, THERE)
    hear(book, report(), 1.0)
    hear(book, report(gateway="third", replicas={A: busy(2), B: busy(5)}), 1.0, THERE)
    assert (at(book, 1.1), at(book, 1.1, B)) == (6, 5)
    others = book.others(1.1)[0][A]
    assert (others.unanswered(0), others.queued(0), others.active(0)) == (2, 2000, 16000)


def test_late_and_out_of_order_reports_are_dropped() -> None:
    book = made()
    hear(book, report(2), 2.0)
    assert not hear(book, report(1, replicas={A: busy(100)}), 1.0).is_counted  # asked before, answered after
    assert not hear(book, report(2, replicas={A: busy(100)}), 2.5).is_counted  # the same once more
    assert at(book, 2.5) == 4
    assert hear(book, report(3, replicas={A: busy(7)}), 3.0).is_counted
    assert at(book, 3.0) == 7
    assert book.told(3.0)[0].results == {"counted": 2, "late": 2}


def test_its_own_report_counts_nothing() -> None:
    book = made()
    heard = hear(book, report(gateway="self"), 1.0)
    assert not heard.is_counted
    assert heard.news == "it is this gateway itself"
    assert book.is_self(HERE)
    assert at(book, 1.0) == 0
    assert hear(book, report(2, gateway="self"), 2.0).news is None
    assert hear(book, report(1, gateway="other"), 3.0).is_counted  # the address is somebody else's now
    assert not book.is_self(HERE)


def test_a_gateway_behind_two_addresses_counts_once() -> None:
    book = made(HERE, THERE)
    hear(book, report(1), 1.0)
    hear(book, report(2, replicas={A: busy(9)}), 1.2, THERE)
    assert at(book, 1.3) == 9
    hear(book, report(3, replicas={A: busy(5)}), 1.4)
    assert at(book, 1.5) == 5


def test_who_is_gone_counts_nothing_at_once_and_who_is_silent_after_a_while() -> None:
    book = made()
    hear(book, report(), 1.0)
    assert book.failed(HERE, "no answer in time", "failed") == "no answer in time"
    assert book.failed(HERE, "no answer in time", "failed") is None  # has been told
    assert at(book, 1.5) == 4
    book.failed(HERE, "connection refused", "failed", is_gone=True)
    assert at(book, 1.5) == 0
    assert book.told(1.5)[0].problem == "connection refused"
    assert book.after(HERE) == NOTHING
    heard = hear(book, report(gateway="its next life"), 2.0)
    assert heard.is_counted
    assert heard.news is not None
    assert book.told(2.0)[0].problem is None


def test_who_is_no_sibling_any_more_counts_nothing() -> None:
    book = made(HERE, THERE)
    hear(book, report(), 1.0)
    book.set([THERE])
    assert at(book, 1.0) == 0
    assert not hear(book, report(2), 1.5).is_counted  # an answer that was under way
    assert book.failed(HERE, "whatever", "failed") is None
    assert book.addresses == [THERE]


def test_another_life_begins_to_count_anew() -> None:
    book = made()
    hear(book, report(900, replicas={A: busy(given=5000, written=10**6)}), 1.0)
    heard = hear(book, report(1, "its next life", replicas={A: busy(given=3, written=100)}), 2.0)
    assert heard.is_counted
    assert heard.grown == ()
    heard = hear(book, report(2, "its next life", replicas={A: busy(given=5, written=700)}), 3.0)
    assert heard.grown == (Grown(A, 2, 600),)


def test_what_it_was_asked_after_is_of_its_own_life() -> None:
    book = made()
    assert book.after(HERE) == NOTHING
    hear(book, report(mark=17), 1.0)
    assert book.after(HERE) == After("other", 17)


def test_replicas_that_nobody_knows_here_count_nothing_and_are_told() -> None:
    book = made()
    strange = ReplicaId("c:8000")
    hear(book, report(replicas={A: busy(), strange: busy()}), 1.0)
    assert set(book.others(1.0)[0]) == {A}
    hear(book, report(2, replicas={A: busy(), strange: busy()}), 5.0)
    (told,) = book.told(6.0)
    assert (told.only_there, told.only_here) == ((strange,), (B,))
    assert (told.common, told.differences) == (1, 2)
    assert told.differs_seconds == pytest.approx(5.0, abs=0.1)
    hear(book, report(3), 7.0)
    assert book.told(7.0)[0].differs_seconds == 0


def test_what_all_together_give_a_model() -> None:
    book = made(HERE, THERE)
    hear(book, report(models={"m": ModelLoad(work=2.0, busy=1.5)}), 1.0)
    hear(book, report(gateway="third", models={"m": ModelLoad(work=1.0, busy=0.5)}), 1.0, THERE)
    work = book.others(1.0)[1]["m"]
    assert work.work == 3.0
    assert sorted(work.busy) == [0.5, 1.5]


# Between two reports


def test_others_are_expected_to_have_done_what_was_done_here_since() -> None:
    """Three gateways that see the same idle replica: each counts what it sends there three times, until it is told."""
    book = made(HERE, THERE)
    hear(book, report(replicas={A: ReplicaLoad(), B: ReplicaLoad()}), 1.0)
    hear(book, report(gateway="third", replicas={A: ReplicaLoad(), B: ReplicaLoad()}), 1.0, THERE)
    assert [at(book, 1.1, A, own) for own in (0, 1, 5)] == [0, 2, 10]
    then = {A: busy(5), B: ReplicaLoad()}
    hear(book, report(2, replicas={A: busy(3), B: ReplicaLoad()}), 1.5, then=then)
    hear(book, report(2, "third", replicas={A: busy(4), B: ReplicaLoad()}), 1.5, THERE, then=then)
    assert [at(book, 1.6, A, own) for own in (5, 6, 0)] == [7, 9, 0]


def test_who_is_sent_less_is_expected_to_have_done_less() -> None:
    book = made()
    for second in range(1, 40):
        ours = {A: ReplicaLoad(given=100 * second), B: ReplicaLoad()}
        hear(book, report(second, replicas={A: ReplicaLoad(given=10 * second)}), float(second), then=ours)
    assert 0 < book.others(39.1)[0][A].echo < 0.25
    book = made()
    for second in range(1, 40):
        theirs = {A: ReplicaLoad(given=1000 * second)}
        hear(book, report(second, replicas=theirs), float(second), then={A: ReplicaLoad(given=second)})
    assert book.others(39.1)[0][A].echo == module.ECHO * module.MOST_ECHO


def test_siblings_that_send_anything_are_asked_sooner() -> None:
    book = made()
    assert book.pause(0.0) == pytest.approx(1 / module.MOST_A_SECOND)  # nobody knows yet what it is sent
    hear(book, report(1), 1.0)
    assert book.pause(1.1) == pytest.approx(1 / module.MOST_A_SECOND)
    hear(book, report(2), 3.5)
    assert book.pause(3.6) == 0.5  # nothing is sent
    hear(book, report(3, replicas={A: busy(given=5)}), 4.0)
    assert book.pause(4.1) == pytest.approx(1 / module.MOST_A_SECOND)
    assert book.pause(60.0) == 0.5  # nothing has been heard since
    book.failed(HERE, "connection refused", "failed", is_gone=True)
    assert book.pause(4.1) == 0.5


@pytest.mark.parametrize(
    ("siblings", "replicas", "pause"),
    [(2, 12, 2 / module.MOST_A_SECOND), (10, 12, 10 / module.MOST_A_SECOND), (2, 900, 0.18), (2, 9_000, 0.5)],
)
def test_more_siblings_and_larger_fleets_are_asked_less_often(siblings: int, replicas: int, pause: float) -> None:
    book = made(*(f"http://{number}" for number in range(siblings)))
    fleet = {ReplicaId(f"r{number}"): ReplicaLoad() for number in range(replicas)}
    for when in (1, 2):
        for number in range(siblings):
            what = report(when, f"gateway {number}", replicas={**fleet, ReplicaId("r0"): busy(given=1000 * when)})
            hear(book, what, float(when), f"http://{number}", fleet)
    assert book.pause(2.1) == pytest.approx(pause)


@given(st.floats(-1e6, 1e6), st.floats(0, 10), st.integers(0, 10_000))
def test_no_count_is_below_nothing(counted: float, echo: float, own: int) -> None:
    others = Others(counted, counted, counted, counted, echo)
    assert min(others.requests(own), others.unanswered(own), others.queued(own), others.active(own)) >= 0
