"""A workload: when each request came, how long it was, and by which blocks it began.

Knows arrival, lengths, sessions and block ids in columns. Never knows where they were read from, or what is done with them. Between
calls requests are in order of arrival, ids are small numbers without gaps, and each id names a whole prefix: it has exactly one parent.
"""

from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

NO_PARENT: Final = -1
NO_SESSION: Final = -1
NO_PAUSE: Final = -1.0
MAX_TOKENS: Final = 2**31 - 1


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
    """Makes a trace of requests in any order. Mutable; ``build`` ends it."""

    def __init__(self, name: str, block_size: int, *, is_chained: bool) -> None:
        """``is_chained`` says whether an id already names a whole prefix, or what is in its own block alone.

        Ids that are said to be chained and are not (one comes behind two different ones) are chained all the same: ``rechained``
        counts the requests where that was seen.
        """
        if block_size < 1:
            raise TraceError("block_size", f"must be at least 1 token, got {block_size}")
        self._name = name
        self._block_size = block_size
        self._is_chained = is_chained
        self._arrivals = array("d")
        self._inputs = array("q")
        self._outputs = array("q")
        self._blocks: list[array[int]] = []
        self._sessions = array("q")
        self._pauses = array("d")
        self._parents = array("q")
        self._known: dict[int | tuple[int, int], int] = {}  # chained: the file's id; else (our parent, the file's id)
        self._numbers: dict[int | str, int] = {}  # sessions
        self.rechained = 0

    def __len__(self) -> int:
        return len(self._arrivals)

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
            raise TraceError(
                "hash_ids",
                f"{len(ids)} ids of {size} tokens do not make a prompt of {input_tokens}, which has {input_tokens // size} full blocks"
                f"{' and a partial one' if input_tokens % size else ''}",
            )
        own = self._own(ids)
        self._arrivals.append(arrival)
        self._inputs.append(input_tokens)
        self._outputs.append(max(1, output_tokens))
        self._blocks.append(own)
        self._sessions.append(NO_SESSION if session is None else self._numbers.setdefault(session, len(self._numbers)))
        self._pauses.append(NO_PAUSE if pause is None else pause)

    def build(self) -> Trace:
        """The trace, in order of arrival; requests that came at once stay in the order in which they were added."""
        count = len(self._arrivals)
        first = min(self._arrivals, default=0.0)
        order: Iterable[int] = range(count)
        if any(self._arrivals[at] > self._arrivals[at + 1] for at in range(count - 1)):
            order = sorted(order, key=self._arrivals.__getitem__)
        order = list(order)

        def column(kind: str, values: Callable[[int], float]) -> "array[int]":
            return array(kind, map(values, order))  # type: ignore[arg-type]

        return Trace(
            name=self._name,
            block_size=self._block_size,
            arrivals=array("d", [self._arrivals[at] - first for at in order]),
            inputs=column("q", self._inputs.__getitem__),
            outputs=column("q", self._outputs.__getitem__),
            blocks=[self._blocks[at] for at in order],
            parents=self._parents,
            sessions=column("q", self._sessions.__getitem__),
            pauses=array("d", [self._pauses[at] for at in order]),
        )

    def _own(self, ids: Sequence[int]) -> "array[int]":
        """Our ids for the file's: small numbers, one for each prefix."""
        if self._is_chained:
            known = self._known
            found = [known.get(each, NO_PARENT) for each in ids]
            parents = self._parents
            count = found.index(NO_PARENT) if NO_PARENT in found else len(found)
            # What is known must be known as one piece, and nothing known may come behind what is new.
            if all(parents[found[at]] == (found[at - 1] if at else NO_PARENT) for at in range(count)) and not any(
                each != NO_PARENT for each in found[count:]
            ):
                new = ids[count:]
                if len(set(new)) == len(new):
                    first = len(parents)
                    if new:
                        parents.append(found[count - 1] if count else NO_PARENT)
                        parents.extend(range(first, first + len(new) - 1))
                        known.update(zip(new, range(first, first + len(new)), strict=True))
                    return array("I", [*found[:count], *range(first, first + len(new))])
            self.rechained += 1
        return self._chained(ids)

    def _chained(self, ids: Sequence[int]) -> "array[int]":
        known, parents = self._known, self._parents
        own = array("I")
        parent = NO_PARENT
        for each in ids:
            at = known.get(each) if self._is_chained else None
            if at is None or parents[at] != parent:
                at = known.get((parent, each))
            if at is None:
                at = known[parent, each] = len(parents)
                parents.append(parent)
            own.append(at)
            parent = at
        return own
