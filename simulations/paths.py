"""A trace's prompts as paths of segments: runs of blocks that every prompt has whole, or not at all.

Knows ids, lengths and the engine's block size. Never knows replicas or time. Most blocks have one child in practice, so a
prompt of hundreds of blocks is a path of a few segments, and whoever simulates it has a few things to do instead of hundreds.
Nothing
is lost: a segment may still be held in part, from its beginning.

Blocks of the trace and of the engine need not be of one size. An id names a whole prefix, so the engine's blocks that end
within it are known by it; a last one that is not full is known as far as the prompt reaches.
"""

from array import array
from bisect import bisect_right
from collections.abc import Sequence

from simulations.traces.trace import NO_PARENT, Trace


class Paths:
    """Made once for a trace and a block size; only to be read then.

    Attributes:
        block_size: the engine's, in tokens.
        lengths: by segment, engine blocks in it; more than 0.
        paths: by request, its segments from the first on; together they are the full blocks of its prompt.
        own: by request, full blocks at its end that nothing is known of: nobody shares them.
    """

    def __init__(self, trace: Trace, block_size: int) -> None:
        if block_size < 1:
            raise ValueError(f"block_size must be at least 1 token, got {block_size}")
        self.block_size = block_size
        self.lengths = array("q")
        self.paths: list[Sequence[int]] = []
        self.own = array("q")
        cuts = _Cuts(trace, block_size)
        self._join(trace, cuts)

    def __len__(self) -> int:
        return len(self.paths)

    def _join(self, trace: Trace, cuts: "_Cuts") -> None:
        uses = cuts.uses
        lengths, paths, own = self.lengths, self.paths, self.own
        firsts: dict[int, int] = {}  # piece -> segment that begins with it
        shared: dict[tuple[int, ...], Sequence[int]] = {}
        for pieces, tokens in zip(cuts.paths(), trace.inputs, strict=True):
            at, known, path = 0, 0, []
            while at < len(pieces):
                piece = pieces[at]
                count = uses[piece]
                # Uses fall along a path, as whoever has a block has all before it.
                end = bisect_right(pieces, -count, lo=at + 1, key=lambda each: -uses[each])
                segment = firsts.get(piece)
                if segment is None:
                    segment = firsts[piece] = len(lengths)
                    lengths.append(sum([cuts.length(each) for each in pieces[at:end]]))
                path.append(segment)
                known += lengths[segment]
                at = end
            whole = tuple(path)
            paths.append(shared.setdefault(whole, whole))
            own.append(tokens // self.block_size - known)


class _Cuts:
    """The ids of a trace, cut where a prompt ends within one: *pieces* are ids, or numbers behind all of them."""

    def __init__(self, trace: Trace, block_size: int) -> None:
        self._trace = trace
        self._size = block_size
        self._whole = trace.block_size
        self._count = len(trace.parents)
        self._depths = _depths(trace.parents)
        self._cuts: dict[int, list[int]] = {}  # id -> blocks of it, from its beginning, at which a prompt ends
        self._pieces: dict[tuple[int, int], int] = {}  # (id, where it begins) -> piece
        self._lengths: list[int] = []  # of pieces that are no ids
        self._find()
        self.uses = self._counted()

    def length(self, piece: int) -> int:
        """Engine blocks in it."""
        return self._lengths[piece - self._count] if piece >= self._count else self._blocks_in(self._depths[piece])

    def paths(self) -> "Sequence[Sequence[int]]":
        """The pieces of each prompt, those without a block left out."""
        found: list[Sequence[int]] = []
        cuts, whole, size = self._cuts, self._whole, self._size
        is_plain = whole >= size
        for ids, tokens in zip(self._trace.blocks, self._trace.inputs, strict=True):
            if not ids:
                found.append(())
                continue
            last = len(ids) - 1
            left = tokens // size - last * whole // size  # full blocks that end in the last one
            full = self._blocks_in(last)
            tail: list[int] = self._pieces_of(ids[last], min(left, full)) if left > 0 else []
            if not cuts:
                head: Sequence[int] = ids[:last]
            else:
                head = [
                    piece for each in ids[:last] for piece in ((each,) if each not in cuts else self._pieces_of(each))
                ]
            if not is_plain:
                head = [piece for piece in head if self.length(piece)]
            found.append(array("q", [*head, *tail]))
        return found

    def _find(self) -> None:
        for ids, tokens in zip(self._trace.blocks, self._trace.inputs, strict=True):
            if not ids:
                continue
            last = len(ids) - 1
            left = tokens // self._size - last * self._whole // self._size
            if 0 < left < self._blocks_in(last):
                cuts = self._cuts.setdefault(ids[last], [])
                if left not in cuts:
                    cuts.append(left)
        for each, cuts in self._cuts.items():
            cuts.sort()
            begin = 0
            for end in [*cuts, self._blocks_in(self._depths[each])]:
                self._pieces[each, begin] = self._count + len(self._lengths)
                self._lengths.append(end - begin)
                begin = end

    def _counted(self) -> "array[int]":
        uses = array("q", bytes(8 * (self._count + len(self._lengths))))
        for pieces in self.paths():
            for piece in pieces:
                uses[piece] += 1
        return uses

    def _pieces_of(self, each: int, blocks: int | None = None) -> list[int]:
        """The pieces of an id, or of its first blocks."""
        if each not in self._cuts:
            return [each] if blocks or blocks is None else []
        ends = [*self._cuts[each], self._blocks_in(self._depths[each])]
        begins = [0, *ends[:-1]]
        return [
            self._pieces[each, begin]
            for begin, end in zip(begins, ends, strict=True)
            if blocks is None or end <= blocks
        ]

    def _blocks_in(self, depth: int) -> int:
        """Engine blocks that end within the trace's block at this depth."""
        return (depth + 1) * self._whole // self._size - depth * self._whole // self._size


def _depths(parents: Sequence[int]) -> "array[int]":
    depths = array("q", bytes(8 * len(parents)))
    for each, parent in enumerate(parents):  # parents come before their children
        if parent != NO_PARENT:
            depths[each] = depths[parent] + 1
    return depths
