"""A trace's prompts as paths of segments: runs of blocks that every prompt has whole, or not at all.

Knows ids, lengths and the engine's block size. Never knows replicas or time. Most blocks have one child in practice, so a
prompt of hundreds of blocks is a path of a few segments, and whoever simulates it has a few things to do instead of hundreds.
Nothing is lost: a segment may still be held in part, from its beginning.

Blocks of the trace and of the engine need not be of one size. An id names a whole prefix, so the engine's blocks that end
within it are known by it; a last one that is not full is known as far as the prompt reaches.
"""

from array import array
from collections.abc import Sequence
from typing import Final

from simulations.traces.stretches import NO_STRETCH, Stretches
from simulations.traces.trace import Trace

_NOWHERE: Final = -1
"""In place of a piece: before the first one."""


class Paths:
    """Made once for a trace and a block size; only to be read then.

    Attributes:
        block_size: the engine's, in tokens.
        lengths: by segment, engine blocks in it; more than 0.
        paths: by request, its segments from the first on; together they are the full blocks of its prompt. Of equal ones there
            is one.
        own: by request, full blocks at its end that nothing is known of: nobody shares them.
    """

    def __init__(self, trace: Trace, block_size: int, stretches: Stretches | None = None) -> None:
        """``stretches`` are the trace's, where they are made already."""
        if block_size < 1:
            raise ValueError(f"block_size must be at least 1 token, got {block_size}")
        self.block_size = block_size
        self.lengths = array("q")
        self.paths: list[Sequence[int]] = []
        self.own = array("q")
        self._join(trace, _Pieces(trace, block_size, stretches or Stretches(trace)))

    def __len__(self) -> int:
        return len(self.paths)

    def _join(self, trace: Trace, pieces: "_Pieces") -> None:
        """Pieces that follow each other in every prompt are one segment."""
        uses, lengths = pieces.uses(), self.lengths
        paths: list[tuple[int, ...]] = []  # by piece, the segments up to it
        known: list[int] = []  # the blocks of these
        before: list[int] = []  # the last piece up to it that has blocks
        for at, (parent, length, count) in enumerate(zip(pieces.parents, pieces.lengths, uses, strict=True)):
            path, blocks, last = (
                ((), 0, _NOWHERE) if parent == _NOWHERE else (paths[parent], known[parent], before[parent])
            )
            if length and count:  # what nobody uses is no segment
                if last != _NOWHERE and uses[last] == count:
                    lengths[path[-1]] += length
                else:
                    path = (*path, len(lengths))
                    lengths.append(length)
                blocks, last = blocks + length, at
            paths.append(path)
            known.append(blocks)
            before.append(last)
        size = self.block_size
        for end, tokens in zip(pieces.ends, trace.inputs, strict=True):
            self.paths.append(() if end == _NOWHERE else paths[end])
            self.own.append(tokens // size - (0 if end == _NOWHERE else known[end]))


class _Pieces:
    """A trace's stretches, cut where a prompt ends within an id; parents come before their children.

    Attributes:
        lengths: by piece, engine blocks in it; may be 0.
        parents: by piece, the one before it on its path, or ``_NOWHERE``.
        ends: by request, its last piece, or ``_NOWHERE``.
    """

    def __init__(self, trace: Trace, block_size: int, stretches: Stretches) -> None:
        self.lengths: list[int] = []
        self.parents: list[int] = []
        whole = trace.block_size
        lasts = stretches.lasts
        left = _left(trace, block_size)
        cuts: dict[int, set[int]] = {}  # by stretch, after how many of its blocks prompts end within it
        for last, (blocks, full) in zip(lasts, left, strict=True):
            if 0 < blocks < full:
                cuts.setdefault(last, set()).add(blocks)
        wholes: list[int] = []  # by stretch, its last piece
        within: dict[tuple[int, int], int] = {}  # (stretch, blocks of it) -> the piece that ends there
        begins = stretches.begins
        for at, (parent, depth) in enumerate(zip(stretches.parents, stretches.depths, strict=True)):
            begin = depth * whole // block_size
            length = (depth + begins[at + 1] - begins[at]) * whole // block_size - begin
            piece = _NOWHERE if parent == NO_STRETCH else wholes[parent]
            done = 0
            for cut in sorted(cuts[at]) if at in cuts else ():
                piece = within[at, cut] = self._add(piece, cut - done)
                done = cut
            wholes.append(self._add(piece, length - done))
        self.ends: list[int] = []
        for last, (blocks, full) in zip(lasts, left, strict=True):
            if last == NO_STRETCH:
                self.ends.append(_NOWHERE)
            elif blocks >= full:
                self.ends.append(wholes[last])
            elif blocks > 0:
                self.ends.append(within[last, blocks])
            else:
                parent = stretches.parents[last]
                self.ends.append(_NOWHERE if parent == NO_STRETCH else wholes[parent])

    def _add(self, parent: int, length: int) -> int:
        self.parents.append(parent)
        self.lengths.append(length)
        return len(self.lengths) - 1

    def uses(self) -> list[int]:
        """By piece, how many prompts have it."""
        uses = [0] * len(self.lengths)
        for end in self.ends:
            if end != _NOWHERE:
                uses[end] += 1
        parents = self.parents
        for at in range(len(uses) - 1, -1, -1):
            if parents[at] != _NOWHERE:
                uses[parents[at]] += uses[at]
        return uses


def _left(trace: Trace, size: int) -> list[tuple[int, int]]:
    """By request: engine blocks of its prompt that end within its last id or behind it, and how many end within that id."""
    whole = trace.block_size
    found = []
    for ids, tokens in zip(trace.blocks, trace.inputs, strict=True):
        begin = (len(ids) - 1) * whole // size
        found.append((tokens // size - begin, len(ids) * whole // size - begin) if ids else (0, 0))
    return found
