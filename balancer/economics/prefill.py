"""How long a replica takes to compute a part of a prompt.

Knows coefficients, given or learned. Never knows replicas or clocks. It is about one request by itself: what waits before it is
the fleet's to say.
"""

import math

import msgspec

from balancer.speeds import ReplicaSpeed


class Prefill(msgspec.Struct, frozen=True):
    """Seconds = request + the longer of (least, uncached * token) + pair * (pairs of tokens that attention weighs).

    Attributes:
        request: seconds of a request, however short.
        token: of an uncached token.
        pair: of an uncached token and one before it (or in the same request: itself and half of the others).
        least: seconds that a step takes for reading the weights, however few tokens it computes; so some are free.
    """

    request: float = 0.0
    token: float = 1e-4
    pair: float = 0.0
    least: float = 0.0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be a number of seconds, 0 or more, got {getattr(self, name)}")

    @classmethod
    def from_speed(cls, tokens_per_second: float) -> "Prefill":
        """Each token costs the same.

        Raises:
            ValueError: it is no number above 0.
        """
        if not 0 < tokens_per_second < math.inf:
            raise ValueError(f"a speed is a number of tokens a second above 0, got {tokens_per_second}")
        return cls(token=1 / tokens_per_second)

    @classmethod
    def from_flops(
        cls, flops: float, parameters: float, *, layers: int = 0, heads: int = 0, head_size: int = 0
    ) -> "Prefill":
        """By arithmetic: ``flops`` that are reached a second, ``parameters`` that one token uses.

        A token takes two operations for each parameter, and a pair of tokens four for each number of each head in each layer.
        """
        return cls(token=2 * parameters / flops, pair=4 * layers * heads * head_size / flops)

    @classmethod
    def learned(cls, speed: ReplicaSpeed, answers: int = 0) -> "Prefill":
        """What was seen of this replica, beside so many answers under way."""
        request, token, pair, answer = speed.model.coefficients
        return cls(
            request=request,
            token=(token * 1e-3 + answer * 1e-5 * answers) * speed.factor,
            pair=pair * 1e-8 * speed.factor,
        )

    def seconds(self, uncached: int, cached: int) -> float:
        """So many tokens behind so many that are there already; computing none takes no time."""
        if uncached <= 0:
            return 0.0
        return self.request + max(self.least, uncached * self.token) + self.pair * uncached * (cached + uncached / 2)
