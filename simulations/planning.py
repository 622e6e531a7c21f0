"""Which fleets hold what they have to, and what they cost; what cannot be the cheapest is not looked at to its end.

Knows devices, prices and targets, and bounds that nobody has to play a run for. Never knows flags, or how a run is played: it
asks for rounds of them (``simulations.search``). A device is stopped where no number of replicas can hold the targets, and
where the fewest that may hold them cost more than a fleet that does; there it goes on if that fleet turns out to be dearer.
Fleets with a shared store and without are two sides: the cheapest of each is found, whatever the other one costs, for what is
asked is what lies between them. No policy ends the search for another one, so more of them never make the answer dearer.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import TypeAlias

import msgspec

from balancer.words import counted
from simulations.bounds import bounds
from simulations.hardware.estimate import Hardware
from simulations.named_policies import NamedPolicy
from simulations.quantiles import quantile
from simulations.report.figures import seconds as shown
from simulations.results import Summary
from simulations.search import Search
from simulations.simple import SimpleFleet
from simulations.targets import Target, distance, worst
from simulations.traces.trace import Trace


class Build(msgspec.Struct, frozen=True):
    """What replicas are made of, and whether a shared store is behind them."""

    hardware: Hardware
    has_store: bool = False


Wanted: TypeAlias = tuple[Build, NamedPolicy, int]
"""A fleet: what of, behind which policy, how many replicas."""

_Option: TypeAlias = tuple[int, str]
"""A build's place among the builds, and a policy."""

ROUNDING = 1e-9
"""Share by which a time that was added up may lie below one that was not."""


class Tried(msgspec.Struct, frozen=True):
    """One number of replicas that was played, for a plan.

    Attributes:
        replicas: how many.
        figure, seconds: what was the furthest from its target, and how long it took.
        distance: that, as a multiple of the target: 1 or less holds, and infinity never will.
    """

    replicas: int
    figure: str
    seconds: float
    distance: float


class Plan(msgspec.Struct, frozen=True):
    """One fleet that holds the targets.

    Attributes:
        hardware, policy: what it is made of.
        replicas: how many, by the simple model.
        devices: all of them.
        price: of an hour, in whatever unit devices are priced, the store's included; without prices, devices.
        summary: its figures.
        has_store: whether a shared store is behind it.
        confirmed: how many replicas the detailed model asks for, where it was asked; None where it did not hold with any tried.
        was_confirmed: whether it was asked.
        at_least: where it was asked no further, as so many cost more than another fleet that holds: fewer do not hold.
        confirmed_hit: the share of prompt tokens that were not computed there.
        unconfirmed: why it holds with no number of them that was tried, in a sentence.
        confirmed_summary: the figures of that fleet by the detailed model.
        tried: what was played by the simple model with this build and policy, by number of replicas.
        confirmed_tried: and by the detailed model.
        line: what plays the fleet again: by the detailed model where it was asked (where none holds, the nearest that was
            tried), by the simple one otherwise.
    """

    hardware: Hardware
    policy: str
    replicas: int
    devices: int
    price: float
    summary: Summary
    has_store: bool = False
    confirmed: int | None = None
    was_confirmed: bool = False
    at_least: int | None = None
    confirmed_hit: float | None = None
    unconfirmed: str = ""
    confirmed_summary: Summary | None = None
    tried: tuple[Tried, ...] = ()
    confirmed_tried: tuple[Tried, ...] = ()
    line: str = ""


class Outcome(Enum):
    """What came of all plans: a fleet holds, or does by the simple model alone, or none is known to."""

    HOLDS = "holds"
    NOT_CONFIRMED = "not confirmed"
    FAILS = "does not hold"


def outcome_of(plans: Sequence[Plan]) -> Outcome:
    """What these plans come to; where the detailed model was asked at all, it has the last word."""
    if any(plan.confirmed is not None for plan in plans):
        return Outcome.HOLDS
    return Outcome.FAILS if not plans or any(plan.was_confirmed for plan in plans) else Outcome.NOT_CONFIRMED


class Stopped(msgspec.Struct, frozen=True):
    """A device that was not looked at to the end, and why: words that go on behind its name."""

    hardware: Hardware
    why: str
    has_store: bool = False


class Planner:
    """Looks for the least number of replicas of each build and policy."""

    def __init__(
        self,
        builds: Sequence[Build],
        policies: Sequence[NamedPolicy],
        targets: Sequence[Target],
        *,
        prices: Mapping[str, float],
        at_most: int,
        least: Callable[[Hardware], Mapping[str, float]],
        play: Callable[[Sequence[Wanted], int], Sequence[Summary]],
        told: Callable[[Stopped], None],
        resumed: Callable[[Stopped], None],
        store_price: float = 0.0,
    ) -> None:
        """``play`` is asked for rounds of fleets, and told about how many more will follow; ``least`` has figures below which
        no number of replicas comes (``least_figures``); ``told`` hears of each build that is stopped, and ``resumed`` of each
        that goes on after all, with why. ``prices`` are by device, 1 where none is told; ``store_price`` is that of a store,
        however many replicas read from it.
        """
        self._builds = builds
        self._targets = targets
        self._units = [each.hardware.count * prices.get(each.hardware.gpu, 1.0) for each in builds]
        self._fixed = [store_price if each.has_store else 0.0 for each in builds]
        self._at_most = at_most
        self._least = least
        self._play = play
        self._told = told
        self._resumed = resumed
        self._options: dict[_Option, tuple[Build, NamedPolicy]] = {
            (at, policy.written): (build, policy) for at, build in enumerate(builds) for policy in policies
        }
        self._search = Search(list(self._options), start=min(4, at_most), at_most=at_most)
        self._seen: dict[tuple[_Option, int], Summary] = {}
        self._dropped: set[_Option] = set()
        self._tried_largest: set[_Option] = set()
        self._limits: dict[bool, float] = {}  # by side, what a fleet costs that is known to hold
        self._dear: set[int] = set()  # stopped by their price alone
        self._stopped: dict[int, Stopped] = {}
        self._has_begun = False

    @property
    def stopped(self) -> list[Stopped]:
        """The builds that were not looked at to the end, and why, as far as is known now."""
        return [self._too_dear(at) if at in self._dear else each for at, each in self._stopped.items()]

    def plans(self) -> list[Plan]:
        """Every fleet that holds the targets with as few replicas as it can, the cheapest first."""
        if not self._has_begun:
            self._has_begun = True
            for at in range(len(self._builds)):
                self._stop_if_slow(at)
        search = self._search
        while wanted := search.wanted():
            self._judge(wanted)
            for at in self._open():
                self._stop_if_dear(at)
            self._try_largest()
        for at in self._open():
            if not any(option[0] == at for option in search.found):
                self._stop(at, f"up to {counted(self._at_most, 'replica')} do not hold the targets{self._nearest(at)}")
        found = {option: least for option, least in search.found.items() if option[0] not in self._stopped}
        options = sorted(found, key=lambda option: self._order(option, found[option]))
        return [self._plan(option, found[option]) for option in options]

    def resume(self, *, has_store: bool, limit: float) -> bool:
        """Builds of this side go on that were too dear, where they may cost less than ``limit``; whether there are any.

        For when what they were compared with has turned out to cost that; infinity where it holds at no price.
        """
        self._limits[has_store] = limit
        again = [
            at
            for at in sorted(self._dear)
            if self._builds[at].has_store is has_store and self._price(at, self._fewest(at)) < limit
        ]
        for at in again:
            self._dear.discard(at)
            del self._stopped[at]
            build, fewest = self._builds[at], self._fewest(at)
            enough = (
                "nothing that was asked for holds" if math.isinf(limit) else f"what holds costs {limit:g} after all"
            )
            why = f"{counted(fewest, 'replica')} at least cost {self._price(at, fewest):g}, and {enough}"
            self._resumed(Stopped(build.hardware, why, build.has_store))
            for option in self._left(at):
                self._search.resume(option)
        return bool(again)

    def price(self, plan: Plan, replicas: int) -> float:
        """What so many replicas of a plan's fleet cost."""
        return self._price(self._builds.index(Build(plan.hardware, plan.has_store)), replicas)

    def around(self, plan: Plan) -> Plan:
        """The plan with what is beside it played, too, one more and two fewer: the search takes more replicas to be better."""
        option = self._builds.index(Build(plan.hardware, plan.has_store)), plan.policy
        near = [each for each in (plan.replicas - 2, plan.replicas + 1) if 1 <= each <= self._at_most]
        self._look_at([(option, each) for each in near])
        return msgspec.structs.replace(plan, tried=self._tried(option))

    def failed(self) -> list[Plan]:
        """For where there are no plans: each build and policy with the replicas that came nearest, and the nearest first.

        Half of the most there may be are played, too, so that it is seen what more of them bring. What was never played, or
        does not take every request, is not among them.
        """
        most = {option: self._seen.get((option, self._at_most)) for option in self._options}
        options = [option for option, summary in most.items() if summary is not None and not summary.refused]
        self._look_at([(option, self._at_most // 2) for option in options if self._at_most > 1])
        found = []
        for option in options:
            best = min(self._tried(option), key=lambda each: each.distance)
            found.append((best.distance, self._price(option[0], best.replicas), self._plan(option, best.replicas)))
        return [plan for _, _, plan in sorted(found, key=lambda each: each[:2])]

    def _look_at(self, wanted: Sequence[tuple[_Option, int]]) -> None:
        """Play those of them that were not."""
        if wanted := [each for each in wanted if each not in self._seen]:
            fleets = [(*self._options[option], replicas) for option, replicas in wanted]
            self._seen.update(zip(wanted, self._play(fleets, 0), strict=True))

    def _plan(self, option: _Option, replicas: int) -> Plan:
        build, policy = self._options[option]
        hardware, summary = build.hardware, self._seen[option, replicas]
        price, devices = self._price(option[0], replicas), replicas * hardware.count
        return Plan(
            hardware,
            policy.written,
            replicas,
            devices,
            price,
            summary,
            build.has_store,
            tried=self._tried(option),
        )

    def _tried(self, option: _Option) -> tuple[Tried, ...]:
        return tried_of(self._targets, {each: of for (who, each), of in self._seen.items() if who == option})

    def _order(self, option: _Option, replicas: int) -> tuple[float, float, str]:
        """The cheapest first."""
        return self._price(option[0], replicas), self._seen[option, replicas].ttft_p95, self._options[option][1].written

    def _nearest(self, at: int) -> str:
        """Of what was played with this build, how far the best was."""
        seen = [(option, replicas, each) for (option, replicas), each in self._seen.items() if option[0] == at]
        option, replicas, summary = min(seen, key=lambda each: distance(self._targets, each[2]))
        figure = worst(self._targets, summary).figure
        took, policy = shown(getattr(summary, figure)), self._options[option][1].written
        return f": the nearest is {figure} of {took} s, with {counted(replicas, 'replica')} and {policy}"

    def _price(self, at: int, replicas: int) -> float:
        return replicas * self._units[at] + self._fixed[at]

    def _open(self) -> list[int]:
        return [at for at in range(len(self._builds)) if at not in self._stopped]

    def _left(self, at: int) -> list[_Option]:
        """Of a build, what may still hold."""
        return [option for option in self._options if option[0] == at and option not in self._dropped]

    def _fewest(self, at: int) -> int:
        """Fewer replicas of this build do not hold."""
        return min([self._search.least(option) for option in self._left(at)])

    def _found(self, like: int) -> dict[_Option, int]:
        """What holds so far, of builds on the same side."""
        side = self._builds[like].has_store
        return {
            option: least for option, least in self._search.found.items() if self._builds[option[0]].has_store is side
        }

    def _stop(self, at: int, why: str) -> None:
        for option in self._left(at):
            self._drop(option)
        self._note(at, Stopped(self._builds[at].hardware, why, self._builds[at].has_store))

    def _note(self, at: int, stopped: Stopped) -> None:
        self._stopped[at] = stopped
        self._told(stopped)

    def _drop(self, option: _Option) -> None:
        self._dropped.add(option)
        self._search.drop(option)

    def _stop_if_slow(self, at: int) -> None:
        figures = self._least(self._builds[at].hardware)
        for target in self._targets:
            least = figures.get(target.figure, 0.0)
            if least * (1 - ROUNDING) > target.seconds:
                self._stop(
                    at,
                    f"no number of replicas holds the targets: {target.figure} is {shown(least)} s where nobody waits and "
                    "nothing is forgotten",
                )
                return

    def _judge(self, wanted: Sequence[tuple[_Option, int]]) -> None:
        fleets = [(*self._options[option], replicas) for option, replicas in wanted]
        for (option, replicas), summary in zip(
            wanted, self._play(fleets, self._search.left - len(wanted)), strict=True
        ):
            if option[0] in self._stopped:
                continue
            self._seen[option, replicas] = summary
            self._search.told(option, replicas, is_held=self._holds(summary))
            if summary.refused:  # by the size of one cache, whatever else
                self._stop(option[0], f"{counted(summary.refused, 'request')} do not fit into the cache of a replica")

    def _try_largest(self) -> None:
        """While nothing holds: of each build the most replicas there may be, with the policy that came nearest, then the next.

        Where something does, its price is the end of all others on its side.
        """
        while options := self._nearest_untried():
            fleets = [(*self._options[option], self._at_most) for option in options]
            for option, summary in zip(options, self._play(fleets, self._search.left), strict=True):
                self._tried_largest.add(option)
                self._seen[option, self._at_most] = summary
                if not self._holds(summary):
                    self._drop(option)
            for at in {option[0] for option in options}:
                if not self._left(at):
                    self._stop_at_largest(at)

    def _nearest_untried(self) -> list[_Option]:
        """Of each build where nothing has held, whatever the number, the policy that came nearest of those not tried so."""
        wanted = {option for option, _ in self._search.wanted()}
        found = []
        for at in self._open():
            left = [option for option in self._left(at) if option in wanted]
            if self._found(at) or not left or any(option in self._tried_largest for option in left):
                continue
            found.append(min(left, key=lambda option: min([each.distance for each in self._tried(option)])))
        return found

    def _stop_at_largest(self, at: int) -> None:
        tried = [
            (option[1], each)
            for (option, replicas), each in self._seen.items()
            if (option[0], replicas) == (at, self._at_most)
        ]
        policy, summary = min(tried, key=lambda each: distance(self._targets, each[1]))
        figure = worst(self._targets, summary).figure
        self._stop(
            at,
            f"{counted(self._at_most, 'replica')}, the most there may be, do not hold the targets: {figure} is "
            f"{shown(getattr(summary, figure))} s with {policy}",
        )

    def _stop_if_dear(self, at: int) -> None:
        if self._price(at, self._fewest(at)) > self._enough(at):
            for option in self._left(at):
                self._search.pause(option)
            self._dear.add(at)
            self._note(at, self._too_dear(at))

    def _enough(self, at: int) -> float:
        """What a fleet costs that holds, on the side of this build; infinity where none is known."""
        found = [self._price(option[0], replicas) for option, replicas in self._found(at).items()]
        return self._limits.get(self._builds[at].has_store, min(found, default=math.inf))

    def _too_dear(self, at: int) -> Stopped:
        fewest, build = self._fewest(at), self._builds[at]
        why = (
            f"{counted(fewest, 'replica')} at least cost {self._price(at, fewest):g}, and {self._enough(at):g} is enough with "
            "another"
        )
        return Stopped(build.hardware, why, build.has_store)

    def _holds(self, summary: Summary) -> bool:
        return all(target.is_held(summary) for target in self._targets)


def tried_of(targets: Sequence[Target], seen: Mapping[int, Summary]) -> tuple[Tried, ...]:
    """What was played, by number of replicas."""
    made = []
    for replicas, summary in sorted(seen.items()):
        figure = worst(targets, summary).figure
        made.append(Tried(replicas, figure, getattr(summary, figure), distance(targets, summary)))
    return tuple(made)


def most_hits(trace: Trace) -> Sequence[int]:
    """By request, the tokens of its prompt that came before: replicas take requests in order of arrival, so none hits more."""
    return bounds(trace, [], curve=[]).infinite_by_request


def least_figures(trace: Trace, hits: Sequence[int], fleet: SimpleFleet) -> dict[str, float]:
    """What no number of these replicas stays below, by figures of ``simulations.targets``: every prompt as if it were alone.

    ``hits`` are the trace's ``most_hits``. In a closed loop the order is another one for each fleet: nothing is known then.
    """
    if fleet.closed_loop and trace.has_pauses:
        return {}
    ordered = sorted([(tokens - hit) / fleet.prefill_tps for tokens, hit in zip(trace.inputs, hits, strict=True)])
    count = max(1, len(ordered))
    found = {f"ttft_p{percent}": quantile(ordered, percent / 100) for percent in (50, 90, 95, 99)}
    found["ttft_mean"] = sum(ordered) / count
    found["ttft_max"] = ordered[-1] if ordered else 0.0
    answered = sum(trace.outputs) * fleet.decode_seconds * (1 + fleet.decode_slowdown)
    found["latency_mean"] = (sum(ordered) + answered) / count
    return found
