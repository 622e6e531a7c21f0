"""``balancer/fleet.py``: loads are the sums over open leases, and nothing but a lease changes them."""

import math
from collections import deque

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from balancer.core import Feed
from balancer.fleet import IDLE_BEFORE, MAX_HELD, MEMORY_SECONDS, USAGE_SECONDS, Drain, Fleet, LiveReplica, Status
from balancer.speeds import PREFILL_SPEED
from indexer.index import ReplicaId
from tests.support.routing import replica

A = ReplicaId("a")


def fleet(*names: str) -> Fleet:
    made = Fleet()
    for name in names:
        made.put(replica(name))
    return made


def live(of: Fleet, name: str = "a") -> LiveReplica:
    found = of.get(ReplicaId(name))
    assert found is not None
    return found


def load(of: LiveReplica) -> tuple[int, int]:
    return of.in_flight, of.queued_tokens


def test_a_lease_counts_from_acquire_to_release() -> None:
    owner = fleet("a")
    first, second = owner.acquire(live(owner), 100, 100, 0.0), owner.acquire(live(owner), 30, 30, 0.0)
    assert load(live(owner)) == (2, 130)
    assert owner.open_leases == 2
    owner.release(first, 0.0)
    assert load(live(owner)) == (1, 30)
    owner.release(second, 0.0)
    assert load(live(owner)) == (0, 0)
    assert owner.open_leases == 0


def test_tokens_leave_the_queue_at_the_first_output_and_only_once() -> None:
    owner = fleet("a")
    lease = owner.acquire(live(owner), 100, 100, 0.0)
    owner.started(lease, 0.0)
    owner.started(lease, 0.0)
    assert load(live(owner)) == (1, 0)
    owner.release(lease, 0.0)
    assert load(live(owner)) == (0, 0)


def test_a_lease_cannot_be_released_twice() -> None:
    owner = fleet("a")
    lease = owner.acquire(live(owner), 100, 100, 0.0)
    owner.release(lease, 0.0)
    with pytest.raises(KeyError):
        owner.release(lease, 0.0)
    assert load(live(owner)) == (0, 0)


def test_an_output_that_comes_after_the_end_changes_nothing() -> None:
    owner = fleet("a")
    lease = owner.acquire(live(owner), 100, 100, 0.0)
    owner.release(lease, 0.0)
    owner.started(lease, 0.0)
    assert load(live(owner)) == (0, 0)


def test_health_and_news_never_touch_the_load() -> None:
    owner = fleet("a")
    owner.acquire(live(owner), 100, 100, 0.0)
    owner.set_status(A, Status.LOST)
    owner.set_status(A, Status.READY)
    owner.put(replica("a", max_model_len=77))
    assert load(live(owner)) == (1, 100)
    assert live(owner).replica.max_model_len == 77


def test_new_facts_do_not_bring_a_lost_replica_back() -> None:
    owner = fleet("a")
    owner.set_status(A, Status.LOST)
    owner.put(replica("a"))
    assert live(owner).status is Status.LOST


@pytest.mark.parametrize(("status", "is_available"), [("ready", True), ("lost", False)])
def test_only_a_ready_replica_takes_new_requests(status: str, is_available: bool) -> None:
    owner = fleet("a")
    owner.set_status(A, Status(status))
    assert live(owner).is_available() is is_available
    assert [each.replica.id for each in owner.serving("m")] == ["a"]


def test_leases_of_a_removed_replica_can_still_be_released() -> None:
    owner = fleet("a")
    lease = owner.acquire(live(owner), 100, 100, 0.0)
    owner.remove(A)
    owner.put(replica("a"))
    owner.release(lease, 0.0)
    assert load(live(owner)) == (0, 0), "the newcomer owes nothing of its namesake's work"


def test_a_status_of_nobody_is_ignored() -> None:
    owner = fleet("a")
    owner.set_status(ReplicaId("stranger"), Status.LOST)
    assert len(owner) == 1


def test_models_are_those_of_any_replica() -> None:
    owner = fleet("a")
    owner.put(replica("b", models=("z", "m")))
    assert owner.models() == ["m", "z"]
    assert [each.replica.id for each in owner.serving("z")] == ["b"]


def test_ranks_lie_behind_one_endpoint_in_whatever_state() -> None:
    owner = fleet("a", "b")
    owner.put(replica("a#1", endpoint=live(owner).replica.endpoint))
    owner.set_status(A, Status.LOST)
    assert [each.replica.id for each in owner.behind("http://a:8000")] == ["a", "a#1"]
    assert owner.behind("http://c:8000") == []


def test_later_leases_have_higher_numbers() -> None:
    owner = fleet("a", "b")
    first = owner.acquire(live(owner), 1, 1, 0.0)
    assert (live(owner).last_lease, live(owner, "b").last_lease) == (first, 0)
    assert owner.acquire(live(owner, "b"), 1, 1, 0.0) > first


def test_it_says_how_many_are_in_which_status() -> None:
    owner = fleet("a", "b")
    owner.set_status(A, Status.LOST)
    assert repr(owner) == "<Fleet 1 ready, 1 lost, 0 leases>"


# How long it takes


def acquire(of: Fleet, tokens: int, now: float, name: str = "a", *, tells_start: bool = True) -> int:
    return of.acquire(live(of, name), tokens, tokens, now, tells_start=tells_start)


def slow(*names: str) -> Fleet:
    """Replicas that compute 100 tokens a second."""
    made = fleet(*names)
    for each in made:
        each.fix_speed(100.0)
    return made


def test_the_wait_is_what_was_sent_less_the_time_that_has_passed() -> None:
    owner = slow("a")
    assert live(owner).wait(5.0) == 0
    acquire(owner, 200, 5.0, tells_start=False)
    acquire(owner, 100, 5.5, tells_start=False)
    assert live(owner).wait(5.5) == pytest.approx(2.5)
    assert live(owner).wait(7.0) == pytest.approx(1.0)
    assert live(owner).wait(60.0) == 0


def test_what_has_not_told_its_first_output_is_awaited_however_long_it_takes() -> None:
    owner = slow("a")
    first = acquire(owner, 200, 5.0)
    acquire(owner, 100, 5.5)
    assert live(owner).wait(6.0) == pytest.approx(2.0)
    assert live(owner).wait(7.0) == pytest.approx(1.0)
    assert live(owner).wait(9.0) == pytest.approx(2.0 + 1.0), "as long again, and the other"
    owner.started(first, 9.0)
    assert live(owner).wait(9.0) == pytest.approx(1.0)


def test_time_in_which_there_was_nothing_to_do_is_not_saved_up() -> None:
    owner = slow("a")
    owner.started(acquire(owner, 100, 0.0), 1.0)
    acquire(owner, 100, 50.0)
    assert live(owner).wait(50.0) == pytest.approx(1.0)


@pytest.mark.parametrize("at", [0.2, 3.0])
def test_the_first_output_corrects_what_was_expected_of_the_time_until_then(at: float) -> None:
    owner = slow("a")
    first = acquire(owner, 100, 0.0)
    acquire(owner, 50, 0.0)
    owner.started(first, at)
    assert live(owner).wait(at) == pytest.approx(0.5)


def test_an_output_out_of_turn_leaves_the_others_to_be_computed() -> None:
    owner = slow("a")
    acquire(owner, 100, 0.0)
    second = acquire(owner, 50, 0.0)
    owner.started(second, 0.5)
    assert live(owner).wait(0.5) == pytest.approx(1.0)


def test_who_waits_in_the_line_and_goes_takes_his_own_work_with_him() -> None:
    owner = slow("a")
    acquire(owner, 1000, 0.0)
    second = acquire(owner, 1000, 0.0)
    owner.release(second, 9.0)
    assert live(owner).wait(9.0) == pytest.approx(1.0)


def test_the_time_spent_on_the_first_one_is_lost_with_it() -> None:
    owner = slow("a")
    first = acquire(owner, 1000, 0.0)
    acquire(owner, 1000, 0.0)
    owner.release(first, 9.0)
    assert live(owner).wait(9.0) == pytest.approx(10.0)


def test_nobody_waits_where_nothing_is_left_whatever_the_speed_was() -> None:
    owner = slow("a")
    lease = acquire(owner, 1000, 0.0)
    live(owner).fix_speed(10_000.0)
    owner.release(lease, 0.0)
    assert live(owner).wait(0.0) == 0


ORDERS = st.lists(
    st.tuples(
        st.floats(0.01, 3), st.integers(1, 300), st.sampled_from(["send", "send", "cancel", "wait"]), st.integers()
    ),
    max_size=30,
)


@given(ORDERS)
def test_the_wait_is_that_of_a_line_where_one_is_computed_after_the_other(
    orders: list[tuple[float, int, str, int]],
) -> None:
    """Against a line that is played: time goes to the first in it, who goes away takes what was spent on him along."""
    owner, line, now = slow("a"), deque[list[float]](), 0.0
    for seconds, tokens, order, which in orders:
        left = seconds
        while line and line[0][1] <= left + 1e-9:
            lease, cost = line.popleft()
            now, left = now + cost, left - cost
            owner.started(int(lease), now)
        now += left
        if line:
            line[0][1] -= left
        if order == "send":
            line.append([acquire(owner, tokens, now), tokens / 100])
        elif order == "cancel" and line:
            gone = line[which % len(line)]
            line.remove(gone)
            owner.release(int(gone[0]), now)
        assert live(owner).wait(now) == pytest.approx(sum([cost for _, cost in line]), abs=1e-6)
        assert live(owner).waiting == len(line)


# What counts beside


def test_waiting_ends_with_the_first_output_and_active_with_the_end() -> None:
    owner = fleet("a")
    first, second = owner.acquire(live(owner), 10, 100, 0.0), owner.acquire(live(owner), 20, 200, 0.0)
    assert (live(owner).waiting, live(owner).active_tokens) == (2, 300)
    owner.started(first, 0.0)
    assert (live(owner).waiting, live(owner).active_tokens) == (1, 300)
    owner.release(second, 0.0)
    assert (live(owner).waiting, live(owner).active_tokens) == (0, 100)
    owner.release(first, 0.0)
    assert (live(owner).waiting, live(owner).active_tokens) == (0, 0)


def test_one_whose_speed_nobody_knows_is_taken_for_usual() -> None:
    owner = fleet("a")
    acquire(owner, 500, 0.0)
    assert live(owner).wait(0.0) == pytest.approx(500 / PREFILL_SPEED)


def test_the_utilisation_is_the_share_of_time_that_the_last_minute_takes() -> None:
    owner = slow("a", "b")
    assert owner.utilisation(live(owner), 0.0) == 0
    for second in range(600):
        lease = acquire(owner, 100, float(second))  # one second's work a second, for two
        owner.started(lease, second + 1.0)
    assert owner.utilisation(live(owner), 600.0) == pytest.approx(0.5, rel=0.02)
    assert owner.utilisation(live(owner), 600.0 + MEMORY_SECONDS) == pytest.approx(0.5 / math.e, rel=0.02)


def test_who_is_busy_has_no_time_whatever_was_expected_of_the_work() -> None:
    owner = slow("a", "b")
    for second in range(600):  # one in a hundred seconds of work is expected, and takes the whole second
        owner.started(acquire(owner, 1, float(second)), second + 1.0)
    assert owner.utilisation(live(owner), 600.0) == pytest.approx(0.5, rel=0.02)
    assert owner.utilisation(live(owner), 600.0 + MEMORY_SECONDS) == pytest.approx(0.5 / math.e, rel=0.02)


@pytest.mark.parametrize("tokens", [100, 1])
def test_a_fleet_that_is_busy_from_the_first_moment_is_soon_known_to_be(tokens: int) -> None:
    owner = slow("a", "b")
    lease = acquire(owner, tokens, 0.0)
    assert owner.utilisation(live(owner), 0.0) < 0.2, "one request is no load"
    for second in range(1, 21):
        owner.started(lease, float(second))
        lease = acquire(owner, tokens, float(second))  # done in a second, whatever was expected
    assert 0.35 < owner.utilisation(live(owner), 20.0) < 0.5


def test_work_piles_up_beyond_one() -> None:
    owner = slow("a")
    for second in range(600):
        acquire(owner, 300, float(second))
    assert owner.utilisation(live(owner), 600.0) == pytest.approx(3.0, rel=0.02)


def test_those_that_cannot_be_used_have_no_time() -> None:
    owner = slow("a", "b", "c")
    acquire(owner, 6000, 0.0)
    whole = owner.utilisation(live(owner), 0.0)
    owner.set_status(A, Status.LOST)
    assert owner.utilisation(live(owner), 0.0) == pytest.approx(whole * 3 / 2)
    owner.drain(ReplicaId("b"), Drain.ASKED)
    assert owner.utilisation(live(owner), 0.0) == pytest.approx(whole * 3)
    owner.set_status(A, Status.READY)
    owner.drain(ReplicaId("b"), None)
    assert owner.utilisation(live(owner), 0.0) == pytest.approx(whole)
    owner.remove(ReplicaId("c"))
    assert owner.utilisation(live(owner), 0.0) == pytest.approx(whole * 3 / 2)
    owner.put(replica("c"))
    assert owner.utilisation(live(owner), 0.0) == pytest.approx(whole)
    for each in "abc":
        owner.set_status(ReplicaId(each), Status.LOST)
    assert owner.utilisation(live(owner), 0.0) == pytest.approx(whole * 3), "as if there were one"


def test_what_was_never_computed_was_no_work() -> None:
    owner = slow("a")
    acquire(owner, 6000, 0.0)
    alone = owner.utilisation(live(owner), 30.0)
    lease = acquire(owner, 3000, 10.0)
    assert owner.utilisation(live(owner), 30.0) > alone
    owner.release(lease, 20.0)
    assert owner.utilisation(live(owner), 30.0) == pytest.approx(alone)
    lease = acquire(owner, 3000, 20.0)
    acquire(owner, 6000, 25.0)
    owner.release(lease, 25.0)
    known = 1 - math.exp(-(30 + IDLE_BEFORE) / MEMORY_SECONDS)
    alone += 60 / MEMORY_SECONDS * math.exp(-5 / MEMORY_SECONDS) / known
    assert owner.utilisation(live(owner), 30.0) == pytest.approx(alone)
    done = acquire(owner, 3000, 30.0)
    owner.started(done, 31.0)
    owner.release(done, 32.0)
    assert owner.utilisation(live(owner), 32.0) > alone


# Who is held


def eager(*names: str) -> Fleet:
    """As ``slow``, and one request is enough to do."""
    made = Fleet(Feed(tokens=0, seconds=0.05, small=0))
    for name in names:
        made.put(replica(name))
        live(made, name).fix_speed(100.0)
    return made


def test_what_is_held_goes_in_the_order_of_ranks_when_there_is_less_to_do() -> None:
    owner = eager("a")
    first = owner.acquire(live(owner), 2000, 2000, 0.0, 0.0)
    others = [owner.acquire(live(owner), 100, 100, 0.0, rank) for rank in (3.0, 1.0, 2.0)]
    assert [owner.is_held(each) for each in (first, *others)] == [False, True, True, True]
    assert owner.dispatch(live(owner), 0.0) == []
    wait, passed = live(owner).standing(1.5, 0.0)
    assert wait == pytest.approx(21.0)
    assert passed == 2
    assert live(owner).wait(0.0) == pytest.approx(23.0)
    assert live(owner).waiting == 4
    assert owner.due(live(owner)) == pytest.approx(19.95)
    owner.started(first, 15.0)
    assert owner.dispatch(live(owner), 15.0) == [others[1]]
    assert owner.dispatch(live(owner), 15.5) == []
    owner.started(others[1], 15.8)
    assert owner.dispatch(live(owner), 15.8) == [others[2]]
    owner.release(others[2], 15.9)
    assert owner.dispatch(live(owner), 15.9) == [others[0]]
    assert not owner.has_held
    assert owner.due(live(owner)) is None


def test_nobody_is_due_by_time_alone_behind_two_that_have_not_answered() -> None:
    owner = slow("a")  # 1,024 tokens, if they take more than 0.05 s
    for tokens in (1000, 1000, 1000):
        owner.acquire(live(owner), tokens, tokens, 0.0, 0.0)
    assert owner.has_held
    assert owner.due(live(owner)) is None
    assert owner.dispatch(live(owner), 19.96) == []


def test_several_short_prompts_are_enough_to_do_together_and_tiny_ones_are_never_held() -> None:
    owner = slow("a")  # 1,024 tokens, if they take more than 0.05 s
    leases = [owner.acquire(live(owner), 400, 400, 0.0, 0.0) for _ in range(5)]
    assert [owner.is_held(each) for each in leases] == [False, False, False, True, True]
    assert not owner.is_held(owner.acquire(live(owner), 256, 256, 0.0, 0.0))
    live(owner).fix_speed(1e6)
    owner.reprice(live(owner))
    assert owner.dispatch(live(owner), 0.0) == leases[3:], "they take no time at all"


def test_who_is_held_and_goes_away_is_nobodys_wait() -> None:
    owner = eager("a")
    first = owner.acquire(live(owner), 2000, 2000, 0.0, 0.0)
    second, third = [owner.acquire(live(owner), 100, 100, 0.0, 1.0) for _ in range(2)]
    owner.release(second, 1.0)
    assert live(owner).wait(1.0) == pytest.approx(20.0)
    assert owner.holding() == [live(owner)]
    owner.started(first, 20.0)
    assert owner.dispatch(live(owner), 20.0) == [third]
    owner.release(first, 21.0, is_good=True)
    owner.release(third, 21.0, is_good=True)
    assert (live(owner).in_flight, live(owner).queued_tokens, owner.open_leases) == (0, 0, 0)


def test_those_for_whom_somebody_is_held_are_known() -> None:
    owner = eager("a", "b", "c")
    first = {name: owner.acquire(live(owner, name), 2000, 2000, 0.0, 0.0) for name in "abc"}
    held = {name: owner.acquire(live(owner, name), 100, 100, 0.0, 1.0) for name in "abc"}
    gone = live(owner, "c")
    owner.remove(gone.replica.id)
    assert set(owner.holding()) == {live(owner, "a"), live(owner, "b"), gone}
    owner.release(held["c"], 1.0)
    owner.release(held["a"], 1.0)
    assert owner.holding() == [live(owner, "b")]
    owner.started(first["b"], 20.0)
    assert owner.dispatch(live(owner, "b"), 20.0) == [held["b"]]
    assert owner.holding() == []
    assert not owner.has_held


def test_what_was_sent_before_anybody_here_knew_of_it_is_not_awaited() -> None:
    owner = slow("a")
    begun, queued = owner.adopt(live(owner), 0, 0.0), owner.adopt(live(owner), 300, 0.0)
    assert load(live(owner)) == (2, 300)
    assert (live(owner).waiting, live(owner).answering) == (1, 1)
    assert live(owner).wait(1.0) == pytest.approx(2.0)
    assert live(owner).wait(60.0) == 0.0
    assert owner.utilisation(live(owner), 600.0) == pytest.approx(0.0, abs=0.01)
    owner.started(queued, 60.0)
    assert live(owner).waiting == 0
    for lease in (begun, queued):
        owner.release(lease, 61.0, is_good=True)
    assert (load(live(owner)), owner.open_leases) == ((0, 0), 0)


def test_more_than_may_be_held_pushes_the_first_out() -> None:
    owner = eager("a")
    owner.acquire(live(owner), 10_000, 10_000, 0.0, 0.0)
    held = [owner.acquire(live(owner), 1, 1, 0.0, float(-at)) for at in range(MAX_HELD + 1)]
    assert owner.dispatch(live(owner), 0.0) == [held[-1]]
    assert len(live(owner).held) == MAX_HELD


def test_a_slower_replica_than_was_thought_has_more_to_do() -> None:
    owner = eager("a")
    owner.acquire(live(owner), 2000, 2000, 0.0, 0.0)
    owner.acquire(live(owner), 100, 100, 0.0, 1.0)
    live(owner).fix_speed(50.0)
    owner.reprice(live(owner))
    assert live(owner).wait(0.0) == pytest.approx(42.0)
    live(owner).fix_speed(51.0)
    owner.reprice(live(owner))
    assert live(owner).wait(0.0) == pytest.approx(42.0), "so little is not worth it"


def test_speeds_are_learned_from_first_outputs_in_their_turn() -> None:
    owner = fleet("a", "b")
    for at in range(20):
        for name, seconds in (("a", 1.0), ("b", 2.0)):
            lease = acquire(owner, 1000, 10.0 * at, name)
            owner.started(lease, 10.0 * at + seconds)
            owner.release(lease, 10.0 * at + 3)
    ratio = live(owner).prefill.speed(0, 0) / live(owner, "b").prefill.speed(0, 0)
    assert ratio == pytest.approx(2.0, rel=0.25)
    assert 500 < live(owner).prefill.speed(0, 0) < 1500


def test_a_replica_that_waits_for_its_link_does_not_seem_slow() -> None:
    owner = fleet("a")
    for at in range(20):
        lease = owner.acquire(live(owner), 100, 8100, 100.0 * at, loads=8000, may_load=True)
        owner.started(lease, 100.0 * at + 60)
        owner.release(lease, 100.0 * at + 61, cached_tokens=8000)
    assert live(owner).prefill.speed(0, 0) == PREFILL_SPEED


@pytest.mark.parametrize(("may_load", "speed"), [(True, 1000.0), (False, 200.0)])
def test_where_an_engine_may_load_its_figures_tell_what_was_computed(may_load: bool, speed: float) -> None:
    """1,000 tokens a second, of prompts that were thought to be there but for a hundredth."""
    owner = fleet("a")
    for at in range(20):
        lease = owner.acquire(live(owner), 100, 10_000, 100.0 * at, may_load=may_load)
        owner.started(lease, 100.0 * at + 10)
        owner.release(lease, 100.0 * at + 11, cached_tokens=0)
    assert live(owner).prefill.speed(5000, 0) == pytest.approx(speed, rel=0.2)


MOVES = st.lists(
    st.tuples(
        st.sampled_from(["acquire", "started", "good", "lost", "dispatch"]),
        st.integers(0, 9),
        st.integers(1, 50_000),
        st.booleans(),
        st.none() | st.floats(0, 10),
        st.floats(-1.0, 10.0),
    ),
    max_size=40,
)


@settings(max_examples=300)
@given(MOVES)
@example(
    [
        ("acquire", 0, 1, False, None, 0.0),
        ("acquire", 0, 1, False, None, 0.0),
        ("acquire", 0, 1, False, None, 0.0),
        ("started", 0, 1, False, None, 2.0),
    ]
)
@example(
    [
        ("acquire", 0, 3, True, None, 0.0),
        ("acquire", 0, 1001, True, None, 0.1),
        ("acquire", 0, 77, False, None, 0.1),
        ("started", 0, 1, True, None, 0.1),
        ("started", 0, 1, True, None, 0.1),
    ]
)
def test_whatever_comes_and_goes_can_be_asked_about_and_leaves_nothing(
    moves: list[tuple[str, int, int, bool, float | None, float]],
) -> None:
    owner = fleet("a")
    one = live(owner)
    open_leases: list[int] = []
    now = 100.0

    def looked_at() -> None:
        assert one.wait(now) >= one.sent_wait(now) >= 0
        assert one.standing(1.0, now)[0] >= 0
        assert owner.utilisation(live(owner), now) >= 0
        owner.due(one)

    for what, which, tokens, tells, rank, passed in moves:
        now += passed  # who reads a clock first may speak later
        if what == "acquire":
            open_leases.append(owner.acquire(one, tokens, tokens, now, rank, tells_start=tells))
        elif what == "dispatch":
            owner.dispatch(one, now)
        elif open_leases:
            lease = open_leases[which % len(open_leases)]
            if what == "started":
                owner.started(lease, now)
                looked_at()
            else:
                open_leases.remove(lease)
                owner.release(lease, now, is_good=what == "good")
        looked_at()
    for lease in open_leases:
        owner.release(lease, now)
        looked_at()
    assert (one.told, one.told_seconds, one.sent_seconds, one.held_seconds, one.held_tokens) == (0, 0, 0, 0, 0)
    assert load(one) == (0, 0)
    assert not one.queue
    assert not one.held


def test_another_model_at_the_same_place_is_as_fast_as_its_own_kind() -> None:
    owner = fleet("a", "b")
    for at in range(20):
        lease = owner.acquire(live(owner), 1000, 1000, 10.0 * at)
        owner.started(lease, 10.0 * at + 5)
        owner.release(lease, 10.0 * at + 5, is_good=True)
    slow_speed = live(owner).prefill.speed(0, 0)
    assert slow_speed < PREFILL_SPEED / 10
    owner.put(replica("a", models=("other",)))
    assert live(owner).prefill.speed(0, 0) == pytest.approx(PREFILL_SPEED)
    assert live(owner).skipped == 0
    owner.put(replica("b", models=("m",)))
    assert live(owner, "b").prefill.speed(0, 0) < PREFILL_SPEED / 5, "what is known of the model stays"
    owner.put(replica("a"))
    assert live(owner).prefill.speed(0, 0) < PREFILL_SPEED / 5


def test_whole_answers_teach_nothing_and_are_not_awaited_for_ever() -> None:
    owner = slow("a")
    whole = acquire(owner, 100, 0.0, tells_start=False)
    streamed = acquire(owner, 100, 60.0)
    assert live(owner).wait(60.0) == pytest.approx(1.0)
    owner.started(streamed, 61.0)
    assert live(owner).wait(61.0) == 0, "the other one was computed long ago, and answers whole"
    owner.release(whole, 90.0, is_good=True)
    owner.release(streamed, 90.0, is_good=True)
    assert live(owner).queued_tokens == 0


def test_a_full_cache_turns_over_as_fast_as_it_is_written() -> None:
    owner = slow("a")
    each = live(owner)
    each.room_tokens = 6_000
    for second in range(600):
        owner.release(acquire(owner, 100, float(second)), second + 0.5)
        if second < 50:
            assert each.turnover(float(second)) == math.inf, "there is room"
        if second == 70:
            assert each.turnover(70.0) == pytest.approx(60.0, rel=0.1), (
                "what was written in the first minute counts whole"
            )
    assert each.turnover(600.0) == pytest.approx(60.0, rel=0.05)
    each.holds(5_900)
    assert each.turnover(600.0) < math.inf
    each.holds(0)
    assert each.turnover(600.0) == math.inf, "the engine has begun anew"


def test_reuse_is_the_share_of_tokens_that_were_there_in_the_last_minutes() -> None:
    owner = fleet("a")
    assert owner.reuse(live(owner)) == 0
    owner.acquire(live(owner), 1000, 1000, 0.0)
    assert owner.reuse(live(owner)) == 0
    owner.acquire(live(owner), 500, 1000, 0.0)
    assert owner.reuse(live(owner)) == 0.25
    owner.acquire(live(owner), 100, 1000, 3000.0)
    assert owner.reuse(live(owner)) == pytest.approx(0.9, abs=0.01)


def test_who_is_given_nothing_while_others_are_is_known_to_be_skipped() -> None:
    owner = fleet("a", "b")
    for _ in range(3):
        owner.acquire(live(owner), 10, 10, 0.0)
    assert (live(owner).skipped, live(owner, "b").skipped) == (0, 3)
    owner.put(replica("new"))
    owner.put(replica("else", models=("another",)))
    owner.acquire(live(owner, "b"), 10, 10, 0.0)
    assert [live(owner, name).skipped for name in ("a", "b", "new", "else")] == [1, 0, 1, 0], (
        "of its own model, since it came"
    )


def test_of_one_that_was_found_slow_each_that_went_elsewhere_counts_less() -> None:
    owner = fleet("a", "b")
    live(owner, "b").prefill.patience = 4
    for skipped in (0, 0, 0, 1, 1, 1, 1, 2):
        owner.acquire(live(owner), 10, 10, 0.0)
        assert live(owner, "b").skipped == skipped


def test_what_an_engine_says_of_its_use_holds_for_a_moment() -> None:
    each = live(fleet("a"))
    each.usage, each.usage_at = 0.9, 100.0
    assert each.usage_now(101.0) == 0.9
    assert each.usage_now(101.0 + USAGE_SECONDS) == 0
