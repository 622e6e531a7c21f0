"""``balancer/kv_connectors.py``: connectors by the series that they register."""

import pytest

from balancer.kv_connectors import read_connectors


@pytest.mark.parametrize(
    ("lines", "names"),
    [
        ("# TYPE vllm:kv_offload_load_bytes_total counter", ("OffloadingConnector",)),
        ("# TYPE vllm:kv_offload_total_bytes_total counter", ("OffloadingConnector",)),
        ("# TYPE vllm:simple_kv_offload_info gauge", ("SimpleCPUOffloadConnector",)),
        ("# TYPE vllm:mooncake_store_operation_total counter", ("MooncakeStoreConnector",)),
        (
            "# TYPE vllm:nixl_bytes_transferred histogram\n# TYPE vllm:kv_offload_load_time_total counter\n"
            "# TYPE vllm:kv_offload_load_bytes_total counter",
            ("NixlConnector", "OffloadingConnector"),
        ),
        ("# TYPE vllm:kv_cache_usage_perc gauge\n# HELP x # TYPE vllm:nixl_y counter", ()),
        ("", ()),
    ],
)
def test_each_has_its_series(lines: str, names: tuple[str, ...]) -> None:
    assert read_connectors(b"# HELP other\n" + lines.encode() + b"\n") == names
