"""What every command that serves does first: flags for its log, and a socket that listens.

Knows addresses and what the operating system says against them. Never knows what is served.
"""

import argparse
import contextlib
import errno
import socket

from balancer.errors import ConfigError
from balancer.logs import LOG_FORMATS, LOG_LEVELS
from balancer.settings import ServerSettings


def add_log_flags(parser: argparse.ArgumentParser) -> None:
    """``--log-level`` and ``--log-format``, for ``begin_logging``."""
    parser.add_argument("--log-level", default="info", choices=LOG_LEVELS)
    parser.add_argument("--log-format", default="text", choices=LOG_FORMATS, help="json: a line of JSON for each")


def bind(server: ServerSettings) -> socket.socket:
    """The listening socket: bound before anything else is started, so that its error is the only line.

    Raises:
        ConfigError: the address cannot be bound.
    """
    _check_host(server)
    try:
        return socket.create_server((server.host, server.port), family=_family(server), backlog=4096)
    except OSError as error:
        raise _not_bound(server, error) from error


def bind_many(server: ServerSettings, count: int) -> list[socket.socket]:
    """So many listening sockets of one address, among which the system divides those who connect.

    Raises:
        ConfigError: the address cannot be bound, or somebody listens there.
    """
    _check_host(server)
    family = _family(server)
    try:
        # Several sockets may be bound to one address as soon as all of them agree; ours would agree with anybody's.
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.bind((server.host, server.port))
            port = probe.getsockname()[1]
        with contextlib.ExitStack() as stack:
            made = [
                stack.enter_context(
                    socket.create_server((server.host, port), family=family, backlog=4096, reuse_port=True)
                )
                for _ in range(count)
            ]
            stack.pop_all()
        return made
    except OSError as error:
        raise _not_bound(server, error) from error


def _family(server: ServerSettings) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in server.host else socket.AF_INET


def _check_host(server: ServerSettings) -> None:
    if not _is_name(server.host):
        raise ConfigError(f"server.host: {server.host[:40]!a} is no address; give one of this machine with --host")


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
