"""``simulations/hardware/estimate.py``: the arithmetic, and what its tables must hold."""

import pytest

from balancer.errors import ConfigError
from simulations.hardware.estimate import Hardware, estimate, gpus, models
from simulations.latency import Workload


def test_an_8b_model_leaves_128_kib_a_token_and_a_70b_model_320() -> None:
    assert models()["llama-3.1-8b"].kv_bytes() == 128 * 1024
    assert models()["llama-3.1-70b"].kv_bytes() == 320 * 1024
    assert models()["llama-3.1-8b"].kv_bytes(1.0) == 64 * 1024


def test_the_figures_of_a_replica_are_those_of_the_data_sheets() -> None:
    found = estimate(Hardware("llama-3.1-8b", "h100"))
    assert found.prefill_tps == pytest.approx(989e12 * 0.5 / (2 * 8.03e9))
    assert found.latency.weights == pytest.approx(16.06e9 / (3350e9 * 0.75))
    assert found.latency.pair == pytest.approx(4 * 32 * 128 * 32 / (989e12 * 0.5))
    assert found.latency.context_token == pytest.approx(131072 / (3350e9 * 0.75))
    assert found.cache_tokens == int((80e9 * 0.9 - 2e9 - 16.06e9) / 131072)
    assert "H100" in found.words
    assert "Llama-3.1-8B" in found.words


def test_more_devices_are_faster_and_hold_more() -> None:
    one, four = (estimate(Hardware("llama-3.1-8b", "h100", count)) for count in (1, 4))
    assert four.prefill_tps == pytest.approx(4 * one.prefill_tps)
    assert four.cache_tokens > 4 * one.cache_tokens, "the weights are there once"
    work = Workload(prefill_tokens=2048, prefill_pairs=2048 * 1024)
    assert four.latency.seconds(work) < one.latency.seconds(work)


def test_8_bits_in_the_cache_hold_twice_as_many_tokens() -> None:
    wide, narrow = (estimate(Hardware("llama-3.1-8b", "l4", kv_bytes=each)) for each in (2.0, 1.0))
    assert narrow.cache_tokens == pytest.approx(2 * wide.cache_tokens, abs=2)


def test_experts_are_computed_by_those_that_are_chosen_and_stored_whole() -> None:
    found = estimate(Hardware("qwen3-30b-a3b", "h100"))
    assert found.prefill_tps == pytest.approx(989e12 * 0.5 / (2 * 3.3e9))
    assert found.latency.weights == pytest.approx(61e9 / (3350e9 * 0.75))


@pytest.mark.parametrize("model", models())
def test_every_model_runs_on_enough_of_some_device(model: str) -> None:
    assert any(_fits(Hardware(model, gpu, 16)) for gpu in gpus())


def _fits(hardware: Hardware) -> bool:
    try:
        return estimate(hardware).cache_tokens > 0
    except ConfigError:
        return False


@pytest.mark.parametrize(
    ("hardware", "message"),
    [
        (Hardware("llama-3.1-8", "h100"), r"model: there is no 'llama-3.1-8'; did you mean llama-3.1-8b\?"),
        (Hardware("llama-3.1-8b", "z"), r"gpu: there is no 'z'; there are: a100, a10g"),
        (
            Hardware("llama-3.1-70b", "h100"),
            r"1 x h100 cannot hold llama-3.1-70b \(141 GB of weights\).*take 3 at least",
        ),
    ],
)
def test_what_cannot_be_built_is_one_clear_error(hardware: Hardware, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        estimate(hardware)
