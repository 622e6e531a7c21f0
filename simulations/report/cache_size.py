"""How much cache.

Knows the best cell, those that differ from it in one thing, and the bounds. Never says more than the runs show: what is worked
out and was not run is called an estimate.
"""

from typing import TYPE_CHECKING, Final

from simulations.report.comparison import HIT_TIES, Cell, alike, cache_settings, is_faster
from simulations.report.figures import count, percent, points
from simulations.report.finding import (
    COSTLY,
    REFUSED,
    Certainty,
    Finding,
    holds,
    mean,
    of_size,
    sureness,
)
from simulations.report.lru_curve import lru
from simulations.report.sizing import BUSY

if TYPE_CHECKING:
    from simulations.report.document import BoundFacts

PLACES: Final = (0.9, 0.99)
"""How much of what can be had counts as most of it, and as all of it."""


def cache(best: Cell, every: list[Cell], bounds: "BoundFacts | None", target: float | None = None) -> Finding:
    """Of the fleet of ``best``. Nothing is advised that does not hold the ``target`` of first tokens which this holds."""

    def finding(verdict: str, answer: str, certainty: Certainty, *compared: Cell) -> Finding:
        return Finding("cache", "How much cache?", verdict, answer, [*because, sureness([best, *compared])], certainty)

    pool, size = best.fleet.pool_tokens, best.fleet.cache_tokens
    because = [f"Under {best.policy}, eviction costs {points(best.evicted)} of hit, routing {points(best.elsewhere)}."]
    if best.forgotten:
        because.append(f"Restarts cost {points(best.forgotten)}: what they throw away no cache would have had.")
    tried = sorted(
        (cell for cell in alike(best, every, "cache_tokens", *cache_settings(every)) if cell.served),
        key=lambda cell: cell.fleet.cache_tokens or 0,
    )
    if size is not None and len(tried) > 1:
        because.append("By cache per replica: " + "; ".join(map(of_size, tried)) + ".")
    if bounds is not None and pool is not None:
        because += _of_curve(bounds, pool)
    if best.refused > REFUSED:
        answer = (
            f"{percent(best.refused)} of the requests were refused: they do not fit into a replica's cache, or nobody could "
            "take them. What eviction costs the others says nothing of them."
        )
        return finding("More is needed", answer, Certainty.MEASURED)
    if best.evicted < COSTLY:
        spare = None if size is None else _smallest(tried, best, size, target)
        answer = f"Eviction costs {points(best.evicted)} of hit, and more cache could bring no more than that."
        if spare is not None:
            answer += f" {count(spare.fleet.cache_tokens or 0)} tokens per replica do as well."
            return finding("Less would do", answer, Certainty.MEASURED, spare)
        return finding("Enough as it is", answer, Certainty.MEASURED)
    weighed = f"Eviction costs {points(best.evicted)} of hit, routing {points(best.elsewhere)}."
    if size is None or pool is None:
        return finding("More would help", weighed, Certainty.MEASURED)
    larger = _larger(tried, best, size, target)
    if larger is not None:
        gained = larger.hit.mean - best.hit.mean
        answer = (
            f"{weighed} {count(larger.fleet.cache_tokens or 0)} tokens per replica instead of {count(size)} bring "
            f"{points(max(0.0, gained))} of it back, and first tokens come in {mean(larger)} instead of {mean(best)}."
        )
        return finding(
            "More would pay" if is_faster(larger, best) else "More would not pay", answer, Certainty.MEASURED, larger
        )
    if bounds is None:
        return finding("More would help", weighed, Certainty.MEASURED)
    gained = max(0.0, min(best.evicted, lru(bounds, 2 * pool) - lru(bounds, pool)))
    answer = f"{weighed} Twice the cache should bring about {points(gained)} of it back, and"
    answer += f" leave {percent(gained / max(1e-9, 1 - best.hit.mean))} less to compute."
    if gained < COSTLY:
        return finding("Twice is not enough", answer, Certainty.ESTIMATE)
    if gained > best.elsewhere and best.prompt_busy > BUSY:
        answer += " Double it before you add replicas."
    return finding("More would pay", answer, Certainty.ESTIMATE)


def _of_curve(bounds: "BoundFacts", pool: int) -> list[str]:
    """What one cache would hit, of this size and of others."""
    now = lru(bounds, pool)
    lines = [
        f"One LRU cache as large as all of them together ({count(pool)} tokens) would hit {percent(now)}, one twice as large "
        f"{percent(lru(bounds, 2 * pool))}, and one that forgets nothing {percent(bounds.infinite)}."
    ]
    exact = bounds.pool_of(pool)
    if exact is not None and exact.belady - now > COSTLY:
        lines.append(
            f"Of what LRU misses, {points(exact.belady - now)} are the order of eviction: one that knew the future would hit "
            f"{percent(exact.belady)} with the same cache."
        )
    curve = list(zip(bounds.curve_tokens, bounds.curve_hits, strict=True))
    known = []
    for place in PLACES:
        size = next((size for size, hit in curve if hit >= place * bounds.infinite), None)
        if size is not None:
            known.append(f"{count(size)} tokens for {100 * place:.0f} %")
    if known and bounds.infinite:
        lines.append(f"Of what can be had, one LRU cache needs {' and '.join(known)}.")
    return lines


def _larger(tried: list[Cell], best: Cell, size: int, target: float | None) -> Cell | None:
    """The first one that is twice as large or more; where a target is to be held, the first of these that holds it."""
    some = [cell for cell in tried if (cell.fleet.cache_tokens or 0) >= 2 * size]
    good = [cell for cell in some if target is not None and not holds(best, target) and holds(cell, target)]
    return next(iter(good or some), None)


def _smallest(tried: list[Cell], best: Cell, size: int, target: float | None) -> Cell | None:
    """The smallest cache that was run and does as well as this one, where it is at most half of it."""
    for cell in tried:
        if 2 * (cell.fleet.cache_tokens or 0) > size:
            return None
        if target is not None and holds(best, target) and not holds(cell, target):
            continue
        if (
            not is_faster(best, cell)
            and cell.hit.mean >= best.hit.mean - HIT_TIES
            and cell.refused <= best.refused + REFUSED
        ):
            return cell
    return None
