"""``balancer/router.py`` with roles: who is sent which part, when a prompt is split, and what its leases count."""

import pytest

from balancer.core import Candidate, Load, Outcome, RouteRequest, Truth
from balancer.disaggregation.choosing import Threshold
from balancer.disaggregation.estimate import Estimate
from balancer.disaggregation.roles import Part, Role, takes
from balancer.errors import NoReplica, UnknownModel
from balancer.fleet import Status
from balancer.policies.cache_aware import CacheAware
from balancer.processes import protocol
from balancer.processes.mirror import Mirror
from balancer.router import Router
from indexer.index import ReplicaId
from indexer.stream import Apply
from indexer.wire import Batch
from tests.support.routing import MODEL, replica, request, stored

PROMPT = list(range(100, 141))  # 41 tokens: ten blocks of 4, and one token
P, Q, D, E, B = (ReplicaId(name) for name in "pqdeb")


def router(*names: str, threshold: int = 0) -> Router:
    made = Router(CacheAware(), "cache_aware", worth=Threshold(threshold))
    roles = {"p": Role.PREFILL, "q": Role.PREFILL, "d": Role.DECODE, "e": Role.DECODE, "b": Role.BOTH}
    for name in names:
        made.put(replica(name, role=roles[name]))
    return made


def holds(owner: Router, name: ReplicaId, tokens: list[int]) -> None:
    owner.caches.observe(name, [Apply([Batch(0.0, [stored(tokens)])])])


def part(which: Part) -> RouteRequest:
    return request(PROMPT, part=which)


@pytest.mark.parametrize(
    ("role", "parts"),
    [
        (Role.PREFILL, {Part.PREFILL}),
        (Role.DECODE, {Part.WHOLE, Part.ALONE}),
        (Role.BOTH, {Part.WHOLE, Part.ALONE, Part.PREFILL}),
    ],
)
def test_each_role_is_sent_its_parts(role: Role, parts: set[Part]) -> None:
    assert {each for each in Part if takes(role, each)} == parts


def test_each_part_is_matched_among_those_that_may_have_it() -> None:
    owner = router("p", "q", "d", "e")
    holds(owner, Q, PROMPT)
    holds(owner, E, PROMPT[:20])
    whole = owner.route(part(Part.WHOLE), 0.0, 0.0)
    assert (whole.replica.id, whole.cached_tokens, whole.is_split) == (E, 20, True)
    assert {each.replica for each in whole.candidates} == {D, E}
    prefill = owner.route(part(Part.PREFILL), 0.0, 0.0)
    assert (prefill.replica.id, prefill.cached_tokens, prefill.is_split) == (Q, 40, False)
    assert {each.replica for each in prefill.candidates} == {P, Q}
    assert prefill.is_predicted, "what a prefill replica holds is a promise like any other"
    assert not whole.is_predicted, "what a decode replica has after a transfer is none"
    assert not whole.is_comparable
    alone = owner.route(part(Part.ALONE), 0.0, 0.0)
    assert (alone.replica.id, alone.is_split, alone.is_predicted) == (E, False, True)


def test_a_split_request_leaves_its_decode_replica_nothing_to_compute() -> None:
    owner = router("p", "d")
    split = owner.route(part(Part.WHOLE), 0.0, 0.0)
    live = owner.fleet.get(D)
    assert live is not None
    assert (live.in_flight, live.queued_tokens, live.active_tokens) == (1, 0, 41)
    assert split.computed_tokens == 0
    speed = live.prefill.speed(100, 0)
    owner.started(split.lease, 9.0)
    assert live.prefill.speed(100, 0) == speed, "how long a transfer takes says nothing of how fast it computes"
    owner.release(split.lease, Outcome.OK, 10.0, Truth(41, 0, 5, "stop", 200))
    assert (live.in_flight, live.active_tokens) == (0, 0)
    again = owner.route(part(Part.ALONE), 0.0, 0.0)
    assert again.cached_tokens == 40, "what was fetched is expected there, although no event has said so"


def test_a_short_rest_is_not_split() -> None:
    owner = router("p", "d", threshold=21)
    assert owner.consider(part(Part.WHOLE), 0.0, 0.0).is_split
    holds(owner, D, PROMPT[:20])
    assert owner.route(part(Part.WHOLE), 0.0, 0.0).is_split, "21 tokens are missing"
    holds(owner, D, PROMPT[:24])
    assert not owner.route(part(Part.WHOLE), 0.0, 0.0).is_split


def test_what_can_be_loaded_is_not_missing() -> None:
    loads = Candidate(D, 100, 10, 0, 0, loadable=(Load("store:shared", 60), Load("CPU", 10)))
    assert Threshold(20)(loads)
    assert not Threshold(21)(loads)


def test_what_is_worth_a_second_leg_can_be_said_otherwise() -> None:
    asked: list[Candidate] = []

    def never(candidate: Candidate, estimate: Estimate | None) -> bool:
        asked.append(candidate)
        return False

    owner = Router(CacheAware(), "cache_aware", worth=never)
    owner.put(replica("p", role=Role.PREFILL))
    owner.put(replica("d", role=Role.DECODE))
    assert not owner.route(part(Part.WHOLE), 0.0, 0.0).is_split
    assert [each.uncached_tokens for each in asked] == [41]


@pytest.mark.parametrize("status", [Status.LOST, Status.DRAINING])
def test_nothing_is_split_while_no_prefill_replica_can_take_it(status: Status) -> None:
    owner = router("p", "d")
    owner.set_status(P, status)
    assert not owner.route(part(Part.WHOLE), 0.0, 0.0).is_split
    with pytest.raises(NoReplica):
        owner.route(part(Part.PREFILL), 0.0, 0.0)


def test_replicas_of_both_kinds_do_what_they_are_sent_and_prefill_for_others() -> None:
    assert not router("p", "b").route(part(Part.WHOLE), 0.0, 0.0).is_split
    owner = router("d", "b")
    holds(owner, D, PROMPT[:4])
    split = owner.route(part(Part.WHOLE), 0.0, 0.0)
    assert (split.replica.id, split.is_split) == (D, True)
    assert owner.route(part(Part.PREFILL), 0.0, 0.0).replica.id == B


def test_a_model_that_is_only_prefilled_is_there_and_cannot_answer() -> None:
    owner = router("p")
    with pytest.raises(NoReplica, match="no replica of 'm' is there to answer"):
        owner.route(part(Part.WHOLE), 0.0, 0.0)
    with pytest.raises(NoReplica, match="to compute prompts for others"):
        router("d").route(part(Part.PREFILL), 0.0, 0.0)
    with pytest.raises(UnknownModel):
        owner.route(request(PROMPT, model="x"), 0.0, 0.0)


def test_roles_may_change() -> None:
    owner = router("p", "d")
    owner.route(part(Part.WHOLE), 0.0, 0.0)
    owner.put(replica("p", role=Role.DECODE))
    assert not owner.route(part(Part.WHOLE), 0.0, 0.0).is_split
    assert {live.replica.id for live in owner.fleet.serving(MODEL)} == {P, D}


def test_a_gateway_without_its_brain_splits_by_length_alone() -> None:
    mirror = Mirror()
    pair = [replica("p", role=Role.PREFILL), replica("d", role=Role.DECODE)]
    known = [protocol.Known(each, None, True, 0.0) for each in pair]
    mirror.apply(protocol.FleetView(known, {}, {}, {}, True))
    wanted = part(Part.WHOLE)
    assert [each.id for each in mirror.usable(wanted, 1.0)] == [D]
    assert [each.id for each in mirror.usable(part(Part.PREFILL), 1.0)] == [P]
    assert mirror.can_split(wanted, pair[1], Threshold(41), 1.0)
    assert not mirror.can_split(wanted, pair[1], Threshold(42), 1.0)
    assert not mirror.can_split(part(Part.ALONE), pair[1], Threshold(0), 1.0)
    mirror.spare("http://p:8000", 1.0, is_told=False)
    assert not mirror.can_split(wanted, pair[1], Threshold(0), 1.5)
