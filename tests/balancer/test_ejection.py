"""``balancer/ejection.py``: who answers badly is left out, comes back by one request, and never are too many left out."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from balancer.core import Failure, Fault
from balancer.ejection import Cause, Ejections, EjectionSettings, check
from balancer.errors import ConfigError
from indexer.index import ReplicaId

A, B, C, D = FLEET = [ReplicaId(name) for name in "abcd"]
BROKEN = Failure(Fault.STATUS, 500)


class Story:
    """Requests one after the other, in moved time."""

    def __init__(self, **settings: float) -> None:
        self.owner = Ejections(EjectionSettings(**{"pause_seconds": 10.0, **settings}))  # type: ignore[arg-type]
        self.now = 0.0
        self.lease = 0

    def send(self, replica: ReplicaId = A) -> int:
        self.lease += 1
        self.owner.sent(replica, self.lease, self.now)
        return self.lease

    def fail(self, times: int = 1, failure: Failure = BROKEN, replica: ReplicaId = A) -> None:
        for _ in range(times):
            self.owner.failed(replica, self.send(replica), failure, self.now)

    def succeed(self, times: int = 1, replica: ReplicaId = A) -> None:
        for _ in range(times):
            self.owner.succeeded(replica, self.send(replica), self.now)

    @property
    def withheld(self) -> set[ReplicaId]:
        return self.owner.withheld(FLEET, self.now)


def test_failures_in_a_row_eject() -> None:
    story = Story()
    story.fail(4)
    story.succeed()
    story.fail(4)
    assert story.withheld == set()
    story.fail()
    assert story.withheld == {A}
    told = story.owner.get(A)
    assert told is not None
    assert (told.cause, told.reason) == (Cause.CONSECUTIVE, "5 requests failed in a row, the last one: status 500")


def test_a_share_of_failures_ejects_once_there_are_enough() -> None:
    story = Story()
    for _ in range(9):
        story.succeed()
        story.fail()
    assert story.withheld == set(), "18 requests say too little"
    story.succeed()
    story.fail()
    assert story.withheld == {A}
    told = story.owner.get(A)
    assert told is not None
    assert told.reason == "10 of 20 requests failed in 30 s, the last one: status 500"


def test_old_failures_are_forgotten() -> None:
    story = Story()
    for _ in range(30):
        story.succeed()
        story.fail()
        story.now += 4.0
    assert story.withheld == set()


@pytest.mark.parametrize("status", [400, 404, 422, 429, 503])
def test_what_a_client_did_and_a_full_queue_are_no_failures(status: int) -> None:
    story = Story()
    story.fail(100, Failure(Fault.STATUS, status))
    assert story.withheld == set()


@pytest.mark.parametrize("fault", [fault for fault in Fault if fault is not Fault.STATUS])
def test_every_other_fault_is(fault: Fault) -> None:
    story = Story()
    story.fail(5, Failure(fault))
    assert story.withheld == {A}


def test_the_trial_is_one_request() -> None:
    story = Story()
    story.fail(5)
    story.now = 9.9
    assert story.withheld == {A}
    story.now = 10.0
    assert story.withheld == set()
    trial = story.send()
    assert story.withheld == {A}, "one is enough to tell"
    story.owner.began(A, trial, story.now)
    assert story.withheld == set()
    story.fail(4)
    assert story.withheld == set(), "it begins with a clean record"


def test_each_failed_trial_doubles_the_pause_up_to_the_longest() -> None:
    story = Story(max_pause_seconds=35.0)
    story.fail(5)
    pauses = []
    for _ in range(4):
        told = story.owner.get(A)
        assert told is not None
        pauses.append(told.until - story.now)
        story.now = told.until
        story.fail()
    assert pauses == [10.0, 20.0, 35.0, 35.0]
    assert story.owner.counts == {(A, Cause.CONSECUTIVE): 1, (A, Cause.TRIAL): 4}


def test_who_was_good_for_long_is_paused_shortly_again() -> None:
    story = Story(max_pause_seconds=300.0)
    story.fail(5)
    story.now = 10.0
    story.succeed()
    story.fail(5)
    told = story.owner.get(A)
    assert told is not None
    assert told.until == 30.0, "it failed again at once"
    story.now = 30.0
    story.succeed()
    story.now = 400.0
    story.fail(5)
    told = story.owner.get(A)
    assert told is not None
    assert told.until == 410.0


def test_answers_to_requests_from_before_say_nothing() -> None:
    story = Story()
    old = story.send()
    story.fail(5)
    story.owner.succeeded(A, old, story.now)
    assert story.withheld == {A}
    story.now = 10.0
    trial = story.send()
    story.owner.failed(A, old, BROKEN, story.now)
    told = story.owner.get(A)
    assert told is not None
    assert told.on_trial
    story.owner.failed(A, trial, BROKEN, story.now)
    assert story.withheld == {A}


def test_a_trial_that_is_cancelled_is_followed_by_another_one_later() -> None:
    story = Story()
    story.fail(5)
    story.now = 50.0
    trial = story.send()
    story.owner.cancelled(A, trial, story.now)
    assert story.withheld == {A}
    story.now = 60.0
    assert story.withheld == set()


def test_a_stall_ejects_at_once_and_a_sign_of_life_brings_back() -> None:
    story = Story()
    assert not story.owner.stalled(A, "?", story.now), "who never got a request owes none"
    story.send()
    assert story.owner.stalled(A, "nothing for 30 s", story.now)
    assert not story.owner.stalled(A, "nothing for 31 s", story.now)
    assert story.withheld == {A}
    story.owner.moved(A, story.now)
    assert story.withheld == set()


def test_a_sign_of_life_forgives_no_errors() -> None:
    story = Story()
    story.fail(5)
    story.owner.moved(A, story.now)
    assert story.withheld == {A}


@pytest.mark.parametrize(
    ("fleet", "share", "out"), [(1, 1.0, 0), (2, 0.5, 1), (2, 1.0, 1), (3, 0.5, 1), (4, 0.5, 2), (4, 0, 0)]
)
def test_no_more_than_a_share_is_left_out_and_never_all(fleet: int, share: float, out: int) -> None:
    story = Story(max_share=share)
    for replica in FLEET:
        story.fail(5, replica=replica)
    assert len(story.owner.withheld(FLEET[:fleet], story.now)) == out


def test_the_worst_stay_out_when_not_all_can() -> None:
    story = Story(max_share=0.5)
    story.fail(5, replica=A)
    story.now = 10.0
    story.fail(1, replica=A)  # its trial
    for replica in (B, C, D):
        story.fail(5, replica=replica)
    assert A in story.withheld


def test_one_that_is_kept_in_use_and_answers_is_back() -> None:
    story = Story()
    story.fail(5)
    assert story.owner.withheld([A], story.now) == set()
    story.succeed()
    assert A not in story.owner


def test_who_is_gone_leaves_nothing_behind() -> None:
    story = Story()
    story.fail(5)
    story.owner.forget(A)
    assert (len(story.owner), story.withheld) == (0, set())
    story.owner.failed(A, story.lease, BROKEN, story.now)
    assert len(story.owner) == 0


@given(st.lists(st.sampled_from(FLEET), unique=True), st.floats(0, 1), st.lists(st.sampled_from(FLEET), max_size=40))
def test_somebody_is_always_left(usable: list[ReplicaId], share: float, failing: list[ReplicaId]) -> None:
    story = Story(max_share=share, consecutive_failures=1)
    for replica in failing:
        story.fail(replica=replica)
    out = story.owner.withheld(usable, story.now)
    assert out <= set(usable)
    assert len(out) <= max(0, min(share * len(usable), len(usable) - 1))


class EjectionMachine(RuleBasedStateMachine):
    """Whatever happens, an ejected replica is tried again sooner or later, with one request at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.story = Story(max_share=1.0, consecutive_failures=2, minimum_requests=4)
        self.open: list[tuple[ReplicaId, int]] = []

    @rule(seconds=st.floats(0, 40))
    def time_goes_on(self, seconds: float) -> None:
        self.story.now += seconds

    @rule(at=st.integers(0, 3))
    def send_where_it_may(self, at: int) -> None:
        offered = [replica for replica in FLEET if replica not in self.story.withheld]
        replica = offered[at % len(offered)]
        self.open.append((replica, self.story.send(replica)))

    @rule(at=st.integers(0, 99), ending=st.sampled_from(["ok", "fail", "cancel"]))
    def end(self, at: int, ending: str) -> None:
        if not self.open:
            return
        replica, lease = self.open.pop(at % len(self.open))
        match ending:
            case "ok":
                self.story.owner.succeeded(replica, lease, self.story.now)
            case "fail":
                self.story.owner.failed(replica, lease, BROKEN, self.story.now)
            case _:
                self.story.owner.cancelled(replica, lease, self.story.now)

    @rule(replica=st.sampled_from(FLEET))
    def stall(self, replica: ReplicaId) -> None:
        self.story.owner.stalled(replica, "nothing", self.story.now)

    @rule(replica=st.sampled_from(FLEET))
    def move(self, replica: ReplicaId) -> None:
        self.story.owner.moved(replica, self.story.now)

    @invariant()
    def trials_are_requests_that_are_open(self) -> None:
        for replica in FLEET:
            told = self.story.owner.get(replica)
            if told is not None and told.on_trial:
                assert any(each == replica for each, _ in self.open)

    @invariant()
    def nobody_is_out_for_ever(self) -> None:
        on_trial = {replica for replica in FLEET if (told := self.story.owner.get(replica)) and told.on_trial}
        assert self.story.owner.withheld(FLEET, self.story.now + 301.0) <= on_trial
        assert self.story.owner.withheld(FLEET, math.inf) <= on_trial


TestEjectionMachine = EjectionMachine.TestCase


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        (EjectionSettings(failure_share=1.1), "ejection.failure_share"),
        (EjectionSettings(max_share=-0.1), "ejection.max_share"),
        (EjectionSettings(statuses=(404,)), "ejection.statuses: 404"),
    ],
)
def test_settings_that_cannot_be_used_are_named(settings: EjectionSettings, name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        check(settings)
