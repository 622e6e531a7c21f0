"""What tests look at in traces, whoever has made them."""

from simulations.traces.trace import NO_PARENT, Trace


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
