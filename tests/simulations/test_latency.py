import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.policies.base import make
from simulations.detailed import play_detailed
from simulations.detailed_fleet import DetailedFleet
from simulations.generators.chat import Chat
from simulations.latency import LatencyModel, Workload
from simulations.results import Run

COUNTS = st.integers(0, 1_000_000)
WORKLOADS = st.builds(Workload, COUNTS, COUNTS, COUNTS, COUNTS)


def test_a_step_that_computes_nothing_takes_no_time() -> None:
    assert LatencyModel().seconds(Workload()) == 0.0


def test_the_formula_by_hand() -> None:
    model = LatencyModel(overhead=1.0, weights=10.0, token=0.5, pair=0.001, context_token=0.01)
    few = Workload(prefill_tokens=6, prefill_pairs=21, decode_requests=2, decode_context=300)
    assert model.seconds(few) == pytest.approx(1.0 + 10.0 + 0.021 + 3.0)
    many = Workload(prefill_tokens=100, prefill_pairs=5050)
    assert model.seconds(many) == pytest.approx(1.0 + 50.0 + 5.05)


def test_the_defaults_give_the_figures_that_their_docstring_names() -> None:
    model = LatencyModel()
    assert 1 / model.token == pytest.approx(25_000)
    assert model.seconds(Workload(decode_requests=1, decode_context=100)) == pytest.approx(0.0077, rel=0.01)


def test_decoding_together_costs_less_than_one_after_the_other() -> None:
    model = LatencyModel()
    one = model.seconds(Workload(decode_requests=1, decode_context=1000))
    assert model.seconds(Workload(decode_requests=64, decode_context=64_000)) < 2 * one


def test_measured_rates_come_back_out() -> None:
    model = LatencyModel.from_rates(prefill_tokens_per_second=8000, decode_seconds_per_token=0.02)
    assert model.seconds(Workload(prefill_tokens=8000, prefill_pairs=1 << 25)) == pytest.approx(1.0)
    assert model.seconds(Workload(decode_requests=1, decode_context=5000)) == pytest.approx(0.02)


@given(WORKLOADS, WORKLOADS)
def test_more_work_never_takes_less_time(some: Workload, more: Workload) -> None:
    both = Workload(
        some.prefill_tokens + more.prefill_tokens,
        some.prefill_pairs + more.prefill_pairs,
        some.decode_requests + more.decode_requests,
        some.decode_context + more.decode_context,
    )
    assert LatencyModel().seconds(both) >= LatencyModel().seconds(some)


@pytest.mark.parametrize("field", ["overhead", "weights", "token", "pair", "context_token"])
@pytest.mark.parametrize("value", [-1e-9, float("nan"), float("inf")])
def test_coefficients_that_are_no_durations_are_refused(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        LatencyModel(**{field: value})


@pytest.mark.parametrize(("prefill", "decode"), [(0, 0.02), (8000, 0), (-1, 0.02)])
def test_rates_that_are_no_rates_are_refused(prefill: float, decode: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        LatencyModel.from_rates(prefill_tokens_per_second=prefill, decode_seconds_per_token=decode)


def test_time_outside_of_steps_is_the_clients_not_the_engines() -> None:
    trace = Chat(seconds=30, pause=1).generate(1)

    def played(latency: LatencyModel) -> Run:
        fleet = DetailedFleet(replicas=2, latency=latency)
        return play_detailed(trace, fleet, lambda: make("round_robin"), "round_robin", trace.sessions)

    plain, slower = played(LatencyModel()), played(LatencyModel(request=0.25))
    assert list(slower.ttfts) == pytest.approx([ttft + 0.25 for ttft in plain.ttfts])
    assert list(slower.latencies) == pytest.approx([latency + 0.25 for latency in plain.latencies])
    assert (slower.busy, slower.hits) == (plain.busy, plain.hits)
