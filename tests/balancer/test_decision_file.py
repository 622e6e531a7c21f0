"""``balancer/decision_file.py``: each ended request is a line, the file is bounded, and a full disk hurts nobody."""

import asyncio
import json
import logging
import os
import resource
from pathlib import Path

import pytest

from balancer import decision_file
from balancer.commands.serve import check_decisions
from balancer.core import Decision, Outcome
from balancer.decision_file import DecisionFile
from balancer.decisions import DecisionLog, Entry, Origin
from balancer.errors import ConfigError
from balancer.policies.base import make
from balancer.settings import LogSettings
from tests.support.gateways import gateway, post
from tests.support.routing import candidate, replica
from tests.support.upstream import upstream
from tests.support.waiting import eventually, run


def entry(name: str) -> Entry:
    log = DecisionLog(1)
    decision = Decision(
        lease=1,
        replica=replica("a"),
        prompt_tokens=100,
        cached_tokens=0,
        is_predicted=False,
        knows_tokens=True,
        policy="cache_aware",
        candidates=(candidate("a"),),
    )
    log.opened(decision, "m", Origin(name), 0.0)
    ended = log.closed(1, Outcome.OK, None)
    assert ended is not None
    return ended


def ids(path: Path) -> list[str]:
    return [json.loads(line)["request_id"] for line in path.read_text().splitlines()]


def written(path: Path, *batches: list[str], max_bytes: int = 1 << 20) -> DecisionFile:
    made = DecisionFile(LogSettings(decisions=str(path), decisions_max_bytes=max_bytes), make("cache_aware"))

    async def write() -> None:
        for batch in batches:
            for name in batch:
                made.add(entry(name))
            await made.flush()

    run(write())
    return made


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
    monkeypatch.setattr(decision_file, "WRITE_SECONDS", 0.01)
    path = tmp_path / "decisions.jsonl"

    async def check() -> None:
        async with upstream() as one, gateway([one.url], log={"decisions": str(path)}) as front:
            await front.exchange(post("/v1/completions", b'{"prompt":[1]}', "x-request-id: r1"))
            await eventually(lambda: path.exists() and ids(path) == ["r1"])

    run(check())


def test_the_file_begins_anew_before_it_is_too_large(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    written(path, ["r1"])
    size = path.stat().st_size
    written(path, ["r2"], ["r3", "r4"], ["r5"], max_bytes=3 * size)
    assert ids(path) == ["r5"] or ids(path) == ["r3", "r4", "r5"]
    old = path.with_name("decisions.jsonl.1")
    assert path.stat().st_size <= 3 * size
    assert old.stat().st_size <= 3 * size
    assert ids(old) + ids(path) == ["r1", "r2", "r3", "r4", "r5"]


def test_a_file_that_was_moved_away_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    written(path, ["r1"])
    path.rename(tmp_path / "old")
    written(path, ["r2"])
    assert ids(path) == ["r2"]


def test_what_cannot_be_written_is_one_warning_and_is_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    path = tmp_path / "folder" / "decisions.jsonl"
    made = written(path, ["r1"], ["r2", "r3"])
    assert made.lost == 3
    assert len(caplog.records) == 1
    assert "No such file or directory; decisions are lost until it can be" in caplog.messages[0]
    path.parent.mkdir()

    async def again() -> None:
        made.add(entry("r4"))
        await made.flush()

    run(again())
    assert ids(path) == ["r4"]
    assert caplog.messages[1:] == [f"log.decisions: '{path}' can be written again; 3 decisions were lost"]


def test_a_disk_that_does_not_follow_costs_the_oldest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision_file, "MAX_WAITING", 2)
    path = tmp_path / "decisions.jsonl"
    made = written(path, ["r1", "r2", "r3"])
    assert (ids(path), made.lost) == (["r2", "r3"], 1)


def test_two_writers_keep_the_order(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"

    async def check() -> None:
        made = DecisionFile(LogSettings(decisions=str(path)), make("cache_aware"))
        made.add(entry("r1"))
        first = asyncio.create_task(made.flush())
        await asyncio.sleep(0)
        made.add(entry("r2"))
        await made.flush()
        await first
        assert ids(path) == ["r1", "r2"]

    run(check())


def test_a_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    written(path, ["r1"])
    size = path.stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, limits[1]))
    try:
        made = written(path, ["r2"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (made.lost, path.stat().st_size) == (1, size)
    written(path, ["r3"])
    assert ids(path) == ["r1", "r3"]


def test_nothing_is_glued_to_a_line_that_broke_off(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    path.write_text('{"request_id": "r')
    written(path, ["r2"])
    assert json.loads(path.read_text().splitlines()[1])["request_id"] == "r2"


def test_a_pipe_in_its_place_is_not_waited_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "decisions.jsonl"
    os.mkfifo(path)
    assert decision_file.problem(path) == "it is there, and is no regular file"
    assert written(path, ["r1"]).lost == 1
    assert "it is no regular file" in caplog.text
    with pytest.raises(ConfigError, match=r"log\.decisions: .*no regular file"):
        check_decisions(LogSettings(decisions=str(path)))
