"""The report for a terminal.

Knows how wide it is, and whether it has colours. Never knows files or streams: it gives text, one block after the other, no
line of which is wider than asked.
"""

import textwrap
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from simulations.report.comparison import Cell, Fleet, base, cells, ranked
from simulations.report.document import BoundFacts, Document
from simulations.report.figures import count, duration, percent, seconds
from simulations.report.finding import NOT_KNOWN, Certainty
from simulations.report.fleets import fleet_words

NAME: Final = 34
"""Names longer than this are cut."""

BOLD: Final = "\x1b[1m"
DIM: Final = "\x1b[2m"
PLAIN: Final = "\x1b[0m"


class Column(msgspec.Struct, frozen=True):
    """``begins`` what is to stay on one line; ``of_answers`` is only there where answers were played token by token."""

    head: str
    show: Callable[[Cell], str]
    begins: bool = False
    of_answers: bool = False


def _mean(figure: Callable[[Cell], float]) -> Callable[[Cell], str]:
    return lambda cell: seconds(figure(cell)) if cell.served else "-"


def _over(name: str) -> Callable[[Cell], float]:
    def mean(cell: Cell) -> float:
        served = [each.summary for each in cell.results if each.summary.requests > each.summary.refused]
        values = [value for each in served if (value := getattr(each, name)) is not None]
        return float(sum(values) / len(values)) if values else 0.0

    return mean


def _pace(name: str) -> Callable[[Cell], str]:
    figure = _over(name)
    return lambda cell: "-" if cell.tpot_mean is None else seconds(1000 * figure(cell))


def _share(at: int) -> Callable[[Cell], str]:
    return lambda cell: percent(cell.misses[at]) if cell.served else "-"


COLUMNS: Final = (
    Column("hit", lambda cell: percent(cell.hit.mean) if cell.served else "-"),
    Column("TTFT mean", _mean(lambda cell: cell.ttft_mean.mean)),
    Column("p50", _mean(_over("ttft_p50"))),
    Column("p95", _mean(lambda cell: cell.ttft_p95.mean)),
    Column("p99", _mean(_over("ttft_p99"))),
    Column("latency", _mean(lambda cell: cell.latency_mean.mean), begins=True, of_answers=True),
    Column("p95", _mean(_over("latency_p95")), of_answers=True),
    Column("TPOT ms", _pace("tpot_mean"), of_answers=True),
    Column("p95", _pace("tpot_p95"), of_answers=True),
    Column("spread", _mean(_over("spread")), begins=True),
    Column("refused", lambda cell: percent(cell.refused) if cell.refused else "0"),
    Column("evicted", _share(3), begins=True),
    Column("elsewhere", _share(2)),
    Column("in flight", _share(1)),
    Column("first time", _share(0)),
)


def table(report: Document, *, width: int = 100, colour: bool = False) -> str:
    """Facts, one table for each fleet with the bounds beneath it, and the findings.

    Times in seconds, those of a token in milliseconds; of several seeds, means, and ± half of the 95 % interval for the mean
    time to the first token.
    """
    facts = report.trace
    blocks = [
        f"{_safe(facts.name)}: {facts.requests:,} requests in {duration(facts.seconds)}, {count(facts.input_tokens)} prompt "
        f"tokens, {count(facts.output_tokens)} answered"
    ]
    every = cells(report.results)
    first = base(every)
    fleets = list(dict.fromkeys([*(cell.fleet for cell in first), *(cell.fleet for cell in every)]))
    blocks += [_fleet_block(every, fleet, report.bounds, width, colour) for fleet in fleets]
    if report.baseline is not None:
        blocks.append(_wrapped(report.baseline.words, width))
    for finding in report.findings:
        is_said = finding.certainty is Certainty.MEASURED or finding.verdict == NOT_KNOWN
        mark = "" if is_said else f" ({finding.certainty.words})"
        head = _wrapped(f"{finding.question} {finding.verdict}{mark}", width)
        blocks.append(_paint(head, BOLD, colour) + "\n" + _wrapped(finding.answer, width))
    return "\n\n".join("\n".join(_folded(line, width) for line in block.split("\n")) for block in blocks) + "\n"


def _fleet_block(every: Sequence[Cell], fleet: Fleet, bounds: BoundFacts | None, width: int, colour: bool) -> str:
    some = [cell for cell in every if cell.fleet == fleet]
    head = _safe(fleet_words(every, fleet))
    seeds = max(cell.seeds for cell in some)
    if seeds > 1:
        head += _seed_words(some, seeds)
    ordered = ranked(some)
    has_answers = any(cell.tpot_mean is not None for cell in every)
    columns = [column for column in COLUMNS if has_answers or not column.of_answers]
    rows = [[_safe(cell.policy), *(column.show(cell) for column in columns)] for cell in ordered]
    if seeds > 1:
        for row, cell in zip(rows, ordered, strict=True):
            half = (cell.ttft_mean.high - cell.ttft_mean.low) / 2
            row[2] += f" ±{seconds(half)}" if half > 0 else ""
    ends = len(rows)
    if bounds is not None:
        pool = bounds.pool_of(fleet.pool_tokens)
        known = [("one LRU cache of that size", pool.lru), ("… that knows the future", pool.belady)] if pool else []
        rows += [[name, percent(hit)] for name, hit in [*known, ("nothing forgotten", bounds.infinite)]]
    return _wrapped(head, width) + "\n" + _grid(columns, rows, ends, width, colour)


def _seed_words(some: Sequence[Cell], seeds: int) -> str:
    """Of how many runs the figures are means, and of which that says nothing."""
    certain = [cell.policy for cell in some if cell.is_certain]
    if len(certain) == len(some):
        return f", the same with each of {seeds} seeds: none of it was left to chance"
    told = f", means over {seeds} seeds"
    return f"{told} ({', '.join(map(_safe, certain))}: the same with each)" if certain else told


def _grid(columns: Sequence[Column], rows: list[list[str]], ends: int, width: int, colour: bool) -> str:
    """Columns side by side, as far as they fit; what stays together and does not fit is below, with the names again."""
    head = ["policy", *(column.head for column in columns)]
    names = [_cut(row[0], min(NAME, max(8, width - 12))) for row in rows]
    room = max(len(each) for each in [head[0], *names])
    wide = [max([len(head[at]), *(len(row[at]) for row in rows if at < len(row))]) for at in range(len(head))]
    ends_at = [at for at, column in enumerate(columns, 1) if column.begins] + [len(head)]
    groups: list[list[int]] = [[]]
    used = room
    for at in range(1, len(head)):
        is_first = at == 1 or columns[at - 1].begins
        last = next(end for end in ends_at if end > at) if is_first else at + 1
        if groups[-1] and used + sum([2 + each for each in wide[at:last]]) > width:
            groups.append([])
            used = room
        groups[-1].append(at)
        used += 2 + wide[at]
    lines = []
    for number, group in enumerate(groups):
        if number:
            lines.append("")
        lines.append(_paint("  ".join([head[0].ljust(room), *(head[at].rjust(wide[at]) for at in group)]), DIM, colour))
        for place, row in enumerate(rows):
            values = [(row[at] if at < len(row) else "").rjust(wide[at]) for at in group]
            if place >= ends and not any(value.strip() for value in values):
                continue
            line = "  ".join([names[place].ljust(room), *values]).rstrip()
            lines.append(_paint(line, BOLD if place == 0 < ends else DIM if place >= ends else "", colour))
    return "\n".join(lines)


def _paint(words: str, how: str, colour: bool) -> str:
    return f"{how}{words}{PLAIN}" if colour and how else words


def _wrapped(words: str, width: int) -> str:
    return "\n".join(textwrap.wrap(_safe(words), max(20, width), break_on_hyphens=False))


def _folded(line: str, width: int) -> str:
    """Prose that is still too wide; lines with colours were made to fit before."""
    return line if len(line) <= width or "\x1b" in line or "  " in line else _wrapped(line, width)


def _cut(words: str, width: int) -> str:
    return words if len(words) <= width else words[: width - 1] + "…"


def _safe(words: str) -> str:
    """Names come from files: nothing in them may speak to the terminal."""
    return "".join(each if each.isprintable() else "?" for each in words)
