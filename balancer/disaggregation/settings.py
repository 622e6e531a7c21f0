"""The settings of disaggregation.

Knows names, defaults and what cannot be used. Never knows a replica: which of them prefill is said with each.
"""

import math
from typing import Any, Final

import msgspec

from balancer.disaggregation import plan
from balancer.economics.economy import PREFILL
from balancer.economics.settings import LinkSettings, check_link
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
    link: str | None = None
    """The link from prefill to decode replicas, by name (docs/economics.md); with weights it decides what is split."""
    gigabits_per_second: float | None = None
    """Its rate, in place of a name."""
    latency_ms: float | None = None
    """Until the first byte; that of the named link, or of a network, where it is not given."""
    setup_ms: float = 0.0
    """What each transfer takes besides."""
    answer_weight: float = 1.0
    """What a second counts that an answer loses while its replica computes a prompt, beside one until a first token."""

    @property
    def transfer(self) -> LinkSettings | None:
        """The link; None where it is not given."""
        if self.link is None and self.gigabits_per_second is None:
            return None
        return LinkSettings(
            source=PREFILL,
            link=self.link,
            gigabits_per_second=self.gigabits_per_second,
            latency_ms=self.latency_ms,
            setup_ms=self.setup_ms,
        )


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
    if not 0 <= settings.answer_weight < math.inf:
        raise ConfigError(
            f"disaggregation.answer_weight: {settings.answer_weight} cannot be used; give a number, 0 for nothing"
        )
    if settings.transfer is not None:
        check_link("disaggregation", settings.transfer)
    elif settings.latency_ms is not None or settings.setup_ms:
        raise ConfigError(
            "disaggregation: latency_ms and setup_ms are those of a link, which is not given; give link, a name like "
            "100gbe, or gigabits_per_second"
        )
    plan.make(settings.name, settings.settings)
    if settings.threshold_tokens < 0:
        raise ConfigError(
            f"disaggregation.threshold_tokens: {settings.threshold_tokens} cannot be used; give a number of tokens, 0 to "
            "split every request"
        )
