"""``balancer/line_file.py``: each entry is a line, the file is bounded, and a full disk hurts nobody."""

import asyncio
import logging
import os
import resource
import sys
import threading
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer import line_file
from balancer.commands.serve import check_lines
from balancer.errors import ConfigError
from balancer.line_file import LineFile
from balancer.settings import LogSettings
from tests.support.waiting import run


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def open_file(path: Path | str, max_bytes: int = 1 << 20) -> LineFile[str]:
    return LineFile("log.lines", str(path), max_bytes, str.encode)


def written(path: Path, *batches: list[str], max_bytes: int = 1 << 20) -> LineFile[str]:
    made = open_file(path, max_bytes)

    async def write() -> None:
        for batch in batches:
            for name in batch:
                made.add(name)
            await made.flush()

    run(write())
    return made


def test_the_file_begins_anew_before_it_is_too_large(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    written(path, ["r1"])
    size = path.stat().st_size
    written(path, ["r2"], ["r3", "r4"], ["r5"], max_bytes=3 * size)
    assert lines(path) == ["r5"] or lines(path) == ["r3", "r4", "r5"]
    old = path.with_name("lines.1")
    assert path.stat().st_size <= 3 * size
    assert old.stat().st_size <= 3 * size
    assert lines(old) + lines(path) == ["r1", "r2", "r3", "r4", "r5"]


def test_a_file_that_was_moved_away_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    written(path, ["r1"])
    path.rename(tmp_path / "old")
    written(path, ["r2"])
    assert lines(path) == ["r2"]


def test_what_cannot_be_written_is_one_warning_and_is_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    path = tmp_path / "folder" / "lines"
    made = written(path, ["r1"], ["r2", "r3"])
    assert made.lost == 3
    assert len(caplog.records) == 1
    assert "No such file or directory; lines are lost until it can be" in caplog.messages[0]
    path.parent.mkdir()

    async def again() -> None:
        made.add("r4")
        await made.flush()

    run(again())
    assert lines(path) == ["r4"]
    assert caplog.messages[1:] == [f"log.lines: '{path}' can be written again; 3 lines were lost"]


def test_a_disk_that_does_not_follow_costs_the_oldest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_file, "MAX_WAITING", 2)
    path = tmp_path / "lines"
    made = written(path, ["r1", "r2", "r3"])
    assert (lines(path), made.lost) == (["r2", "r3"], 1)


def test_two_writers_keep_the_order(tmp_path: Path) -> None:
    path = tmp_path / "lines"

    async def check() -> None:
        made = open_file(path)
        made.add("r1")
        first = asyncio.create_task(made.flush())
        await asyncio.sleep(0)
        made.add("r2")
        await made.flush()
        await first
        assert lines(path) == ["r1", "r2"]

    run(check())


def test_what_is_being_written_when_the_writer_ends_is_there_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    may_write = threading.Event()

    def render(line: str) -> bytes:
        may_write.wait(10)
        return line.encode()

    async def check() -> None:
        made = LineFile("log.lines", str(path), 1 << 20, render)
        made.add("r1")
        writing = asyncio.create_task(made.flush())
        await asyncio.sleep(0)
        writing.cancel()
        last = asyncio.create_task(made.flush())
        await asyncio.sleep(0)
        may_write.set()
        await last
        assert lines(path) == ["r1"]
        await asyncio.wait({writing})
        assert writing.cancelled(), "it was cancelled all the same"

    run(check())


def test_standard_output_is_a_file_that_is_never_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = BytesIO()
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=buffer))

    async def check() -> None:
        made = open_file("-", max_bytes=1)
        made.add("r1")
        made.add("r2")
        await made.flush()
        assert buffer.getvalue() == b"r1\nr2\n"

    run(check())


def test_a_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    written(path, ["r1"])
    size = path.stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 1, limits[1]))
    try:
        made = written(path, ["r2"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (made.lost, path.stat().st_size) == (1, size)
    written(path, ["r3"])
    assert lines(path) == ["r1", "r3"]


def test_nothing_is_glued_to_a_line_that_broke_off(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_text("r")
    written(path, ["r2"])
    assert lines(path) == ["r", "r2"]


def test_a_pipe_in_its_place_is_not_waited_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "lines"
    os.mkfifo(path)
    assert line_file.problem(str(path)) == "it is there, and is no regular file"
    assert written(path, ["r1"]).lost == 1
    assert "it is no regular file" in caplog.text
    for setting in ("decisions", "access"):
        with pytest.raises(ConfigError, match=rf"log\.{setting}: .*no regular file"):
            check_lines(msgspec.convert({setting: str(path)}, LogSettings))
    check_lines(LogSettings(access="-", decisions=str(tmp_path / "new")))


def test_a_file_that_another_process_has_just_moved_away_is_not_moved_again(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    written(path, ["a" * 100])
    line_file._move(path, 50)
    assert (path.exists(), lines(path.with_name("lines.1"))) == (False, ["a" * 100])
    written(path, ["new"])
    line_file._move(path, 50)
    assert (lines(path), lines(path.with_name("lines.1"))) == (["new"], ["a" * 100])


@given(st.lists(st.binary(max_size=30).map(lambda each: each.replace(b"\n", b"")), max_size=20), st.integers(1, 40))
def test_pieces_are_whole_lines_and_no_longer_than_they_may_be(said: list[bytes], at_most: int) -> None:
    text = b"".join(line + b"\n" for line in said)
    pieces = list(line_file.whole_lines(text, at_most))
    assert b"".join(pieces) == text
    assert all(piece.endswith(b"\n") for piece in pieces)
    assert all(len(piece) <= at_most or piece.count(b"\n") == 1 for piece in pieces)
