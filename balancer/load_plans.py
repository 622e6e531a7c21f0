"""What each replica would load of a prompt rather than compute, in seconds, and what its links have to do already.

Knows what lies where (``balancer.loading``), how fast replicas compute, and links and weights (``balancer.economics``). Never
knows the policy; time is an argument (seconds, any monotonic clock). A link does one load after the other, as they were sent:
how long an engine really takes nobody tells, so it is what was planned.

What is planned is what the engine can be made to do: one that cannot be told loads all it finds.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from balancer.core import Candidate, Load, Replica
from balancer.economics.economy import Economy, Place
from balancer.economics.hints import control_of, offloads
from balancer.economics.mix import Control, Mix
from balancer.economics.prefill import Prefill
from balancer.fleet import LiveReplica
from indexer.index import ReplicaId

LEAST_IDLE: Final = 0.01
"""Of the fleet's time, when the price of what is computed is made of it."""

NO_ECONOMY: Final = Economy()
NO_PLANS: Final[Mapping[ReplicaId, Mix]] = {}


class Turn(msgspec.Struct, frozen=True):
    """When a prompt would be begun, and beside what.

    Attributes:
        now: seconds, the caller's clock.
        wait: seconds from now until its turn.
        answers: that are under way there.
        utilisation: how much of the fleet's time is taken, 0 to 1 and more.
    """

    now: float
    wait: float
    answers: int
    utilisation: float


class LoadPlans:
    """Changes with ``sent`` and ``forget``."""

    def __init__(self, economy: Economy = NO_ECONOMY) -> None:
        self._economy = economy
        self._busy_until: dict[tuple[ReplicaId, str], float] = {}
        self.hints: Counter[str] = Counter()
        """By field: how many requests engines were told with it what to load."""

    def __repr__(self) -> str:
        return f"<LoadPlans {self._economy!r}, {len(self._busy_until)} links>"

    def plan(
        self,
        live: LiveReplica,
        prompt_tokens: int,
        cached_tokens: int,
        loadable: Sequence[Load],
        turn: Turn,
        *,
        takes_hint: bool = True,
    ) -> Mix | None:
        """What the replica would do with a prompt of which it has so much and could load so much.

        Without ``takes_hint`` nobody may tell the engine anything. None where a link or the model's weight is not known.
        """
        control = _control(live.replica) if takes_hint else Control.NOTHING
        return self._plan(live, prompt_tokens, cached_tokens, loadable, turn, control)

    def hint(
        self, live: LiveReplica, chosen: Candidate, mix: Mix | None, places: Sequence[str], turn: Turn
    ) -> dict[str, Any]:
        """What the engine must be told to do this with a request that takes a hint, and no more that is not worth it.

        ``mix`` was planned for the chosen one, if it could load anything; ``places`` are all that it might find something in.
        """
        control = _control(live.replica)
        if control is Control.NOTHING:
            return {}
        fields: dict[str, Any] = {}
        if mix is not None:
            loadable = _places(chosen.loadable)
            fields = self._economy.hint(live.replica.endpoint, mix.hit_tokens, loadable, mix, control)
        poor = set() if fields else self._poor(live, chosen.prompt_tokens, places, turn)
        return self._economy.guarded(fields, mix, places, poor, control)

    def _poor(self, live: LiveReplica, prompt_tokens: int, places: Sequence[str], turn: Turn) -> set[str]:
        """From where nobody would load the prompt, if all of it lay there and nothing of it on the GPU."""
        poor = set()
        for place in places:
            mix = self._plan(live, prompt_tokens, 0, [Load(place, prompt_tokens)], turn, Control.LENGTH)
            if mix is not None and not mix.loads:
                poor.add(place)
        return poor

    def _plan(
        self,
        live: LiveReplica,
        prompt_tokens: int,
        cached_tokens: int,
        loadable: Sequence[Load],
        turn: Turn,
        control: Control,
    ) -> Mix | None:
        replica, backlog = live.replica, {}
        for each in loadable:
            until = self._busy_until.get((replica.id, each.source), 0.0)
            backlog[each.source] = max(0.0, until - turn.now - turn.wait)
        return self._economy.plan(
            replica.endpoint,
            (*replica.base_models, replica.root or ""),
            prompt_tokens,
            cached_tokens,
            _places(loadable),
            Prefill.learned(live.prefill, turn.answers),
            control,
            waits=backlog,
            price=1 / max(LEAST_IDLE, 1 - turn.utilisation),
        )

    def sent(self, live: LiveReplica, mix: Mix | None, hint: Mapping[str, Any], now: float) -> None:
        """The replica is sent a prompt that it does this with, as it was told."""
        self.hints.update(hint.keys())
        for load in () if mix is None else mix.loads:
            link = self._economy.link(live.replica.endpoint, load.source)
            assert link is not None, "it was planned by it"
            key = (live.replica.id, load.source)
            self._busy_until[key] = max(now, self._busy_until.get(key, 0.0)) + link.seconds(load.size)

    def forget(self, replica: ReplicaId) -> None:
        """It is gone."""
        for key in [key for key in self._busy_until if key[0] == replica]:
            del self._busy_until[key]


def _control(replica: Replica) -> Control:
    return control_of(replica.release, offloads=offloads(frozenset(replica.connectors)))


def _places(loadable: Sequence[Load]) -> list[Place]:
    return [Place(each.source, each.tokens, each.chunk) for each in loadable]
