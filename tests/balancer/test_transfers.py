"""``balancer/transfers.py`` through the router: a prompt is split where that is quicker, by its length where nobody knows."""

import math

import pytest

from balancer.admission import AdmissionSettings
from balancer.core import Candidate, Decision, Outcome, RouteRequest
from balancer.disaggregation.choosing import Quicker, Threshold
from balancer.disaggregation.estimate import Estimate
from balancer.disaggregation.roles import Part, Role
from balancer.economics.economy import Economy
from balancer.economics.links import Link
from balancer.economics.settings import LinkSettings, ModelSettings
from balancer.explain import way
from balancer.fleet import Status
from balancer.policies.predicted_ttft import PredictedTtft
from balancer.router import Router
from hashing.chain import Chain
from indexer.events import EMPTY, BlockStored
from indexer.index import ReplicaId
from tests.support.routing import RECIPE, replica, request, stored

P, Q, D, E, B = (ReplicaId(name) for name in "pqdeb")
ROLES = {P: Role.PREFILL, Q: Role.PREFILL, D: Role.DECODE, E: Role.DECODE, B: Role.BOTH}

PROMPT = list(range(4001))  # a thousand blocks of four, and one token; 0.4 s to compute, as fast as anybody is at first
OTHER = list(range(10_000, 14_001))
THIRD = list(range(20_000, 24_001))
WEIGHT = (ModelSettings(name="m", bytes_per_token=1000.0),)

QUICK = Link(1e8)  # ten microseconds a token, a tenth of computing it
SLOW = Link(2e6)  # five times as long

ALWAYS, NEVER = 0, 1_000_000
"""Thresholds by which arithmetic is told from length."""


def router(
    *names: ReplicaId,
    transfer: Link | None = QUICK,
    links: tuple[LinkSettings, ...] = (),
    models: tuple[ModelSettings, ...] = WEIGHT,
    threshold: int = ALWAYS,
    answer_weight: float = 1.0,
    admission: AdmissionSettings | None = None,
) -> Router:
    made = Router(
        PredictedTtft(session_seconds=0.0, trial_seconds=0.0),
        "predicted_ttft",
        admission=admission or AdmissionSettings(),
        worth=Quicker(Threshold(threshold)),
        economy=Economy(links, models, transfer=transfer),
        answer_weight=answer_weight,
    )
    for name in names:
        made.put(replica(name, role=ROLES[name]))
    return made


def holds(owner: Router, name: ReplicaId, tokens: list[int]) -> None:
    owner.caches.apply(name, [stored(tokens)])


def whole(tokens: list[int] = PROMPT) -> RouteRequest:
    return request(tokens, part=Part.WHOLE)


def sent(owner: Router, part: Part, tokens: list[int], now: float = 0.0) -> Decision:
    return owner.route(request(tokens, part=part), now, 0.0)


def answers(owner: Router, name: ReplicaId, count: int) -> None:
    """So many answers are under way there, to prompts that took next to nothing."""
    for at in range(count):
        decision = owner.route(request([at], part=Part.ALONE), 0.0, 0.0)
        assert decision.replica.id == name
        owner.started(decision.lease, 0.0)


def estimate(owner: Router, tokens: list[int] = PROMPT, now: float = 0.0) -> Estimate:
    found = owner.consider(whole(tokens), now, 0.0).estimate
    assert found is not None
    return found


# Which way is quicker


def test_both_ways_are_priced_by_what_they_take() -> None:
    owner = router(P, D)
    holds(owner, P, PROMPT[:3001])
    holds(owner, D, PROMPT[:1001])
    found = estimate(owner)
    assert found.alone == pytest.approx(0.3001)
    assert found.prefill_seconds == pytest.approx(0.1001)
    assert found.transfer_seconds == pytest.approx(0.03001), "what the decode replica holds does not travel"
    assert found.split == pytest.approx(0.1001 + 0.03001 + 0.0001), "the last token is computed where it is answered"
    assert found.delay == pytest.approx(0.1001 + 0.03001)


def test_a_prompt_that_the_prefill_replica_holds_is_split_if_the_link_is_quicker_than_computing() -> None:
    for link, is_split in (
        (QUICK, True),
        (SLOW, False),
        (Link(1e8, latency=1.0), False),
        (Link(1e8, setup=1.0), False),
    ):
        owner = router(P, D, transfer=link, threshold=NEVER if is_split else ALWAYS)
        holds(owner, P, PROMPT)
        assert owner.route(whole(), 0.0, 0.0).is_split is is_split, link


def test_what_the_decode_replica_holds_it_need_not_be_sent() -> None:
    owner = router(P, D)
    holds(owner, P, PROMPT)
    holds(owner, D, PROMPT)
    assert not owner.route(whole(), 0.0, 0.0).is_split


def test_what_the_decode_replica_can_load_it_need_not_compute() -> None:
    def made(gigabits: float) -> Router:
        cpu = LinkSettings(source="CPU", gigabits_per_second=gigabits, latency_ms=0.0)
        owner = router(P, D, links=(cpu,))
        keys = list(Chain(RECIPE, PROMPT).keys(1000))
        owner.caches.apply(D, [BlockStored([key], None, EMPTY, 4, medium="CPU") for key in keys])
        holds(owner, P, PROMPT)
        return owner

    quick = made(80.0)
    assert estimate(quick).alone == pytest.approx(4000 * 1000 / (80e9 / 8 * 0.9) + 0.0001)
    assert not quick.route(whole(), 0.0, 0.0).is_split
    assert made(0.08).route(whole(), 0.0, 0.0).is_split, "its own memory is slower than the other replica"


def test_what_an_engine_is_told_not_to_load_is_computed_or_sent() -> None:
    cpu = LinkSettings(source="CPU", gigabits_per_second=0.01, latency_ms=0.0)  # 0.9 ms a token
    owner = router(P, D, links=(cpu,), threshold=NEVER)
    able = {"connectors": ("OffloadingConnector",), "release": (0, 32)}
    owner.put(replica(D, role=Role.DECODE, **able))
    keys = list(Chain(RECIPE, PROMPT).keys(1000))
    owner.caches.apply(D, [BlockStored([key], None, EMPTY, 4, medium="CPU") for key in keys])
    assert estimate(owner).alone == pytest.approx(0.4001), "nothing is loaded, and that is known"
    alone = owner.consider(whole(), 0.0, 0.0)
    assert (alone.is_split, alone.hint) == (False, {"max_load_tokens": 0})
    holds(owner, P, PROMPT)
    split = owner.consider(whole(), 0.0, 0.0)
    assert (split.is_split, split.hint) == (True, {})


def test_an_idle_decode_replica_computes_what_nobody_holds() -> None:
    owner = router(P, D)
    assert not owner.route(whole(), 0.0, 0.0).is_split, "the other one is no faster, and then comes the transfer"


def test_answers_that_would_come_to_a_halt_are_a_reason_to_split() -> None:
    owner = router(P, D, threshold=NEVER)
    answers(owner, D, 1)
    found = estimate(owner)
    assert found.alone == pytest.approx(2 * 0.4001, rel=0.05)
    assert found.splits
    assert not estimate(router(P, D, threshold=NEVER)).splits
    for weight, is_split in ((0.0, False), (0.05, False), (0.2, True)):
        owner = router(P, D, answer_weight=weight, threshold=ALWAYS)
        answers(owner, D, 1)
        assert owner.route(whole(), 0.0, 0.0).is_split is is_split, weight


def test_a_replica_that_answers_itself_loses_by_computing_for_others() -> None:
    owner = router(B, D)
    for at in range(20):
        decision = owner.route(request([at], part=Part.ALONE), 0.0, 0.0)
        owner.started(decision.lease, 0.0)
    live = [owner.fleet.get(name) for name in (B, D)]
    assert [each is not None and each.answering for each in live] == [10, 10]
    holds(owner, D, PROMPT[:2001])
    decision = owner.route(whole(), 0.0, 0.0)
    assert (decision.replica.id, decision.is_split) == (D, False), "ten answers lose there as here"
    assert decision.estimate is not None
    assert decision.estimate.split > 10 * 0.4


def test_a_busy_decode_replica_is_relieved_and_a_busy_prefill_replica_is_not_waited_for() -> None:
    owner = router(P, D, threshold=NEVER)
    sent(owner, Part.ALONE, OTHER)
    found = estimate(owner)
    assert found.alone == pytest.approx(0.8002)
    assert found.split == pytest.approx(0.4001 + 0.04001 + 0.0001, rel=1e-3), "it waits while the prompt is computed"
    assert owner.route(whole(), 0.0, 0.0).is_split
    owner = router(P, D)
    holds(owner, P, PROMPT)
    for tokens in (OTHER, THIRD):
        sent(owner, Part.PREFILL, tokens)
    assert estimate(owner).prefill_seconds > 0.4
    assert not owner.route(whole(), 0.0, 0.0).is_split


def test_the_prefill_replica_that_is_counted_with_is_the_one_that_would_be_chosen() -> None:
    owner = router(P, Q, D)
    holds(owner, Q, PROMPT)
    assert estimate(owner).prefill_seconds == pytest.approx(0.0001)
    owner.set_status(Q, Status.LOST)
    assert estimate(owner).prefill_seconds == pytest.approx(0.4001)


# Where nobody knows


@pytest.mark.parametrize(
    "unknown",
    [
        {"transfer": None},
        {"models": ()},
        {"models": (ModelSettings(name="another", bytes_per_token=1.0),)},
        {"transfer": None, "links": (LinkSettings(source="CPU", link="ram-pcie5"),)},
        {"transfer": None, "links": (LinkSettings(source="prefill", link="100gbe", replicas=("http://x:8000",)),)},
        {"transfer": None, "links": (LinkSettings(source="http://q:8000", link="100gbe"),)},
    ],
)
def test_without_a_link_or_a_weight_its_length_decides(unknown: dict[str, object]) -> None:
    for threshold, is_split in ((ALWAYS, True), (4001, True), (4002, False), (NEVER, False)):
        owner = router(P, D, threshold=threshold, **unknown)  # type: ignore[arg-type]
        decision = owner.route(whole(), 0.0, 0.0)
        assert (decision.is_split, decision.estimate) == (is_split, None)


def test_what_can_be_loaded_in_nobody_knows_what_time_leaves_it_to_the_length() -> None:
    for holder in (D, P):
        owner = router(P, D, threshold=2)
        keys = list(Chain(RECIPE, PROMPT).keys(1000))
        stores = [BlockStored([key], None, EMPTY, 4, medium="STORAGE", locality="REMOTE") for key in keys]
        owner.caches.apply(holder, stores)
        decision = owner.route(whole(), 0.0, 0.0)
        assert decision.estimate is None
        assert decision.is_split is (holder is P), "the decode replica lacks one token, or all of them"


def test_a_replica_that_tells_nothing_of_itself_is_priced_by_what_is_known_of_its_model() -> None:
    owner = router(threshold=NEVER)
    for name in (P, D):
        owner.put(replica(name, role=ROLES[name], recipe=None, has_events=False))
    assert estimate(owner).alone == pytest.approx(0.4001), "nobody knows what it holds, so it holds nothing"
    owner.put(replica(D, role=Role.DECODE, models=("m", "tuned"), recipe=None))
    owner.put(replica(P, role=Role.PREFILL, models=("m", "tuned"), recipe=None))
    assert owner.consider(request(PROMPT, model="tuned"), 0.0, 0.0).estimate is not None


def test_prompts_of_unknown_or_no_length_are_reckoned_with_as_far_as_that_goes() -> None:
    owner = router(P, D)
    guessed = RouteRequest(model="m", size_hint=1000)
    found = owner.consider(guessed, 0.0, 0.0).estimate
    assert found is not None
    assert found.alone == pytest.approx(0.1)
    for nothing in (RouteRequest(model="m"), request([]), request([1])):
        decision = owner.route(nothing, 0.0, 0.0)
        assert not decision.is_split
        assert decision.estimate is not None
        assert math.isfinite(decision.estimate.split)


@pytest.mark.parametrize("status", [Status.LOST, Status.DRAINING, Status.ASLEEP])
def test_without_a_prefill_replica_nothing_is_split(status: Status) -> None:
    owner = router(P, D)
    answers(owner, D, 5)
    owner.set_status(P, status)
    decision = owner.route(whole(), 0.0, 0.0)
    assert (decision.is_split, decision.estimate) == (False, None)


def test_prefill_replicas_that_take_nothing_more_leave_it_to_the_length() -> None:
    owner = router(P, D, admission=AdmissionSettings(max_in_flight=1), threshold=ALWAYS)
    sent(owner, Part.PREFILL, OTHER)
    decision = owner.route(whole(), 0.0, 0.0)
    assert (decision.estimate, decision.is_split) == (None, True), "admission has it wait its turn"


def test_only_prompts_that_may_be_split_are_priced() -> None:
    owner = router(P, D, B)
    holds(owner, P, PROMPT)
    for part in (Part.ALONE, Part.PREFILL):
        assert sent(owner, part, PROMPT).estimate is None
    assert router(B).route(whole(), 0.0, 0.0).estimate is None


# Which link


def test_what_names_the_prefill_replica_goes_before_what_does_not() -> None:
    def seconds(*links: LinkSettings, transfer: Link | None = QUICK) -> float | None:
        found = Economy(links, WEIGHT, transfer=transfer).transfer("http://p:8000", "http://d:8000")
        return None if found is None else found.seconds(1e6)

    def link(source: str, gigabits: float, *replicas: str) -> LinkSettings:
        return LinkSettings(source=source, gigabits_per_second=gigabits, latency_ms=0.0, replicas=replicas)

    def by(gigabits: float) -> float:
        return 1e6 / (gigabits * 125e6 * 0.9)

    assert seconds(transfer=None) is None
    assert seconds() == pytest.approx(0.01)
    everywhere, to_d = link("prefill", 1.0), link("prefill", 2.0, "http://d:8000")
    from_p, from_p_to_d = link("http://p:8000", 3.0), link("http://P:8000/", 4.0, "http://D:8000/")
    assert seconds(everywhere) == pytest.approx(by(1.0)), "the link of [disaggregation] is that of whoever has no other"
    assert seconds(everywhere, to_d) == pytest.approx(by(2.0))
    assert seconds(everywhere, to_d, from_p) == pytest.approx(by(3.0))
    assert seconds(everywhere, to_d, from_p, from_p_to_d) == pytest.approx(by(4.0))
    assert seconds(link("http://q:8000", 9.0)) == pytest.approx(0.01)
    assert seconds(link("http://q:8000", 9.0), transfer=None) is None


def test_replicas_behind_slow_links_compute_for_themselves() -> None:
    far = LinkSettings(source="prefill", gigabits_per_second=0.01, replicas=("http://e:8000",))
    owner = router(P, D, E, links=(far,))
    holds(owner, P, PROMPT)
    assert owner.route(whole(), 0.0, 0.0).replica.id == D
    owner.set_status(D, Status.LOST)
    decision = owner.route(whole(), 0.0, 0.0)
    assert (decision.replica.id, decision.is_split) == (E, False)


# The choice of the decode replica


def choosing(transfer: Link | None) -> Router:
    """``d`` has half of the prompt and a tenth of a second to do, ``e`` nothing of both; the prefill replica has it all."""
    owner = router(P, D, E, transfer=transfer)
    holds(owner, P, PROMPT)
    holds(owner, D, PROMPT[:2001])
    owner.set_status(E, Status.LOST)
    sent(owner, Part.ALONE, OTHER[:1000])
    owner.set_status(E, Status.READY)
    return owner


def test_what_a_decode_replica_lacks_is_priced_as_a_transfer_where_it_is_one() -> None:
    assert choosing(None).route(whole(), 0.0, 0.0).replica.id == D, "0.1 s and half to compute, or all of it"
    owner = choosing(QUICK)
    seen = {each.replica: each for each in owner.consider(whole(), 0.0, 0.0).candidates}
    assert [(seen[name].load_tokens, seen[name].computed_tokens) for name in (D, E)] == [(2001, 0), (4001, 0)]
    assert seen[E].load_seconds == pytest.approx(0.04011, rel=1e-3)
    assert seen[D].load_seconds == pytest.approx(0.02001, rel=1e-3), "behind its own wait"
    decision = owner.route(whole(), 0.0, 0.0)
    assert (decision.replica.id, decision.is_split, decision.computed_tokens) == (E, True, 0)


def test_where_nothing_is_split_what_is_lacking_is_computed() -> None:
    owner = choosing(SLOW)
    decision = owner.route(whole(), 0.0, 0.0)
    assert {each.load_tokens for each in decision.candidates} == {0}
    assert (decision.replica.id, decision.is_split) == (D, False)


def test_a_replica_that_does_both_is_weighed_against_two_legs() -> None:
    owner = router(P, D, B)
    holds(owner, P, PROMPT)
    assert owner.route(whole(), 0.0, 0.0).replica.id == D
    holds(owner, B, PROMPT)
    decision = owner.route(whole(), 0.0, 0.0)
    assert (decision.replica.id, decision.is_split) == (B, False)


# What is under way


def test_transfers_to_one_replica_come_one_after_the_other() -> None:
    owner = router(P, D, transfer=Link(2e7))  # 0.2 s for a prompt
    for tokens in (PROMPT, OTHER, THIRD):
        holds(owner, P, tokens)
    assert owner.route(whole(), 0.0, 0.0).is_split
    assert estimate(owner, OTHER).split == pytest.approx(2 * 0.20005 + 0.0001, rel=1e-3)
    assert not owner.route(whole(OTHER), 0.0, 0.0).is_split, "it is as quick to compute it now"
    assert estimate(owner, THIRD, now=5.0).transfer_seconds == pytest.approx(0.20005)
    owner.remove(D)
    owner.put(replica(D, role=Role.DECODE))
    assert estimate(owner, THIRD).split == pytest.approx(0.20005 + 0.0002, rel=1e-2), "another one may have its name"


def test_what_is_only_considered_is_not_under_way() -> None:
    owner = router(P, D, transfer=Link(2e7))
    holds(owner, P, PROMPT)
    for _ in range(3):
        assert estimate(owner).split == pytest.approx(0.20005 + 0.0002, rel=1e-2)


def test_who_waits_for_a_prompt_from_elsewhere_keeps_nobody_waiting() -> None:
    owner = router(P, D, threshold=NEVER)
    holds(owner, P, PROMPT)
    split = owner.route(whole(), 0.0, 0.0)
    assert split.is_split
    live = owner.fleet.get(D)
    assert live is not None
    assert live.wait(30.0) == pytest.approx(0.0), "it is not this replica that takes its time"
    assert not live.is_late(30.0)
    owner.started(split.lease, 31.0)
    assert live.answering == 1
    owner.release(split.lease, Outcome.OK, 32.0)
    assert (live.in_flight, owner.fleet.open_leases) == (0, 0)


def test_worth_is_asked_with_both_ways_and_may_say_otherwise() -> None:
    asked: list[Estimate | None] = []

    def never(candidate: Candidate, found: Estimate | None) -> bool:
        asked.append(found)
        return False

    owner = Router(PredictedTtft(), "predicted_ttft", worth=never, economy=Economy((), WEIGHT, transfer=QUICK))
    for name in (P, D):
        owner.put(replica(name, role=ROLES[name]))
    holds(owner, P, PROMPT)
    decision = owner.route(whole(), 0.0, 0.0)
    assert not decision.is_split
    assert asked
    assert all(each is not None and each.splits for each in asked)


def test_why_says_both_figures() -> None:
    owner = router(P, D)
    assert way(owner.consider(whole(), 0.0, 0.0)) == (
        "; it computes the prompt itself (predicted 0.400 s, and 0.440 s split)"
    )
    holds(owner, P, PROMPT)
    assert way(owner.consider(whole(), 0.0, 0.0)) == (
        "; a prefill replica computes its prompt first (predicted 0.040 s, and 0.400 s alone)"
    )
    assert (
        way(router(P, D, transfer=None).consider(whole(), 0.0, 0.0)) == "; a prefill replica computes its prompt first"
    )
    assert way(router(B).consider(whole(), 0.0, 0.0)) == ""
