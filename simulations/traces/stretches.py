"""A trace's blocks as a tree of stretches: runs of ids in which no prompt ends and nothing branches.

Knows ids, parents and where prompts end. Never knows lengths in tokens, times or caches. There are a few stretches for each
request, whatever the block size, so whoever walks over them and not over ids has a tenth to do.
"""

from array import array

from simulations.traces.trace import NO_PARENT, Trace

NO_STRETCH = NO_PARENT


class Stretches:
    """Made once for a trace; only to be read then. Parents come before their children.

    Attributes:
        begins: by stretch, its first id; it goes on to the next one's. One more stands for the end of all ids.
        parents: by stretch, the one whose last id comes before its first; ``NO_STRETCH`` where prompts begin.
        depths: by stretch, ids that come before it on its path.
        lasts: by request, the stretch of its last id, which has no other in it, as it may be partial; ``NO_STRETCH`` for
            requests without ids.
    """

    def __init__(self, trace: Trace) -> None:
        before = trace.parents
        heads = [at for at, parent in enumerate(before) if parent != at - 1]
        cuts = {0, *heads, *[before[head] + 1 for head in heads]}
        ends = {ids[-1] for ids in trace.blocks if ids}
        cuts |= ends
        cuts.update([end + 1 for end in ends])
        cuts.discard(len(before))
        begins = sorted(cuts)
        numbers = dict(zip(begins, range(len(begins)), strict=True))
        # Where prompts begin, -1 comes before, and what ends there is stretch -1.
        self.parents = array("i", [numbers[before[begin] + 1] - 1 for begin in begins] if before else [])
        self.begins = array("i", [*begins, len(before)] if before else [0])
        self.lasts = array("i", [numbers[ids[-1]] if ids else NO_STRETCH for ids in trace.blocks])
        self.depths = array("i")
        for parent in self.parents:
            self.depths.append(
                0 if parent == NO_STRETCH else self.depths[parent] + self.begins[parent + 1] - self.begins[parent]
            )

    def __len__(self) -> int:
        return len(self.parents)
