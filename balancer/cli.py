"""The command ``kvlb``: finds its subcommands, parses the flags, turns errors into one line and an exit code.

Knows no subcommand by name. Never shows a traceback for what a user did.
"""

import argparse
import contextlib
import difflib
import errno
import os
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points, version
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from balancer.commands import Command
from balancer.errors import BalancerError, ConfigError
from balancer.words import printable

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""Errors of writing that are the user's to mend."""

PACKAGES = ("hashing", "indexer", "balancer", "simulations")


class _Parser(argparse.ArgumentParser):
    """argparse, with errors as one line that names the remedy."""

    usage_code = 2

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message} (see {self.prog} --help)", file=sys.stderr)
        raise SystemExit(self.usage_code)

    def unknown(self, argument: str) -> NoReturn:
        """Refuse an argument that nobody declared."""
        near = difflib.get_close_matches(argument.partition("=")[0], self._option_string_actions, 1)
        self.error(f"unknown argument {argument}" + (f"; did you mean {near[0]}?" if near else ""))


def check_packages() -> None:
    """Refuse to run when one of our four generic package names is shadowed by a stranger's.

    Raises:
        ConfigError: the four do not lie in one folder.
    """
    folders: dict[Path, list[str]] = {}
    for name in PACKAGES:
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            raise ConfigError(f"package '{name}' is missing: install kvlb again, in an environment of its own")
        folders.setdefault(Path(spec.origin).parent.parent, []).append(name)
    if len(folders) > 1:
        places = "; ".join(f"{', '.join(names)} in {folder}" for folder, names in folders.items())
        raise ConfigError(
            f"kvlb's packages come from different places ({places}): another distribution uses the same name; "
            "install kvlb in an environment of its own"
        )


def commands(argv: Sequence[str]) -> list[Command]:
    """The subcommand that is asked for, or all of them when none is: loading one must not cost the imports of all."""
    points = entry_points(group="kvlb.commands")
    wanted = [point for point in points if argv and point.name == argv[0]]
    found = [point.load() for point in wanted or points]
    return sorted(found, key=lambda command: command.name)


def build_parser(found: Sequence[Command]) -> argparse.ArgumentParser:
    parser = _Parser(
        prog="kvlb",
        description="Sends each LLM request to the vLLM replica that already holds most of its prompt.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"kvlb {version('kvlb')}")
    sub = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in found:
        child = sub.add_parser(command.name, help=command.help, description=command.help, allow_abbrev=False)
        command.configure(child)
        child.usage_code = command.usage_code
        child.set_defaults(run=command.run, parser=child)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``kvlb`` with these arguments (default: the process's own); returns the exit code."""
    usage_code = _Parser.usage_code
    try:
        check_packages()
        words = sys.argv[1:] if argv is None else argv
        args, unknown = build_parser(commands(words)).parse_known_args(words)
        if unknown:
            args.parser.unknown(unknown[0])
        usage_code = args.parser.usage_code
        code = int(args.run(args))
        if sys.stdout is not None:
            sys.stdout.flush()  # while an error can still be told
        return code
    except ConfigError as error:
        print(f"kvlb: {printable(str(error))}", file=sys.stderr)
        return usage_code
    except BalancerError as error:
        print(f"kvlb: {printable(str(error))}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has left (`| head`): nobody is there to be told
        _drop_output()
        return 1
    except OSError as error:
        if error.errno not in FULL:
            raise
        print(f"kvlb: cannot write what was asked for: {error.strerror}", file=sys.stderr)
        _drop_output()
        return 1
    except KeyboardInterrupt:
        return 130


def _drop_output() -> None:
    """What is left of the output goes nowhere: Python would try it again at its end, fail again, and say so."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or not a file at all
        output = sys.stdout.fileno()
        os.dup2(os.open(os.devnull, os.O_WRONLY), output)
