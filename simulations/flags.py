"""Flags of which one would overrule another without a word: refused, with both named and what to do.

Knows ``argparse``, and which flags stand on a command line. Never knows what a flag is about.
"""

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

from balancer.errors import ConfigError


class _Once(argparse._StoreAction):
    """A flag with a value, which has no second one; what it is given is kept for ``given``."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        if option_string is not None:
            known: dict[str, Any] = getattr(namespace, "given", {})
            if self.dest in known and known[self.dest] != values:
                before = known[self.dest]
                remedy = "give it once"
                if isinstance(self.metavar, str) and "," in self.metavar:
                    both = ",".join(dict.fromkeys(f"{before},{values}".split(",")))
                    remedy = f"give both at once, as in {option_string} {both}"
                raise ConfigError(
                    f"{option_string} {before}, {option_string} {values}: one of them would not count; {remedy}"
                )
            namespace.given = {**known, self.dest: values}
        setattr(namespace, self.dest, values)


def once(parser: argparse.ArgumentParser) -> None:
    """From here on, flags of this parser that take one value are refused where they are given two; call it first.

    Flags that may be repeated (``append``) and those without a value are not concerned.
    """
    for name in (None, "store"):
        parser.register("action", name, _Once)


def refuse(parser: argparse.ArgumentParser, name: str, because: str) -> None:
    """Refuse a flag that people know from another command, with why; help does not show it."""

    class Refused(argparse.Action):
        def __call__(self, parser: object, namespace: object, values: object, option_string: str | None = None) -> None:
            raise ConfigError(f"{name}: {because}; leave it out")

    parser.add_argument(name, action=Refused, nargs="?", default=argparse.SUPPRESS, help=argparse.SUPPRESS)


def given(args: argparse.Namespace, name: str) -> bool:
    """Whether a flag that takes values, called ``name`` in ``args``, stands on the command line of a parser of ``once``."""
    value = getattr(args, name, None)
    return name in getattr(args, "given", {}) or (isinstance(value, list) and bool(value))


def flag(name: str) -> str:
    """As it is written."""
    return f"--{name.replace('_', '-')}"


def refuse_unused(args: argparse.Namespace, names: Iterable[str], beside: str, because: str) -> None:
    """Refuse flags that mean nothing next to another one.

    Args:
        args: with what was given.
        names: of the flags, as in ``args``.
        beside: the other flag, as it is written.
        because: why they mean nothing, or how to say it instead.

    Raises:
        ConfigError: one of them was given.
    """
    for name in names:
        if given(args, name) or getattr(args, name, None) is True:
            raise ConfigError(f"{flag(name)}, {beside}: {because}; leave one of them out")
