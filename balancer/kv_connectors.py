"""Which KV connectors an engine has, by the names of its metrics.

Knows which series vLLM's connectors register when they are configured (read in 0.32), be anything counted or not. A
connector without series of its own (ExampleConnector, LMCache's) is not seen; then the settings have to say it.
"""

import re
from typing import Final

from balancer.economics.hints import OFFLOADING

_SERIES: Final = re.compile(rb"^# TYPE vllm:(simple_kv_offload|kv_offload|nixl|mooncake_store|hf3fs)_", re.MULTILINE)

_CONNECTORS: Final = {
    b"kv_offload": OFFLOADING,
    b"simple_kv_offload": "SimpleCPUOffloadConnector",
    b"nixl": "NixlConnector",
    b"mooncake_store": "MooncakeStoreConnector",
    b"hf3fs": "HF3FSKVConnector",
}


def read_connectors(page: bytes) -> tuple[str, ...]:
    """``GET /metrics``: the connectors, by name; none where nothing tells of any."""
    return tuple(sorted({_CONNECTORS[found] for found in _SERIES.findall(page)}))
