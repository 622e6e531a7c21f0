"""Traces that are written as files, for commands."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest


def written(path: Path, lines: Iterable[Mapping[str, Any]]) -> str:
    """A trace in Mooncake's form, of prompts that are as long as their blocks tell."""
    text = [json.dumps({"input_length": 512 * len(line["hash_ids"]) - 100, **line}) for line in lines]
    path.write_text("\n".join(text) + "\n")
    return str(path)


def grown(user: int, turn: int) -> list[int]:
    """The blocks of a long conversation so far."""
    return [user * 100 + at for at in range(4 * turn + 4)]


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """A few conversations of a few turns."""
    lines = [
        {
            "timestamp": turn * 4000 + user * 300,
            "output_length": 20,
            "hash_ids": [user * 10 + at for at in range(turn + 2)],
        }
        for turn in range(4)
        for user in range(6)
    ]
    return written(tmp_path / "chat.jsonl", lines)


@pytest.fixture
def long_talks(tmp_path: Path) -> str:
    """Conversations, so many at once that a replica's cache does not keep them."""
    lines = [
        {"timestamp": turn * 24000 + user * 240, "output_length": 5, "hash_ids": grown(user, turn)}
        for turn in range(3)
        for user in range(100)
    ]
    return written(tmp_path / "long.jsonl", lines)


@pytest.fixture
def paused_talks(tmp_path: Path) -> str:
    """The same in sessions, whose turns come a while after the answer."""
    lines = [
        {
            "session_id": f"s{user}",
            "output_length": 5,
            "hash_ids": grown(user, turn),
            **({"delay": 9000} if turn else {"timestamp": user * 240}),
        }
        for user in range(100)
        for turn in range(3)
    ]
    return written(tmp_path / "paused.jsonl", lines)
