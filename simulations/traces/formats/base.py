"""What a trace format is, what every reader is told, and how it tells of what it found.

Knows the shape of a reader and where formats come from. Never knows any of them: each is a file of this folder, or an entry
point of the group ``kvlb.trace_formats``.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final, NoReturn, Protocol

import msgspec

from balancer.errors import ConfigError
from balancer.registry import Registry
from balancer.words import counted, printable
from simulations.traces.lines import Bad, Line, Lines
from simulations.traces.times import UNITS
from simulations.traces.trace import TraceBuilder, TraceError

SHOWN: Final = 5
"""Problems that are told in full."""

TOO_MANY: Final = 10_000
"""Lines that cannot be read before any that can: the rest will be no better."""

FIELDS: Final = ("timestamp", "input_length", "output_length", "hash_ids", "session_id", "delay")
"""What of a request can be found under another name (``ReadingOptions.columns``)."""


class ReadingOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a trace is to be read; None where the format, or the file, says it.

    Attributes:
        format: a name of ``formats``.
        block_size: tokens of one id.
        time_unit: of numbers that are times: s, ms, us or ns.
        chained: whether an id names a whole prefix, or only what is in its own block.
        columns: one's own names of fields and columns, by those of ``FIELDS``.
        tokenizer: a file or folder of the ``tokenizers`` package, for formats with texts.
        rate: requests a second, for files without times.
        pause: seconds between an answer and the next question, for conversations without times.
        strict: end at the first line that cannot be read.
    """

    format: str | None = None
    block_size: int | None = None
    time_unit: str | None = None
    chained: bool | None = None
    columns: Mapping[str, str] = {}
    tokenizer: str | None = None
    rate: float = 1.0
    pause: float = 10.0
    strict: bool = False

    def __post_init__(self) -> None:
        if self.block_size is not None and not 1 <= self.block_size <= 1 << 20:
            raise ConfigError(
                f"--trace-block-size: {self.block_size} is no block's size; give tokens from 1 to {1 << 20}"
            )
        if self.time_unit is not None and self.time_unit not in UNITS:
            raise ConfigError(f"--time-unit: there is no {self.time_unit!r}; there are: {', '.join(UNITS)}")
        for name in self.columns:
            if name not in FIELDS:
                raise ConfigError(f"--column: there is no field {name!r}; there are: {', '.join(FIELDS)}")
        if not 0 < self.rate < float("inf"):
            raise ConfigError(f"--trace-rate: must be above 0 requests a second, got {self.rate}")
        if not 0 <= self.pause < float("inf"):
            raise ConfigError(f"--pause: must be 0 seconds or more, got {self.pause}")

    def column(self, field: str) -> str:
        """What the field is called in the file."""
        return self.columns.get(field, field)


class Reading(msgspec.Struct, frozen=True):
    """What reading a trace has brought, besides the trace.

    Attributes:
        file, format: what was read, and as what.
        requests, skipped: lines (or items) that became requests, and those that could not.
        problems: the first of those, each in a sentence with file, line, field and remedy.
        notes: what was assumed, and what is odd, each in a sentence.
    """

    file: str
    format: str
    requests: int
    skipped: int
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def text(self) -> str:
        """The same for people, a line each; without a line break at its end."""
        told = [f"{self.file}: {counted(self.requests, 'request')}, read as {self.format}"]
        told += [f"  {note}" for note in self.notes]
        if self.skipped:
            told.append(
                f"  {counted(self.skipped, 'line')} could not be read and {'was' if self.skipped == 1 else 'were'} skipped:"
            )
            told += [f"    {problem}" for problem in self.problems]
            if self.skipped > len(self.problems):
                told.append(f"    ... and {self.skipped - len(self.problems):,} more; --strict stops at the first")
        return "\n".join(told)


class Desk:
    """Where a reader gets its lines, and leaves word of those that are none. Mutable."""

    def __init__(self, lines: Lines, options: ReadingOptions) -> None:
        self.source = lines
        self.options = options
        self.skipped = 0
        self.problems: list[str] = []
        self.notes: list[str] = []
        self._first: list[Line] = []
        self._rest: Iterator[Line] | None = None
        self._builder: TraceBuilder | None = None

    @property
    def name(self) -> str:
        """Of the trace: the file's, without what says how it is packed."""
        path = self.source.path
        if path == "-":
            return "stdin"
        return path.replace("\\", "/").rsplit("/", 1)[-1].split(".", 1)[0] or path

    def first(self) -> bytes:
        """The first line that can be looked at, which stays where it is; nothing where there is none."""
        if self._rest is None:
            self._rest = self.source.items() if self.source.is_list else self.source.lines()
            for line in self._rest:
                self._first.append(line)
                if not isinstance(line[1], Bad) or len(self._first) > 1_000:
                    break
        return next((line for _, line in self._first if not isinstance(line, Bad)), b"")

    def records(self) -> Iterator[tuple[int, bytes]]:
        """Each line with its number; those that are too long have been told."""
        self.first()
        assert self._rest is not None
        for lines in (self._first, self._rest):
            for number, line in lines:
                if isinstance(line, Bad):
                    self.skip(number, "", line.what)
                else:
                    yield number, line

    def skip(self, number: int, field: str, what: str) -> None:
        """This line is no request.

        Raises:
            ConfigError: that was not to be put up with.
        """
        self.skipped += 1
        if self.options.strict:
            self.stop(number, field, what)
        if len(self.problems) < SHOWN:
            self.problems.append(self._problem(number, field, what))
        if self.skipped == TOO_MANY and not self._builder:
            raise ConfigError(
                f"{self.source.name}: none of the first {TOO_MANY:,} lines can be read; is it of another format? "
                f"The first: {self.problems[0]}"
            )

    def stop(self, number: int, field: str, what: str) -> NoReturn:
        """Nothing can be made of the file.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(self._problem(number, field, what))

    def note(self, what: str) -> None:
        """Something to be told at the end."""
        self.notes.append(what)

    def builder(self, block_size: int, *, is_chained: bool) -> TraceBuilder:
        """For a trace of this file, with what the options say of blocks."""
        options = self.options
        self._builder = TraceBuilder(
            self.name,
            options.block_size or block_size,
            is_chained=is_chained if options.chained is None else options.chained,
        )
        return self._builder

    def _problem(self, number: int, field: str, what: str) -> str:
        unit = "" if self.source.unit == "line" else f"{self.source.unit} "
        place = f"{self.source.name}:{unit}{number}"
        return printable(f"{place}: {field}: {what}" if field else f"{place}: {what}")


class Format(Protocol):
    """Reads files of one kind. A ``msgspec.Struct`` without fields; a class of its own for each format."""

    def recognises(self, first: bytes, fields: Mapping[str, Any] | None) -> bool:
        """Whether a file that begins so is one: its first line, and its fields, by our names, where that is a JSON object."""
        ...

    def read(self, desk: Desk) -> TraceBuilder:
        """All requests.

        Raises:
            ConfigError: nothing can be made of the file, or ``strict`` found a line to be none.
        """
        ...


formats: Registry[Format] = Registry(
    "format", package="simulations.traces.formats", group="kvlb.trace_formats", method="read"
)


def guess(desk: Desk) -> str:
    """The format of a file by how it begins.

    Raises:
        ConfigError: nobody knows it, or it could be several.
    """
    first = desk.first()
    try:
        fields = msgspec.json.decode(first)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        fields = None
    if isinstance(fields, dict):
        ours = {theirs: name for name, theirs in desk.options.columns.items()}
        fields = {ours.get(name, name): value for name, value in fields.items()}
    else:
        fields = None
    found = [name for name, each in _known().items() if each.recognises(first, fields)]
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigError(
            f"{desk.source.name}: could be of several formats; say which with --format: {', '.join(found)}"
        )
    raise ConfigError(
        f"{desk.source.name}: is of no format that is known by its first line; say which with --format: "
        f"{', '.join(formats.names())} (and what its columns are called with --column)"
    )


@cache
def _known() -> Mapping[str, Format]:
    return {name: formats.make(name, {}) for name in formats.names()}


def message_of(error: TraceError) -> str:
    """What is wrong, without the field's name before it."""
    return str(error).removeprefix(f"{error.field}: ")
