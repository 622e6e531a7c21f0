"""A trace file becomes a ``Trace``, and word of how.

Knows the way from a file's bytes to the columns. Never knows a format: those are in ``simulations.traces.formats``.
"""

from balancer.errors import ConfigError
from simulations.traces.formats.base import Desk, Reading, ReadingOptions, formats, guess
from simulations.traces.lines import Lines
from simulations.traces.trace import Trace, TraceBuilder

DEFAULTS = ReadingOptions()


def open_trace(path: str, options: ReadingOptions = DEFAULTS) -> tuple[Trace, Reading]:
    """The trace in this file (``-``: on standard input), packed with gzip or zstd or not, and how it was read.

    Memory holds one line and the columns, whatever the file's size.

    Raises:
        ConfigError: it cannot be read, has no requests, or has a line that is none where the options are strict.
    """
    with Lines(path) as lines:
        desk = Desk(lines, options)
        if not desk.first() and not desk.source.is_list:
            for _ in desk.records():
                pass
            _refuse_empty(desk)
        name = options.format or guess(desk)
        builder = formats.make(name, {}).read(desk)
        if not len(builder):
            _refuse_empty(desk)
        _tell(desk, builder)
        reading = Reading(lines.name, name, len(builder), desk.skipped, tuple(desk.problems), tuple(desk.notes))
        return builder.build(), reading


def _refuse_empty(desk: Desk) -> None:
    name = desk.source.name
    if desk.problems:
        raise ConfigError(
            f"{name}: no requests: {desk.skipped:,} of its lines cannot be read; the first: {desk.problems[0]}"
        )
    raise ConfigError(f"{name}: no requests; is this the right file?")


def _tell(desk: Desk, builder: TraceBuilder) -> None:
    if not builder.is_sorted:
        desk.note("requests are not in order of time; they were sorted")
    if builder.rechained:
        desk.note(
            f"ids that were taken for whole prefixes come behind different ones (in {builder.rechained:,} requests or more); "
            "they were chained"
        )
