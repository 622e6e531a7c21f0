"""Agents that work in a loop: think, call a tool, read what it brought, and hand parts of the work to agents of their own."""

from typing import ClassVar

from simulations.generators.base import Settings, Text, Workshop, generators
from simulations.traces.trace import Trace


@generators.register("agents")
class Agents(Settings, frozen=True, kw_only=True):
    """Each step's prompt is all that was before, and what the tool has brought.

    An agent that has handed work on goes on when the other one has ended; its pause is as long as that would take.

    Attributes:
        steps: of an agent, mean.
        kinds: of agents, each with a system prompt and tools of its own; the first one is the most popular.
        system_tokens, task_tokens, result_tokens, answer_tokens: medians.
        tool: seconds that a tool takes, median.
        sub_share: of steps, those that hand work on.
        sub_steps: of an agent that was handed work, mean; it hands nothing on.
    """

    rate: float = 0.1
    steps: float = 15.0
    kinds: int = 3
    system_tokens: int = 6_000
    task_tokens: int = 300
    result_tokens: int = 800
    answer_tokens: int = 150
    tool: float = 2.0
    sub_share: float = 0.05
    sub_steps: float = 5.0

    may_be_zero: ClassVar[frozenset[str]] = Settings.may_be_zero | {"tool"}
    shares: ClassVar[frozenset[str]] = frozenset({"sub_share"})

    def generate(self, seed: int) -> Trace:
        shop = Workshop("agents", self, seed)
        systems = [shop.blank.then(shop.length(self.system_tokens)) for _ in range(self.kinds)]
        sub = shop.blank.then(shop.length(self.system_tokens))
        for begin in shop.begins():
            self._work(shop, systems[shop.popular(self.kinds)], begin, self.steps, sub)
        return shop.done()

    def _work(self, shop: Workshop, system: Text, begin: float, steps: float, sub: Text | None) -> float:
        """One agent's loop; when it ends."""
        said, at, session = system.then(shop.length(self.task_tokens)), begin, shop.session()
        pause: float | None = None
        for _ in range(shop.turns(steps)):
            said, at = shop.ask(at + (pause or 0.0), said, shop.length(self.answer_tokens), session, pause)
            said = said.then(shop.length(self.result_tokens))
            if sub is not None and shop.random.random() < self.sub_share:
                pause = self._work(shop, sub, at, self.sub_steps, None) - at
            else:
                pause = shop.time(self.tool)
        return at
