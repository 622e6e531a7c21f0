"""A workload: when each request came, how long it was, and by which blocks it began.

Knows arrival, lengths, sessions and block ids in columns. Never knows where they were read from, or what is done with them.
Between calls requests are in order of arrival, ids are small numbers without gaps, and each id names a whole prefix: it has
exactly one parent.
"""

from array import array
from collections.abc import Sequence
from typing import Final

import msgspec

NO_PARENT: Final = -1
NO_SESSION: Final = -1
NO_PAUSE: Final = -1.0
MAX_TOKENS: Final = 2**31 - 1

CHECKED: Final = 200_000
"""Blocks among which it is looked for ids that come twice."""

_HALF: Final = 2**63
_64_BITS: Final = 2**64 - 1
_32_BITS: Final = 2**32 - 1


class TraceError(ValueError):
    """A request that cannot be; ``field`` is what is wrong with it."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class Trace(msgspec.Struct, frozen=True):
    """Requests in order of arrival, one in each place of the columns.

    Attributes:
        name: what people call it.
        block_size: tokens of one id of ``blocks``.
        arrivals: seconds since the first one.
        inputs: tokens of the prompt, at least 1.
        outputs: tokens of the answer, at least 1.
        blocks: ids of the prompt's blocks, a last partial one included where it is known; none where nothing is known of the
            content.
        parents: by id, the one that each follows, which is smaller; ``NO_PARENT`` for first blocks.
        sessions: a number for each conversation; ``NO_SESSION`` where nobody says.
        pauses: seconds between the answer to the session's request before and this one; ``NO_PAUSE`` where time alone says when
            it comes.
    """

    name: str
    block_size: int
    arrivals: "array[float]"
    inputs: "array[int]"
    outputs: "array[int]"
    blocks: "list[array[int]]"
    parents: "array[int]"
    sessions: "array[int]"
    pauses: "array[float]"

    def __len__(self) -> int:
        return len(self.arrivals)

    @property
    def seconds(self) -> float:
        """From the first arrival to the last."""
        return self.arrivals[-1] if self.arrivals else 0.0

    @property
    def input_tokens(self) -> int:
        return sum(self.inputs)

    @property
    def has_pauses(self) -> bool:
        """Whether it can be played in a closed loop."""
        return any(pause != NO_PAUSE for pause in self.pauses)

    @property
    def has_blocks(self) -> bool:
        """Whether anything is known of what prompts have in common."""
        return any(self.blocks)


class TraceBuilder:
    """Makes a trace of requests in any order. Mutable; ``build`` ends it.

    Ids are kept as a tree of runs: what a prompt adds to those before it is one run of ids that follow each other, and only a
    run's first id has to be looked up. So a block costs 16 bytes and a prompt some hundred, whatever the file's ids look like.
    """

    def __init__(self, name: str, block_size: int, *, is_chained: bool) -> None:
        """``is_chained`` says whether an id already names a whole prefix, or what is in its own block alone.

        Ids that are said to be chained and are not (one comes behind two different ones) are chained all the same:
        ``rechained`` counts the requests where that was seen, as long as there are at most ``CHECKED`` blocks.
        """
        if block_size < 1:
            raise TraceError("block_size", f"must be at least 1 token, got {block_size}")
        self._name = name
        self._block_size = block_size
        self._arrivals = array("d")
        self._inputs = array("q")
        self._outputs = array("q")
        self._blocks: list[array[int]] = []
        self._sessions = array("q")
        self._pauses = array("d")
        self._parents = array("i")
        self._ids = array("q")  # by our id, the file's
        self._runs: dict[int, int] = {}  # (our parent, the file's id) -> (our first id, ids)
        self._counting = array("i")  # 0, 1, 2 ...: a slice of it is made faster than of a range
        self._numbers: dict[int | str, int] = {}  # sessions
        self._seen: set[int] | None = set() if is_chained else None
        self.rechained = 0
        self.is_sorted = True
        """Whether requests have been added in order of arrival."""

    def __len__(self) -> int:
        return len(self._arrivals)

    @property
    def seconds(self) -> float:
        """From the first arrival to the last."""
        return max(self._arrivals) - min(self._arrivals) if self._arrivals else 0.0

    def add(
        self,
        arrival: float,
        input_tokens: int,
        output_tokens: int,
        ids: Sequence[int] = (),
        *,
        session: int | str | None = None,
        pause: float | None = None,
    ) -> None:
        """One more request; ``arrival`` in seconds on any clock, ``ids`` of the prompt's blocks from the first one on.

        Of an id the lowest 64 bits count.

        Raises:
            TraceError: it cannot be; nothing was added.
        """
        if not arrival - arrival == 0:  # neither infinite nor no number
            raise TraceError("arrival", f"must be a number of seconds, got {arrival}")
        if not 1 <= input_tokens <= MAX_TOKENS:
            raise TraceError("input_length", f"must be from 1 to {MAX_TOKENS} tokens, got {input_tokens}")
        if not 0 <= output_tokens <= MAX_TOKENS:
            raise TraceError("output_length", f"must be from 0 to {MAX_TOKENS} tokens, got {output_tokens}")
        if pause is not None and not 0 <= pause < float("inf"):
            raise TraceError("delay", f"must be 0 or more, got {pause}")
        size = self._block_size
        if ids and not input_tokens // size <= len(ids) <= -(-input_tokens // size):
            full, rest = divmod(input_tokens, size)
            raise TraceError(
                "hash_ids",
                f"{len(ids)} ids of {size} tokens do not make a prompt of {input_tokens}, which has {full} full blocks"
                f"{' and a partial one' if rest else ''}",
            )
        arrivals = self._arrivals
        if arrivals and arrival < arrivals[-1]:
            self.is_sorted = False
        self._blocks.append(self._own(ids))
        arrivals.append(arrival)
        self._inputs.append(input_tokens)
        self._outputs.append(output_tokens or 1)
        self._sessions.append(NO_SESSION if session is None else self._numbers.setdefault(session, len(self._numbers)))
        self._pauses.append(NO_PAUSE if pause is None else pause)

    def build(self) -> Trace:
        """The trace, in order of arrival; requests that came at once stay in the order in which they were added."""
        first = min(self._arrivals, default=0.0)
        columns = (self._inputs, self._outputs, self._sessions)
        arrivals, pauses, blocks = self._arrivals, self._pauses, self._blocks
        if not self.is_sorted:
            order = sorted(range(len(arrivals)), key=arrivals.__getitem__)
            arrivals = array("d", [arrivals[at] for at in order])
            pauses = array("d", [pauses[at] for at in order])
            blocks = [blocks[at] for at in order]
            columns = tuple(array("q", [column[at] for at in order]) for column in columns)  # type: ignore[assignment]
        inputs, outputs, sessions = columns
        return Trace(
            name=self._name,
            block_size=self._block_size,
            arrivals=array("d", [arrival - first for arrival in arrivals]) if first else arrivals,
            inputs=inputs,
            outputs=outputs,
            blocks=blocks,
            parents=self._parents,
            sessions=sessions,
            pauses=pauses,
        )

    def _own(self, ids: Sequence[int]) -> "array[int]":
        """Our ids for the file's: small numbers, one for each prefix."""
        try:
            wanted = array("q", ids)
        except OverflowError:
            wanted = array("q", [((each + _HALF) & _64_BITS) - _HALF for each in ids])
        own = array("i")
        known, runs, numbers = self._ids, self._runs, self._counting
        at, end, parent = 0, len(wanted), NO_PARENT
        while at < end:
            key = (parent + 1) << 64 | wanted[at] & _64_BITS
            run = runs.get(key)
            if run is None:
                return self._grown(key, parent, wanted[at:], own)
            first = run >> 32
            count = min(run & _32_BITS, end - at)
            if count > 1 and known[first + 1] != wanted[at + 1]:  # where prompts part most often
                count = 1
            elif known[first : first + count] != wanted[at : at + count]:
                count = _common(known, first, wanted, at, count)
            own += numbers[first : first + count]
            parent = first + count - 1
            at += count
        return own

    def _grown(self, key: int, parent: int, new: "array[int]", own: "array[int]") -> "array[int]":
        """``own`` and a new run behind it."""
        first = len(self._ids)
        if self._seen is not None:
            before = len(self._seen)
            self._seen.update(new)
            self.rechained += len(self._seen) - before < len(new)
            if len(self._seen) > CHECKED:
                self._seen = None
        self._runs[key] = first << 32 | len(new)
        self._ids += new
        last = len(self._ids)
        numbers = self._counting
        if last > len(numbers):
            numbers.extend(range(len(numbers), last + last // 4))
        self._parents.append(parent)
        self._parents += numbers[first : last - 1]
        own += numbers[first:last]
        return own


def _common(known: "array[int]", first: int, wanted: "array[int]", at: int, count: int) -> int:
    """How many of ``count`` ids are the same in both, from these places on; the first two are, and not all of them are."""
    same, other = 2, count
    while other - same > 1:
        middle = (same + other) // 2
        if known[first + same : first + middle] == wanted[at + same : at + middle]:
            same = middle
        else:
            other = middle
    return same
