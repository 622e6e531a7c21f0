"""What an engine tells of itself in ``GET /server_info?config_format=json``: its precision, and how its cache gets to others.

Knows the answer of vLLM 0.32, which only engines with ``VLLM_SERVER_DEV_MODE=1`` give. Never asks for it. What is not there is
None; an engine that says that it has no KV connector has none, which is not the same.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

PATH: Final = "/server_info?config_format=json"

SIDE_CHANNEL: Final = ("VLLM_NIXL_SIDE_CHANNEL_HOST", "VLLM_NIXL_SIDE_CHANNEL_PORT")


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """``connectors`` are the classes of its KV connector, and of its parts; ``channel`` is NIXL's host and first port."""

    model: str | None = None
    dtype: str | None = None
    cache_dtype: str | None = None
    connectors: tuple[str, ...] | None = None
    kv_role: str | None = None
    channel: tuple[str, int] | None = None


NOTHING_TOLD: Final = EngineInfo()


def read_engine_info(body: bytes) -> EngineInfo:
    """What stands in it; ``NOTHING_TOLD`` where that is no such answer."""
    try:
        told: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return NOTHING_TOLD
    config = _dict(_dict(told).get("vllm_config"))
    if not config:
        return NOTHING_TOLD
    model, transfer = _dict(config.get("model_config")), config.get("kv_transfer_config")
    environment = _dict(_dict(told).get("vllm_env"))
    host, port = (environment.get(name) for name in SIDE_CHANNEL)
    return EngineInfo(
        model=_text(model.get("model")),
        dtype=(_text(model.get("dtype")) or "").removeprefix("torch.") or None,
        cache_dtype=_text(_dict(config.get("cache_config")).get("cache_dtype")),
        connectors=_connectors(_dict(transfer)) if "kv_transfer_config" in config else None,
        kv_role=_text(_dict(transfer).get("kv_role")),
        channel=(host, port) if isinstance(host, str) and type(port) is int else None,
    )


def _connectors(transfer: Mapping[str, Any]) -> tuple[str, ...]:
    name = _text(transfer.get("kv_connector"))
    if name is None:
        return ()
    parts = _dict(transfer.get("kv_connector_extra_config")).get("connectors")
    inner = [_text(_dict(part).get("kv_connector")) for part in parts] if isinstance(parts, list) else []
    return (name, *(each for each in inner if each is not None))


def _dict(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
