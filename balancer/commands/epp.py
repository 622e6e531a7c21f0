"""``kvlb epp``: the endpoint picker for an Envoy gateway.

Knows flags and files, which are those of ``kvlb serve``. What is wrong with any of them is one line and exit code 2.
"""

import argparse

from balancer.commands import Command, serve


def configure(parser: argparse.ArgumentParser) -> None:
    serve.configure(parser)


def run(args: argparse.Namespace) -> int:
    return serve.run(args, picks=True)


command = Command(
    name="epp",
    help=(
        "Tell an Envoy gateway which replica holds most of a prompt (ext_proc, Gateway API Inference Extension). "
        "[epp] says where it is asked; --host and --port are those of its HTTP control plane."
    ),
    configure=configure,
    run=run,
)
