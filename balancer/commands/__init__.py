"""What a subcommand of ``kvlb`` is.

Knows the shape only; each command lives in a module of its own and is found through the entry-point group
``kvlb.commands``, so that a package above this one (the simulator) or a stranger's can add one without being imported here.
"""

import argparse
from collections.abc import Callable

import msgspec


class Command(msgspec.Struct, frozen=True):
    """One subcommand: how its flags are declared and what it does.

    ``run`` returns the exit code; it raises ``balancer.errors.ConfigError`` for what the user can mend. ``usage_code`` is the
    exit code for wrong usage, where 2 means something else.
    """

    name: str
    help: str
    configure: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    usage_code: int = 2
