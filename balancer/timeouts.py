"""How long a request may take, phase by phase, and by which path it came.

Knows names, defaults and what can be used, in seconds. Never waits and never knows the time: whoever forwards a request asks
``TimeoutSettings.of`` once, and obeys.
"""

from collections.abc import Collection
from typing import Any, Final

import msgspec

from balancer.errors import ConfigError

PHASES: Final = ("connect_seconds", "first_byte_seconds", "idle_seconds", "total_seconds")

NO_LIMIT: Final = 3.0e7
"""A year, in seconds: the timers of event loops know no infinity."""


class Timeouts(msgspec.Struct, frozen=True):
    """The limits of one request, in seconds; ``NO_LIMIT`` is none.

    ``connect``: until a connection to the replica stands. ``first_byte``: from the request to the first output of the
    answer. ``idle``: between two pieces of it. ``total``: from the request's arrival to the end of the answer, over all
    attempts.
    """

    connect: float
    first_byte: float
    idle: float
    total: float


class RouteTimeouts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What one path does otherwise; what is not given is as for all."""

    connect_seconds: float | None = None
    first_byte_seconds: float | None = None
    idle_seconds: float | None = None
    total_seconds: float | None = None


class TimeoutSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The limits of every request, and in ``routes`` those of single paths."""

    connect_seconds: float = 3.0
    first_byte_seconds: float = 600.0
    """Queueing and the prefill of a long prompt lie before the first byte."""
    idle_seconds: float = 300.0
    """Silence in the middle of an answer after which it is given up."""
    total_seconds: float | None = None
    routes: dict[str, RouteTimeouts] = {}

    def of(self, path: str) -> Timeouts:
        """The limits of a request that came by this path."""
        route = self.routes.get(path)
        values = (own if (own := getattr(route, name, None)) is not None else getattr(self, name) for name in PHASES)
        return Timeouts(*(NO_LIMIT if value is None else min(value, NO_LIMIT) for value in values))


def gather_routes(tree: dict[str, Any]) -> dict[str, Any]:
    """The table ``[timeouts]`` as it is written, with its tables of single paths under ``routes``.

    Raises:
        ConfigError: ``routes`` is written out.
    """
    if "routes" in tree:
        raise ConfigError('timeouts.routes: a path is a table of its own; write [timeouts."/v1/chat/completions"]')
    routes = {key: value for key, value in tree.items() if key.startswith("/")}
    return {key: value for key, value in tree.items() if not key.startswith("/")} | {"routes": routes}


def check(settings: TimeoutSettings, paths: Collection[str]) -> None:
    """Raise ``ConfigError`` unless every limit can be kept and every path is one of ``paths``."""
    tables: list[tuple[str, Any]] = [("timeouts", settings)]
    for path, route in settings.routes.items():
        if path not in paths:
            raise ConfigError(f'timeouts."{path}": is no path that is forwarded; there are: {", ".join(paths)}')
        tables.append((f'timeouts."{path}"', route))
    for name, table in tables:
        for phase in PHASES:
            value = getattr(table, phase)
            if value is not None and not value > 0:
                raise ConfigError(f"{name}.{phase}: {value} cannot be used; give a number above 0, or inf for no limit")
