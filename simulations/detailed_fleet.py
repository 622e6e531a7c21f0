"""A fleet of the detailed model: what it is made of, and what may happen to it.

Knows settings, and how quick a replica is by them. Never knows a trace or a run (``simulations.detailed_play``).
"""

from typing import Annotated, Final, Literal

import msgspec

from balancer.siblings.settings import LEAST_INTERVAL
from simulations.latency import LatencyModel
from simulations.sizes import Replicas
from simulations.store import Delay, Rate, StoreSettings, Weight

Positive = Annotated[float, msgspec.Meta(gt=0, le=1e12)]
Moment = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
Count = Annotated[int, msgspec.Meta(ge=1)]
Interval = Annotated[float, msgspec.Meta(ge=LEAST_INTERVAL, le=1e12)]
"""As production asks at most: asking all the time would be all that a run does."""
Blocks = Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000)]
"""Each of them takes memory: of so many, more than any machine has."""
BlockSize = Annotated[int, msgspec.Meta(ge=1, le=1_048_576)]
"""Far beyond what engines have; the routers are proven one block's keys, token by token."""


class Restart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A replica's engine dies at ``at`` seconds, with all that it does and holds, and is back ``down`` seconds later."""

    at: Moment
    replica: Annotated[int, msgspec.Meta(ge=0)]
    down: Moment = 60.0


class Disaggregation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Prefill and decode apart: the first ``prefill`` replicas compute prompts for the others, which answer.

    Attributes:
        prefill: how many of the replicas.
        gbits: 10^9 bits of data that one decode replica receives a second.
        latency: seconds until the first byte.
        token_bytes: of a token in a cache.
        splits: ``quicker``: what is split is what is quicker so, as production decides; ``always``: every prompt.
        answer_weight: as in ``balancer.disaggregation.settings``.
        name: what people call its links, in tables; nothing depends on it.
    """

    prefill: Count
    gbits: Rate = 100.0
    latency: Delay = 0.001
    token_bytes: Weight = 131_072.0
    splits: Literal["quicker", "always"] = "quicker"
    answer_weight: Annotated[float, msgspec.Meta(ge=0, le=1e6)] = 1.0
    name: str | None = None


class DetailedFleet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A fleet of engines, and what may happen to it.

    Attributes:
        replicas: how many.
        blocks: that each has, of ``block_size`` tokens, vLLM's null block not counted.
        max_num_batched_tokens, max_num_seqs, async_scheduling: as in ``simulations.engine.EngineConfig``.
        latency: what a step costs.
        speeds: by replica, how many times as fast as that it is; those beyond the list are 1.
        replicas_per_device: how many share a GPU, or cores, by turns: each of those that compute at once gets the same part of
            it. Of d devices, replica n is on device n modulo d. Without it, each has one of its own.
        rate: by what the trace is played faster than it was recorded.
        load: instead of ``rate``, prompt tokens a second over what all replicas compute a second (by ``latency``, of prompts
            without attention's share), if nothing were cached.
        closed_loop: as in ``simulations.simple.SimpleFleet``.
        event_lag: seconds from a step's end until the router has read its events.
        event_loss: share of batches that are lost for good, without the router being told.
        gateways: routers that share the fleet; requests come to each in turn.
        exchange: seconds after which each asks the others again what they have under way; without it, none knows of another.
        restarts: what dies when.
        store: a shared store, from which replicas load what they do not hold (``simulations.shared_store``).
        disaggregation: prefill and decode replicas (``simulations.disaggregated``).
        knows_speeds: the routers know from the start how fast the replicas are; without it they learn it, as in production.
    """

    replicas: Replicas = 8
    blocks: Blocks = 8192
    block_size: BlockSize = 16
    max_num_batched_tokens: Count = 2048
    max_num_seqs: Count = 256
    async_scheduling: bool = False
    latency: LatencyModel = LatencyModel()
    speeds: tuple[Positive, ...] = ()
    replicas_per_device: Count | None = None
    rate: Positive = 1.0
    load: Positive | None = None
    closed_loop: bool = False
    event_lag: Delay = 0.001
    event_loss: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    gateways: Count = 1
    exchange: Interval | None = None
    restarts: tuple[Restart, ...] = ()
    store: StoreSettings | None = None
    disaggregation: Disaggregation | None = None
    knows_speeds: bool = False

    def __post_init__(self) -> None:
        if self.store is not None and self.store.tokens is not None and self.store.tokens < self.block_size:
            raise ValueError(f"store.tokens: must be one block ({self.block_size}) at least, got {self.store.tokens}")
        if self.disaggregation is not None:
            if self.disaggregation.prefill >= self.replicas:
                raise ValueError(
                    f"disaggregation.prefill: must leave one of {self.replicas} replicas to answer at least, "
                    f"got {self.disaggregation.prefill}"
                )
            if self.store is not None and self.store.token_bytes != self.disaggregation.token_bytes:
                raise ValueError(
                    "disaggregation.token_bytes: a token weighs as much there as in the store "
                    f"({self.store.token_bytes:g}), got {self.disaggregation.token_bytes:g}"
                )
        for restart in self.restarts:
            if restart.replica >= self.replicas:
                raise ValueError(
                    f"restarts: there is no replica {restart.replica} among {self.replicas}; they are counted from 0"
                )

    @property
    def devices(self) -> int:
        """How many there are: as many as replicas, unless they share them."""
        return -(-self.replicas // (self.replicas_per_device or 1))


def prefill_speed(fleet: DetailedFleet) -> float:
    """Prompt tokens a second of steps that are full of them, attention's share left out."""
    latency, tokens = fleet.latency, fleet.max_num_batched_tokens
    return tokens / (latency.overhead + max(latency.weights, tokens * latency.token) or 1e-9)


def told(fleet: DetailedFleet) -> dict[str, str | int | float | bool | None]:
    """All that the fleet was set up with, for people: what has fields of its own as JSON, and nothing of what it has not."""
    fields = msgspec.structs.asdict(fleet)
    parts = {key: value for key in _OPTIONAL if (value := fields.pop(key)) is not None}
    structured = {key: fields.pop(key) for key in _STRUCTURED}
    return fields | {key: msgspec.json.encode(value).decode() for key, value in (structured | parts).items()}


_STRUCTURED: Final = ("latency", "speeds", "restarts")
_OPTIONAL: Final = ("replicas_per_device", "exchange", "store", "disaggregation")
