"""What it is worth to move to a shared store: the cheapest fleet with it against the cheapest without, and why.

Knows plans, the store's price and what ``balancer.economics`` says of the link. Never knows how plans are found, or flags.
"""

from collections.abc import Iterator, Sequence

import msgspec

from balancer.economics.links import Link
from balancer.economics.prefill import Prefill
from balancer.economics.shape import CacheShape
from balancer.economics.verdict import Verdict, judge
from balancer.words import counted
from simulations.economics import prefill_of
from simulations.hardware.estimate import estimate
from simulations.planning import Plan
from simulations.report.figures import duration, percent

HOURS: float = 730.0
"""Of a month: a twelfth of a year."""


class Moving(msgspec.Struct, frozen=True):
    """Prices are of an hour, in the unit of the devices' prices.

    Attributes:
        store_price: what the store costs.
        saves: by how much the fleet with the store is cheaper, the store included; below 0 if it is dearer, and None where one
            of the two is not known.
        worth: the highest price of a store with which it would not be dearer, not known where ``saves`` is not.
        verdict: a prompt of the trace's mean length on the planned devices, moved over the store's link or computed, as the
            simple model does it: each token takes the same time.
        attended: the same with attention's share, as ``kvlb economics`` has it.
        link: what is known of it, for people.
        hits: share of prompt tokens that are not computed, without the store and with it.
        longest: tokens of the trace's longest prompt.
    """

    store_price: float
    saves: float | None
    worth: float | None
    verdict: Verdict
    attended: Verdict
    link: str
    hits: tuple[float | None, float | None]
    longest: int


def best(plans: Sequence[Plan], *, has_store: bool) -> Plan | None:
    """The cheapest one of this side; ``plans`` stand in the order of their prices."""
    return next((plan for plan in plans if plan.has_store is has_store), None)


def cost(plan: Plan, store_price: float) -> float | None:
    """Of an hour, with as many replicas as the detailed model asks for; None where it held with none that was tried."""
    if plan.was_confirmed and plan.confirmed is None:
        return None
    fixed = store_price if plan.has_store else 0.0
    return (plan.price - fixed) / plan.replicas * (plan.confirmed or plan.replicas) + fixed


def moving(plans: Sequence[Plan], store_price: float, link: Link, mean_tokens: int, *, longest: int) -> Moving:
    """What these plans say of moving to a store that costs so much, over such a link; of prompts of such lengths.

    Raises:
        ValueError: there are no plans.
    """
    without, with_store = best(plans, has_store=False), best(plans, has_store=True)
    planned = with_store or without
    if planned is None:
        raise ValueError("plans: there are none to compare")
    before = None if without is None else cost(without, store_price)
    after = None if with_store is None else cost(with_store, store_price)
    saves = None if before is None or after is None else before - after
    known, tokens = estimate(planned.hardware), max(1, mean_tokens)
    shape = CacheShape.uniform(known.kv_bytes)
    return Moving(
        store_price=store_price,
        saves=saves,
        worth=None if saves is None else max(0.0, store_price + saves),
        verdict=judge(tokens, link, shape, Prefill.from_speed(known.prefill_tps)),
        attended=judge(tokens, link, shape, prefill_of(known.latency)),
        link=f"{link.source}, {duration(link.fixed)} until the first byte",
        hits=(None if without is None else _hit(without), None if with_store is None else _hit(with_store)),
        longest=longest,
    )


def words(found: Moving, plans: Sequence[Plan]) -> list[str]:
    """Sentences: which is cheaper, by how much, and why."""
    without, with_store = best(plans, has_store=False), best(plans, has_store=True)
    return [
        _compared(found, without, with_store),
        *_reason(found, without, with_store),
        f"The store's link: {found.link}.",
    ]


def money(value: float) -> str:
    """A price, with what there is behind the point: 25, 13.60, 1.10."""
    text = f"{value:,.2f}"
    return text.removesuffix(".00")


def _compared(found: Moving, without: Plan | None, with_store: Plan | None) -> str:
    price = found.store_price
    if without is None or with_store is None:
        there, missing = ("without", "with") if with_store is None else ("with", "without")
        return f"Only fleets {there} the store hold the targets: {missing} it none was found, so there is nothing to compare."
    before, after = cost(without, price), cost(with_store, price)
    if before is None or after is None or found.saves is None or found.worth is None:
        return "What moving to the store saves is not known: the detailed model does not hold the targets on one of the sides."
    told = (
        f"Without the store {_fleet(without)} cost {money(before)} an hour; with it {_fleet(with_store)} cost {money(after)}, "
        f"of which {money(price)} are the store's."
    )
    saves, month = found.saves, f"{abs(found.saves) * HOURS:,.0f} a month of {HOURS:.0f} hours"
    if saves > 0:
        told += f" Moving to the store saves {money(saves)} an hour ({percent(saves / before)}), {month}"
        return f"{told}; it pays up to {money(found.worth)} an hour."
    if saves < 0:
        worth = f"it would pay up to {money(found.worth)} an hour" if found.worth else "it would not pay even for free"
        return f"{told} Moving to the store costs {money(-saves)} an hour more, {month}; {worth}."
    return f"{told} Both cost the same."


def _reason(found: Moving, without: Plan | None, with_store: Plan | None) -> Iterator[str]:
    verdict, attended = found.verdict, found.attended
    moved, computed = duration(verdict.move_seconds), duration(verdict.compute_seconds)
    told = f"Why: the mean prompt of {verdict.tokens:,} tokens is moved in {moved} and computed in {computed}; "
    told += _from(verdict, found.longest)
    if without is not None and with_store is not None:
        spared = _needed(without) - _needed(with_store)
        is_known = found.saves is not None
        after, before = [percent(_hit(each) if is_known else each.summary.hit) for each in (with_store, without)]
        told += (
            f". {'With' if is_known else 'By the simple model alone, with'} the store {after} of prompt tokens are not "
        )
        told += f"computed, without it {before}"
        if without.hardware != with_store.hardware:
            told += ", on other devices"
        elif is_known:
            told += f": that spares {counted(spared, 'replica') if spared > 0 else 'no replica'}"
        else:
            told += "; how many replicas that spares is not known"
    yield f"{told}."
    pays, attended_pays = (_pays_off(each, found.longest) for each in (verdict, attended))
    if attended.moves is not verdict.moves or attended_pays is not pays:
        told = (
            "Attention's share, which the simple model leaves out, makes long prompts dearer to compute: with it "
            f"{_from(attended, found.longest)}."
        )
        if all(plan.was_confirmed for plan in (without, with_store) if plan is not None):
            yield f"{told} The detailed model, which was asked here, has it."
        else:
            yield f"{told} So the store may be worth more than was found here; leave out --no-confirm."


def _pays_off(verdict: Verdict, longest: int) -> bool:
    """Whether moving is quicker for any prompt that there is."""
    return verdict.break_even_tokens is not None and verdict.break_even_tokens <= longest


def _from(verdict: Verdict, longest: int) -> str:
    """From which length, and from which rate on, moving pays."""
    if verdict.break_even_tokens is None:
        told = "moving is never quicker"
    elif _pays_off(verdict, longest):
        told = f"moving is quicker from {verdict.break_even_tokens:,} tokens on"
    else:
        told = f"moving is quicker for longer prompts alone: none of yours is that long (the longest has {longest:,})"
    if not verdict.moves and verdict.break_even_bandwidth is not None:
        told += f", and for this one from {verdict.break_even_bandwidth * 8e-9:.3g} Gbit/s of data on"
    return told


def _hit(plan: Plan) -> float:
    """By the model that the number of replicas is from."""
    return plan.summary.hit if plan.confirmed_hit is None else plan.confirmed_hit


def _needed(plan: Plan) -> int:
    return plan.confirmed or plan.replicas


def _fleet(plan: Plan) -> str:
    needed = _needed(plan)
    return f"{counted(needed, 'replica')} of {plan.hardware.count} x {plan.hardware.gpu}"
