"""Plays made-up traffic on the detailed model, with what its scenarios do not have: tenants, foreign clients, false reports.

Knows the model's run from the inside, and changes nothing of it: gateways are production's routers, engines are the model's.
Never knows what a scenario is about.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from balancer.admission import Urgency
from balancer.core import Decision, RouteRequest
from balancer.policies.base import make
from balancer.router import Router
from balancer.yielding import Yielding
from simulations.detailed_fleet import DetailedFleet
from simulations.detailed_play import Play
from simulations.engine import Engine
from simulations.engine_values import EngineRequest, ScheduledStep, StepResult
from simulations.quantiles import quantile
from simulations.results import Run
from simulations.sequences import KeyPrompt
from simulations.traces.trace import NO_PAUSE, NO_SESSION, Trace, TraceBuilder

SIZE: Final = 16
"""Tokens of a block."""

DEFAULT: Final = "predicted_ttft"
"""The policy that these laws are about: what kvlb decides by where nothing is set."""

FLEET: Final = DetailedFleet(replicas=8, blocks=8192, block_size=SIZE)
"""Some 23,000 prompt tokens a second each, and room for 131,000."""

_FOREIGN: Final = "foreign "
_STRANGE_KEYS: Final = 1 << 50
"""Keys of foreign prompts, which nobody else has."""


class Foreign(msgspec.Struct, frozen=True):
    """Another client asks a replica for ``tokens`` that nobody knows, every so many seconds, and no gateway is told."""

    replica: int
    since: float
    until: float
    every: float
    tokens: int


class Traffic:
    """Requests by what their prompts begin with; mutable. A text is a name, and has the same tokens wherever it stands."""

    def __init__(self) -> None:
        self._builder = TraceBuilder("made", SIZE, is_chained=False)
        self._ids: dict[tuple[str, int], int] = {}
        self.conversations: list[int] = []
        self.tenants: list[str] = []

    def ask(
        self,
        at: float,
        *texts: tuple[str, int],
        answer: int = 32,
        conversation: int = NO_SESSION,
        tenant: str = "",
        chain: int | None = None,
        pause: float = NO_PAUSE,
    ) -> None:
        """A prompt of these texts, each a name and its tokens; in a closed loop, those of one ``chain`` follow each other."""
        ids: list[int] = []
        for name, tokens in texts:
            ids += [self._ids.setdefault((name, block), len(self._ids)) for block in range(-(-tokens // SIZE))]
        length = sum(tokens for _, tokens in texts)
        session = conversation if chain is None else chain
        self._builder.add(
            at,
            min(length, len(ids) * SIZE),
            answer,
            ids[: -(-length // SIZE)],
            session=None if session == NO_SESSION else session,
            pause=None if pause == NO_PAUSE else pause,
        )
        self.conversations.append(conversation)
        self.tenants.append(tenant)

    def warm_up(self, seconds: float = 20.0, replicas: int = 8) -> float:
        """Prompts of all lengths that have nothing in common, so that speeds are known; when the fleet is idle again."""
        dice = random.Random(7)
        for at in range(10 * replicas):
            tokens = int(2 ** dice.uniform(7, 13))
            self.ask(at * seconds / (10 * replicas), (f"warm {at}", tokens), answer=dice.randrange(1, 100))
        return seconds + 60.0

    def build(self) -> Trace:
        return self._builder.build()

    def __len__(self) -> int:
        return len(self.conversations)


class Played(msgspec.Struct, frozen=True):
    """A run, and from which request on it counts."""

    run: Run
    first: int = 0

    def those(self, since: float = 0.0, until: float = float("inf")) -> list[int]:
        """The requests that came then."""
        arrivals = self.run.arrivals
        return [at for at in range(self.first, len(arrivals)) if since <= arrivals[at] < until]

    def ttft(self, share: float, requests: Sequence[int] | None = None) -> float:
        """The time to the first token at this share of them, in seconds."""
        chosen = self.those() if requests is None else requests
        return quantile(sorted([self.run.ttfts[at] for at in chosen]), share)

    def seconds(self, share: float) -> float:
        """The time to the last token at this share of the requests."""
        return quantile(sorted([self.run.latencies[at] for at in self.those()]), share)

    def asked(self, requests: Sequence[int] | None = None) -> list[int]:
        """By replica, how many requests it had."""
        counts = [0] * self.run.replicas
        for at in self.those() if requests is None else requests:
            counts[self.run.chosen[at]] += 1
        return counts

    def computed(self, requests: Sequence[int] | None = None) -> list[int]:
        """By replica, how many prompt tokens it had to compute."""
        counts = [0] * self.run.replicas
        for at in self.those() if requests is None else requests:
            counts[self.run.chosen[at]] += self.run.inputs[at] - self.run.hits[at]
        return counts

    def hit(self, requests: Sequence[int] | None = None) -> float:
        """The share of prompt tokens that came from a cache."""
        chosen = self.those() if requests is None else requests
        return sum(self.run.hits[at] for at in chosen) / sum(self.run.inputs[at] for at in chosen)


def play(
    traffic: Traffic,
    fleet: DetailedFleet = FLEET,
    policy: str = DEFAULT,
    *,
    first: int = 0,
    foreign: Sequence[Foreign] = (),
    usage: Mapping[int, float] | None = None,
    yields: bool = False,
    seed: int = 1,
) -> Played:
    """All of it, once.

    With ``usage``, engines say how full their caches are, and those in it say that for ever; with ``yields``, tenants let each
    other pass.
    """
    playing = _Playing(traffic, fleet, policy, foreign, usage, seed=seed, yields=yields)
    return Played(playing.run(policy, seed), first)


class _Playing(Play):
    def __init__(
        self,
        traffic: Traffic,
        fleet: DetailedFleet,
        policy: str,
        foreign: Sequence[Foreign],
        usage: Mapping[int, float] | None,
        *,
        seed: int,
        yields: bool,
    ) -> None:
        trace = traffic.build()
        super().__init__(trace, fleet, lambda: make(policy), policy, traffic.conversations, random.Random(seed), None)
        self._foreign = foreign
        self._usage = usage
        if yields:
            self._gateways = [_Yielding(policy, traffic.tenants) for _ in range(fleet.gateways)]
            for replica in self._replicas:
                self._introduce(replica)
        for number in {each.replica for each in foreign}:
            self._replicas[number].engine = _Shared(self._config)
        self._strangers = 0

    def run(self, name: str, seed: int) -> Run:
        for each in self._foreign:
            self._push(each.since, self._ask, each)
        return super().run(name, seed)

    def _ask(self, now: float, foreign: Foreign) -> None:
        replica = self._replicas[foreign.replica]
        assert replica.engine is not None, "who serves strangers does not die"
        self._strangers += 1
        keys = [_STRANGE_KEYS + self._strangers * 10_000 + block for block in range(foreign.tokens // SIZE)]
        replica.engine.add(EngineRequest(f"{_FOREIGN}{self._strangers}", KeyPrompt(foreign.tokens, keys), 1))
        self._run(now, replica)
        if now + foreign.every < foreign.until:
            self._push(now + foreign.every, self._ask, foreign)

    def _tick(self, now: float) -> None:
        for replica in self._replicas if self._usage is not None else ():
            assert self._usage is not None
            assert replica.engine is not None
            said = self._usage.get(replica.number, replica.engine.kv_cache_usage)
            for gateway in self._gateways:
                live = gateway.fleet.get(replica.name)
                assert live is not None
                live.usage, live.usage_at = said, now
        super()._tick(now)


class _Shared(Engine):
    """An engine that strangers use, too: their answers are none of ours."""

    def complete(self, step: ScheduledStep, sample: Callable[[str], int]) -> StepResult:
        result = super().complete(step, sample)
        return msgspec.structs.replace(
            result,
            cached_tokens={name: each for name, each in result.cached_tokens.items() if not name.startswith(_FOREIGN)},
            finished={name: each for name, each in result.finished.items() if not name.startswith(_FOREIGN)},
        )


class _Yielding(Router):
    """A router that is asked as ``balancer.service`` asks it: each tenant lets others pass by what it was given."""

    def __init__(self, policy: str, tenants: Sequence[str]) -> None:
        super().__init__(make(policy), policy)
        self._tenants = tenants
        self._yielding = Yielding({})

    def route(self, request: RouteRequest, now: float, draw: float) -> Decision:
        tenant = self._tenants[int(request.request_id)]
        seconds = self._yielding.seconds(tenant, Urgency.NORMAL, now)
        decision = super().route(msgspec.structs.replace(request, yields=seconds), now, draw)
        chosen = next(each for each in decision.candidates if each.replica == decision.replica.id)
        self._yielding.charge(tenant, chosen.uncached_tokens / chosen.speed, now)
        return decision
