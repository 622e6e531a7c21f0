"""Runs in vLLM's interpreter: command lines of ``vllm serve`` as JSON on stdin -> what its own parser makes of them, on stdout.

Knows vLLM 0.32.0's parser. Nothing is loaded and no device is asked for.
"""

import dataclasses
import json
import sys
from typing import Any

from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.utils.argparse_utils import FlexibleArgumentParser


def plain(value: Any) -> Any:
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else value


def parsed(words: list[str]) -> dict[str, Any]:
    arguments = make_arg_parser(FlexibleArgumentParser()).parse_args(words)
    validate_parsed_serve_args(arguments)
    found = {name: plain(value) for name, value in vars(arguments).items()}
    found["lora_modules"] = [plain(each) for each in arguments.lora_modules or []]
    return found


if __name__ == "__main__":
    print(json.dumps([parsed(words) for words in json.load(sys.stdin)], default=str))
