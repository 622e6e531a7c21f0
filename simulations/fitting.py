"""What a step costs, worked out from how long known steps took: ``simulations.latency.LatencyModel`` fitted to measurements.

Knows arithmetic on samples. Never measures. The model has a bend (a step takes the longer of reading the weights and
computing the tokens), so every place where it may lie between two samples is tried. On each side of it the model is a sum of
six costs of 0 or more, and there are few enough sets of costs that are not 0 to solve the normal equations of each.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from typing import Final

import msgspec

from simulations.latency import LatencyModel, Workload

COSTS: Final = LatencyModel.__struct_fields__
_TINY: Final = 1e-9
_BETTER: Final = 1e-9
"""How much smaller a sum of squares has to be so that it pays to have one cost more, or a bend elsewhere."""


class Sample(msgspec.Struct, frozen=True):
    """Something that took time, and the steps that it consisted of.

    Attributes:
        name: what it was, in words; samples of one name are repeats.
        steps: what was computed, one after the other.
        seconds: how long all of it took, above 0.
        requests: round trips in it: 1 from sending a prompt to its first token, 0 from one token to the next.
    """

    name: str
    steps: tuple[Workload, ...]
    seconds: float
    requests: int = 0


class Fit(msgspec.Struct, frozen=True):
    """A model, and how far it is from what was measured.

    Attributes:
        latency: the model.
        samples: how many there were, repeats counted as one.
        mean_error, worst_error: of what was measured, without sign; shares.
        worst: the name of the sample that the worst error is of.
    """

    latency: LatencyModel
    samples: int
    mean_error: float
    worst_error: float
    worst: str


def prompt_steps(tokens: int, chunk: int, cached: int = 0) -> tuple[Workload, ...]:
    """The steps that compute a prompt alone, of which so many tokens are cached, in chunks of at most ``chunk`` tokens."""
    steps = []
    for begin in range(cached, tokens, chunk):
        count = min(chunk, tokens - begin)
        if count == 1:  # an engine cannot tell it from decoding
            steps.append(Workload(decode_requests=1, decode_context=begin + 1))
        else:
            steps.append(Workload(prefill_tokens=count, prefill_pairs=count * begin + count * (count + 1) // 2))
    return tuple(steps)


def combined(samples: Sequence[Sample]) -> list[Sample]:
    """Of samples of one name, the middle one: one that was disturbed does not count."""
    found: dict[str, list[Sample]] = {}
    for sample in samples:
        found.setdefault(sample.name, []).append(sample)
    return [sorted(same, key=lambda each: each.seconds)[(len(same) - 1) // 2] for same in found.values()]


def predicted(latency: LatencyModel, sample: Sample) -> float:
    """Seconds that the sample takes by this model."""
    return sample.requests * latency.request + sum(map(latency.seconds, sample.steps))


def fit(samples: Sequence[Sample]) -> Fit:
    """The model with the least sum of squared relative errors over these samples; repeats of one count by their median.

    Costs that samples cannot tell from each other fall to those that are named first in ``LatencyModel``.

    Raises:
        ValueError: there is no sample, or one took no time.
    """
    samples = combined(samples)
    if not samples or not all(0 < each.seconds < math.inf for each in samples):
        raise ValueError("samples: at least one is needed, and each must have taken time")
    best, least = LatencyModel(**dict.fromkeys(COSTS, 0.0)), math.inf
    for bend in _bends(samples):
        candidate = _fit_at(samples, bend)
        squares = sum(_error(candidate, each) ** 2 for each in samples)
        if squares < least - _BETTER:
            best, least = candidate, squares
    errors = [abs(_error(best, each)) for each in samples]
    worst = max(range(len(samples)), key=errors.__getitem__)
    return Fit(best, len(samples), sum(errors) / len(errors), errors[worst], samples[worst].name)


def _error(latency: LatencyModel, sample: Sample) -> float:
    return predicted(latency, sample) / sample.seconds - 1


def _tokens(step: Workload) -> int:
    return step.prefill_tokens + step.decode_requests


def _bends(samples: Sequence[Sample]) -> Iterator[float]:
    """A number of tokens between any two steps that differ in it, and beyond all: steps of more are computing."""
    counts = sorted({_tokens(step) for sample in samples for step in sample.steps})
    for below, above in pairwise(counts):
        yield (below + above) / 2
    yield math.inf


def _fit_at(samples: Sequence[Sample], bend: float) -> LatencyModel:
    """The best model if steps of more than ``bend`` tokens take as long as these, and others as long as the weights."""
    rows = [[cost / sample.seconds for cost in _row(sample, bend)] for sample in samples]
    # Columns of like size: the costs of a pair and of a step are a million times apart.
    sizes = [math.sqrt(sum(row[at] ** 2 for row in rows)) for at in range(len(COSTS))]
    scaled = [[cost / size if size else 0.0 for cost, size in zip(row, sizes, strict=True)] for row in rows]
    weights = _non_negative(scaled)
    return LatencyModel(
        **{name: weight / size if size else 0.0 for name, weight, size in zip(COSTS, weights, sizes, strict=True)}
    )


def _row(sample: Sample, bend: float) -> list[float]:
    """How often each cost is in it, in the order of ``COSTS``."""
    computing = [step for step in sample.steps if _tokens(step) > bend]
    counts = {
        "overhead": len(sample.steps),
        "weights": len(sample.steps) - len(computing),
        "token": sum(map(_tokens, computing)),
        "pair": sum(step.prefill_pairs for step in sample.steps),
        "context_token": sum(step.decode_context for step in sample.steps),
        "request": sample.requests,
    }
    return [float(counts[name]) for name in COSTS]


def _non_negative(rows: Sequence[Sequence[float]]) -> list[float]:
    """Numbers of 0 or more, one a column, so that the rows come as near to 1 as they can (least squares)."""
    width = len(rows[0])
    products = [[sum(row[a] * row[b] for row in rows) for b in range(width)] for a in range(width)]
    sums = [sum(row[a] for row in rows) for a in range(width)]
    best, least = [0.0] * width, float(len(rows))
    for size in range(1, width + 1):
        for chosen in combinations(range(width), size):
            found = _solved([[products[a][b] for b in chosen] + [sums[a]] for a in chosen])
            if found is None or min(found) < 0:
                continue
            squares = sum((sum(row[at] * x for at, x in zip(chosen, found, strict=True)) - 1) ** 2 for row in rows)
            if squares < least - _BETTER:
                least, best = squares, [0.0] * width
                for at, x in zip(chosen, found, strict=True):
                    best[at] = x
    return best


def _solved(equations: list[list[float]]) -> list[float] | None:
    """The solution of so many linear equations (Gauss), the right side last; None where there is no single one."""
    size = len(equations)
    for at in range(size):
        pivot = max(range(at, size), key=lambda row: abs(equations[row][at]))
        if abs(equations[pivot][at]) < _TINY:
            return None
        equations[at], equations[pivot] = equations[pivot], equations[at]
        for row in range(at + 1, size):
            share = equations[row][at] / equations[at][at]
            equations[row] = [x - share * y for x, y in zip(equations[row], equations[at], strict=True)]
    found = [0.0] * size
    for at in reversed(range(size)):
        known = sum(equations[at][other] * found[other] for other in range(at + 1, size))
        found[at] = (equations[at][size] - known) / equations[at][at]
    return found
