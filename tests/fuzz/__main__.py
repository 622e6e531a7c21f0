"""``python -m tests.fuzz TARGET [libFuzzer's flags] [folder of inputs]``: a target under atheris, until it fails.

Needs ``pip install atheris`` in an environment that also has kvlb's ``dev`` extra. What makes a target fail is left in a file
that runs it again when it is given in the folder's place. ``-max_total_time=600`` ends it after ten minutes.
"""

import sys

import atheris

with atheris.instrument_imports(include=["balancer", "hashing", "indexer"]):
    from tests.fuzz.targets import TARGETS


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] not in TARGETS:
        sys.exit(f"python -m tests.fuzz TARGET, one of: {', '.join(TARGETS)}")
    target = TARGETS[sys.argv.pop(1)]
    atheris.Setup(sys.argv, target)
    atheris.Fuzz()


main()
