"""``balancer/shadow.py``: a policy on paper changes nothing, whatever it does, and its figures are those it would have had."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from balancer.arms import Arm, arm
from balancer.core import NOTHING_ASKED, Asked, Candidate, Decision, Outcome
from balancer.errors import RequestError
from balancer.policies.base import make, names
from balancer.router import Router
from balancer.shadow import MAX_REASON
from indexer.index import ReplicaId
from indexer.stream import Apply
from indexer.wire import Batch
from tests.support.routing import replica, request, stored

A, B = ReplicaId("a"), ReplicaId("b")
PROMPT = list(range(100, 141))  # 41 tokens: ten full blocks and one token


class Broken(msgspec.Struct, frozen=True):
    """Does what no policy should, one after the other by ``draw``."""

    counts_expected: bool = True

    def choose(self, candidates: Sequence[Candidate], draw: float, asked: Asked = NOTHING_ASKED, /) -> Candidate:
        odd: list[Any] = [None, 7, msgspec.structs.replace(candidates[0], replica="nobody"), candidates]
        if draw < 0.5:
            raise ZeroDivisionError("x" * 1_000)
        return odd[int(draw * 1_000) % len(odd)]  # type: ignore[no-any-return]


class Spy:
    """Keeps what it is shown, and takes the last one."""

    def __init__(self, **says: bool) -> None:
        self.shown: list[tuple[Sequence[Candidate], Asked]] = []
        vars(self).update(says)

    def choose(self, candidates: Sequence[Candidate], draw: float, asked: Asked = NOTHING_ASKED, /) -> Candidate:
        self.shown.append((candidates, asked))
        return candidates[-1]


def router(policy: object, shadow: Arm | None = None, *, replicas: str = "ab", max_blocks: int = 10_000) -> Router:
    made = Router(policy, "acting", max_blocks, shadow=shadow)  # type: ignore[arg-type]
    for name in replicas:
        made.put(replica(name))
    return made


def holds(owner: Router, name: ReplicaId, tokens: Sequence[int]) -> None:
    owner.caches.observe(name, [Apply([Batch(0.0, [stored(tokens)])])])


# It changes nothing

SHADOWS = [
    *[arm(name, make(name)) for name in names()],
    arm("odd", Broken()),
    arm("odd", Broken(counts_expected=False)),
]

begins = st.integers(0, 3)
acts = st.lists(
    st.one_of(
        st.tuples(st.just("stored"), st.integers(0, 2), begins, st.integers(4, 40)),
        st.tuples(st.just("asked"), st.floats(0, 0.999), begins, st.integers(1, 40), st.integers(0, 3)),
        st.tuples(st.just("ended"), st.integers(0, 9)),
        st.tuples(st.just("started"), st.integers(0, 9)),
    ),
    max_size=40,
)


def story(owner: Router, todo: list[tuple[Any, ...]]) -> list[Any]:
    """All that is decided, without what is on paper, and all that is known in the end."""
    told: list[Any] = []
    leases: list[int] = []
    for at, (act, *more) in enumerate(todo):
        now = float(at)
        match act:
            case "stored":
                holds(owner, ReplicaId("abc"[more[0]]), range(more[1] * 100, more[1] * 100 + more[2]))
            case "asked":
                draw, begin, length, session = more
                asked = request(range(begin * 100, begin * 100 + length), session=session, request_id=f"r{at}")
                try:
                    told.append(_plain(owner.consider(asked, now, draw)))
                    decision = owner.route(asked, now, draw)
                except RequestError as error:
                    told.append(error.message)
                    continue
                told.append(_plain(decision))
                leases.append(decision.lease)
            case "ended" if leases:
                owner.release(leases.pop(more[0] % len(leases)), Outcome.OK, now)
            case "started" if leases:
                owner.started(leases[more[0] % len(leases)], now)
        owner.tick(now)
    gpu = owner.caches.index.gpu
    return [*told, [(live.replica.id, live.queued_tokens, gpu.blocks(live.replica.id)) for live in owner.fleet]]


def _plain(decision: Decision) -> Any:
    chain = decision.asked.chain
    asked = msgspec.structs.replace(decision.asked, chain=None), None if chain is None else list(chain.keys(100))
    plain = msgspec.structs.replace(decision, shadow=None, asked=NOTHING_ASKED)
    return plain, asked


@settings(max_examples=300)
@given(
    acts, st.sampled_from(names()), st.sampled_from(SHADOWS), st.sampled_from([0.3, 1.0]), st.sampled_from([12, 10_000])
)
def test_with_one_on_paper_everything_is_decided_as_without(
    todo: list[tuple[Any, ...]], acting: str, shadow: Arm, share: float, max_blocks: int
) -> None:
    on_paper = msgspec.structs.replace(shadow, share=share)
    alone = router(make(acting), replicas="abc", max_blocks=max_blocks)
    watched = router(make(acting), on_paper, replicas="abc", max_blocks=max_blocks)
    assert story(alone, todo) == story(watched, todo)


def test_what_is_looked_up_on_paper_is_not_used_by_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """In an index that is full, what was matched last is let go last."""

    def touched(shadow: Arm | None) -> list[tuple[int, list[int]]]:
        owner = router(make("like_dynamo"), shadow)
        found: list[tuple[int, list[int]]] = []
        monkeypatch.setattr(owner.caches.index, "touch", lambda group, keys: found.append((group, list(keys))))
        for number in "12":
            owner.route(request(PROMPT, request_id=number), 0.0, 0.0)
        return found

    assert touched(None) == touched(arm("cache_aware", make("cache_aware")))


# What it says


def test_both_choices_are_told_with_what_they_would_have_had() -> None:
    owner = router(make("cache_aware"), arm("least_load", make("least_load")))
    holds(owner, A, PROMPT)
    first = owner.route(request(PROMPT, request_id="1"), 0.0, 0.0)
    assert (first.replica.id, first.cached_tokens) == (A, 40)
    second = owner.route(request(PROMPT, request_id="2"), 0.0, 0.0)
    paper = second.shadow
    assert paper is not None
    assert (second.replica.id, paper.policy, paper.replica) == (A, "least_load", B)
    assert (paper.cached_tokens, paper.uncached_tokens, paper.failure) == (0, 41, "")
    (mine,) = [each for each in second.candidates if each.replica == A]
    (other,) = [each for each in second.candidates if each.replica == B]
    assert (paper.acting_wait, paper.wait) == (mine.wait, other.wait)
    assert mine.wait > other.wait


def test_they_are_counted_by_who_acted() -> None:
    owner = router(make("cache_aware"), arm("least_load", make("least_load")))
    assert owner.shadow is not None
    holds(owner, A, PROMPT)
    for number in "12":
        owner.route(request(PROMPT, request_id=number), 0.0, 0.0)
    wait = owner.shadow.sums["acting", "acting"].wait
    owner.route(request(size_hint=50, request_id="3"), 0.0, 0.0)
    results, sums = owner.shadow.results, owner.shadow.sums
    assert sum(results.values()) == 3
    assert results["acting", "differ"] >= 1
    assert (sums["acting", "acting"].cached_tokens, sums["acting", "acting"].uncached_tokens) == (80, 2)
    had = sums["acting", "shadow"]
    assert had.cached_tokens + had.uncached_tokens == 82, "of those whose tokens are known"
    assert sums["acting", "acting"].wait >= wait > 0


def test_a_question_counts_for_nothing_and_is_answered_on_paper_too() -> None:
    owner = router(make("random"), arm("least_load", make("least_load")))
    told = owner.consider(request(PROMPT), 0.0, 0.0)
    assert told.shadow is not None
    assert owner.shadow is not None
    assert not owner.shadow.results


def test_one_that_fails_is_a_figure_and_no_failure() -> None:
    owner = router(make("least_load"), arm("odd", Broken()))
    for draw in (0.1, 0.5, 0.501, 0.502, 0.503):
        decision = owner.route(request(PROMPT), 0.0, draw)
        assert decision.shadow is not None
        assert decision.shadow.replica == ""
        assert 0 < len(decision.shadow.failure) <= MAX_REASON
    assert owner.shadow is not None
    assert dict(owner.shadow.results) == {("acting", "failed"): 5}
    assert not owner.shadow.sums


@pytest.mark.parametrize("counts_expected", [True, False])
@pytest.mark.parametrize("acts_on_it", [True, False])
def test_it_is_shown_what_it_would_be_shown_if_it_acted(acts_on_it: bool, counts_expected: bool) -> None:
    """What is expected counts for one and not for the other; so does the prompt, and where it leans to."""
    spies = [Spy(counts_expected=counts_expected, reads_prompt=True) for _ in range(2)]
    alone = router(spies[0])
    watched = router(Spy(counts_expected=acts_on_it), arm("spy", spies[1]))
    long = list(range(300))
    for owner in (alone, watched):
        for number in "12":
            owner.route(request(long, request_id=number, session=9), 0.0, 0.0)
    for (mine, asked), (theirs, of_them) in zip(spies[0].shown, spies[1].shown, strict=True):
        assert list(mine) == list(theirs)
        assert asked.chain is not None
        assert of_them.chain is not None
        assert list(asked.chain.keys(9)) == list(of_them.chain.keys(9))
        assert asked.session == of_them.session == 9
    assert any(each.cached_tokens for each in spies[1].shown[1][0]) is counts_expected
    assert any(each.lean for each in spies[1].shown[1][0]) is not counts_expected


def test_what_it_would_have_had_is_counted_as_the_engine_will() -> None:
    """A rule that does not look at what is expected has it all the same."""
    owner = router(make("least_load"), arm("spy", Spy(counts_expected=False)), replicas="a")
    owner.route(request(PROMPT), 0.0, 0.0)
    told = owner.route(request(PROMPT), 0.0, 0.0)
    assert told.shadow is not None
    assert (told.cached_tokens, told.shadow.cached_tokens, told.shadow.uncached_tokens) == (40, 40, 1)


def test_a_share_of_requests_is_enough() -> None:
    owner = router(make("random"), arm("least_load", make("least_load"), 0.2))
    told = [owner.consider(request(PROMPT, request_id=f"r{at}", session=5), 0.0, 0.0).shadow for at in range(1_000)]
    assert 150 < sum(each is not None for each in told) < 250


def test_without_one_nothing_is_on_paper() -> None:
    owner = router(make("random"))
    assert owner.shadow is None
    assert owner.route(request(PROMPT), 0.0, 0.0).shadow is None


# Two arms


def test_a_second_policy_acts_as_it_says_of_itself() -> None:
    first, second = Spy(), Spy(reads_prompt=True, counts_expected=False)
    owner = Router(first, "one", second=arm("two", second, 0.5))
    owner.put(replica("a"))
    told = [owner.route(request(PROMPT, request_id=f"r{at}"), 0.0, 0.0) for at in range(40)]
    assert {each.policy for each in told} == {"one", "two"}
    assert len(second.shown) == sum(each.policy == "two" for each in told)
    assert all(asked.chain is None for _, asked in first.shown)
    assert all(asked.chain is not None for _, asked in second.shown)
    assert {each.cached_tokens for candidates, _ in second.shown for each in candidates} == {0}
    assert {candidates[0].cached_tokens for candidates, _ in first.shown[1:]} == {40}
    assert {each.cached_tokens for each in told[1:]} == {40}, "what the engine will hold, whatever the policy looks at"


def test_who_acts_is_told_of_what_is_on_paper() -> None:
    owner = Router(make("random"), "one", second=arm("two", make("random"), 0.5), shadow=arm("p", make("least_load")))
    owner.put(replica("a"))
    for at in range(40):
        owner.route(request(PROMPT, request_id=f"r{at}"), 0.0, 0.0)
    assert owner.shadow is not None
    assert set(owner.shadow.results) == {("one", "agree"), ("two", "agree")}
