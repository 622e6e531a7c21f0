"""Is a shared store worth it, and is it worth it to part prefill and decode: a fleet with one beside the same one without.

Knows cells that differ in that alone, and the sentences that may be said of them. Never knows what either costs, and says
nothing where both were not run.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec

from simulations.report.comparison import Cell, Spread, alike, differ, is_quicker, may_be_quicker, ranked
from simulations.report.figures import duration, percent
from simulations.report.finding import MORE_SEEDS, NOT_KNOWN, NOTICED, REFUSED, Certainty, Finding, holds, p95, sureness
from simulations.report.fleets import ALWAYS, told_apart
from simulations.report.result import table_of


class Part(msgspec.Struct, frozen=True):
    """What a fleet may have: the setting that tells it, as a table in JSON, and that table's field that is always said."""

    setting: str
    question: str
    name: str
    told: str
    beside: str
    """What the figures do not say."""


PARTS: Final = (
    Part(
        "store",
        "Is a shared store worth it?",
        "a store",
        ALWAYS["store"],
        "Its price is not in it (kvlb plan --store-price weighs it), and what it takes to write there only with write_gbits.",
    ),
    Part(
        "disaggregation",
        "Is it worth it to part prefill and decode?",
        "a split",
        ALWAYS["disaggregation"],
        "Both have as many replicas. How many of them compute prompts decides most: try several.",
    ),
)


def worth(best: Cell, every: Sequence[Cell], target: float | None = None) -> list[Finding]:
    """What there is to say of a store and of a split, under the best policy; nothing of what was not run with and without.

    ``target`` is what the 95th percentile of the time to the first token is to stay within, in seconds: who does not hold it is
    not advised, whatever else is quicker there.
    """
    return [found for part in PARTS if (found := _compared(part, best, every, target)) is not None]


def _compared(part: Part, best: Cell, every: Sequence[Cell], target: float | None) -> Finding | None:
    tried = alike(best, every, part.setting)
    without = [cell for cell in tried if not _table(cell, part)]
    having = [cell for cell in tried if _table(cell, part)]
    if not without or not having:
        return None
    plain = ranked(without)[0]
    chosen = _chosen([cell for cell in having if target is not None and holds(cell, target)] or having)
    named = _named(part, having)
    if not plain.served:
        sentence = (
            f"Without {part.name} nobody is served. With it ({named(chosen)}) {chosen.policy} takes {_figures(chosen)}."
        )
    elif not chosen.served:
        sentence = f"With {part.name} ({named(chosen)}) {chosen.policy} serves nobody; without it: {_figures(plain)}."
    else:
        sentence = f"With {part.name} ({named(chosen)}) {chosen.policy} takes {_sentence(chosen, plain)}."
    because = [f"Without: {_figures(plain)}."]
    because += [f"{named(cell)}: {_figures(cell)}." for cell in having]
    because += _other_policy(chosen, every)
    verdict, certainty = _verdict(chosen, plain), Certainty.MEASURED
    if target is not None:
        verdict = _by_goal(verdict, chosen, plain, target)
        sentence += f" {_goal(chosen, plain, target)}"
    because += [part.beside, sureness([plain, *having])]
    if verdict == NOT_KNOWN:
        certainty = Certainty.UNKNOWN
        sentence += f" Seeds are so far apart that chance may be why. {MORE_SEEDS}"
    return Finding(part.setting, part.question, verdict, sentence, because, certainty)


def _chosen(having: Sequence[Cell]) -> Cell:
    """Who refuses least; of these whose time is the shortest, then whose first token comes first, then whoever needs least.

    Times that differ by no more than chance and ties make are equal.
    """
    some = [cell for cell in having if cell.served] or list(having)
    fewest = min(cell.refused for cell in some)
    some = [cell for cell in some if cell.refused <= fewest + REFUSED]
    for time in (_time, lambda cell: cell.ttft_mean):
        best = min(some, key=lambda cell: time(cell).mean)
        some = [cell for cell in some if not is_quicker(time(best), time(cell))]
    return min(some, key=_needs)


def _needs(cell: Cell) -> tuple[float, ...]:
    """What it takes to have it, the dearest first: room, then links, then replicas that are set apart."""
    settings = dict(cell.fleet.settings)
    store, split = (table_of(settings, name) for name in ("store", "disaggregation"))
    return (
        _number(store.get("tokens"), math.inf),
        _number(store.get("gbits"), 0.0) + _number(split.get("gbits"), 0.0),
        _number(split.get("prefill"), 0.0),
    )


def _number(value: object, otherwise: float) -> float:
    return float(value) if isinstance(value, int | float) else otherwise


def _verdict(chosen: Cell, plain: Cell) -> str:
    if chosen.served is not plain.served:
        return "Yes" if chosen.served else "No"
    if abs(chosen.refused - plain.refused) > REFUSED:
        return "Yes" if chosen.refused < plain.refused else "No"
    pairs = [(chosen.ttft_mean, plain.ttft_mean)]
    if chosen.tpot_mean is not None:
        pairs.append((chosen.latency_mean, plain.latency_mean))
    quicker = [is_quicker(one, other) for one, other in pairs]
    slower = [is_quicker(other, one) for one, other in pairs]
    if not any(quicker):
        return NOT_KNOWN if any(may_be_quicker(one, other) for one, other in pairs) else "No"
    if any(slower):
        return "For first tokens" if quicker[0] else "For whole answers"
    is_noticed = any(other.mean >= NOTICED * one.mean for one, other in pairs)
    return "Yes" if is_noticed else "It helps a little"


def _by_goal(verdict: str, chosen: Cell, plain: Cell, target: float) -> str:
    """The verdict where the time to the first token has a goal: what holds it comes before what is quicker."""
    one, other = holds(chosen, target), holds(plain, target)
    if one is other:
        return verdict if one or verdict in ("No", NOT_KNOWN) else "Not by itself"
    both_serve = chosen.served and plain.served and abs(chosen.refused - plain.refused) <= REFUSED
    if both_serve and not differ(chosen.ttft_p95, plain.ttft_p95, least=0.0):
        return NOT_KNOWN
    return "Yes" if one else "No"


def _goal(chosen: Cell, plain: Cell, target: float) -> str:
    held = {
        (True, True): "both hold that",
        (True, False): "only with it that is held",
        (False, True): "with it that is not held",
        (False, False): "neither holds that",
    }[holds(chosen, target), holds(plain, target)]
    return (
        f"95 % of first tokens are to come within {duration(target)}: with it {_of_goal(chosen)}, without it "
        f"{_of_goal(plain)}; {held}."
    )


def _of_goal(cell: Cell) -> str:
    if not cell.served:
        return "nobody is served"
    refused = f", and {percent(cell.refused)} of requests are refused" if cell.refused > REFUSED else ""
    return f"they come within {p95(cell)}{refused}"


def _time(cell: Cell) -> Spread:
    """What fleets that have one are chosen by: whole answers, where these were played token by token."""
    return cell.ttft_mean if cell.tpot_mean is None else cell.latency_mean


def _sentence(chosen: Cell, plain: Cell) -> str:
    def pair(show: Callable[[float], str], one: float, other: float, what: str) -> str:
        told, without = show(one), show(other)
        return f"{told}{what} instead of {without}" if told != without else f"{told}{what}, as without it"

    told = [pair(duration, chosen.ttft_mean.mean, plain.ttft_mean.mean, " to the first token on average")]
    if chosen.tpot_mean is not None and plain.tpot_mean is not None:
        told.append(pair(duration, chosen.latency_mean.mean, plain.latency_mean.mean, " to the end of the answer"))
        told.append(pair(duration, chosen.tpot_mean.mean, plain.tpot_mean.mean, " for each token of it"))
    hits = pair(percent, chosen.hit.mean, plain.hit.mean, " of prompt tokens are not computed")
    refused = ""
    if chosen.refused or plain.refused:
        refused = "; " + pair(percent, chosen.refused, plain.refused, " of requests are refused")
    return f"{'; '.join(told)}. {hits}{refused}"


def _figures(cell: Cell) -> str:
    if not cell.served:
        return "nobody is served"
    told = f"{duration(cell.ttft_mean.mean)} to the first token, 95 % within {duration(cell.ttft_p95.mean)}"
    if cell.tpot_mean is not None:
        told += f", {duration(cell.latency_mean.mean)} to the end, {duration(cell.tpot_mean.mean)} a token"
    return f"{told}, hit {percent(cell.hit.mean)}"


def _other_policy(chosen: Cell, every: Iterable[Cell]) -> list[str]:
    """Who is best there, if it is another policy."""
    first = ranked([cell for cell in every if cell.fleet == chosen.fleet])[0]
    if first.policy == chosen.policy:
        return []
    return [f"There {first.policy} is the best policy: {_figures(first)}."]


def _named(part: Part, having: Sequence[Cell]) -> Callable[[Cell], str]:
    """What is said of each: in which fields its table differs from the others'; a link by its name alone."""
    told = told_apart([_table(cell, part) for cell in having], part.told)

    def words(cell: Cell) -> str:
        return ", ".join(
            [value if field == "link" else f"{field}={value}" for field, value in told(_table(cell, part)).items()]
        )

    return words


def _table(cell: Cell, part: Part) -> dict[str, Any]:
    """What the cell's fleet has; empty where it has none, or one that nobody reads."""
    table = table_of(dict(cell.fleet.settings), part.setting)
    return {} if table.get("loads") == "never" else table
