"""How long replicas take to compute prompts, learned from how long they took.

Knows work and seconds. Never knows clocks, requests or replicas: whoever keeps a queue says what was computed in which time.
All replicas of a model share one shape (``PrefillModel``); each has a factor of its own (``ReplicaSpeed``), which fades to 1
while nothing is seen of it. So a newcomer begins with what the others have shown, equal replicas stay equal but for noise, and
one that was slow for a while is tried again.
"""

import math
from typing import Final

PREFILL_SPEED: Final = 10_000.0
"""Uncached prompt tokens a second, of replicas that nobody knows better: a model of 70 billion parameters on four H100."""

MEMORY_SECONDS: Final = 120.0
"""What was seen so long ago counts a third of what is seen now."""

MEMORY_OBSERVATIONS: Final = 100
"""What was seen so many observations ago counts a third of what is seen now."""

DOUBT: Final = 4.0
"""Observations that say that a replica is like the others, beside those that were made of it."""

NOISE: Final = 0.15
"""Of the logarithm of a factor: what is so near to 1 is 1, or chance would choose among equals once for all of them."""

MOST: Final = 10.0
"""How many times slower or faster than expected counts at most, for one observation."""

SLOW: Final = 3.0
"""So many times slower than expected, it is a loss to whoever tries it; what is less so is worth knowing."""

MAX_PATIENCE: Final = 16
"""Or one that is well again would be found by chance alone."""

_SHORTEST: Final = 0.001
"""Seconds; what is said to have taken less is taken for as long."""

_FASTEST: Final = 1e-6
"""Seconds for 1,000 tokens; nobody is faster than a billion tokens a second."""

_SWEEP_EVERY: Final = 4
"""Observations between two corrections, once there are ``_SURE``; each costs as much as several of them."""

_SURE: Final = 40


class PrefillModel:
    """Seconds = requests * a + tokens * b + tokens * context * c + tokens * answers * d, each coefficient at least 0.

    ``tokens`` are uncached ones, ``context`` the mean number of tokens before them, ``answers`` those under way at the same
    replica: a step computes all of them. Fitted by least squares, weighted by 1 / seconds (so one stall moves it little), with
    an exponential memory, towards the default speed and nothing else. Between calls: no coefficient is negative, and that of a
    token is above 0.

    ``coefficients`` are seconds for one request, 1,000 tokens, 10^8 tokens x tokens of context and 10^5 tokens x answers: so a
    typical request has each feature near 1, and what pulls to the default weighs alike.
    """

    __slots__ = ("_count", "_cross", "_default", "_moments", "_right", "coefficients")

    _PULL: Final = (0.3, 0.05, 0.1, 0.1)

    def __init__(self, speed: float = PREFILL_SPEED) -> None:
        """``speed`` is what it begins with, in tokens a second.

        Raises:
            ValueError: it is no number above 0.
        """
        if not 0 < speed < math.inf:
            raise ValueError(f"speed: must be a number of tokens a second above 0, got {speed}")
        self._default = (0.0, 1e3 / speed, 0.0, 0.0)
        self.coefficients = list(self._default)
        self._moments = [0.0] * 4  # of each feature with itself,
        self._cross = [0.0] * 6  # with the others,
        self._right = [0.0] * 4  # and with the seconds
        self._count = 0

    def __repr__(self) -> str:
        return f"<PrefillModel {self.speed(0, 0):,.0f} tokens/s, {self._count} observations>"

    def speed(self, context: float, answers: int) -> float:
        """Uncached tokens a second, behind so many tokens and beside so many answers."""
        _, token, pair, answer = self.coefficients
        return 1 / (token * 1e-3 + pair * 1e-8 * context + answer * 1e-5 * answers)

    def seconds(self, requests: int, tokens: int, pairs: float, crowd: float) -> float:
        """What so much work takes; ``pairs`` is the sum of tokens times context, ``crowd`` of tokens times answers."""
        request, token, pair, answer = self.coefficients
        return request * requests + token * 1e-3 * tokens + pair * 1e-8 * pairs + answer * 1e-5 * crowd

    def observe(self, requests: int, tokens: int, pairs: float, crowd: float, seconds: float) -> None:
        """So much work took so many seconds."""
        seconds = max(seconds, _SHORTEST)
        x0, x1, x2, x3 = requests, tokens * 1e-3, pairs * 1e-8, crowd * 1e-5
        weight = 1 / seconds
        w0, w1, w2 = x0 * weight, x1 * weight, x2 * weight
        m, c, r, fade = self._moments, self._cross, self._right, _FADE
        m[0] = m[0] * fade + x0 * w0
        m[1] = m[1] * fade + x1 * w1
        m[2] = m[2] * fade + x2 * w2
        m[3] = m[3] * fade + x3 * x3 * weight
        c[0] = c[0] * fade + x0 * w1
        c[1] = c[1] * fade + x0 * w2
        c[2] = c[2] * fade + x3 * w0
        c[3] = c[3] * fade + x1 * w2
        c[4] = c[4] * fade + x3 * w1
        c[5] = c[5] * fade + x3 * w2
        r[0] = r[0] * fade + x0
        r[1] = r[1] * fade + x1
        r[2] = r[2] * fade + x2
        r[3] = r[3] * fade + x3
        self._count += 1
        if self._count <= _SURE or not self._count % _SWEEP_EVERY:
            self._sweep()
            self._sweep()

    def _sweep(self) -> None:
        """One turn of projected Gauss-Seidel over the normal equations."""
        k, m, c, r, pull = self.coefficients, self._moments, self._cross, self._right, self._PULL
        right = r[1] + pull[1] * self._default[1] - c[0] * k[0] - c[3] * k[2] - c[4] * k[3]
        k[1] = max(_FASTEST, right / (m[1] + pull[1]))
        k[0] = max(0.0, (r[0] - c[0] * k[1] - c[1] * k[2] - c[2] * k[3]) / (m[0] + pull[0]))
        k[2] = max(0.0, (r[2] - c[1] * k[0] - c[3] * k[1] - c[5] * k[3]) / (m[2] + pull[2]))
        k[3] = max(0.0, (r[3] - c[2] * k[0] - c[4] * k[1] - c[5] * k[2]) / (m[3] + pull[3]))


_FADE: Final = math.exp(-1 / MEMORY_OBSERVATIONS)


class ReplicaSpeed:
    """How fast one replica is: the shape of all, and by how many times it takes longer. Changes with what is observed.

    ``patience`` is how many times as long as another one it can do without a trial: twice as long after each observation in a
    row that was ``SLOW``, and no longer after one that was not, or once all of them are forgotten.
    """

    __slots__ = ("_at", "_sum", "_weight", "factor", "model", "patience")

    def __init__(self, model: PrefillModel) -> None:
        self.model = model
        self.factor = 1.0
        self.patience = 1
        self._sum = 0.0  # of the logarithms of what was seen over what was expected
        self._weight = 0.0
        self._at = 0.0

    def __repr__(self) -> str:
        return f"<ReplicaSpeed {self.speed(0, 0):,.0f} tokens/s>"

    def speed(self, context: float, answers: int) -> float:
        """As ``PrefillModel.speed``, of this replica."""
        return self.model.speed(context, answers) / self.factor

    def seconds(self, tokens: int, context: float, answers: int) -> float:
        """What one request takes."""
        return self.model.coefficients[0] + tokens / self.model.speed(context, answers) * self.factor

    def observe(self, requests: int, tokens: int, pairs: float, crowd: float, seconds: float, now: float) -> None:
        """So much work took so many seconds, and ended now."""
        self.model.observe(
            requests, tokens, pairs, crowd, seconds
        )  # first, or whoever is seen first would seem special
        expected = self.model.seconds(requests, tokens, pairs, crowd)
        if expected <= 0:
            return
        ratio = min(MOST, max(1 / MOST, max(seconds, _SHORTEST) / max(expected, _SHORTEST)))
        self._fade(now, _FADE)
        self.patience = min(MAX_PATIENCE, 2 * self.patience) if ratio >= SLOW else 1
        self._sum += math.log(ratio)
        self._weight += 1.0
        self._conclude()

    def rest(self, now: float) -> None:
        """Time has passed: what is known counts less. Call it now and then."""
        if self._weight and now - self._at >= MEMORY_SECONDS / 8:
            self._fade(now, 1.0)
            self._conclude()
            if self.factor == 1.0:
                self.patience = 1

    def _conclude(self) -> None:
        mean = self._sum / (self._weight + DOUBT)
        self.factor = math.exp(mean) if abs(mean) > NOISE else 1.0

    def _fade(self, now: float, by: float) -> None:
        by *= math.exp(min(0.0, self._at - now) / MEMORY_SECONDS)
        self._sum *= by
        self._weight *= by
        self._at = now
