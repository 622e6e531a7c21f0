"""The command ``kvlb``: finds its subcommands, parses the flags, turns errors into one line and an exit code.

Knows no subcommand by name. Never shows a traceback for what a user did.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points, version
from importlib.util import find_spec
from pathlib import Path

from balancer.commands import Command
from balancer.errors import BalancerError, ConfigError

PACKAGES = ("hashing", "indexer", "balancer", "simulations")


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


def commands() -> list[Command]:
    """The installed subcommands, by name."""
    found = [point.load() for point in entry_points(group="kvlb.commands")]
    return sorted(found, key=lambda command: command.name)


def build_parser(found: Sequence[Command]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kvlb",
        description="Sends each LLM request to the vLLM replica that already holds most of its prompt.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"kvlb {version('kvlb')}")
    sub = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in found:
        child = sub.add_parser(command.name, help=command.help, description=command.help, allow_abbrev=False)
        command.configure(child)
        child.set_defaults(run=command.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``kvlb`` with these arguments (default: the process's own); returns the exit code."""
    try:
        check_packages()
        args = build_parser(commands()).parse_args(argv)
        return int(args.run(args))
    except ConfigError as error:
        print(f"kvlb: {error}", file=sys.stderr)
        return 2
    except BalancerError as error:
        print(f"kvlb: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has left (`| head`): nobody is there to be told
        return 1
    except KeyboardInterrupt:
        return 130
