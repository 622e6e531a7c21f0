"""``simulations/fitting.py``: coefficients that are known come out of the times that they make."""

from random import Random

import msgspec
import pytest

from simulations.fitting import COSTS, Sample, combined, fit, predicted, prompt_steps
from simulations.latency import LatencyModel, Workload

GPU = LatencyModel(request=0.004)
CPU = LatencyModel(overhead=0.02, weights=0.005, token=2e-4, pair=5e-8, context_token=2e-7, request=0.006)
NO_PAIRS = LatencyModel.from_rates(prefill_tokens_per_second=5000, decode_seconds_per_token=0.02)


def samples(model: LatencyModel, *, chunk: int = 2048, noise: float = 0.0, seed: int = 1) -> list[Sample]:
    """What ``kvlb calibrate`` would measure of an engine that takes exactly so long, but for chance."""
    made = [Sample(f"p{n}", prompt_steps(n, chunk), 1.0, 1) for n in (16, 64, 256, 512, 1024, 2048, 4096, 8192)]
    for batch in (1, 4, 8):
        for context in (56, 2072):
            step = Workload(decode_requests=batch, decode_context=batch * context)
            made.append(Sample(f"d{batch}/{context}", (step,), 1.0))
    draw = Random(seed)
    return [
        msgspec.structs.replace(each, seconds=predicted(model, each) * (1 + noise * draw.uniform(-1, 1)))
        for each in made
    ]


@pytest.mark.parametrize("model", [GPU, CPU, NO_PAIRS], ids=["gpu", "cpu", "two rates"])
@pytest.mark.parametrize("chunk", [512, 2048, 16384])
def test_known_coefficients_come_back(model: LatencyModel, chunk: int) -> None:
    found = fit(samples(model, chunk=chunk))
    for name in COSTS:
        assert getattr(found.latency, name) == pytest.approx(getattr(model, name), rel=0.05, abs=1e-9), name
    assert found.worst_error < 1e-6
    assert found.samples == 14


def test_with_noise_times_are_as_near_as_the_noise() -> None:
    found = fit(samples(CPU, noise=0.02))
    assert found.mean_error < 0.02
    for exact in samples(CPU):
        assert predicted(found.latency, exact) == pytest.approx(exact.seconds, rel=0.04), exact.name


def test_one_repeat_that_was_disturbed_changes_nothing() -> None:
    plain = samples(GPU)
    slow = [msgspec.structs.replace(each, seconds=each.seconds * (20 if each.name == "p512" else 1)) for each in plain]
    assert fit([*plain, *slow, *plain]) == fit(plain)
    assert fit(slow) != fit(plain)


def test_repeats_count_by_their_middle() -> None:
    same = [Sample("a", prompt_steps(10, 16), seconds, 1) for seconds in (9.0, 1.0, 2.0)]
    assert combined([*same, Sample("b", prompt_steps(10, 16), 5.0, 1)]) == [
        same[2],
        Sample("b", prompt_steps(10, 16), 5.0, 1),
    ]


def test_no_cost_is_negative_whatever_was_measured() -> None:
    draw = Random(3)
    for _ in range(20):
        made = [msgspec.structs.replace(each, seconds=draw.uniform(0.001, 1)) for each in samples(GPU)]
        assert min(getattr(fit(made).latency, name) for name in COSTS) >= 0  # and LatencyModel would refuse


def test_the_worst_sample_is_named() -> None:
    made = samples(CPU)
    made[3] = msgspec.structs.replace(made[3], seconds=made[3].seconds * 1.5)
    assert fit(made).worst == "p512"


def test_what_steps_cannot_tell_apart_is_told_once() -> None:
    """Decoding alone: what a step costs and what the weights cost are one figure."""
    found = fit([each for each in samples(GPU) if not each.requests]).latency
    step = Workload(decode_requests=4, decode_context=4000)
    assert found.seconds(step) == pytest.approx(GPU.seconds(step), rel=0.01)
    assert 0 in {found.overhead, found.weights}


def test_a_prompt_is_computed_in_chunks() -> None:
    assert prompt_steps(5, 3) == (
        Workload(prefill_tokens=3, prefill_pairs=6),
        Workload(prefill_tokens=2, prefill_pairs=9),
    )
    assert prompt_steps(5, 3, cached=2) == (Workload(prefill_tokens=3, prefill_pairs=12),)
    assert prompt_steps(4, 3)[1] == Workload(decode_requests=1, decode_context=4)


@pytest.mark.parametrize("bad", [[], [Sample("a", (), 0.0)]])
def test_nothing_measured_is_refused(bad: list[Sample]) -> None:
    with pytest.raises(ValueError, match="samples"):
        fit(bad)
