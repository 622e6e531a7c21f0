"""The same workload for a fleet of another size, with all that prompts have in common left as it is.

Knows the axes along which a trace can be stretched: time, conversations, length. Never makes a new kind of request. Results
share columns with the trace that they were made of, and are as frozen.
"""

from array import array
from collections.abc import Sequence
from random import Random
from typing import Final

import msgspec

from simulations.traces.sessions import derived_sessions, wide_blocks
from simulations.traces.trace import NO_PARENT, NO_SESSION, Trace

MAX_COPIES: Final = 10_000

DELAY_SHARE: Final = 0.05
"""Of a trace's time, by which copies of it are put off at most."""


def faster(trace: Trace, times: float) -> Trace:
    """The same requests, ``times`` as many a second. Pauses stay: people think as fast as ever.

    Raises:
        ValueError: ``times`` is no number above 0.
    """
    _positive("times", times)
    return msgspec.structs.replace(trace, arrivals=array("d", [arrival / times for arrival in trace.arrivals]))


def first(trace: Trace, *, seconds: float | None = None, requests: int | None = None) -> Trace:
    """What came in the first ``seconds``, and of that the first so many ``requests``."""
    count = len(trace)
    if seconds is not None:
        count = sum(arrival <= seconds for arrival in trace.arrivals)
    if requests is not None:
        count = max(0, min(count, requests))
    return _taken(trace, range(count))


def between(trace: Trace, begin: int, end: int) -> Trace:
    """The requests from one place to another, which is not included; the first of them comes at once."""
    return _taken(trace, range(min(begin, len(trace)), min(end, len(trace))))


def sessions_times(trace: Trace, times: float, random: Random) -> Trace:
    """``times`` as many conversations in the same time: for a fleet of so many times the replicas, the same load on each.

    Less than 1 keeps a share of whole conversations. More than 1 adds copies of the trace (of a share of its conversations, for
    what is left of a fraction): each is shifted by a time of its own, and its blocks are its own, but for those that nearly
    everybody begins with. Conversations are those that the trace names, else derived ones (``simulations.traces.sessions``).

    Raises:
        ValueError: ``times`` is no number above 0, or more than 10,000.
    """
    _positive("times", times)
    if times > MAX_COPIES:
        raise ValueError(f"times: must be at most {MAX_COPIES}, got {times}")
    copies = int(times)
    sessions = derived_sessions(trace)
    share = times - copies
    part = _taken(trace, _of_some(sessions, share, random)) if share else None
    if not copies:
        assert part is not None
        return part
    wide = wide_blocks(trace)
    pieces = [trace, *[_copy(trace, random) for _ in range(copies - 1)]]
    if part is not None:
        pieces.append(_copy(part, random))
    return pieces[0] if len(pieces) == 1 else _joined(pieces, wide)


def _positive(name: str, value: float) -> None:
    if not 0 < value < float("inf"):
        raise ValueError(f"{name}: must be a number above 0, got {value}")


def _of_some(sessions: Sequence[int], share: float, random: Random) -> list[int]:
    """The places of all requests of so large a share of the conversations."""
    count = max(sessions, default=-1) + 1
    kept = set(random.sample(range(count), min(count, max(1, round(share * count)))))
    return [at for at, session in enumerate(sessions) if session in kept]


def _taken(trace: Trace, places: Sequence[int]) -> Trace:
    """These requests alone, from the first one's arrival on. Ids stay; those that nobody uses any more do no harm."""
    begin = trace.arrivals[places[0]] if places else 0.0
    return msgspec.structs.replace(
        trace,
        arrivals=array("d", [trace.arrivals[at] - begin for at in places]),
        inputs=array("q", [trace.inputs[at] for at in places]),
        outputs=array("q", [trace.outputs[at] for at in places]),
        blocks=[trace.blocks[at] for at in places],
        sessions=array("q", [trace.sessions[at] for at in places]),
        pauses=array("d", [trace.pauses[at] for at in places]),
    )


def _copy(trace: Trace, random: Random) -> Trace:
    """The same at other times.

    What would come after the end comes at the start, so that the load stays what it is. Where turns wait for answers, none may
    come before the one that it waits for: then all is put off, by a small share of the trace's time.
    """
    span = trace.seconds
    if trace.has_pauses:
        shift = random.uniform(0, DELAY_SHARE * span)
        moved = [arrival + shift for arrival in trace.arrivals]
    else:
        shift = random.uniform(0, span)
        moved = [arrival + shift if arrival + shift <= span else arrival + shift - span for arrival in trace.arrivals]
    return msgspec.structs.replace(trace, arrivals=array("d", moved))


def _joined(pieces: Sequence[Trace], wide: bytearray) -> Trace:
    """All requests of these in order of arrival. Each has sessions and blocks of its own, but for the ``wide`` blocks."""
    base = pieces[0]
    parents = array("i", base.parents)
    sessions, blocks = array("q", base.sessions), list(base.blocks)
    own_sessions = max(base.sessions, default=NO_SESSION) + 1
    for number, piece in enumerate(pieces[1:], 1):
        ids = _renamed(base.parents, wide, parents)
        blocks += [array("i", [ids[each] for each in path]) for path in piece.blocks]
        sessions += array(
            "q", [NO_SESSION if each == NO_SESSION else each + number * own_sessions for each in piece.sessions]
        )
    arrivals = [arrival for piece in pieces for arrival in piece.arrivals]
    order = sorted(range(len(arrivals)), key=arrivals.__getitem__)
    begin = arrivals[order[0]] if order else 0.0
    inputs = [each for piece in pieces for each in piece.inputs]
    outputs = [each for piece in pieces for each in piece.outputs]
    pauses = [each for piece in pieces for each in piece.pauses]
    return msgspec.structs.replace(
        base,
        arrivals=array("d", [arrivals[at] - begin for at in order]),
        inputs=array("q", [inputs[at] for at in order]),
        outputs=array("q", [outputs[at] for at in order]),
        blocks=[blocks[at] for at in order],
        parents=parents,
        sessions=array("q", [sessions[at] for at in order]),
        pauses=array("d", [pauses[at] for at in order]),
    )


def _renamed(base: Sequence[int], wide: bytearray, parents: "array[int]") -> "array[int]":
    """By the first piece's ids, those of one more piece, whose new ones are put behind ``parents``."""
    ids = array("i")
    for at, parent in enumerate(base):
        if wide[at]:
            ids.append(at)
        else:
            ids.append(len(parents))
            parents.append(NO_PARENT if parent == NO_PARENT else ids[parent])
    return ids
