"""From requests at a gateway, by ``kvlb record``, to a trace: right lengths, right sharing, and none of the texts."""

import asyncio
import gzip
import json
import random
import signal
import sys
import zlib
from pathlib import Path

from simulations.traces.reading import open_trace
from tests.support.engines import config, fleet
from tests.support.waiting import eventually, run


async def begun(*words: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "balancer", "record", *words, stderr=asyncio.subprocess.PIPE
    )


def test_what_a_gateway_is_asked_can_be_played_again(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl.gz"
    chance = random.Random(1)
    shared = [chance.randrange(256, 4000) for _ in range(40)]
    prompts = [shared + [chance.randrange(256, 4000) for _ in range(length)] for length in (0, 25, 60, 8)]
    asked = [*prompts, prompts[1] + prompts[2], prompts[3]]

    async def check() -> list[tuple[str, int, int]]:
        async with fleet(config(), config()) as over:
            recording = await begun(str(path), "--gateway", over.front.url, "--block-size", "16")
            assert recording.stderr is not None
            assert b"Ctrl-C ends it" in await asyncio.wait_for(recording.stderr.readline(), 30)
            await eventually(lambda: len(over.front.service.recorders) == 1)
            answers = []
            for prompt in asked:
                answers.append(await over.complete(prompt))
                await over.settle()
            await over.post(
                "/v1/chat/completions", {"messages": [{"role": "user", "content": "sesame " * 30}], "max_tokens": 3}
            )
            await eventually(lambda: zlib.decompressobj(31).decompress(path.read_bytes()).count(b"\n") == 7)
            recording.send_signal(signal.SIGINT)
            _, told = await asyncio.wait_for(recording.communicate(), 30)
            assert recording.returncode == 0
            assert b"7 requests" in told
            await eventually(lambda: not over.front.service.recorders)
        return answers

    answers = run(check())
    content = gzip.decompress(path.read_bytes())
    lines = [json.loads(line) for line in content.splitlines()]
    assert [(line["replica"], line["predicted_cached_tokens"], line["cached_tokens"]) for line in lines[:6]] == answers
    trace, reading = open_trace(str(path))
    assert (reading.format, reading.skipped) == ("recording", 0)
    assert list(trace.inputs[:6]) == [len(prompt) for prompt in asked]
    assert list(trace.outputs) == [2] * 6 + [3]
    for one, ids in zip(asked, trace.blocks, strict=False):
        assert len(ids) == len(one) // 16
        for other, others in zip(asked, trace.blocks, strict=False):
            alike = next(
                (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
            )
            assert sum(a == b for a, b in zip(ids, others, strict=False)) == alike // 16
    assert b"sesame" not in content
    assert not path.stat().st_mode & 0o077


def test_a_recording_ends_when_it_is_full_and_when_the_gateway_goes(tmp_path: Path) -> None:
    async def check() -> None:
        async with fleet(config()) as over:
            full = await begun(str(tmp_path / "full"), "--gateway", over.front.url, "--requests", "2")
            left = await begun(str(tmp_path / "left"), "--gateway", over.front.url)
            await eventually(lambda: len(over.front.service.recorders) == 2)
            for _ in range(3):
                await over.complete([300, 301, 302])
            _, told = await asyncio.wait_for(full.communicate(), 30)
            assert (full.returncode, b"2 requests" in told) == (0, True)
            await eventually(lambda: (tmp_path / "left").read_bytes().count(b"\n") == 3)
        _, told = await asyncio.wait_for(left.communicate(), 30)
        assert left.returncode == 3
        assert b"has gone" in told
        assert (tmp_path / "full").read_bytes().count(b"\n") == 2
        again = await begun(str(tmp_path / "full"), "--gateway", "http://127.0.0.1:9")
        _, told = await asyncio.wait_for(again.communicate(), 30)
        assert again.returncode == 3

    run(check())
