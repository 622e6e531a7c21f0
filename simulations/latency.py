"""How long one step of a replica takes, from what the step computes.

Knows counts of tokens and the coefficients of one model on one accelerator. Never knows requests, blocks or the clock. The
formula is a roofline: a step reads all weights once however few tokens it computes, so it takes the longer of the two, and
attention comes on top.
"""

import msgspec

_MICROSECOND = 1e-6
_NANOSECOND = 1e-9


class Workload(msgspec.Struct, frozen=True):
    """What one step computes.

    Attributes:
        prefill_tokens: prompt tokens computed, and tokens recomputed after a preemption; cached ones do not count.
        prefill_pairs: (token, earlier token or itself) pairs that attention weighs for those.
        decode_requests: requests that compute exactly one token, their newest.
        decode_context: tokens that those attend to, over all of them.
    """

    prefill_tokens: int = 0
    prefill_pairs: int = 0
    decode_requests: int = 0
    decode_context: int = 0

    @property
    def is_empty(self) -> bool:
        return not self.prefill_tokens and not self.decode_requests


class LatencyModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds for one step.

    The defaults are arithmetic, not measurements: a dense model of 8 billion parameters in 16 bits (32 layers, 4096 wide,
    8 key-value heads of 128) on an accelerator that keeps up 400 TFLOP/s and 2.4 TB/s. They give about 25,000 prefill
    tokens/s and a decode step of 7.7 ms for one request with a short context.

    Attributes:
        overhead: seconds a step costs whatever it computes (scheduling, launching, sampling).
        weights: seconds to read all weights once: 16 GB / 2.4 TB/s.
        token: seconds to compute one token, prefill or decode: 16 GFLOP / 400 TFLOP/s.
        pair: seconds of prefill attention for one pair of tokens: 0.52 MFLOP / 400 TFLOP/s.
        context_token: seconds to read one cached token for one decoding request: 131 kB / 2.4 TB/s.
        request: seconds of a request outside of steps, before its first token (HTTP, tokenising). No step takes them; they are
            the client's.
    """

    overhead: float = 1000 * _MICROSECOND
    weights: float = 6700 * _MICROSECOND
    token: float = 40 * _MICROSECOND
    pair: float = 1.3 * _NANOSECOND
    context_token: float = 55 * _NANOSECOND
    request: float = 0.0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be a number of seconds, 0 or more, got {getattr(self, name)}")

    @classmethod
    def from_rates(cls, *, prefill_tokens_per_second: float, decode_seconds_per_token: float) -> "LatencyModel":
        """A model from the two figures a benchmark prints: prefill throughput, and the time per output token of one request.

        Attention's share is already in both figures, so a long context costs no more than a short one.

        Raises:
            ValueError: a figure is not above 0.
        """
        if not (0 < prefill_tokens_per_second < float("inf") and 0 < decode_seconds_per_token < float("inf")):
            raise ValueError("prefill_tokens_per_second and decode_seconds_per_token must be numbers above 0")
        token = 1 / prefill_tokens_per_second
        return cls(overhead=0, weights=decode_seconds_per_token, token=token, pair=0, context_token=0)

    def seconds(self, work: Workload) -> float:
        """How long the step takes; a step that computes nothing takes no time."""
        if work.is_empty:
            return 0.0
        tokens = work.prefill_tokens + work.decode_requests
        matrices = max(self.weights, tokens * self.token)
        attention = work.prefill_pairs * self.pair + work.decode_context * self.context_token
        return self.overhead + matrices + attention
