"""The index is true whatever happens: engines, network and gateway of ``tests.support.world``, and a story that is drawn.

Two ways of drawing: Hypothesis, which finds short stories and shrinks them, and long walks from fixed seeds. Each story's every
step is judged by ``World.check``, and now and then all is left to settle, after which whoever can know everything must.
"""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tests.support.publisher import Kind
from tests.support.simulated import SimulatedProcess
from tests.support.story import KINDS, WEIGHTS, Story, walk
from tests.support.world import World


@pytest.mark.parametrize("seed", [*range(20), 61, 143])
def test_a_long_walk_finds_no_lie(seed: int) -> None:
    seen = walk(seed, 500, KINDS, SimulatedProcess)
    assert seen["batches"] > 100
    assert seen["GPU blocks judged"] > 1_000
    assert seen["tokens matched"] > 1_000


class TruthMachine(RuleBasedStateMachine):
    """The same, drawn and shrunk by Hypothesis; its rules are the methods of ``Story``."""

    @initialize(draw=st.integers(0, 2**32).map(Random), kinds=st.permutations(KINDS))
    def begin(self, draw: Random, kinds: list[Kind]) -> None:
        self.story = Story(World(kinds[:3], SimulatedProcess, draw), KINDS)

    @invariant()
    def nothing_is_claimed_that_is_not_true(self) -> None:
        if hasattr(self, "story"):
            self.story.world.check()

    def teardown(self) -> None:
        if hasattr(self, "story"):
            self.story.world.settle()


def _rule(happening: Callable[[Story, Random], None]) -> Any:
    def happens(self: TruthMachine, draw: Random) -> None:
        happening(self.story, draw)

    happens.__name__ = happening.__name__
    return rule(draw=st.integers(0, 2**32).map(Random))(happens)


for each in WEIGHTS:
    setattr(TruthMachine, each.__name__, _rule(each))


def test_no_short_story_finds_a_lie() -> None:
    run_state_machine_as_test(
        TruthMachine, settings=settings(max_examples=200, stateful_step_count=50, deadline=None, derandomize=True)
    )
