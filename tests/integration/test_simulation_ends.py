"""A simulation in several processes: it ends when it is asked to, and with it all of them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.processes import ROOT

CHAT = ROOT / "tests" / "golden" / "traces" / "mooncake_conversation.jsonl.gz"
SECONDS = 30.0


@contextmanager
def playing() -> Iterator["subprocess.Popen[str]"]:
    """Long runs in two processes beside the parent, in a process group of their own."""
    words = ("simulate", str(CHAT), "--replicas", "8", "--policy", "random,round_robin", "--jobs", "2", "--no-bounds")
    # A shell lets what it runs in the background ignore Ctrl-C, and whoever is started by that does, too.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-m", "balancer", *words],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    finally:
        signal.signal(signal.SIGINT, before)
    try:
        eventually(lambda: len(children(process.pid)) == 2)
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def ended(process: "subprocess.Popen[str]") -> tuple[str, str]:
    """What it has said; one that does not end says where all its threads are."""
    try:
        return process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        there = children(process.pid)
        os.killpg(process.pid, signal.SIGABRT)
        raise AssertionError(f"it goes on, with children {there}:\n{process.communicate()[1]}") from None


def children(parent: int) -> list[int]:
    try:
        tasks = Path(f"/proc/{parent}/task/{parent}/children").read_text()
    except FileNotFoundError:
        return []
    return [int(each) for each in tasks.split()]


def is_there(process: int) -> bool:
    stat = Path(f"/proc/{process}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def eventually(holds: object) -> None:
    assert callable(holds)
    until = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < until, "it did not come to be"
        time.sleep(0.05)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
def test_ctrl_c_ends_all_processes_without_a_traceback() -> None:
    with playing() as process:
        helpers = children(process.pid)
        os.killpg(process.pid, signal.SIGINT)
        _, told = ended(process)
        assert process.returncode == 130
        assert "Traceback" not in told
        eventually(lambda: not any(is_there(each) for each in helpers))


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
def test_who_has_lost_the_parent_ends() -> None:
    with playing() as process:
        helpers = children(process.pid)
        process.kill()
        eventually(lambda: not any(is_there(each) for each in helpers))
