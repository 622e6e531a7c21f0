"""``balancer/engine_info.py``: what an engine says of its KV connector, in the form of vLLM 0.32."""

import json
from typing import Any

import pytest

from balancer.engine_info import NOTHING_TOLD, EngineInfo, read_engine_info


def page(transfer: Any, **environment: Any) -> bytes:
    config = {
        "model_config": {"model": "/models/m", "dtype": "torch.bfloat16"},
        "cache_config": {"block_size": 32, "cache_dtype": "auto"},
        "kv_transfer_config": transfer,
    }
    return json.dumps({"vllm_config": config, "vllm_env": environment, "system_env": {}}).encode()


def test_what_an_engine_with_a_connector_tells() -> None:
    transfer = {"kv_connector": "NixlConnector", "kv_role": "kv_producer", "kv_connector_extra_config": {}}
    environment = {"VLLM_NIXL_SIDE_CHANNEL_HOST": "10.0.0.1", "VLLM_NIXL_SIDE_CHANNEL_PORT": 5600}
    assert read_engine_info(page(transfer, **environment)) == EngineInfo(
        model="/models/m",
        dtype="bfloat16",
        cache_dtype="auto",
        connectors=("NixlConnector",),
        kv_role="kv_producer",
        channel=("10.0.0.1", 5600),
    )


def test_the_parts_of_several_are_told_behind_their_whole() -> None:
    parts = [{"kv_connector": "NixlConnector", "kv_role": "kv_both"}, {"kv_connector": "OffloadingConnector"}, {}]
    transfer = {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"connectors": parts},
    }
    assert read_engine_info(page(transfer)).connectors == ("MultiConnector", "NixlConnector", "OffloadingConnector")


def test_none_is_another_thing_than_not_told() -> None:
    assert read_engine_info(page(None)).connectors == ()
    assert read_engine_info(page({"kv_connector": None})).connectors == ()
    assert read_engine_info(b'{"vllm_config": {"model_config": {}}}').connectors is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not JSON",
        b"[]",
        b"null",
        b"{}",
        b'{"vllm_config": "model=..., as text"}',
        b'{"vllm_config": []}',
        b'{"vllm_config": {}}',
        b"\xff\xfe",
        b"[" * 100_000,
    ],
)
def test_what_is_no_such_answer_tells_nothing(body: bytes) -> None:
    assert read_engine_info(body) == NOTHING_TOLD


def test_what_is_of_another_type_is_not_told() -> None:
    odd = {
        "vllm_config": {
            "model_config": {"model": 7, "dtype": None},
            "cache_config": "x",
            "kv_transfer_config": {
                "kv_connector": ["a"],
                "kv_role": 1,
                "kv_connector_extra_config": {"connectors": "b"},
            },
        },
        "vllm_env": {"VLLM_NIXL_SIDE_CHANNEL_HOST": "h", "VLLM_NIXL_SIDE_CHANNEL_PORT": "5600"},
    }
    assert read_engine_info(json.dumps(odd).encode()) == EngineInfo(connectors=())
