"""Traces that are written as files, for commands."""

import json
from pathlib import Path

import pytest


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """A few conversations of a few turns, in Mooncake's form."""
    lines = []
    for turn in range(4):
        for user in range(6):
            ids = [user * 10 + at for at in range(turn + 2)]
            line = {"timestamp": turn * 4000 + user * 300, "input_length": 512 * len(ids) - 100, "output_length": 20}
            lines.append(json.dumps({**line, "hash_ids": ids}))
    path = tmp_path / "chat.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.fixture
def long_talks(tmp_path: Path) -> str:
    """Conversations, so many at once that a replica's cache does not keep them."""
    lines = []
    for turn in range(3):
        for user in range(100):
            ids = [user * 100 + at for at in range(4 * turn + 4)]
            line = {"timestamp": turn * 24000 + user * 240, "input_length": 512 * len(ids) - 100, "output_length": 5}
            lines.append(json.dumps({**line, "hash_ids": ids}))
    path = tmp_path / "long.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.fixture
def paused_talks(tmp_path: Path) -> str:
    """The same in sessions, whose turns come a while after the answer."""
    lines = []
    for user in range(100):
        for turn in range(3):
            ids = [user * 100 + at for at in range(4 * turn + 4)]
            told = {"session_id": f"s{user}", "input_length": 512 * len(ids) - 100, "output_length": 5, "hash_ids": ids}
            when = {"delay": 9000} if turn else {"timestamp": user * 240}
            lines.append(json.dumps({**told, **when}))
    path = tmp_path / "paused.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return str(path)
