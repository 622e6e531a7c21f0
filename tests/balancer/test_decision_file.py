"""``balancer/decision_file.py``: each ended request is a line, even at the end."""

import json
from pathlib import Path

import pytest

from balancer import line_file
from balancer.arms import Arms, arm
from balancer.decision_file import open_decision_file
from balancer.policies.base import make
from balancer.settings import LogSettings
from tests.support.gateways import gateway, post
from tests.support.upstream import upstream
from tests.support.waiting import eventually, run


def ids(path: Path) -> list[str]:
    return [json.loads(line)["request_id"] for line in path.read_text().splitlines()]


def test_every_ended_request_is_a_line_even_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"

    async def check() -> None:
        async with upstream() as one, gateway([one.url], log={"decisions": str(path)}) as front:
            for name in ("r1", "r2"):
                await front.exchange(post("/v1/completions", b'{"prompt":[1]}', f"x-request-id: {name}"))
            await eventually(front.is_idle)
        assert ids(path) == ["r1", "r2"]

    run(check())


def test_lines_come_while_the_gateway_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_file, "WRITE_SECONDS", 0.01)
    path = tmp_path / "decisions.jsonl"

    async def check() -> None:
        async with upstream() as one, gateway([one.url], log={"decisions": str(path)}) as front:
            await front.exchange(post("/v1/completions", b'{"prompt":[1]}', "x-request-id: r1"))
            await eventually(lambda: path.exists() and ids(path) == ["r1"])

    run(check())


def test_without_a_file_nothing_is_written() -> None:
    assert open_decision_file(LogSettings(), Arms(arm("cache_aware", make("cache_aware")))) is None
