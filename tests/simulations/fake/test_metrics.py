"""The metrics page: what a Prometheus parser and kvlb's own reader make of it."""

import math

import pytest
from prometheus_client.parser import text_string_to_metric_families

from balancer.facts import CacheConfig, read_cache_config
from simulations.fake.metrics import RankFigures, page
from tests.simulations.fake.samples import config


def figures(rank: int) -> RankFigures:
    return RankFigures(
        rank=rank,
        num_running=2,
        num_waiting=3,
        kv_cache_usage=0.25,
        prefix_cache_queries=100,
        prefix_cache_hits=48,
        num_preemptions=1,
        prompt_tokens=90,
        generation_tokens=7,
        finished={"stop": 1, "length": 4, "abort": 0},
    )


def values(text: str) -> dict[tuple[str, str], float]:
    """By name and rank; of several with the same, their sum."""
    found: dict[tuple[str, str], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = sample.name, sample.labels.get("engine", "")
            found[key] = found.get(key, 0) + sample.value
    return found


def test_every_rank_has_its_series() -> None:
    found = values(page(config(model='a "b"\\c'), 12.5, [figures(0), figures(1)]))
    assert found["process_start_time_seconds", ""] == 12.5
    for rank in ("0", "1"):
        assert found["vllm:num_requests_running", rank] == 2
        assert found["vllm:num_requests_waiting", rank] == 3
        assert found["vllm:num_requests_waiting_by_reason", rank] == 3
        assert math.isclose(found["vllm:kv_cache_usage_perc", rank], 0.25)
        assert found["vllm:prefix_cache_queries_total", rank] == 100
        assert found["vllm:prefix_cache_hits_total", rank] == 48
        assert found["vllm:num_preemptions_total", rank] == 1
        assert found["vllm:request_success_total", rank] == 5
    assert not any("gpu_" in name for name, _ in found)


def test_the_oldest_release_has_both_kinds_of_names() -> None:
    found = values(page(config(vllm_version="0.11.0"), 0, [figures(0)]))
    assert found["vllm:gpu_prefix_cache_hits_total", "0"] == found["vllm:prefix_cache_hits_total", "0"] == 48
    assert found["vllm:gpu_cache_usage_perc", "0"] == 0.25
    assert ("vllm:num_requests_waiting_by_reason", "0") not in found


@pytest.mark.parametrize("version", ["0.11.0", "0.22.0", "0.32.0"])
def test_kvlb_reads_the_cache_configuration(version: str) -> None:
    settings = config(vllm_version=version, block_size=32, num_gpu_blocks=200, hash_algorithm="sha256_cbor")
    found = read_cache_config(page(settings, 0, [figures(0), figures(1)]).encode())
    assert found == tuple(CacheConfig(rank, 32, "sha256_cbor", 200, True, cache_dtype="auto") for rank in (0, 1))


@pytest.mark.parametrize(
    ("is_asleep", "level", "state"),
    [(False, 0, "awake"), (True, 0, None), (True, 1, "weights_offloaded"), (True, 2, "discard_all")],
)
def test_sleep_has_its_state(is_asleep: bool, level: int, state: str | None) -> None:
    text = page(config(), 0, [figures(0)], is_asleep=is_asleep, sleep_level=level)
    found = {
        sample.labels["sleep_state"]
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "vllm:engine_sleep_state" and sample.value
    }
    assert found == ({state} if state else set())
    assert "engine_sleep_state" not in page(config(vllm_version="0.11.0"), 0, [figures(0)])
