"""The replicas there are, whether each can be used, and what has been sent to it.

Knows replicas, their status, the work they owe, and until when one wants a rest (seconds, the caller's clock). Never knows
prompts, caches or how a status was found out. Between calls: ``in_flight``, ``waiting``, ``queued_tokens`` and
``active_tokens`` of a replica are the sums over its open leases; nothing but a lease changes them, least of all a health
check. A lease with a rank is held while its replica has enough to compute (``Feed``), and those that are held go in the order
of their ranks; engines compute prompts in the order in which they are sent, so who has answered was not the last to begin.
"""

import math
from bisect import insort
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from balancer.bundles import ONE_MOMENT, Bundle, Work
from balancer.core import DEFAULT_FEED, Feed, Replica
from balancer.disaggregation.roles import Part, takes
from balancer.siblings.others import IDLE, NOBODY, Grown, Others, OthersWork
from balancer.siblings.report import ModelLoad, ReplicaLoad
from balancer.speeds import PrefillModel, ReplicaSpeed
from indexer.index import ReplicaId

REUSE_SECONDS: Final = 300.0
"""As long as what is pushed out of a cache is usually missed (``eviction_seconds``)."""

MEMORY_SECONDS: Final = 60.0
"""How long what has been sent counts for how busy the fleet is."""

IDLE_BEFORE: Final = 5.0
"""Seconds of idleness before the first request, by which the first few do not make a fleet look busy."""

USAGE_SECONDS: Final = 10.0
"""How long what an engine says of its cache's use holds: one that says nothing more is not idle for that, nor busy."""

RECENT_ADAPTERS: Final = 4
"""LoRA adapters that a replica is taken to keep loaded: vLLM 0.32 keeps 1 on the GPU (``--max-loras``), and others near."""

OVERDUE_SECONDS: Final = 1.0
OVERDUE_TIMES: Final = 2.0
"""So much later than expected, and so many times what the prompt takes itself, nobody waits for a first output."""

REPRICE: Final = 1.2
"""By how many times a speed has to change for what is queued to be counted anew."""

MAX_HELD: Final = 256
"""Requests that are held for one replica, with their bodies in memory; of more, the first is sent whatever there is to do."""


class Status(StrEnum):
    """Whether new requests may go to a replica."""

    READY = "ready"
    DRAINING = "draining"  # ends what it has, and gets nothing new
    EJECTED = "ejected"  # answers badly, and is left out while others can serve (``balancer.ejection``)
    ASLEEP = "asleep"  # answers, but computes nothing until it is woken up
    LOST = "lost"  # does not answer


class Drain(StrEnum):
    """Why a replica drains."""

    ASKED = "asked"  # by an operator, until asked for the contrary
    LEAVING = "leaving"  # it is no longer among those that were found; removed when it has nothing to do


class LiveReplica:
    """One replica's live state. Changes with leases and with news. ``health`` is what probes say."""

    __slots__ = (
        "_adapters",
        "_inflow",
        "_written",
        "active_tokens",
        "bundle",
        "busy_as",
        "clear_at",
        "computing_since",
        "drain",
        "given",
        "health",
        "held",
        "held_seconds",
        "held_tokens",
        "in_flight",
        "last_lease",
        "learns",
        "others",
        "prefill",
        "priced_at",
        "queue",
        "queued_tokens",
        "replica",
        "rests_until",
        "room_tokens",
        "seen_at",
        "sent_seconds",
        "tally",
        "told",
        "told_seconds",
        "usage",
        "usage_at",
        "written",
    )

    def __init__(self, replica: Replica, prefill: ReplicaSpeed, tally: "_Tally") -> None:
        self.replica = replica
        self.prefill = prefill
        self.tally = tally
        self.seen_at = tally.count
        self.busy_as: _Tally | None = None  # whose replica it was when it began on what it has
        self.learns = True
        self.health = Status.READY
        self.drain: Drain | None = None
        self.rests_until = -math.inf
        self.in_flight = 0
        self.queued_tokens = 0
        self.last_lease = 0
        self.queue: dict[int, _Lease] = {}  # those that were sent and are not computed, in that order
        self.held: list[tuple[float, int, float]] = []  # (rank, lease, seconds) of those that are not sent, in order
        self.held_seconds = 0.0
        self.held_tokens = 0
        self.active_tokens = 0
        self.room_tokens = 0
        self.usage = 0.0
        self.usage_at = -math.inf
        self.clear_at = -math.inf
        self.sent_seconds = 0.0
        self.told = 0  # of those that were sent, how many tell their first output,
        self.told_seconds = 0.0  # and their seconds
        self.priced_at = math.nan  # seconds for 1,000 tokens, by which all of them are counted
        self.computing_since: float | None = None
        self.bundle: Bundle | None = None
        self.others = NOBODY
        self.given = 0  # requests, and tokens that these brought into its cache, ever
        self.written = 0
        self._written = 0
        self._inflow = _Decaying()
        self._adapters: OrderedDict[str, None] = OrderedDict()

    @property
    def waiting(self) -> int:
        """Requests that have not answered yet."""
        return len(self.queue) + len(self.held)

    @property
    def answering(self) -> int:
        """Requests that have begun to answer, and have not ended."""
        return self.in_flight - len(self.queue) - len(self.held)

    def load(self) -> ReplicaLoad:
        """What this gateway has there, for its siblings."""
        return ReplicaLoad(
            in_flight=self.in_flight,
            waiting=self.waiting,
            queued_tokens=self.queued_tokens,
            active_tokens=self.active_tokens,
            given=self.given,
            written=self.written,
        )

    @property
    def skipped(self) -> int:
        """How many requests for its model went elsewhere since it was given one, or came; of a slow one each counts less."""
        return (self.tally.count - self.seen_at) // self.prefill.patience

    def wait(self, now: float) -> float:
        """Seconds until all that it is to do is computed, one after the other, as far as anybody knows."""
        return self.sent_wait(now) + self.held_seconds

    def sent_wait(self, now: float) -> float:
        """The same of what was sent: by the time that was expected, and at least what has not told its first output yet.

        Of those that tell it (``tells_start``) the first one is being computed, and no other. When it takes longer than
        expected, it is as likely as not to take as long again.
        """
        wait = self.clear_at - now
        if self.told:
            first, began = self._first_told()
            least = self.told_seconds - first.seconds + abs(first.seconds - (now - began))
            if least > wait:
                return least
        return wait if wait > 0 else 0.0

    def is_late(self, now: float) -> bool:
        """Whether what it computes should have told its first output long ago."""
        if not self.told:
            return False
        first, began = self._first_told()
        return now - began > OVERDUE_SECONDS + OVERDUE_TIMES * first.seconds

    def eased_at(self, seconds: float) -> float:
        """When ``sent_wait`` is first no more than that, if nothing happens before; without end where it never is."""
        eased = self.clear_at - seconds
        if self.told:
            first, began = self._first_told()
            spare = seconds - (self.told_seconds - first.seconds)
            eased = max(eased, began + first.seconds - spare)
            if spare < 0 or eased > began + first.seconds + spare:  # from when on it takes longer than expected
                return math.inf
        return eased

    def _first_told(self) -> "tuple[_Lease, float]":
        """Of those that tell their first output, the one that is being computed, and since when; there is one."""
        first = next(given for given in self.queue.values() if given.tells_start)
        return first, first.sent_at if self.computing_since is None else max(self.computing_since, first.sent_at)

    def standing(self, rank: float, now: float) -> tuple[float, int]:
        """For a request of this rank: seconds until its turn, and how many of those that are held it would pass."""
        wait = self.sent_wait(now)
        if not self.held:
            return wait, 0
        passed = len(self.held)
        for other, _, seconds in self.held:
            if other > rank:
                break
            wait += seconds
            passed -= 1
        return wait, passed

    def turnover(self, now: float) -> float:
        """Seconds until what nobody uses there gives way, as fast as that goes; without end while there is room."""
        if not self.room_tokens or self._written < self.room_tokens:
            return math.inf
        rate = self._inflow.rate(now)
        return self.room_tokens / rate if rate > 0 else math.inf

    def wrote(self, tokens: int, now: float) -> None:
        """So many tokens more are, or will be, in its cache."""
        self._written = min(self._written + tokens, self.room_tokens) if self.room_tokens else 0
        self._inflow.add(tokens, now)

    def holds(self, tokens: int) -> None:
        """Its cache holds so many tokens; far fewer than were written means that it was emptied."""
        if 2 * tokens < self._written:
            self._written = tokens

    def has_adapter(self, model: str) -> bool:
        """Whether the model is no LoRA adapter, or one that was asked for lately."""
        replica = self.replica
        return not replica.adapters or model in self._adapters or replica.adapter(model) is None

    def asked(self, model: str) -> None:
        """A request for this model goes there."""
        if self.replica.adapter(model) is not None:
            self._adapters[model] = None
            self._adapters.move_to_end(model)
            if len(self._adapters) > RECENT_ADAPTERS:
                self._adapters.popitem(last=False)

    def usage_now(self, now: float) -> float:
        """The share of its cache that running requests need, 0 to 1; 0 where the engine has not said lately."""
        return self.usage if self.usage and now - self.usage_at <= USAGE_SECONDS else 0.0

    def pass_over(self, now: float) -> bool:
        """Whole answers tell no first output: those that should have been computed long ago are not awaited any more."""
        has_passed = False
        for given in self.queue.values():
            if now <= given.due_at + OVERDUE_SECONDS + OVERDUE_TIMES * given.seconds:
                break
            if not given.is_passed and not given.tells_start:
                given.is_passed = has_passed = True
                self.sent_seconds -= given.seconds
        return has_passed

    def fix_speed(self, speed: float) -> None:
        """It computes so many tokens a second, whatever is seen."""
        self.prefill, self.learns = ReplicaSpeed(PrefillModel(speed)), False

    @property
    def status(self) -> Status:
        """What probes say, unless it drains."""
        return self.health if self.drain is None else Status.DRAINING

    def __repr__(self) -> str:
        return f"<{self.replica.id} {self.status}, {self.in_flight} in flight, {self.queued_tokens} queued tokens>"

    def is_available(self) -> bool:
        """Whether a new request may be sent there."""
        return self.health is Status.READY and self.drain is None


class _Lease(msgspec.Struct):
    live: LiveReplica
    queued_tokens: int
    tokens: int
    seconds: float
    came_at: float
    work: Work
    tells_start: bool = True
    bundle: Bundle | None = None  # until the engine has said what of the prompt it had
    sent_at: float = 0.0
    is_waiting: bool = True
    is_held: bool = False
    due_at: float = 0.0
    is_passed: bool = False


class _Tally:
    """What all replicas of a model were given: requests, work, and what of it was there already."""

    __slots__ = ("able", "busy", "count", "others", "reused", "work")

    def __init__(self) -> None:
        self.count = 0
        self.work = _Decaying()
        self.busy = _Averaged()
        self.reused = _Share()
        self.others = IDLE
        self.able: int | None = None  # how many of them are available, as long as nothing changes


class Fleet:
    """All replicas and all open leases. Changes with every call but the questions."""

    def __init__(self, feed: Feed = DEFAULT_FEED) -> None:
        self._feed = feed
        self._prefill: dict[str, PrefillModel] = {}  # by model, what all of its replicas have shown
        self._tallies: dict[str, _Tally] = {}  # by model
        self._live: dict[ReplicaId, LiveReplica] = {}
        # By model and part of a request, as long as no replica comes, changes or goes.
        self._serving: dict[tuple[str, Part], list[LiveReplica]] = {}
        self._leases: dict[int, _Lease] = {}
        self._holding: dict[LiveReplica, None] = {}  # those for which anybody is held, removed ones included
        self._next_lease = 1

    def __repr__(self) -> str:
        counts = [f"{n} {status}" for status in Status if (n := sum(r.status is status for r in self))]
        return f"<Fleet {', '.join(counts) or 'empty'}, {len(self._leases)} leases>"

    def __iter__(self) -> Iterator[LiveReplica]:
        return iter(self._live.values())

    def __len__(self) -> int:
        return len(self._live)

    def get(self, replica: ReplicaId) -> LiveReplica | None:
        return self._live.get(replica)

    def put(self, replica: Replica) -> None:
        """Add a replica, or replace what is known of it; work under way and status stay."""
        self._serving.clear()
        live = self._live.get(replica.id)
        model = next(iter(replica.base_models), "")
        prefill, tally = (
            self._prefill.setdefault(model, PrefillModel()),
            self._tallies.setdefault(model, _Tally()),
        )
        if live is None:
            self._live[replica.id] = LiveReplica(replica, ReplicaSpeed(prefill), tally)
            self._counts_change()
            return
        live.replica = replica
        self._counts_change()
        if live.tally is not tally:  # another model, whose speed has nothing to do with that of the one before
            live.tally, live.seen_at = tally, tally.count
            if live.learns:
                live.prefill, live.bundle, live.computing_since = ReplicaSpeed(prefill), None, None
                self.reprice(live)

    def remove(self, replica: ReplicaId) -> None:
        """Take a replica out; its open leases may still be released."""
        self._serving.clear()
        self._counts_change()
        self._live.pop(replica, None)

    def set_status(self, replica: ReplicaId, status: Status) -> None:
        live = self._live.get(replica)
        if live is not None:
            live.health = status
            self._counts_change()

    def drain(self, replica: ReplicaId, why: Drain | None) -> None:
        """Nothing new is sent there; None ends that."""
        live = self._live.get(replica)
        if live is not None:
            live.drain = why
            self._counts_change()

    def departed(self) -> list[ReplicaId]:
        """Those that are leaving and have nothing left to do."""
        return [live.replica.id for live in self if live.drain is Drain.LEAVING and not live.in_flight]

    def serving(self, model: str, part: Part = Part.WHOLE) -> list[LiveReplica]:
        """Every replica of this model that may be sent this part of a request, available or not; only to be read."""
        found = self._serving.get((model, part))
        if found is None:
            serving = [live for live in self._live.values() if model in live.replica.models]
            found = [live for live in serving if takes(live.replica.role, part)]
            if serving:  # clients choose the names of those that there are not
                self._serving[model, part] = found
        return found

    def behind(self, endpoint: str) -> list[LiveReplica]:
        """The replicas of one endpoint, available or not."""
        return [live for live in self._live.values() if live.replica.endpoint == endpoint]

    def models(self) -> list[str]:
        """The names served by any replica, in a stable order."""
        return sorted({model for live in self for model in live.replica.models})

    @property
    def open_leases(self) -> int:
        return len(self._leases)

    def acquire(
        self,
        live: LiveReplica,
        uncached_tokens: int,
        tokens: int,
        now: float,
        rank: float | None = None,
        *,
        tells_start: bool = True,
        loads: int = 0,
        may_load: bool = False,
    ) -> int:
        """Note that a request of ``tokens`` goes there, with so many to compute and ``loads`` to load; returns the lease.

        With ``may_load`` its engine loads more than that, if it finds more.

        With a ``rank`` it is held while the replica has enough to do, and goes before all that are held with a higher one.
        ``tells_start`` says whether ``started`` will be called for it: whole answers tell no first output.
        """
        self.reprice(live)
        lease, self._next_lease = self._next_lease, self._next_lease + 1
        work = Work(tokens, uncached_tokens, live.answering, loads, may_load)
        seconds = live.prefill.seconds(uncached_tokens, work.context, work.answers)
        goes = rank is None or uncached_tokens <= self._feed.small or (not live.held and self._takes(live, now))
        live.in_flight += 1
        live.given += 1
        live.written += uncached_tokens + loads
        live.last_lease = lease
        live.tally.count += 1
        live.seen_at = live.tally.count
        live.queued_tokens += uncached_tokens
        live.active_tokens += tokens
        live.wrote(uncached_tokens + loads, now)
        live.tally.work.add(seconds, now)
        live.tally.reused.add(tokens - uncached_tokens, tokens, now)
        given = self._leases[lease] = _Lease(live, uncached_tokens, tokens, seconds, now, work, tells_start)
        if rank is None or goes:
            self._send(live, lease, given, now)
        else:
            given.is_held = True
            self._holding[live] = None
            insort(live.held, (rank, lease, seconds))
            live.held_seconds += seconds
            live.held_tokens += uncached_tokens
        return lease

    def adopt(self, live: LiveReplica, queued_tokens: int, now: float) -> int:
        """Note a request that was sent there before anybody here knew of it; with nothing queued it has begun to answer.

        How long it has been computed is not known, nor whether it will tell its first output: it is not awaited as others are.
        """
        lease = self.acquire(live, queued_tokens, queued_tokens, now, tells_start=False)
        if not queued_tokens:
            self._answered(live, lease, self._leases[lease], now)
        return lease

    def is_held(self, lease: int) -> bool:
        """Whether the request is not to be sent yet."""
        held = self._leases.get(lease)
        return held is not None and held.is_held

    @property
    def has_held(self) -> bool:
        """Whether any request is held."""
        return bool(self._holding)

    def holding(self) -> list[LiveReplica]:
        """For whom any are held; one that was removed may be among them."""
        return list(self._holding)

    def dispatch(self, live: LiveReplica, now: float) -> list[int]:
        """The leases that are held no longer, in order: their requests are to be sent now. Call it after ``acquire``, too."""
        going = []
        while live.held and (len(live.held) > MAX_HELD or self._takes(live, now)):
            _, lease, seconds = live.held.pop(0)
            live.held_seconds = live.held_seconds - seconds if live.held else 0.0
            given = self._leases[lease]
            live.held_tokens -= given.queued_tokens
            given.is_held = False
            self._send(live, lease, given, now)
            going.append(lease)
        if not live.held:
            self._holding.pop(live, None)
        return going

    def due(self, live: LiveReplica) -> float | None:
        """When time alone lets the next of those that are held go; None where nobody is, or only an answer can do that."""
        if not live.held:
            return None
        due = live.eased_at(self._feed.seconds)
        return due if due < math.inf else None

    def started(self, lease: int, now: float) -> None:
        """The request's prompt has been computed: its first output has come."""
        given = self._leases.get(lease)
        if given is None or not given.is_waiting or given.is_held:
            return
        live = given.live
        has_passed = live.pass_over(now)
        # Of no token to compute, the prompt was computed elsewhere: that says nothing of this replica's speed.
        if live.learns and given.queued_tokens and not has_passed and next(iter(live.queue)) == lease:
            self._learn(live, given, now)
        self._answered(live, lease, given, now)
        self.reprice(live)
        # What was expected of the time until now was right or wrong: from here on only what is left counts.
        live.clear_at = now + live.sent_seconds
        live.computing_since = now

    def release(
        self, lease: int, now: float, *, is_good: bool = False, cached_tokens: int | None = None
    ) -> LiveReplica:
        """The request has ended; ``is_good`` when it was answered, so its prompt has been computed at some time.

        ``cached_tokens`` is how much of the prompt the engine says it had, or loaded, where it says so.

        Raises:
            KeyError: the lease is not open: it was released twice, or never given.
        """
        held = self._leases.pop(lease)
        live = held.live
        if held.is_held:
            live.held_tokens -= held.queued_tokens
            del live.held[[each[1] for each in live.held].index(lease)]
            live.held_seconds = live.held_seconds - held.seconds if live.held else 0.0
            if not live.held:
                del self._holding[live]
            live.tally.work.take_back(held.seconds, held.came_at)
            live.queued_tokens -= held.queued_tokens
        elif held.is_waiting and is_good:
            if next(iter(live.queue)) == lease:
                live.computing_since = None  # since when is the next one's secret
            self._answered(live, lease, held, now)
        elif held.is_waiting:  # nothing of it was computed, as far as anybody knows
            is_first = next(iter(live.queue)) == lease
            left = live.clear_at - (0.0 if held.is_passed else held.seconds)
            live.tally.work.take_back(held.seconds, held.came_at)
            self._answered(live, lease, held, now)
            # The time that has passed was spent on the first one: with that, it is lost, and the next one begins now.
            live.clear_at = now + live.sent_seconds if is_first else max(now, left)
            if is_first:
                live.computing_since = now
        if held.bundle is not None:
            held.bundle.reported(held.work, cached_tokens, now)
        live.in_flight -= 1
        live.active_tokens -= held.tokens
        return live

    def utilisation(self, live: LiveReplica, now: float) -> float:
        """How much of the time of those of its model that are available the last minute's prompts take; above 1 they pile up.

        What was expected to be cached may be gone when its turn comes, so it is at least the share of them that was busy.
        """
        tally = live.tally
        if tally.able is None:
            tally.able = sum([each.is_available() for each in self if each.tally is tally])
        able, others = max(1, tally.able), tally.others
        busy = tally.busy.mean(now) / able
        if others.busy:  # each of them knows its own part, and which are the same nobody knows
            idle = 1 - min(1.0, busy)
            for each in others.busy:
                idle *= 1 - min(1.0, each / able)
            busy = max(busy, 1 - idle)
        return max((tally.work.rate(now) + others.work) / able, busy)

    def reuse(self, live: LiveReplica) -> float:
        """The share of prompt tokens of its model that lay where they were sent, of the last minutes."""
        return live.tally.reused.share

    # Other gateways before the same replicas

    def loads(self) -> dict[ReplicaId, ReplicaLoad]:
        """What this gateway has at each replica."""
        return {name: live.load() for name, live in self._live.items()}

    def work(self, now: float) -> dict[str, ModelLoad]:
        """What this gateway gives all replicas of each model."""
        return {
            model: ModelLoad(work=tally.work.rate(now), busy=max(0.0, tally.busy.mean(now)))
            for model, tally in self._tallies.items()
        }

    def beside(self, others: Mapping[ReplicaId, Others], work: Mapping[str, OthersWork]) -> None:
        """From now on others have this there, and nothing elsewhere."""
        for name, live in self._live.items():
            live.others = others.get(name, NOBODY)
        for model, tally in self._tallies.items():
            tally.others = work.get(model, IDLE)

    def others_gave(self, given: Sequence[Grown], now: float) -> None:
        """Others have sent requests there, which count as those of this gateway do for who is in use, and how full it gets."""
        found = [(live, each) for each in given if (live := self._live.get(each.replica)) is not None]
        for live, each in found:
            live.tally.count += each.requests
            live.wrote(each.tokens, now)
        for live, _ in found:
            live.seen_at = live.tally.count

    def _counts_change(self) -> None:
        for tally in self._tallies.values():
            tally.able = None

    def _send(self, live: LiveReplica, lease: int, given: _Lease, now: float) -> None:
        if not live.queue:
            live.computing_since = now
        live.queue[lease] = given
        given.sent_at = now
        live.sent_seconds += given.seconds
        live.clear_at = given.due_at = max(live.clear_at, now) + given.seconds
        if given.tells_start:
            live.told_seconds += given.seconds
            live.told += 1
            if live.told == 1:
                live.busy_as = live.tally
                live.busy_as.busy.change(1, now)

    def _answered(self, live: LiveReplica, lease: int, given: _Lease, now: float) -> None:
        del live.queue[lease]
        if not live.queue:
            live.sent_seconds = 0.0
        elif not given.is_passed:
            live.sent_seconds -= given.seconds
        if given.tells_start:
            live.told -= 1
            live.told_seconds = max(0.0, live.told_seconds - given.seconds) if live.told else 0.0
            if not live.told:
                assert live.busy_as is not None, "it was busy"
                live.busy_as.busy.change(-1, now)
        live.queued_tokens -= given.queued_tokens
        given.queued_tokens, given.is_waiting = 0, False

    def reprice(self, live: LiveReplica) -> None:
        """Count anew what the replica has to do, if it turned out to be much faster or slower."""
        price = live.prefill.seconds(1000, 0.0, 0)
        if 1 / REPRICE < price / live.priced_at < REPRICE:
            return
        live.priced_at = price
        if not live.queue and not live.held:
            return
        before = live.sent_seconds
        live.sent_seconds = live.told_seconds = live.held_seconds = 0.0
        for given in live.queue.values():
            given.seconds = live.prefill.seconds(given.queued_tokens, given.work.context, given.work.answers)
            if not given.is_passed:
                live.sent_seconds += given.seconds
            if given.tells_start:
                live.told_seconds += given.seconds
        live.clear_at += live.sent_seconds - before
        held = []
        for rank, lease, _ in live.held:
            given = self._leases[lease]
            given.seconds = live.prefill.seconds(given.queued_tokens, given.work.context, given.work.answers)
            live.held_seconds += given.seconds
            held.append((rank, lease, given.seconds))
        live.held = held

    def _takes(self, live: LiveReplica, now: float) -> bool:
        return live.queued_tokens - live.held_tokens <= self._feed.tokens or live.sent_wait(now) <= self._feed.seconds

    def _learn(self, live: LiveReplica, given: _Lease, now: float) -> None:
        """The replica has computed the first of what it had been sent; several in one step answer in one moment."""
        if live.computing_since is None:
            return
        seconds = max(0.0, now - live.computing_since)
        bundle = live.bundle
        if bundle is not None and seconds > ONE_MOMENT:
            bundle.close(live.computing_since)
            bundle = None
        if bundle is None:
            bundle = live.bundle = Bundle(live.prefill)
        if bundle.add(given.work, seconds, given.seconds):
            given.bundle = bundle


def _remembered(began: float, now: float) -> float:
    """How much of a memory is filled that began then, ``IDLE_BEFORE`` included: of what came before, nothing is known."""
    return 1 - math.exp(-(IDLE_BEFORE + max(0.0, now - began)) / MEMORY_SECONDS)


class _Decaying:
    """How much has come a second lately: what came ``MEMORY_SECONDS`` ago counts a third of what comes now.

    While less than that has passed since the first came, it is what has come since then, and not a part of it.
    """

    __slots__ = ("_at", "_began", "_sum")

    def __init__(self) -> None:
        self._at = self._began = -math.inf
        self._sum = 0.0

    def add(self, amount: float, now: float) -> None:
        self._sum = self._left(now) + amount
        self._at = max(self._at, now)
        if self._began == -math.inf:
            self._began = now

    def take_back(self, amount: float, when: float) -> None:
        """What was added at ``when`` does not count."""
        self._sum = max(0.0, self._sum - amount * math.exp(min(0.0, when - self._at) / MEMORY_SECONDS))

    def rate(self, now: float) -> float:
        return self._left(now) / (MEMORY_SECONDS * _remembered(self._began, now))

    def _left(self, now: float) -> float:
        return self._sum * math.exp(min(0.0, self._at - now) / MEMORY_SECONDS) if self._sum else 0.0


class _Share:
    """How large a part of a whole was lately: what was ``REUSE_SECONDS`` ago counts a third of what is now."""

    __slots__ = ("_at", "_part", "_whole")

    def __init__(self) -> None:
        self._at = -math.inf
        self._part = self._whole = 0.0

    def add(self, part: float, whole: float, now: float) -> None:
        left = math.exp(min(0.0, self._at - now) / REUSE_SECONDS)
        self._part, self._whole, self._at = left * self._part + part, left * self._whole + whole, max(self._at, now)

    @property
    def share(self) -> float:
        return self._part / self._whole if self._whole else 0.0


class _Averaged:
    """What a count was on average lately: what it was ``MEMORY_SECONDS`` ago counts a third of what it is now.

    While less than that has passed since it first changed, it is the average since then.
    """

    __slots__ = ("_at", "_began", "_count", "_mean")

    def __init__(self) -> None:
        self._at = self._began = -math.inf
        self._count = 0
        self._mean = 0.0

    def change(self, by: int, now: float) -> None:
        self._mean = self._sofar(now)
        self._at = max(self._at, now)
        if self._began == -math.inf:
            self._began = now
        self._count += by

    def mean(self, now: float) -> float:
        return self._sofar(now) / _remembered(self._began, now)

    def _sofar(self, now: float) -> float:
        if self._at == -math.inf:
            return 0.0
        return self._count + (self._mean - self._count) * math.exp(min(0.0, self._at - now) / MEMORY_SECONDS)
