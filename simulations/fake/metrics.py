"""``GET /metrics`` of a vLLM server, as far as a router reads it.

Knows Prometheus' text form and the names that vLLM 0.11 - 0.32 gives its series. Never asks an engine: figures come in.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from simulations.fake.config import FakeConfig


class RankFigures(msgspec.Struct, frozen=True):
    """One rank's state. Counts are of tokens, requests or preemptions since it started; usage is from 0 to 1."""

    rank: int
    num_running: int
    num_waiting: int
    kv_cache_usage: float
    prefix_cache_queries: int
    prefix_cache_hits: int
    num_preemptions: int
    prompt_tokens: int
    generation_tokens: int
    finished: Mapping[str, int]
    loaded_tokens: int = 0


_GAUGES = {
    "num_requests_running": ("Number of requests in model execution batches.", "num_running"),
    "num_requests_waiting": ("Number of requests waiting to be processed.", "num_waiting"),
    "kv_cache_usage_perc": ("KV-cache usage. 1 means 100 percent usage.", "kv_cache_usage"),
}
_COUNTERS = {
    "prefix_cache_queries": ("Prefix cache queries, in terms of number of queried tokens.", "prefix_cache_queries"),
    "prefix_cache_hits": ("Prefix cache hits, in terms of number of cached tokens.", "prefix_cache_hits"),
    "num_preemptions": ("Cumulative number of preemption from the engine.", "num_preemptions"),
    "prompt_tokens": ("Number of prefill tokens processed.", "prompt_tokens"),
    "generation_tokens": ("Number of generation tokens processed.", "generation_tokens"),
}
_GPU_NAMES = {
    "gpu_cache_usage_perc": "kv_cache_usage_perc",
    "gpu_prefix_cache_queries": "prefix_cache_queries",
    "gpu_prefix_cache_hits": "prefix_cache_hits",
}


_LOADED: Final = "vllm:kv_offload_load_bytes"
_TRANSFERRED: Final = "vllm:nixl_bytes_transferred"
_TOKEN_BYTES: Final = 1000

_EXTERNAL: Final = "vllm:external_prefix_cache_hits"

SLEEP_STATES: Final = ("awake", "weights_offloaded", "discard_all")


def page(
    config: FakeConfig, started: float, ranks: Sequence[RankFigures], *, is_asleep: bool = False, sleep_level: int = 0
) -> str:
    """The whole page; ``started`` in seconds since the epoch. Sleeping at level 0 keeps the cache."""
    lines = _family("process_start_time_seconds", "Start time of the process since unix epoch in seconds.", "gauge")
    lines.append(f"process_start_time_seconds {started!r}")
    old = _GPU_NAMES if config.release.has_gpu_metric_names else {}
    for name, (text, field) in {**_GAUGES, **{o: _GAUGES[n] for o, n in old.items() if n in _GAUGES}}.items():
        lines += _family(f"vllm:{name}", text, "gauge")
        lines += (_line(f"vllm:{name}", config, each.rank, getattr(each, field)) for each in ranks)
    if config.release.has_sleep_state:
        state = SLEEP_STATES[sleep_level] if not is_asleep or sleep_level else None
        lines += _family("vllm:engine_sleep_state", "Engine sleep state.", "gauge")
        for each in ranks:
            lines += (
                _line("vllm:engine_sleep_state", config, each.rank, name == state, sleep_state=name)
                for name in SLEEP_STATES
            )
    if config.release.has_waiting_reasons:
        lines += _waiting_by_reason(config, ranks)
    for name, (text, field) in {**_COUNTERS, **{o: _COUNTERS[n] for o, n in old.items() if n in _COUNTERS}}.items():
        lines += _family(f"vllm:{name}", text, "counter", suffix="_total")
        lines += (_line(f"vllm:{name}_total", config, each.rank, getattr(each, field)) for each in ranks)
        lines += _family(f"vllm:{name}_created", text, "gauge")
        lines += (_line(f"vllm:{name}_created", config, each.rank, started) for each in ranks)
    if config.connector:
        lines += _family(_EXTERNAL, "External prefix cache hits, in number of tokens.", "counter", suffix="_total")
        lines += (_line(f"{_EXTERNAL}_total", config, each.rank, each.loaded_tokens) for each in ranks)
    if config.connector == "offloading":
        lines += _family(_LOADED, "Total bytes loaded from offload storage to GPU.", "counter", suffix="_total")
        lines += (_line(f"{_LOADED}_total", config, each.rank, each.loaded_tokens * _TOKEN_BYTES) for each in ranks)
    if config.connector.startswith("nixl"):
        lines += _family(_TRANSFERRED, "Histogram of bytes transferred per NIXL KV Cache transfers.", "histogram")
    lines += _finished(config, ranks)
    lines += _family("vllm:cache_config_info", "Information of the LLMEngine CacheConfig", "gauge")
    lines += (f"vllm:cache_config_info{{{_cache_labels(config, each.rank)}}} 1.0" for each in ranks)
    return "\n".join(lines) + "\n"


def _waiting_by_reason(config: FakeConfig, ranks: Iterable[RankFigures]) -> list[str]:
    name = "vllm:num_requests_waiting_by_reason"
    lines = _family(name, "Number of waiting requests by reason.", "gauge")
    for each in ranks:
        lines.append(_line(name, config, each.rank, each.num_waiting, reason="capacity"))
        lines.append(_line(name, config, each.rank, 0, reason="deferred"))
    return lines


def _finished(config: FakeConfig, ranks: Iterable[RankFigures]) -> list[str]:
    lines = _family("vllm:request_success", "Count of successfully processed requests.", "counter", suffix="_total")
    for each in ranks:
        for reason, count in each.finished.items():
            lines.append(_line("vllm:request_success_total", config, each.rank, count, finished_reason=reason))
    return lines


def _cache_labels(config: FakeConfig, rank: int) -> str:
    labels = {
        "block_size": config.block_size,
        "cache_dtype": "auto",
        "enable_prefix_caching": config.has_prefix_caching,
        "engine": rank,
        "gpu_memory_utilization": 0.92,
        "num_cpu_blocks": None,
        "num_gpu_blocks": config.num_gpu_blocks,
        "num_gpu_blocks_override": None,
        "prefix_caching_hash_algo": config.hash_algorithm,
        "sliding_window": None,
    }
    if config.release.has_map_events:
        labels["kv_cache_size_tokens"] = config.num_gpu_blocks * config.block_size
    if config.release.has_effective_block_size:
        labels["effective_attention_block_size"] = config.block_size
        labels["hash_block_size"] = None
    return ",".join(f'{name}="{value}"' for name, value in sorted(labels.items()))


def _family(name: str, text: str, kind: str, suffix: str = "") -> list[str]:
    return [f"# HELP {name}{suffix} {text}", f"# TYPE {name}{suffix} {kind}"]


def _line(name: str, config: FakeConfig, rank: int, value: float, **more: str) -> str:
    labels = {"engine": str(rank), "model_name": config.model, **more}
    return f"{name}{{{','.join(f'{key}={_quoted(labels[key])}' for key in sorted(labels))}}} {float(value)!r}"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n") + '"'
