"""``balancer/request_counts.py``: counted here or elsewhere, the sums are the same, and nothing counts twice."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from balancer.core import Decision, Outcome, Replica, Truth
from balancer.errors import RateLimited, UnknownModel
from balancer.request_counts import SECONDS, Histogram, RequestCounts
from indexer.index import ReplicaId

A = ReplicaId("a:1")


def decision(cached: int, policy: str = "p") -> Decision:
    return Decision(1, Replica(A, "http://a:1"), 64, cached, True, True, policy, ())


acts = st.lists(
    st.one_of(
        st.tuples(
            st.just("finished"),
            st.sampled_from(Outcome),
            st.integers(0, 64),
            st.sampled_from("pq"),
            st.one_of(
                st.none(), st.builds(Truth, st.one_of(st.none(), st.just(64)), st.one_of(st.none(), st.integers(0, 64)))
            ),
        ),
        st.tuples(st.just("refused"), st.booleans()),
        st.tuples(st.just("first_byte"), st.floats(0, 400)),
        st.tuples(st.just("fell_back")),
        st.tuples(st.just("tell")),
    )
)


def state(counts: RequestCounts) -> object:
    first = {model: (each.counts, round(each.sum, 6)) for model, each in counts.first_bytes.items()}
    parts = (counts.attempts, counts.refusals, counts.limited, counts.prompt_tokens, counts.cached_tokens)
    by_policy = {name: msgspec.to_builtins(each) for name, each in counts.policies.items()}
    for each in by_policy.values():
        each["first_tokens"]["sum"] = round(each["first_tokens"]["sum"], 6)
    return [dict(each) for each in parts], first, counts.fallbacks, by_policy


@given(acts)
def test_two_that_tell_a_third_are_as_one(todo: list[tuple[object, ...]]) -> None:
    whole, all_, gateways = RequestCounts(), RequestCounts(), [RequestCounts(), RequestCounts()]
    for at, (act, *more) in enumerate(todo):
        for counts in (whole, gateways[at % 2]):
            match act:
                case "finished":
                    counts.finished("m", "/p", decision(more[1], more[2]), more[0], more[3])  # type: ignore[arg-type]
                case "refused":
                    counts.refused("/p", RateLimited("no", limit="key.x") if more[0] else UnknownModel("no"))
                case "first_byte":
                    counts.first_byte("m", more[0], "p")  # type: ignore[arg-type]
                case "fell_back":
                    counts.fell_back()
        if act == "tell":
            all_.add(gateways[at % 2].take())
    for each in gateways:
        all_.add(each.take())
    assert state(all_) == state(whole)
    assert state(gateways[0]) == state(RequestCounts())


def test_a_value_counts_in_each_range_that_it_is_not_above() -> None:
    histogram = Histogram((1.0, 2.5))
    for value in (0.5, 1.0, 2.0, 9.0):
        histogram.observe(value)
    assert histogram.buckets() == [("1.0", 2.0), ("2.5", 3.0), ("+Inf", 4.0)]
    assert histogram.sum == 12.5
    assert len(Histogram(SECONDS).counts) == len(SECONDS) + 1


def test_tokens_of_replicas_that_were_not_reached_do_not_count() -> None:
    counts = RequestCounts()
    counts.finished("m", "/p", decision(16), Outcome.UNREACHABLE)
    assert not counts.prompt_tokens
    counts.finished("m", "/p", decision(16), Outcome.ERROR)
    assert (counts.prompt_tokens["m", A], counts.cached_tokens["m", A]) == (64, 16)
    counts.forget("m", A)
    assert not counts.prompt_tokens


def test_what_came_of_each_policy_is_counted_apart() -> None:
    counts = RequestCounts()
    counts.finished("m", "/p", decision(16), Outcome.OK, Truth(64, 32))
    counts.finished("m", "/p", decision(8), Outcome.OK, Truth(64))
    counts.finished("m", "/p", decision(48, "q"), Outcome.UNREACHABLE)
    counts.first_byte("m", 0.2, "q")
    one, other = counts.policies["p"], counts.policies["q"]
    assert (one.attempts, other.attempts) == ({Outcome.OK: 2}, {Outcome.UNREACHABLE: 1})
    assert (one.prompt_tokens, one.predicted_tokens) == (128, 24)
    assert (one.reported_prompt_tokens, one.reported_cached_tokens) == (64, 32), "of those that say it"
    assert (other.prompt_tokens, other.predicted_tokens) == (0, 0)
    assert (one.first_tokens.sum, other.first_tokens.sum) == (0.0, 0.2)
