"""The two speeds that everybody knows of a replica, of prompts and of answers, in the words of each model.

Knows fields of a fleet. Never knows flags, or where the fields were written.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from balancer.errors import ConfigError
from simulations.latency import LatencyModel
from simulations.rivals import refuse_rivals


def with_speeds(model: str, fleet: Mapping[str, Any]) -> dict[str, Any]:
    """The two speeds that everybody knows of a replica, as the model has them.

    Raises:
        ConfigError: one of them is none, or is said in other words, too.
    """
    refuse_rivals(fleet)
    made = dict(fleet)
    decode = made.pop("decode_ms", None)
    if model == "simple":
        if decode is not None:
            made["decode_seconds"] = _positive("decode_ms", decode) / 1000
        return made
    prefill = made.pop("prefill_tps", None)
    if prefill is None and decode is None:
        return made
    if prefill is None or decode is None:
        raise ConfigError(
            "--prefill-tps, --decode-ms: the detailed model needs both, or the fields of fleet.latency (kvlb calibrate)"
        )
    made["latency"] = msgspec.structs.asdict(
        LatencyModel.from_rates(
            prefill_tokens_per_second=_positive("prefill_tps", prefill),
            decode_seconds_per_token=_positive("decode_ms", decode) / 1000,
        )
    )
    return made


def _positive(field: str, value: Any) -> float:
    if not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise ConfigError(f"fleet.{field}: must be a number above 0, got {value}")
    return float(value)
