"""``balancer/siblings/exchange.py``: what one gateway has under way is load to another's policy, and nothing else.

Two routers before the same replicas, in one process and moved time; what one tells the other is really written and read.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from balancer.admission import AdmissionSettings
from balancer.core import Decision, Outcome
from balancer.errors import Saturated
from balancer.policies.base import make, names
from balancer.router import Router
from balancer.siblings.exchange import Exchange
from balancer.siblings.report import decode, encode
from indexer.events import AllBlocksCleared
from indexer.index import ReplicaId
from tests.support.routing import MODEL, RECIPE, replica, request, stored, told

A, B, C = ReplicaId("a"), ReplicaId("b"), ReplicaId("c")


class Side:
    """One gateway: its router, and its side of the exchange."""

    def __init__(self, name: str, policy: str, replicas: str = "ab", **changes: object) -> None:
        self.router = Router(make(policy), policy, **changes)  # type: ignore[arg-type]
        for each in replicas:
            self.router.put(replica(each))
            self.router.caches.apply(ReplicaId(each), [told(range(8)), AllBlocksCleared()])
        self.exchange = Exchange(self.router.fleet, self.router.sessions, name, 0.5)

    def follow(self, *others: "Side") -> None:
        self.exchange.book.set([each.exchange.book.own for each in others])

    def ask(self, other: "Side", now: float, answers_after: float = 0.0) -> str | None:
        asking = self.exchange.asking(other.exchange.book.own, now)
        report = decode(encode(other.exchange.report(now, asking.after)))
        return self.exchange.heard(asking, report, now + answers_after)

    def send(self, *tokens: int, now: float, excluded: str = "", draw: float = 0.5, session: int = 0) -> Decision:
        names_excluded = frozenset(map(ReplicaId, excluded))
        return self.router.route(request(tokens, excluded=names_excluded, session=session), now, draw)


def pair(policy: str, **changes: object) -> tuple[Side, Side]:
    one, two = Side("one", policy, "ab", **changes), Side("two", policy, "ab", **changes)
    one.follow(two)
    two.follow(one)
    return one, two


def prompt(number: int, tokens: int = 2_000) -> range:
    return range(number * 10_000, number * 10_000 + tokens)


@pytest.mark.parametrize("policy", ["predicted_ttft", "least_load", "cache_aware", "power_of_two"])
def test_a_replica_that_a_sibling_has_filled_is_not_chosen(policy: str) -> None:
    one, two = pair(policy)
    for number in range(4):
        assert one.send(*prompt(number), now=0.0, excluded="b").replica.id == A
    assert {two.router.consider(request(prompt(9)), 0.0, draw).replica.id for draw in (0.0, 0.9)} <= {A, B}
    two.ask(one, 0.1)
    for draw in (0.0, 0.5, 0.9):
        assert two.router.consider(request(prompt(9)), 0.1, draw).replica.id == B


def test_what_policies_see_is_own_plus_others() -> None:
    one, two = pair("least_load")
    for number in range(3):
        one.send(*prompt(number), now=0.0, excluded="b")
    first = one.send(*prompt(3, 400), now=0.0, excluded="b")
    one.router.started(first.lease, 0.01)  # its prompt is computed: it is in flight, and waits no more
    own = two.send(*prompt(4, 1_000), now=0.0, excluded="b")
    two.ask(one, 0.1)
    seen = {each.replica: each for each in two.router.consider(request(prompt(9)), 0.1, 0.5).candidates}
    a, b = seen[A], seen[B]
    assert (a.in_flight, a.waiting, a.queued_tokens, a.active_tokens) == (5, 4, 7_000, 7_400)
    assert (b.in_flight, b.waiting, b.queued_tokens, b.active_tokens, b.wait) == (0, 0, 0, 0, 0.0)
    live = two.router.fleet.get(A)
    assert live is not None
    assert a.wait == pytest.approx(live.wait(0.1) + 6_000 / a.speed)
    assert (live.in_flight, live.queued_tokens) == (1, 1_000)  # its own stay what they are
    two.router.release(own.lease, Outcome.OK, 0.2)
    assert two.router.fleet.open_leases == 0


def test_the_wait_is_in_the_cost_of_predicted_ttft() -> None:
    """A prefix that a busy replica holds is computed anew elsewhere, as soon as the wait for it is longer."""
    one, two = pair("predicted_ttft")
    held = list(range(500, 2_500))
    for side in (one, two):
        side.router.caches.apply(A, [stored(held)])
    assert two.router.consider(request(held), 0.0, 0.5).replica.id == A
    for number in range(10):
        one.send(*prompt(number), now=0.0, excluded="b")
    two.ask(one, 0.0)
    assert two.router.consider(request(held), 0.0, 0.5).replica.id == B
    two.exchange.refresh(10.0)
    assert two.router.consider(request(held), 10.0, 0.5).replica.id == A


def test_limits_and_leases_stay_local() -> None:
    admission = AdmissionSettings(max_in_flight=2)
    one, two = pair("least_load", admission=admission)
    for number in range(2):
        one.send(*prompt(number), now=0.0, excluded="b")
    two.ask(one, 0.0)
    assert two.send(*prompt(7), now=0.0, excluded="b").replica.id == A
    for number in range(3):
        two.send(*prompt(20 + number), now=0.0)
    with pytest.raises(Saturated):
        two.send(*prompt(30), now=0.0)
    assert two.router.fleet.open_leases == 4


def test_what_is_not_refreshed_is_forgotten_in_time() -> None:
    one, two = pair("least_load")
    one.send(*prompt(0), now=0.0, excluded="b")
    two.ask(one, 0.0)
    live = two.router.fleet.get(A)
    assert live is not None
    assert live.others.requests(0) == 1
    two.exchange.refresh(6.0)
    assert live.others.requests(0) == 0


def test_a_sibling_that_is_gone_is_forgotten_at_once() -> None:
    one, two = pair("least_load")
    one.send(*prompt(0), now=0.0, excluded="b")
    two.ask(one, 0.0)
    asking = two.exchange.asking("one", 0.1)
    assert two.exchange.failed(asking, "connection refused", "failed", 0.1, is_gone=True) == "connection refused"
    live = two.router.fleet.get(A)
    assert live is not None
    assert live.others.requests(0) == 0


def test_large_fleets_are_summed_up_less_often_but_who_is_gone_is_gone() -> None:
    one, two = pair("least_load")
    for number in range(4_000):
        two.router.put(replica(f"r{number}"))
    two.ask(one, 0.0)
    one.send(*prompt(0), now=0.0, excluded="b")
    live = two.router.fleet.get(A)
    assert live is not None
    two.ask(one, 0.05)
    assert live.others.requests(0) == 0
    two.exchange.refresh(0.3)
    assert live.others.requests(0) == 1
    two.exchange.failed(two.exchange.asking("one", 0.31), "connection refused", "failed", 0.31, is_gone=True)
    assert live.others.requests(0) == 0


def test_another_fleet_counts_nothing() -> None:
    one, two = Side("one", "least_load", "xy"), Side("two", "least_load", "ab")
    two.follow(one)
    one.send(*prompt(0), now=0.0)
    two.ask(one, 0.0)
    assert all(live.others.requests(0) == 0 for live in two.router.fleet)
    (stands,) = two.exchange.book.told(0.0)
    assert (stands.common, set(stands.only_there), set(stands.only_here)) == (0, {"x", "y"}, {"a", "b"})


def test_what_a_sibling_uses_need_not_be_tried() -> None:
    """A replica that nobody has used for long is given a request; one that a sibling uses is not."""
    one, two = pair("predicted_ttft")
    two.ask(one, 0.0)
    for number in range(40):
        decision = two.send(*prompt(number, 16), now=0.0, excluded="b")
        two.router.release(decision.lease, Outcome.OK, 0.0)
    one.router.release(one.send(*prompt(50, 16), now=0.0, excluded="a").lease, Outcome.OK, 0.0)
    idle = two.router.fleet.get(B)
    assert idle is not None
    assert idle.skipped == 40
    two.ask(one, 1.0)
    assert idle.skipped == 0


def test_how_busy_the_fleet_is_counts_the_work_of_all() -> None:
    one, two = pair("predicted_ttft")
    for number in range(100):
        one.send(*prompt(number), now=number * 0.5)
    live = two.router.fleet.get(A)
    assert live is not None
    assert two.router.fleet.utilisation(live, 50.0) == 0
    two.ask(one, 50.0)
    theirs = one.router.fleet.utilisation(next(iter(one.router.fleet)), 50.0)
    assert theirs > 0.1
    assert two.router.fleet.utilisation(live, 50.0) == pytest.approx(theirs, rel=0.01)


# Conversations


def test_a_conversation_stays_where_a_sibling_has_sent_it() -> None:
    one, two = pair("predicted_ttft")
    decision = one.send(*prompt(1, 64), now=0.0, excluded="a", session=77)
    assert decision.replica.id == B
    two.ask(one, 0.5)
    assert two.router.sessions.at(77) == B
    assert two.router.consider(request(prompt(2, 64), session=77), 0.5, 0.0).replica.id == B
    one.ask(two, 0.6)
    assert two.exchange.report(0.7).sessions == {}  # what was told is no news of its own


def test_whoever_sent_it_last_is_believed() -> None:
    one, two = pair("predicted_ttft")
    one.send(*prompt(1, 64), now=0.0, excluded="a", session=77)
    asking = two.exchange.asking("one", 0.1)
    report = one.exchange.report(0.1, asking.after)
    two.send(*prompt(1, 64), now=0.15, excluded="b", session=77)  # while the answer is under way
    two.exchange.heard(asking, report, 0.2)
    assert two.router.sessions.at(77) == A
    one.ask(two, 0.3)
    assert one.router.sessions.at(77) == A


def test_only_what_is_new_is_told_again() -> None:
    one, two = pair("least_load")
    one.send(*prompt(1, 64), now=0.0, session=1)
    two.ask(one, 0.1)
    one.send(*prompt(2, 64), now=0.2, session=2)
    asking = two.exchange.asking("one", 0.3)
    assert set(one.exchange.report(0.3, asking.after).sessions) == {2}
    assert set(one.exchange.report(0.3).sessions) == {1, 2}


# Ties


@pytest.mark.parametrize("policy", ["predicted_ttft", "least_load", "cache_aware", "longest_prefix", "consistent_hash"])
def test_gateways_choose_alike_where_nobody_holds_anything(policy: str) -> None:
    """Whatever the dice say, and whichever replica each of them has met first."""
    sides = [Side(name, policy, replicas) for name, replicas in (("one", "abc"), ("two", "cba"), ("three", "bca"))]
    chosen: list[ReplicaId] = []
    for number in range(20):
        asked = request(prompt(number, 300 * RECIPE.block_size))
        found = {side.router.consider(asked, 1.0, draw).replica.id for side in sides for draw in (0.0, 0.4, 0.99)}
        assert len(found) == 1
        chosen += found
    assert set(chosen) == {A, B, C}


def test_turns_of_a_conversation_find_their_replica_by_whichever_gateway() -> None:
    """Nobody names the conversation: what the events say is enough, and all of them hear the events."""
    sides = [Side(name, "predicted_ttft", "abc") for name in ("one", "two", "three")]
    for side in sides:
        side.follow(*sides)
    said = list(prompt(1, 1_200))
    home = None
    for turn in range(12):
        now, side = float(turn), sides[turn % 3]
        for other in sides:
            if other is not side:
                side.ask(other, now)
        decision = side.send(*said, now=now, draw=turn / 12)
        home = home or decision.replica.id
        assert decision.replica.id == home
        side.router.started(decision.lease, now + 0.1)
        side.router.release(decision.lease, Outcome.OK, now + 0.2)
        for each in sides:
            each.router.caches.apply(home, [stored(said)])
        said += list(range(90_000 + 100 * turn, 90_000 + 100 * turn + 80))


# Whatever comes


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["send", "ask", "end", "gone", "refresh"]), st.integers(0, 2), st.floats(0.0, 2.0)),
        max_size=40,
    ),
    st.sampled_from(names()),
)
def test_whatever_is_told_in_which_order_each_keeps_its_own_account(
    steps: list[tuple[str, int, float]], policy: str
) -> None:
    sides = [Side(str(number), policy) for number in range(3)]
    for side in sides:
        side.follow(*(other for other in sides if other is not side))
    leases: dict[int, list[int]] = {0: [], 1: [], 2: []}
    now = 0.0
    for what, number, after in steps:
        now += after
        side, other = sides[number], sides[(number + 1) % 3]
        match what:
            case "send":
                leases[number].append(side.send(*prompt(len(leases[number]), 100), now=now).lease)
            case "ask":
                side.ask(other, now)
            case "end" if leases[number]:
                side.router.release(leases[number].pop(), Outcome.OK, now)
            case "gone":
                asking = side.exchange.asking(other.exchange.book.own, now)
                side.exchange.failed(asking, "gone", "failed", now, is_gone=True)
            case "refresh":
                side.exchange.refresh(now)
        for at, each in enumerate(sides):
            assert each.router.fleet.open_leases == len(leases[at])
            assert sum(live.in_flight for live in each.router.fleet) == len(leases[at])
            for live in each.router.fleet:
                assert live.others.requests(live.in_flight) >= 0
    assert all(MODEL in side.router.fleet.models() for side in sides)
