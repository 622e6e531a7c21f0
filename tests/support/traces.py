"""Small traces that tests make, and what they look at in traces, whoever has made them."""

from random import Random
from typing import Final

from hypothesis import strategies as st

from simulations.traces.trace import NO_PARENT, Trace, TraceBuilder

SIZE: Final = 4
"""Tokens of a block in what is made here, unless another size is asked for."""


def trace_of(*requests: tuple[float, int, int, list[int]], size: int = SIZE) -> Trace:
    """One request each: when it comes, the tokens of its prompt and of its answer, and what its blocks contain."""
    builder = TraceBuilder("made", size, is_chained=False)
    for arrival, tokens, answer, ids in requests:
        builder.add(arrival, tokens, answer, ids)
    return builder.build()


def talks(
    count: int = 40,
    turns: int = 6,
    gap: float = 1.0,
    seed: int = 1,
    pause: float | None = None,
    *,
    shortest: int = 1,
    spread: int = 6,
    answer: int = 12,
    lacks: int = 0,
) -> Trace:
    """Conversations whose turns repeat all that was before, answers included; all begin with the same block.

    The first prompt has ``shortest`` blocks and up to ``spread`` more, an answer fewer tokens than ``answer``, and each prompt
    ``lacks`` tokens of its last block.
    """
    dice, builder = Random(seed), TraceBuilder("made", SIZE, is_chained=False)
    for talk in range(count):
        when, blocks = dice.random() * gap * turns, shortest + dice.randrange(1, spread)
        ids = [0, *range(1000 * talk + 1, 1000 * talk + blocks)]
        for turn in range(turns):
            said = dice.randrange(1, answer)
            builder.add(when, blocks * SIZE - lacks, said, ids, session=talk, pause=pause if turn else None)
            more = said // SIZE + 1 + dice.randrange(1, 4)
            ids = [*ids, *range(1000 * talk + blocks, 1000 * talk + blocks + more)]
            blocks += more
            when += gap * (0.5 + dice.random())
    return builder.build()


@st.composite
def alone(draw: st.DrawFn) -> Trace:
    """One after the other. None ends with its block, and an answer is one token: so it fills none."""
    requests = []
    for at in range(draw(st.integers(1, 25))):
        depth = draw(st.integers(0, 6))
        ids = [draw(st.integers(0, 1)) for _ in range(depth + 1)]
        requests.append((at * 100.0, depth * SIZE + draw(st.integers(1, SIZE - 1)), 1, ids))
    return trace_of(*requests)


def hit(trace: Trace) -> float:
    """Share of all prompts' blocks that came before: what a cache that forgets nothing finds."""
    known: set[int] = set()
    blocks = found = 0
    for ids in trace.blocks:
        found += sum(each in known for each in ids)
        blocks += len(ids)
        known.update(ids)
    return found / blocks


def check_chained(trace: Trace) -> None:
    """Each id names a whole prefix: it comes behind its parent, which is smaller, in every prompt.

    Raises:
        AssertionError: one does not.
    """
    assert all(parent < at for at, parent in enumerate(trace.parents)), "a parent comes after its child"
    for ids in trace.blocks:
        assert [trace.parents[each] for each in ids] == [NO_PARENT, *ids][: len(ids)], "an id comes behind another one"
