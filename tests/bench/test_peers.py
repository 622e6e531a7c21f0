"""``tests/bench/peers.py`` and what is told of the peers: nobody is left out in silence, and those that start serve."""

import asyncio
import json
import os
from pathlib import Path

import pytest

from tests.bench.bench_peers import tell
from tests.bench.front import Front, per_request
from tests.bench.peers import PACKAGES, Peer, peers, running
from tests.bench.raw_clients import COMPLETIONS, JSON, Refused, chat, clients
from tests.support.gateways import post, split
from tests.support.upstream import OK, Received, upstream
from tests.support.waiting import eventually, run


def test_who_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    for folder in (None, tmp_path):
        found, missing = peers(folder, ["http://127.0.0.1:1"])
        assert [peer.name for peer in found] == ["naive"]
        assert missing.keys() == {"nginx", "haproxy", *PACKAGES}


def test_who_does_not_serve_says_why(tmp_path: Path) -> None:
    peer = Peer("none", "0", ["sh", "-c", "echo no such port {port}; exit 1"])
    with pytest.raises(RuntimeError, match="no such port"), running(peer, tmp_path / "none"):
        pass


@pytest.mark.parametrize("name", ["naive", "nginx", "haproxy"])
def test_it_passes_answers_and_streams_on(name: str, tmp_path: Path) -> None:
    async def stream(request: Received) -> None:
        if b"stream" not in request.body:
            request.answer(OK)
            return
        request.begin_stream()
        for chunk in (b"data: {1}\n\n", b"data: {2}\n\n", b""):
            request.chunk(chunk)

    async def check() -> None:
        async with upstream() as replica:
            replica.answer = stream
            replica.is_question = lambda _: False
            named = {peer.name: peer for peer in peers(None, [replica.url])[0]}
            if name not in named:
                pytest.skip(f"{name} is not installed")
            manager = running(named[name], tmp_path / name)
            front = await asyncio.to_thread(manager.__enter__)
            try:
                assert front.cpu_seconds() > 0
                async with clients(front.address, 2, chat(300, stream=True)) as inside:
                    await eventually(lambda: all(each.answers > 3 for each in inside))
                assert all(each.chunks >= 2 * each.answers for each in inside)
                reader, writer = await asyncio.open_connection(*front.address)
                writer.write(post(COMPLETIONS, b'{"x": 1}', JSON))
                assert split(await reader.read())[2] == OK
                writer.close()
                assert replica.received[-1].body == b'{"x": 1}'
            finally:
                await asyncio.to_thread(manager.__exit__, None, None, None)

    run(check())


def test_who_refuses_is_not_taken_for_quick() -> None:
    async def refuse(request: Received) -> None:
        request.answer(b"", status="422 Unprocessable Entity")

    async def check() -> None:
        async with upstream() as replica:
            replica.answer = refuse
            host, _, port = replica.url.removeprefix("http://").rpartition(":")
            with pytest.raises(Refused, match="422"):
                await per_request(Front(os.getpid(), (host, int(port))), chat(300), 1, 0.01, 0.01, first=1)

    run(check())


def test_ratios_are_those_of_the_same_round(capsys: pytest.CaptureFixture[str]) -> None:
    ours, theirs = {0: 2.0, 1: 30.0, 2: 6.0}, {0: 1.0, 1: 10.0}
    tell({("2k", "cpu_ms_a_request", "kvlb"): ours, ("2k", "cpu_ms_a_request", "nginx"): theirs}, {})
    kvlb, nginx = map(json.loads, capsys.readouterr().out.splitlines())
    assert (kvlb["median"], kvlb["contender"]) == (6.0, "kvlb")
    assert nginx["kvlb_to_it"]["median"] == 2.5
    assert nginx["inputs"]["samples"] == 2
