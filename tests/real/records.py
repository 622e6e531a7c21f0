"""What vLLM's scheduler did with a case, asked of ``vllm_scheduler.py`` in a process of vLLM's own.

Knows how that script is run and how its record is read. Never knows what is judged by it.
"""

import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from tests.real.environment import vllm_python
from tests.real.vllm_scheduler import Case, Record

FOLDER = Path(__file__).parent


def run_scheduler(case: Case, *options: str) -> list[Record]:
    """The record of the case."""
    return [json.loads(line) for line in run_script("vllm_scheduler.py", case, *options).splitlines()]


def run_script(name: str, given: Any, *arguments: str) -> str:
    """What a script beside this file prints when vLLM's interpreter runs it with this JSON for input."""
    command = [str(vllm_python()), str(FOLDER / name), *arguments]
    done = subprocess.run(command, input=json.dumps(given), capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def as_sent(record: Record) -> bytes | None:
    """The payload that vLLM's publisher would send at the end of this step; None when there is nothing to say."""
    return msgspec.msgpack.encode([1_764_000_000.25, record["events"], 0]) if record["events"] else None


def as_counter(record: Record) -> Counter[int]:
    """Keys with their copies, as the block pool had them at the end of this step."""
    return Counter(dict(record["cached"]))
