"""``balancer/admission.py``: nothing is lost or given out twice, nobody waits for ever, and no place stays empty."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from balancer import admission
from balancer.admission import Admission, AdmissionSettings, Claim, ClassWeights, Pool, Ticket, Urgency
from balancer.errors import ConfigError, Saturated

M = Pool("m")


def queue(**settings: object) -> Admission:
    return Admission(AdmissionSettings(max_in_flight=1, **settings))  # type: ignore[arg-type]


def enter(over: Admission, tenant: str = "t", urgency: Urgency = Urgency.NORMAL, now: float = 0.0) -> Ticket:
    return over.enter(Claim(tenant, urgency), M, now)[0]


def take(over: Admission, now: float = 0.0, tokens: int = 10) -> Ticket:
    ticket = over.take(lambda pool: True, now)
    assert ticket is not None
    over.charge(ticket.claim, tokens)
    return ticket


def test_one_tenant_is_served_as_it_came() -> None:
    over = queue()
    tickets = [enter(over) for _ in range(5)]
    assert [ticket.ahead for ticket in tickets] == [0, 1, 2, 3, 4]
    assert [take(over) for _ in range(5)] == tickets
    assert over.take(lambda pool: True, 0.0) is None


def test_a_flood_of_one_tenant_costs_the_others_nothing() -> None:
    over = queue()
    for _ in range(500):
        enter(over, "flood")
    guest = enter(over, "guest")
    assert guest in [take(over) for _ in range(2)]


def test_tenants_are_served_by_weight() -> None:
    over = queue(tenant_weights={"large": 3.0})
    for tenant in ("small", "large"):
        for _ in range(200):
            enter(over, tenant)
    served = [take(over).claim.tenant for _ in range(100)]
    assert served.count("large") in range(74, 77)


def test_tokens_count_and_not_requests() -> None:
    over = queue()
    for tenant in ("long", "short"):
        for _ in range(400):
            enter(over, tenant)
    given = {"long": 0, "short": 0}
    for _ in range(220):
        ticket = over.take(lambda pool: True, 0.0)
        assert ticket is not None
        tokens = 1_000 if ticket.claim.tenant == "long" else 100
        over.charge(ticket.claim, tokens)
        given[ticket.claim.tenant] += tokens
    assert abs(given["long"] - given["short"]) <= 2_000


def test_classes_have_their_shares_and_none_is_left_out() -> None:
    over = queue(max_waiting=10_000)
    for urgency in Urgency:
        for _ in range(2_000):
            enter(over, urgency=urgency)
    served = [take(over).claim.urgency for _ in range(2_100)]
    assert served.count(Urgency.HIGH) in range(1_590, 1_610)
    assert served.count(Urgency.NORMAL) in range(395, 405)
    assert served.count(Urgency.LOW) in range(98, 102)


@pytest.mark.parametrize(("priority", "urgency"), [(-5, "high"), (0, "normal"), (1, "low"), (10**30, "low")])
def test_priority_is_as_vllm_counts_it(priority: int, urgency: str) -> None:
    assert Urgency.of(priority) == urgency


def test_a_request_whose_replicas_are_busy_lets_others_pass() -> None:
    over = queue()
    stuck, _ = over.enter(Claim("t"), Pool("other"), 0.0)
    behind = enter(over)
    assert over.take(lambda pool: pool.model == "m", 0.0) == behind
    assert over.take(lambda pool: pool.model == "m", 0.0) is None
    assert over.take(lambda pool: True, 0.0) == stuck


def test_one_that_comes_again_is_next_and_finds_a_place() -> None:
    over = queue(max_waiting=2)
    first, _ = enter(over), enter(over)
    again, displaced = over.enter(Claim("t"), M, 1.0, comes_again=True)
    assert displaced is None
    assert [take(over), take(over)] == [again, first]


def test_a_place_that_is_given_up_is_free_at_once() -> None:
    over = queue(max_waiting=1)
    ticket = enter(over)
    over.leave(ticket)
    assert len(over) == 0
    other = enter(over)
    over.leave(ticket)
    assert take(over) == other


def test_a_full_class_says_when_to_come_again() -> None:
    over = queue(max_waiting=10, max_wait_seconds=20.0)
    for _ in range(10):
        enter(over, now=100.0)
    with pytest.raises(
        Saturated, match=r"every replica of 'm' is busy, and 10 requests wait .*admission.max_waiting"
    ) as told:
        enter(over, now=100.0)
    assert told.value.retry_after == 20  # nobody has been served yet: the longest that anyone waits
    for at in range(5):
        take(over, now=102.0 + 2 * at)  # one in two seconds
        enter(over, now=102.0 + 2 * at)
    with pytest.raises(Saturated) as told:
        enter(over, now=110.0)
    assert told.value.retry_after == 22


def test_an_estimate_grows_while_nothing_moves_and_forgets_quiet_times() -> None:
    over = queue()
    enter(over, now=0.0)
    enter(over, now=0.0)
    take(over, now=1.0)
    assert over.retry_after(Urgency.NORMAL, 1.0) == 2
    assert over.retry_after(Urgency.NORMAL, 50.0) == 100
    assert over.retry_after(Urgency.NORMAL, 5_000.0) == admission.LONGEST_RETRY_AFTER
    take(over, now=5_000.0)
    enter(over, now=90_000.0)
    enter(over, now=90_000.0)
    take(over, now=90_000.0)
    assert over.retry_after(Urgency.NORMAL, 90_000.1) == 1


def test_in_a_full_class_the_longest_queue_makes_room() -> None:
    over = queue(max_waiting=4)
    flood = [enter(over, "flood") for _ in range(4)]
    assert over.enter(Claim("guest"), M, 0.0)[1] == flood[3]
    assert over.enter(Claim("guest"), M, 0.0)[1] == flood[2]
    for tenant in ("flood", "guest"):  # two and two
        with pytest.raises(Saturated):
            enter(over, tenant)
    assert len(over) == 4


def test_a_heavier_tenant_has_more_places() -> None:
    over = queue(max_waiting=4, tenant_weights={"large": 3.0})
    for tenant in ("small", "small", "large", "large"):
        enter(over, tenant)
    displaced = over.enter(Claim("large"), M, 0.0)[1]
    assert displaced is not None
    assert displaced.claim.tenant == "small"
    with pytest.raises(Saturated):
        enter(over, "small")


def test_a_full_class_takes_no_place_of_another() -> None:
    over = queue(max_waiting=2)
    for _ in range(2):
        enter(over, urgency=Urgency.LOW)
    with pytest.raises(Saturated):
        enter(over, urgency=Urgency.LOW)
    assert enter(over, urgency=Urgency.HIGH).ahead == 0
    assert over.waiting(Urgency.LOW) == 2


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        (AdmissionSettings(max_in_flight=0), "max_in_flight"),
        (AdmissionSettings(max_queued_tokens=-1), "max_queued_tokens"),
        (AdmissionSettings(max_waiting=0), "max_waiting"),
        (AdmissionSettings(max_wait_seconds=math.inf), "max_wait_seconds"),
        (AdmissionSettings(weights=ClassWeights(low=0)), "weights.low"),
        (AdmissionSettings(tenant_weights={"acme": math.nan}), "tenant_weights.acme"),
    ],
)
def test_settings_that_cannot_be_used_are_named(settings: AdmissionSettings, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"^admission\.{name}: .* give a number above 0$"):
        admission.check(settings)


def test_nothing_saturates_where_nothing_is_set() -> None:
    assert not AdmissionSettings().is_on
    assert not AdmissionSettings().saturates(10**6, 10**9)
    assert AdmissionSettings(max_in_flight=3).saturates(3, 0)
    assert not AdmissionSettings(max_in_flight=3).saturates(2, 10**9)
    assert AdmissionSettings(max_queued_tokens=100).saturates(0, 100)
    admission.check(AdmissionSettings())


TENANTS = {"a": 1.0, "b": 2.0, "c": 5.0}
LARGEST = 50
STEPS = st.lists(st.tuples(st.sampled_from([*TENANTS, "take"]), st.integers(1, LARGEST)), max_size=150)


@given(before=STEPS, after=STEPS)
def test_how_long_one_waits_is_bounded_by_the_weights(
    before: list[tuple[str, int]], after: list[tuple[str, int]]
) -> None:
    over = queue(tenant_weights=TENANTS)

    def play(tenant: str, tokens: int) -> Ticket | None:
        if tenant != "take":
            enter(over, tenant)
            return None
        ticket = over.take(lambda pool: True, 0.0)
        if ticket is not None:
            over.charge(ticket.claim, tokens)
            given[ticket.claim.tenant] += tokens
        return ticket

    given = dict.fromkeys(TENANTS, 0)
    for step in before:
        play(*step)
    waits = enter(over, "b")
    given = dict.fromkeys(TENANTS, 0)
    for step in [*after, *[("take", LARGEST)] * 300]:
        if play(*step) == waits:
            break
        mine = (given["b"] + LARGEST) / TENANTS["b"]
        assert all(given[other] / weight <= mine + LARGEST / weight for other, weight in TENANTS.items())
    else:
        pytest.fail("it was never taken")


class Waiting(RuleBasedStateMachine):
    """Requests come, go and are taken in any order, for pools that open and close."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = queue(max_waiting=4, tenant_weights={"a": 2.0})
        self.waiting: list[Ticket] = []
        self.ended: set[int] = set()
        self.open: set[str] = set()
        self.now = 0.0

    def fits(self, pool: Pool) -> bool:
        return pool.model in self.open

    @rule(
        tenant=st.sampled_from("abc"),
        urgency=st.sampled_from(Urgency),
        model=st.sampled_from("xy"),
        again=st.booleans(),
    )
    def enter(self, tenant: str, urgency: Urgency, model: str, again: bool) -> None:
        alike = [each for each in self.waiting if each.claim.urgency is urgency]
        refusal = None
        try:
            ticket, displaced = self.queue.enter(Claim(tenant, urgency), Pool(model), self.now, comes_again=again)
        except Saturated as error:
            refusal = error
        if refusal is not None:
            assert len(alike) >= 4
            assert not again
            assert 1 <= (refusal.retry_after or 0) <= admission.LONGEST_RETRY_AFTER
            return
        if displaced is not None:
            assert len(alike) >= 4
            assert displaced in alike
            self.end(displaced)
        assert ticket.number not in self.ended
        own = [at for at, each in enumerate(self.waiting) if each.claim == ticket.claim]
        self.waiting.insert(own[0] if again and own else len(self.waiting), ticket)

    @rule()
    def take(self) -> None:
        ticket = self.queue.take(self.fits, self.now)
        could = [each for each in self.waiting if self.fits(each.pool)]
        if ticket is None:
            assert could == []
            return
        assert ticket == next(each for each in could if each.claim == ticket.claim)
        self.end(ticket)
        self.queue.charge(ticket.claim, ticket.number % 7)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(self.waiting))
        self.queue.leave(ticket)
        self.end(ticket)
        self.queue.leave(ticket)

    @rule(model=st.sampled_from("xy"))
    def open_or_close(self, model: str) -> None:
        self.open ^= {model}

    @rule(seconds=st.floats(0, 100))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    def end(self, ticket: Ticket) -> None:
        self.waiting.remove(ticket)
        assert ticket.number not in self.ended
        self.ended.add(ticket.number)

    @invariant()
    def everybody_is_accounted_for(self) -> None:
        assert len(self.queue) == len(self.waiting)
        for urgency in Urgency:
            assert self.queue.waiting(urgency) == sum(each.claim.urgency is urgency for each in self.waiting)

    def teardown(self) -> None:
        self.open = {"x", "y"}
        while self.waiting:
            self.take()
        assert len(self.queue) == 0
        assert list(self.queue._classes) == []


TestWaiting = Waiting.TestCase
