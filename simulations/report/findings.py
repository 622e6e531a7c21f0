"""What the figures say, in plain words: is cache-aware routing needed, how much cache, how many replicas, and what else pays.

Knows cells, bounds, and the sentences that may be said of them. Never says more than the runs show: what was run once has no
known uncertainty, and what was not run is said to be missing.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from simulations.report.cache_size import cache
from simulations.report.comparison import Cell, base, cells, is_faster, kind_name, may_be_quicker, ranked
from simulations.report.figures import percent, points, times
from simulations.report.finding import (
    COSTLY,
    MORE_SEEDS,
    NOT_KNOWN,
    NOTICED,
    REFUSED,
    Certainty,
    Finding,
    against,
    mean,
    of_a_hundred,
    sureness,
)
from simulations.report.fleets import fleet_words
from simulations.report.result import Result
from simulations.report.short_sample import shortness, unsteadiness
from simulations.report.sizing import answering, fleet
from simulations.report.worth import worth

if TYPE_CHECKING:
    from simulations.report.document import BoundFacts

LITTLE: Final = 0.05
"""Where less than this share of prompt tokens came before, no cache is worth much."""


def find(
    has_blocks: bool,
    bounds: "BoundFacts | None",
    results: Sequence[Result],
    *,
    ttft_target: float | None,
    blind: frozenset[str],
    sticky: frozenset[str],
) -> list[Finding]:
    """The findings of a report, in order: where tokens came from, routing, cache, replicas, a store and a split."""
    every = cells(results)
    served = [cell for cell in ranked(base(every)) if cell.served]
    if not served:
        answer = "Every request was refused." if results else "There is not one run."
        return [Finding("tokens", "What came of it?", "Nothing", answer, [], Certainty.UNKNOWN)]
    best = served[0]
    answer_of_runs = answering(best, every, ttft_target)
    taken = answer_of_runs or best
    if best.refused > REFUSED:
        bounds = None  # they are of all requests, and those that were refused are often the longest
    found = [_tokens(best, bounds)]
    if has_blocks:
        of_cache = cache(taken, every, bounds, ttft_target)
        found += [_routing(served, bounds, blind, sticky), _about(taken, best, every, of_cache)]
    else:
        answer = "This trace tells how long prompts are, and not what they have in common."
        remedy = "Record the block hashes of prompts, or take a public trace that has them."
        found.append(
            Finding("routing", "Do I need cache-aware routing?", NOT_KNOWN, answer, [remedy], Certainty.UNKNOWN)
        )
    found.append(fleet(best, every, bounds, ttft_target, answer_of_runs))
    found += worth(best, every, ttft_target)
    return found + [_about(taken, best, every, each) for each in _sample(taken)]


def _about(taken: Cell, best: Cell, every: list[Cell], finding: Finding) -> Finding:
    """The same, saying which fleet it is about, where that is not the one that others are compared with."""
    if taken.fleet == best.fleet:
        return finding
    return msgspec.structs.replace(finding, answer=f"{fleet_words(every, taken.fleet)}: {finding.answer}")


def _sample(best: Cell) -> list[Finding]:
    """Only where there is something to be said against it."""
    sample = best.results[0].summary.sample
    if sample is None:
        return []
    short, unsteady = shortness(sample), unsteadiness(sample)
    if not short and not unsteady:
        return []
    answer = " ".join([*short, *filter(None, [unsteady])])
    answer += " Play more of it (--first, or a longer trace), and see whether the figures stay."
    because = [
        f"Of {best.policy}, whose queues and caches began empty. Where traffic grows, or more comes than can be computed, the "
        "second half is slower however long it lasts."
    ]
    verdict = "Too short" if short else "Its halves differ"
    return [Finding("sample", "Is the sample long enough?", verdict, answer, because, Certainty.MEASURED)]


def _tokens(best: Cell, bounds: "BoundFacts | None") -> Finding:
    first, in_flight, elsewhere, _ = map(of_a_hundred, best.misses)
    lost = f", {of_a_hundred(best.forgotten)} were lost in restarts" if best.forgotten else ""
    evicted = of_a_hundred(best.evicted)
    answer = (
        f"Of 100 prompt tokens under {best.policy}, {of_a_hundred(best.hit.mean)} came from a cache, and {first} nobody had "
        f"computed before. {evicted} had been evicted (the cache){lost}, {elsewhere} lay on another replica (the routing), and "
        f"{in_flight} were just being computed (the timing)."
    )
    because = []
    verdict = f"{percent(best.hit.mean)} from a cache"
    if bounds is not None:
        verdict += f", of {percent(bounds.infinite)} that can be had"
        because.append(f"A cache that forgets nothing would have had {percent(bounds.infinite)} of all prompt tokens.")
    if best.refused:
        because.append(f"{percent(best.refused)} of requests were refused, and count in no other figure.")
    because.append(sureness([best]))
    return Finding("tokens", "Where do prompt tokens come from?", verdict, answer, because, Certainty.MEASURED)


def _routing(served: list[Cell], bounds: "BoundFacts | None", blind: frozenset[str], sticky: frozenset[str]) -> Finding:
    def finding(verdict: str, answer: str, because: list[str], certainty: Certainty = Certainty.MEASURED) -> Finding:
        return Finding("routing", "Do I need cache-aware routing?", verdict, answer, because, certainty)

    best = served[0]
    without = [cell for cell in served if kind_name(cell.policy) in blind]
    sticking = [cell for cell in served if kind_name(cell.policy) in sticky]
    aware = [cell for cell in served if kind_name(cell.policy) not in blind | sticky]
    lost = f"Under {best.policy} routing costs {points(best.elsewhere)} of hit: tokens that another replica held."
    if bounds is not None and bounds.infinite < LITTLE:
        answer = (
            f"Prompts have little in common: the largest cache would save {percent(bounds.infinite)} of their tokens."
        )
        return finding("No", answer, [lost, sureness(served)])
    if not without or not (aware or sticking):
        missing = (
            "that looks at load alone, such as round_robin" if not without else "that knows caches, such as cache_aware"
        )
        return finding(NOT_KNOWN, f"No policy {missing}, was run.", [lost], Certainty.UNKNOWN)
    plain, chosen = without[0], next(cell for cell in served if kind_name(cell.policy) not in blind)
    others = [cell for cell in without[1:] if kind_name(cell.policy) == "round_robin"]
    if sticking and sticking[0] is not chosen:
        others.append(sticking[0])
    because = [*(against(chosen, cell) for cell in [plain, *others]), lost, sureness(served)]
    spared = plain.refused - chosen.refused > REFUSED
    if may_be_quicker(chosen.ttft_mean, plain.ttft_mean) and not spared:
        answer = (
            f"{chosen.policy} takes {mean(chosen)} to the first token, {plain.policy} {mean(plain)}, and seeds are so far "
            f"apart that chance may be why. {MORE_SEEDS}"
        )
        return finding(NOT_KNOWN, answer, because, Certainty.UNKNOWN)
    if not is_faster(chosen, plain) and not spared:
        answer = (
            f"{plain.policy} is as good here: {mean(plain)} to the first token, {mean(chosen)} with {chosen.policy}."
        )
        more = chosen.hit.mean - plain.hit.mean
        if more > COSTLY:
            answer += f" The {points(more)} of hit that {chosen.policy} has more, nobody notices at this load."
        return finding("No", answer, because)
    ratio = plain.ttft_mean.mean / chosen.ttft_mean.mean if chosen.ttft_mean.mean else math.inf
    if spared:
        gain = f"refuses {percent(plain.refused)} of requests, {chosen.policy} {percent(chosen.refused)}"
    elif NOTICED <= ratio < math.inf:
        gain = f"takes {times(ratio)} as long to the first token as {chosen.policy} ({mean(plain)} and {mean(chosen)})"
    else:
        gain = f"takes {mean(plain)} to the first token, {chosen.policy} {mean(chosen)}"
    gain = f"{plain.policy}, the best of those run that look at load alone, {gain}."
    enough = next((cell for cell in sticking if not aware or not is_faster(aware[0], cell)), None)
    if enough is not None and enough.refused <= chosen.refused + REFUSED:
        and_none = "is the best of all" if enough is chosen else f"is as good ({mean(enough)})"
        return finding("Affinity is enough", f"{gain} {enough.policy} {and_none}, and needs to know no cache.", because)
    return finding("Yes" if spared or ratio >= NOTICED else "It helps a little", gain, because)
