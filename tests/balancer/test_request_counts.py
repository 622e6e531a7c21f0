"""``balancer/request_counts.py``: counted here or elsewhere, the sums are the same, and nothing counts twice."""

from hypothesis import given
from hypothesis import strategies as st

from balancer.core import Decision, Outcome, Replica
from balancer.errors import RateLimited, UnknownModel
from balancer.request_counts import SECONDS, Histogram, RequestCounts
from indexer.index import ReplicaId

A = ReplicaId("a:1")


def decision(cached: int) -> Decision:
    return Decision(1, Replica(A, "http://a:1"), 64, cached, True, True, "p", ())


acts = st.lists(
    st.one_of(
        st.tuples(st.just("finished"), st.sampled_from(Outcome), st.integers(0, 64)),
        st.tuples(st.just("refused"), st.booleans()),
        st.tuples(st.just("first_byte"), st.floats(0, 400)),
        st.tuples(st.just("fell_back")),
        st.tuples(st.just("tell")),
    )
)


def state(counts: RequestCounts) -> object:
    first = {model: (each.counts, round(each.sum, 6)) for model, each in counts.first_bytes.items()}
    parts = (counts.attempts, counts.refusals, counts.limited, counts.prompt_tokens, counts.cached_tokens)
    return [dict(each) for each in parts], first, counts.fallbacks


@given(acts)
def test_two_that_tell_a_third_are_as_one(todo: list[tuple[object, ...]]) -> None:
    whole, all_, gateways = RequestCounts(), RequestCounts(), [RequestCounts(), RequestCounts()]
    for at, (act, *more) in enumerate(todo):
        for counts in (whole, gateways[at % 2]):
            match act:
                case "finished":
                    counts.finished("m", "/p", decision(more[1]), more[0])  # type: ignore[arg-type]
                case "refused":
                    counts.refused("/p", RateLimited("no", limit="key.x") if more[0] else UnknownModel("no"))
                case "first_byte":
                    counts.first_byte("m", more[0])  # type: ignore[arg-type]
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
