"""What every command that serves does first: a log on stderr, and a socket that listens.

Knows the log's format, addresses and what the operating system says against them. Never knows what is served.
"""

import errno
import logging
import socket
import sys
from typing import Final

from aiohttp.http_exceptions import HttpProcessingError

from balancer.errors import ConfigError
from balancer.settings import ServerSettings

LOG_LEVELS: Final = ("debug", "info", "warning", "error")


def begin_logging(level: str) -> None:
    """Log to stderr from here on."""
    logging.basicConfig(
        level=level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)-7s %(message)s", force=True
    )
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    logging.getLogger("aiohttp.server").addFilter(_shorten)


def _shorten(record: logging.LogRecord) -> bool:
    """What a client got wrong in HTTP itself is a line in the log, not a traceback of the parser."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, HttpProcessingError):
        told = ascii(" ".join(error.message.split()))[1:-1]  # it quotes the client, who may write what he likes
        record.msg, record.args = f"{record.getMessage()}: {told}", ()
        record.exc_info = None
        record.levelno, record.levelname = logging.WARNING, "WARNING"
    return True


def bind(server: ServerSettings) -> socket.socket:
    """The listening socket: bound before anything else is started, so that its error is the only line.

    Raises:
        ConfigError: the address cannot be bound.
    """
    if not _is_name(server.host):
        raise ConfigError(f"server.host: {server.host[:40]!a} is no address; give one of this machine with --host")
    try:
        family = socket.AF_INET6 if ":" in server.host else socket.AF_INET
        return socket.create_server((server.host, server.port), family=family, backlog=4096)
    except OSError as error:
        raise _not_bound(server, error) from error


def _is_name(host: str) -> bool:
    """Whether it can be asked for at all: what cannot makes Python's own server leave its socket open."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return "\0" not in host


def _not_bound(server: ServerSettings, error: OSError) -> ConfigError:
    host = server.host if server.host.isprintable() else ascii(server.host)
    where = f"{host}:{server.port}"
    if error.errno == errno.EADDRINUSE:
        return ConfigError(f"server.port: {where} is in use; choose another one with --port")
    reason = (error.strerror or str(error)).partition(" (while")[0]
    return ConfigError(f"server.host: cannot listen on {where}: {reason}; give an address of this machine with --host")


def url_of(listener: socket.socket, *, is_secure: bool = False) -> str:
    """Where the socket listens, as a client would write it."""
    host, port = listener.getsockname()[:2]
    return f"{'https' if is_secure else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
