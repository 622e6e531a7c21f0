"""Where keys and secrets come from: files and environment variables.

Knows paths, variables and when a file has changed. What is in them is read by ``tenants`` and ``isolation``. A file that cannot
be used when kvlb starts is an error; later it is a warning, and what was known goes on.
"""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from balancer import tenants
from balancer.errors import ConfigError
from balancer.isolation import Salts
from balancer.security import AuthSettings, TenantSettings
from balancer.tenants import KeyRing

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 2.0
"""Between two looks at whether a file has changed."""

Stamp: TypeAlias = tuple[tuple[int, int, int], ...]


def read_keys(auth: AuthSettings) -> KeyRing | None:
    """The keys of all sources; None where there is no source.

    Raises:
        ConfigError: one cannot be read, or has no keys.
    """
    rings = []
    if auth.keys_file is not None:
        rings.append(_told("auth.keys_file", lambda: tenants.read_file(read_text("auth.keys_file", auth.keys_file))))
    if auth.keys_variable is not None:
        text = _variable("auth.keys_variable", auth.keys_variable)
        rings.append(_told(f"auth.keys_variable: {auth.keys_variable}", lambda: tenants.read_variable(text)))
    return KeyRing.together(rings) if rings else None


def read_salts(settings: TenantSettings) -> Salts | None:
    """The salts of all tenants; None where they are not kept apart.

    Raises:
        ConfigError: there is no secret, or one that cannot be used.
    """
    if not settings.isolation:
        return None
    if settings.secret_file is not None:
        text = read_text("tenants.secret_file", settings.secret_file)
    else:
        text = _variable("tenants.secret_variable", settings.secret_variable or "")
    return Salts(text.strip().encode(), settings.groups)


def read_text(setting: str, path: str | None) -> str:
    """The text of a file that a setting names.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        return Path(path or "").read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigError(f"{setting}: cannot read {path!a}: {reason}") from None


def _variable(setting: str, name: str) -> str:
    text = os.environ.get(name, "")
    if not text.strip():
        raise ConfigError(f"{setting}: the environment variable {name} is not set, or empty")
    return text


def _told(setting: str, read: Callable[[], KeyRing]) -> KeyRing:
    try:
        return read()
    except ConfigError as error:
        message = str(error)
        raise error if message.startswith(setting) else ConfigError(f"{setting}: {message}") from None


class Watched:
    """Files, and what is to be done when they have changed; ``run`` looks until it is cancelled."""

    def __init__(self, paths: list[str], reload: Callable[[], None], what: str) -> None:
        self._paths = paths
        self._reload = reload
        self._what = what
        self._stamp = self._look()

    async def run(self) -> None:
        while self._paths:
            await asyncio.sleep(LOOK_SECONDS)
            stamp = self._look()
            if stamp != self._stamp:
                self._stamp = stamp
                self.now()

    def now(self) -> None:
        """Read them again, changed or not."""
        try:
            self._reload()
        except (ConfigError, OSError) as error:  # an ssl.SSLError is one
            log.warning("%s cannot be read again, and stays as it was: %s", self._what, error)
        else:
            log.info("%s: read again", self._what)

    def _look(self) -> Stamp:
        return tuple(map(_stamp, self._paths))


def _stamp(path: str) -> tuple[int, int, int]:
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return (0, 0, 0)
    return (status.st_mtime_ns, status.st_size, status.st_ino)


@contextlib.asynccontextmanager
async def kept_fresh(sources: Sequence[Watched]) -> AsyncIterator[None]:
    """Meanwhile, whatever changes is read again, and on SIGHUP all of it: where that is nothing, it ends nobody either."""
    loop = asyncio.get_running_loop()
    tasks = [asyncio.create_task(source.run()) for source in sources]
    loop.add_signal_handler(signal.SIGHUP, _read_again, sources)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _read_again(sources: Sequence[Watched]) -> None:
    for source in sources:
        source.now()
