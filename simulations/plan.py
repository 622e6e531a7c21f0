"""``kvlb plan``: the cheapest fleet that serves somebody's traffic as quickly as it has to.

Knows flags, hardware, prices and targets, and what is shown. Never knows how a trace is played (``simulations.grid``) or how
the least number of replicas is found (``simulations.planning``). It is searched for with the simple model, which is quick, and
the best is looked at again with the detailed one, which is not. With the price of a shared store, fleets with one and without
are looked for, and what lies between them is told (``simulations.moving``).
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from balancer.commands import Command
from balancer.errors import BalancerError, ConfigError
from balancer.words import counted
from simulations.economics import link_of
from simulations.flags import given, once, refuse
from simulations.hardware.estimate import Hardware, TooSmall, estimate
from simulations.moving import HOURS, Moving, best, moving
from simulations.named_policies import parse
from simulations.nearest import Nearest, more_help, nearest
from simulations.output import write_file
from simulations.plan_confirming import Confirming
from simulations.plan_runs import PlannedStore, Runs
from simulations.plan_table import nothing, resumed_words, stopped_words, table, target_words
from simulations.planning import Build, Outcome, Plan, Planner, Stopped, outcome_of
from simulations.progress import say
from simulations.replaying import line
from simulations.scenario import Kind, number_of
from simulations.sizes import MOST_REPLICAS
from simulations.store import LEAST_GBITS, MOST_GBITS, MOST_SECONDS, gbits_of
from simulations.targets import Target, parse_target
from simulations.traces.options import add_reading_options, check_used, reading_options, scaled, scaled_words
from simulations.traces.reading import open_trace
from simulations.traces.trace import Trace

DEFAULT_POLICIES: Final = "predicted_ttft,cache_aware,round_robin"
DEFAULT_LINK: Final = "100gbe"
MOST_MS: Final = 1000 * MOST_SECONDS
MOST_RATE: Final = 1e12
"""As of a fleet's ``rate``."""

_SPEED: Final = "how quick replicas are is worked out from --model and --gpu"
WORKED_OUT: Final = {
    "--cache": "how much a replica keeps is worked out from the memory of its devices and the model (--gpu, --gpus, --model)",
    "--replicas": "how many it takes is what a plan finds; --max-replicas is where it ends",
    "--prefill-tps": _SPEED,
    "--decode-ms": _SPEED,
    "--ttft-p95": "targets are written as in --slo ttft_p95=2s",
}
"""Flags of ``kvlb simulate`` for what nobody tells a plan."""


class NoPlan(BalancerError):
    """Nothing that may be built holds the targets."""

    exit_code = 1


def configure(parser: argparse.ArgumentParser) -> None:
    once(parser)
    for name, because in WORKED_OUT.items():
        refuse(parser, name, because)
    parser.add_argument("trace", help="the trace's file; - is standard input")
    parser.add_argument(
        "--slo", action="append", required=True, metavar="FIGURE=TIME", help="as in ttft_p95=2s; may be repeated"
    )
    parser.add_argument("--model", required=True, metavar="NAME", help="what replicas run (see kvlb simulate --help)")
    parser.add_argument("--gpu", required=True, metavar="A,B", help="devices that may be bought")
    parser.add_argument(
        "--gpus", default="1", metavar="N,N", help="devices of one replica that may be tried (default 1)"
    )
    parser.add_argument("--weight-bits", type=int, metavar="N", help="bits of a weight (default: the model's own)")
    parser.add_argument("--kv-bits", type=int, metavar="N", help="bits of a number in the cache (default 16)")
    parser.add_argument(
        "--price",
        action="append",
        default=[],
        metavar="GPU=N",
        help="price of a device's hour, of all or of none (default: 1 each); may be repeated",
    )
    store = parser.add_argument_group("a shared store behind the replicas")
    store.add_argument(
        "--store-price",
        metavar="N",
        help="plan with such a store, too, and say what moving to it is worth: its price of an hour, or as in 2000/month",
    )
    store.add_argument(
        "--store-link",
        default=DEFAULT_LINK,
        metavar="L",
        help=f"how each replica reads it: a name of kvlb economics, or Gbit/s (default {DEFAULT_LINK})",
    )
    store.add_argument("--store-latency-ms", type=float, metavar="T", help="until the first byte (default: the link's)")
    parser.add_argument("--policy", default=DEFAULT_POLICIES, metavar="A,B", help=f"default: {DEFAULT_POLICIES}")
    parser.add_argument(
        "--max-replicas",
        type=int,
        default=256,
        metavar="N",
        help=f"of one fleet (default 256, {MOST_REPLICAS:,} at most)",
    )
    parser.add_argument("--rate", default="1", metavar="X", help="play the trace so many times as fast (default 1)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of all chance (default 1)")
    parser.add_argument("--jobs", type=int, metavar="N", help="processes at most (default: one for each core)")
    parser.add_argument("--no-confirm", action="store_true", help="do not look at the best with the detailed model")
    parser.add_argument(
        "--json", metavar="FILE", help="write all plans as JSON; - is standard output, instead of the table"
    )
    add_reading_options(parser)


def run(args: argparse.Namespace) -> int:
    sys.path.append("")  # a policy of one's own may lie in the folder that kvlb is started from
    targets = _targets(args.slo)
    policies = parse(args.policy)
    _tell_twice("--policy", args.policy, [policy.written for policy in policies])
    policies = list({policy.written: policy for policy in policies}.values())
    kinds = _hardware(args)
    prices = _prices(args, kinds)
    kinds, unbuilt = _buildable(kinds)  # what cannot be built is told before a large file is read
    for each in unbuilt:
        say(stopped_words(each))
    _check_priced(kinds, prices)
    store = _store(args, kinds, prices)
    rate = number_of(args.rate)
    if not isinstance(rate, int | float) or not 0 < rate <= MOST_RATE:
        raise ConfigError(f"--rate: must be a number above 0 and at most {MOST_RATE:,.0f}, got {args.rate}")
    if not 1 <= args.max_replicas <= MOST_REPLICAS:
        raise ConfigError(
            f"--max-replicas: must be a whole number from 1 to {MOST_REPLICAS:,}, got {args.max_replicas}; so many are played "
            "at once, and each request looks at all of them"
        )
    if args.jobs is not None and args.jobs < 1:
        raise ConfigError(f"--jobs: must be at least 1, got {args.jobs}")
    trace, reading = open_trace(args.trace, reading_options(args))
    check_used(args, reading.notes, "--rate")
    print(reading.text(), file=sys.stderr)
    read, trace = len(trace), scaled(trace, args, args.seed)
    if words := scaled_words(args, read, len(trace)):
        print(words, file=sys.stderr)
    runs = Runs(trace, rate, args.seed, args.jobs, store)
    sides = (False,) if store is None else (False, True)
    planner = Planner(
        [Build(kind, has_store) for has_store in sides for kind in kinds],
        policies,
        targets,
        prices=prices,
        at_most=args.max_replicas,
        least=runs.least,
        play=runs.search,
        told=lambda stopped: say(stopped_words(stopped)),
        resumed=lambda stopped: say(resumed_words(stopped)),
        store_price=0.0 if store is None else store.price,
    )
    plans = planner.plans()
    if plans and not args.no_confirm:
        plans = Confirming(planner, targets, args.max_replicas, runs.confirm, say).plans(sides)
    firsts = [first for side in sides if (first := best(plans, has_store=side)) is not None]
    for first in firsts:
        plans[plans.index(first)] = planner.around(first)
    stopped = [*unbuilt, *planner.stopped]
    plans = [msgspec.structs.replace(plan, line=_line(args, trace, plan, store)) for plan in plans]
    found = None
    if store is not None and plans:
        mean = sum(trace.inputs) // max(1, len(trace))
        found = moving(plans, store.price, store.link, mean, longest=max(trace.inputs, default=0))
    outcome = outcome_of(plans)
    near = nearest(planner.failed()) if not plans else None
    if near is not None:
        near = msgspec.structs.replace(
            near, plan=msgspec.structs.replace(near.plan, line=_line(args, trace, near.plan, store))
        )
    if args.json == "-":
        sys.stdout.write(_encoded(args, outcome, plans, stopped, found, near).decode())
    elif plans:
        print(table(plans, targets, stopped, found, has_prices=bool(prices)))
    else:
        print(nothing(near, targets, stopped))
    if args.json not in (None, "-"):
        write_file("--json", Path(args.json), _encoded(args, outcome, plans, stopped, found, near))
    if not plans:
        helps = near is not None and near.more_help
        raise NoPlan(
            f"no fleet of up to {counted(args.max_replicas, 'replica')} holds {target_words(targets)} by the simple model"
            f"{'' if helps else ', and more do not help'}. {_remedies(args, helps=helps)}"
        )
    if outcome is Outcome.FAILS:
        helps = any(_most_tried(plan) == args.max_replicas and more_help(plan.confirmed_tried) for plan in plans)
        raise NoPlan(
            f"no fleet is known to hold {target_words(targets)}: the detailed model holds it with none that it was asked for. "
            f"{_remedies(args, helps=helps)}, or calibrate"
        )
    return 0


def _most_tried(plan: Plan) -> int:
    """Replicas of the largest fleet that the detailed model was asked for."""
    return max([each.replicas for each in plan.confirmed_tried], default=0)


def _remedies(args: argparse.Namespace, *, helps: bool) -> str:
    """What may hold the targets; ``helps`` is whether more replicas may."""
    more = "--gpus, --max-replicas" if helps and args.max_replicas < MOST_REPLICAS else "--gpus"
    return f"Allow for faster devices (--gpu), more of them ({more}) or more time (--slo)"


def _targets(given: Sequence[str]) -> list[Target]:
    found: dict[str, tuple[str, Target]] = {}
    for each in _parts(given):
        target = parse_target(each)
        before, _ = found.setdefault(target.figure, (each, target))
        if before != each:
            raise ConfigError(f"--slo {before}, --slo {each}: {target.figure} has one target; leave one of them out")
    return [target for _, target in found.values()]


def _parts(given: Sequence[str]) -> list[str]:
    """What a flag that may be repeated was given, each time one or several with commas between."""
    return [part.strip() for each in given for part in each.split(",")]


def _tell_twice(flag: str, text: str, found: Sequence[object]) -> None:
    """Say of a list, as it was written, that what stands there twice is not planned twice."""
    for each in dict.fromkeys(found):
        if found.count(each) > 1:
            say(f"{flag} {text}: {each} is there more than once, and planned with once.")


def _hardware(args: argparse.Namespace) -> list[Hardware]:
    counts = [number_of(each) for each in args.gpus.split(",")]
    for count in counts:
        if not isinstance(count, int) or count < 1:
            raise ConfigError(f"--gpus: must be numbers from 1 on with commas between, got {args.gpus!r}")
    for flag, bits in (("--weight-bits", args.weight_bits), ("--kv-bits", args.kv_bits)):
        if bits is not None and bits < 1:
            raise ConfigError(f"{flag}: must be at least 1, got {bits}")
    weight = None if args.weight_bits is None else args.weight_bits / 8
    kv = 2.0 if args.kv_bits is None else args.kv_bits / 8
    names = [each.strip().lower() for each in args.gpu.split(",")]
    _tell_twice("--gpu", args.gpu, names)
    _tell_twice("--gpus", args.gpus, counts)
    return list(dict.fromkeys([Hardware(args.model, name, count, weight, kv) for name in names for count in counts]))


def _buildable(kinds: Sequence[Hardware]) -> tuple[list[Hardware], list[Stopped]]:
    """Those that can be built, and why others cannot.

    Raises:
        ConfigError: there is no such model or device, or none of them holds the model.
    """
    built, unbuilt, first = [], [], None
    for kind in kinds:
        try:
            estimate(kind)
        except TooSmall as error:
            first = first or error
            unbuilt.append(Stopped(kind, f"it {error.why}"))
        else:
            built.append(kind)
    if first is not None and not built:
        raise first
    return built, unbuilt


def _prices(args: argparse.Namespace, kinds: Sequence[Hardware]) -> dict[str, float]:
    prices: dict[str, float] = {}
    planned = {kind.gpu for kind in kinds}
    for each in _parts(args.price):
        gpu, _, value = each.partition("=")
        gpu, price = gpu.strip().lower(), number_of(value.strip())
        if not isinstance(price, int | float) or not 0 < price < float("inf"):
            raise ConfigError(f"--price {each}: write a device and a price above 0, as in --price h100=2.5")
        if gpu not in planned:
            raise ConfigError(
                f"--price {each}, --gpu {args.gpu}: no {gpu} is planned with; name it in --gpu, too, or leave its price out"
            )
        if prices.setdefault(gpu, float(price)) != price:
            raise ConfigError(f"--price {gpu}={prices[gpu]:g}, --price {each}: a device has one price; leave one out")
    return prices


def _check_priced(kinds: Sequence[Hardware], prices: Mapping[str, float]) -> None:
    """Refuse devices without a price next to those with one."""
    missing = [kind.gpu for kind in kinds if prices and kind.gpu not in prices]
    if missing:
        raise ConfigError(
            f"--price: devices are weighed against each other by their prices; give that of {missing[0]}, too, as in --price "
            f"{missing[0]}=2.5, or none at all"
        )


def _store(args: argparse.Namespace, kinds: Sequence[Hardware], prices: Mapping[str, float]) -> PlannedStore | None:
    """The store that the flags speak of."""
    link, latency = link_of("--store-link", args.store_link), args.store_latency_ms
    if not LEAST_GBITS <= gbits_of(link) <= MOST_GBITS:
        raise ConfigError(
            f"--store-link: {args.store_link} carries {gbits_of(link):g} Gbit/s of data; a store that is planned with carries "
            f"from {LEAST_GBITS:g} to {MOST_GBITS:,.0f}"
        )
    if latency is not None:
        if not 0 <= latency <= MOST_MS:
            raise ConfigError(
                f"--store-latency-ms: must be a number of milliseconds from 0 to {MOST_MS:,}, got {latency}"
            )
        link = msgspec.structs.replace(link, latency=latency / 1000)
    if args.store_price is None:
        if latency is not None or given(args, "store_link"):
            raise ConfigError(
                "--store-price: say what the store costs, 0 if it is there already, as in --store-price 2000/month"
            )
        return None
    value, _, span = args.store_price.partition("/")
    price, hours = number_of(value.strip()), {"": 1.0, "h": 1.0, "hour": 1.0, "month": HOURS}.get(span.strip())
    if not isinstance(price, int | float) or not 0 <= price < float("inf") or hours is None:
        raise ConfigError(
            f"--store-price {args.store_price}: write a price of an hour, 0 or more, as in --store-price 2.7 or 2000/month"
        )
    for kind in kinds:
        if kind.gpu not in prices:
            raise ConfigError(
                f"--store-price: it is weighed against the devices' prices; give that of {kind.gpu}, too, as in "
                f"--price {kind.gpu}=2.5"
            )
    return PlannedStore(price / hours, link)


def _line(args: argparse.Namespace, trace: Trace, plan: Plan, store: PlannedStore | None) -> str:
    """What plays the plan's fleet again, by the model that has the last word on it; where nothing holds, the nearest there."""
    model: Kind = "detailed" if plan.was_confirmed else "simple"
    nearest = min(plan.confirmed_tried, key=lambda each: each.distance, default=None)
    replicas = plan.confirmed or (plan.replicas if nearest is None else nearest.replicas)
    fields = store.fields if plan.has_store and store is not None else None
    build = Build(plan.hardware, plan.has_store)
    return line(args, trace, model, build, plan.policy, replicas, fields)


def _encoded(
    args: argparse.Namespace,
    outcome: Outcome,
    plans: Sequence[Plan],
    stopped: Sequence[Stopped],
    found: Moving | None,
    near: Nearest | None,
) -> bytes:
    document = {
        "kind": "kvlb plan",
        "schema": 1,
        "slo": _parts(args.slo),
        "outcome": outcome,
        "plans": plans,
        "stopped": stopped,
        "moving": found,
        "nearest": near,
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"


command = Command("plan", "find the cheapest fleet that serves a trace quickly enough", configure, run)
