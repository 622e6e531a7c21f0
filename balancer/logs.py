"""The log on standard error, for people or for machines.

Knows two formats. What a client, a replica or a name server wrote is among what is logged, so control characters are escaped in
both: no record can look like two. What a call to the log gives as ``extra`` (``request_id``, ``replica``, ``tenant``) are
fields of their own in JSON, and left out for people.
"""

import logging
import sys
from datetime import UTC, datetime
from typing import Final

import msgspec
from aiohttp.http_exceptions import HttpProcessingError

LOG_LEVELS: Final = ("debug", "info", "warning", "error")
LOG_FORMATS: Final = ("text", "json")

_CONTROLS: Final = {code: ascii(chr(code))[1:-1] for code in (*range(32), *range(127, 160), 0x2028, 0x2029)}
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def begin_logging(level: str, log_format: str = "text", process: str = "") -> None:
    """Log to stderr from here on; ``level`` and ``log_format`` are of the lists above.

    ``process`` is the name of this one, where there are several.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    if process:
        handler.addFilter(_Named(process, in_message=log_format == "text"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    logging.getLogger("aiohttp.server").addFilter(_shorten)


class _Named(logging.Filter):
    """Says in each record which process it is of."""

    def __init__(self, process: str, *, in_message: bool) -> None:
        super().__init__()
        self._process = process
        self._in_message = in_message

    def filter(self, record: logging.LogRecord) -> bool:
        if self._in_message:
            record.msg, record.args = f"{self._process}: {record.getMessage()}", ()
        else:
            record.role = self._process
        return True


class TextFormatter(logging.Formatter):
    """A line for people, and a traceback below it."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        return super().formatMessage(record).translate(_CONTROLS)


class JsonFormatter(logging.Formatter):
    """One line of JSON: ``time`` (RFC 3339), ``level``, ``logger``, ``message``, what the call gave besides, ``exception``."""

    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, object] = {
            "time": written(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        told.update((name, value) for name, value in vars(record).items() if name not in _STANDARD)
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(_plain(told), enc_hook=str).decode()


def written(time: float) -> str:
    """Seconds since 1970 as RFC 3339 has them, in UTC and to the millisecond."""
    return datetime.fromtimestamp(time, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _plain(value: object) -> object:
    """The same without what is no text: half of a surrogate pair, as header values may have."""
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    return {name: _plain(each) for name, each in value.items()} if isinstance(value, dict) else value


def _shorten(record: logging.LogRecord) -> bool:
    """What a client got wrong in HTTP itself is a line in the log, not a traceback of the parser."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, HttpProcessingError):
        told = ascii(" ".join(error.message.split()))[1:-1]  # it quotes the client, who may write what he likes
        record.msg, record.args = f"{record.getMessage()}: {told}", ()
        record.exc_info = None
        record.levelno, record.levelname = logging.WARNING, "WARNING"
    return True
