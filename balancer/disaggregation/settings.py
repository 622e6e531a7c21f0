"""The settings of disaggregation.

Knows names, defaults and what cannot be used. Never knows a replica: which of them prefill is said with each.
"""

import math
from typing import Any, Final

import msgspec

from balancer.disaggregation import plan
from balancer.errors import ConfigError


class DisaggregationSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a prompt that one replica has computed gets to the one that answers; counts where replicas have such roles."""

    name: str = "nixl"
    """The connector of the engines (``--kv-transfer-config``), by kvlb's name for it."""
    settings: dict[str, Any] = {}
    """The connector's own settings."""
    pass_tokens: bool = False
    """Chat: the decode leg carries the prompt's tokens as the prefill engine has made them (vLLM >= 0.28)."""
    threshold_tokens: int = 256
    """A prompt of which the decode replica lacks fewer tokens is computed there; 0 to split every request."""
    prefill_seconds: float = 120.0
    """For the prefill leg; after that another one is tried, or the decode replica computes the prompt itself."""
    prefill_attempts: int = 2
    """Prefill replicas that are tried before that."""
    dispatch_seconds: float = 10.0
    """Between the two legs at most: engines give up what nobody fetches (NIXL: after 30 s)."""


DEFAULT: Final = DisaggregationSettings()


def check(settings: DisaggregationSettings) -> None:
    """Raise ``ConfigError`` for what cannot be used."""
    for name, value in (
        ("prefill_seconds", settings.prefill_seconds),
        ("dispatch_seconds", settings.dispatch_seconds),
        ("prefill_attempts", settings.prefill_attempts),
    ):
        if not 0 < value < math.inf:
            raise ConfigError(f"disaggregation.{name}: {value} cannot be used; give a number above 0")
    plan.make(settings.name, settings.settings)
    if settings.threshold_tokens < 0:
        raise ConfigError(
            f"disaggregation.threshold_tokens: {settings.threshold_tokens} cannot be used; give a number of tokens, 0 to "
            "split every request"
        )
