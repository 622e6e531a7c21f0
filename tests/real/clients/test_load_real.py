"""Generators of load before two real engines: ``vllm bench serve`` and ``wrk`` find every answer right and leave nothing.

Run by ``scripts/test-real tests/real/clients``; no time is asserted. What they send is spread over both engines, so each
answer is held against that of one engine asked directly: the two have the same weights.
"""

import asyncio
import json
import os
import subprocess
import urllib.request
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.real.clients.tools import tool
from tests.real.engines import tiny_model
from tests.real.environment import vllm_python
from tests.real.gateway import Gateway, wait_for

pytestmark = pytest.mark.real

COMMAND: Final = Path(__file__).with_name("vllm_command.py")
BACKENDS: Final = {"/v1/completions": "openai", "/v1/chat/completions": "openai-chat"}
"""vLLM's names for clients of these paths."""

PROMPTS: Final = 40
OUTPUT: Final = 12
SECONDS: Final = 3
CONNECTIONS: Final = 6

COUNTING: Final = """
wrk.method = "POST"
wrk.path = "/v1/completions"
wrk.headers["Content-Type"] = "application/json"
wrk.body = %s
local right = %s
local threads = {}
function setup(thread) table.insert(threads, thread) end
function init(args) whole, wrong = 0, 0 end
function response(status, headers, body)
  if status == 200 and string.find(body, right, 1, true) then whole = whole + 1 else wrong = wrong + 1 end
end
function done(summary, latency, requests)
  local errors, all, bad = summary.errors, 0, 0
  for _, thread in ipairs(threads) do all, bad = all + thread:get("whole"), bad + thread:get("wrong") end
  io.write(string.format('\\n{"right": %%d, "wrong": %%d, "requests": %%d, "errors": [%%d, %%d, %%d, %%d, %%d]}\\n', all, bad,
    summary.requests, errors.connect, errors.read, errors.write, errors.status, errors.timeout))
end
"""


class Counted(msgspec.Struct, frozen=True):
    """What wrk has seen: ``errors`` to connect, to read, to write, of status and of time."""

    right: int
    wrong: int
    requests: int
    errors: list[int]


def outcomes(gateway: Gateway) -> dict[tuple[str, str], int]:
    """How many requests have come to what end so far, by path and outcome."""
    with urllib.request.urlopen(gateway.url + "/metrics", timeout=10) as response:
        page = response.read().decode()
    found: dict[tuple[str, str], int] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples if family.name == "kvlb_requests" else ():
            key = sample.labels["path"], sample.labels["outcome"]
            found[key] = found.get(key, 0) + int(sample.value)
    return found


async def settled(gateway: Gateway) -> None:
    """All that was asked is over, and the index has all that it has changed."""
    async with gateway.session() as session:

        async def is_over() -> bool:
            return bool((await session.status())["open_leases"] == 0)

        await wait_for("nothing is under way", is_over)


class Benchmarks(msgspec.Struct, frozen=True):
    """What ``vllm bench serve`` says of the engine and of the gateway, by path; ``answered``: the gateway's own count."""

    direct: dict[str, dict[str, Any]]
    through: dict[str, dict[str, Any]]
    answered: dict[str, int]


def bench(url: str, path: str, folder: Path) -> list[str]:
    """The arguments for prompts that are the same each time; the result is in the folder."""
    return [
        *("bench", "serve", "--backend", BACKENDS[path], "--base-url", url, "--endpoint", path, "--seed", "11"),
        *("--model", "tiny", "--tokenizer", str(tiny_model()), "--temperature", "0", "--ignore-eos"),
        *("--dataset-name", "random", "--num-prompts", str(PROMPTS), "--random-output-len", str(OUTPUT)),
        *("--random-input-len", "60", "--random-prefix-len", "96", "--max-concurrency", str(CONNECTIONS)),
        *("--save-result", "--save-detailed", "--result-dir", str(folder), "--result-filename", "result.json"),
    ]


@pytest.fixture(scope="module")
def benchmarks(gateway: Gateway, tmp_path_factory: pytest.TempPathFactory) -> Benchmarks:
    asyncio.run(settled(gateway))
    folder = tmp_path_factory.mktemp("bench")
    servers = {"direct": gateway.engines[0].url, "through": gateway.url}
    command = [str(vllm_python()), str(COMMAND)]
    for name, url in servers.items():
        for path, backend in BACKENDS.items():
            command += ["--then", *bench(url, path, folder / name / backend)]
    offline = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    before = outcomes(gateway)
    done = subprocess.run(
        command, env={**os.environ, **offline}, cwd=folder, capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    asyncio.run(settled(gateway))
    answered = {path: outcomes(gateway)[path, "ok"] - before.get((path, "ok"), 0) for path in BACKENDS}
    results = {
        name: {
            path: json.loads((folder / name / backend / "result.json").read_bytes())
            for path, backend in BACKENDS.items()
        }
        for name in servers
    }
    return Benchmarks(**results, answered=answered)


@pytest.mark.parametrize("path", BACKENDS)
def test_vllms_own_benchmark_finds_every_answer(benchmarks: Benchmarks, path: str) -> None:
    theirs, ours = benchmarks.direct[path], benchmarks.through[path]
    for result in (theirs, ours):
        assert (result["completed"], result["failed"]) == (PROMPTS, 0)
        assert not any(result["errors"])
        assert result["output_lens"] == [OUTPUT] * PROMPTS
    assert benchmarks.answered[path] == PROMPTS
    assert ours["input_lens"] == theirs["input_lens"]
    assert ours["generated_texts"] == theirs["generated_texts"]
    assert len(set(ours["generated_texts"])) > PROMPTS // 2


@pytest.mark.parametrize("is_stream", [False, True], ids=["plain", "streamed"])
def test_wrk_finds_every_answer_right(gateway: Gateway, tmp_path: Path, is_stream: bool) -> None:
    asyncio.run(settled(gateway))
    asked = {"model": "tiny", "prompt": list(range(40, 120)), "max_tokens": 2, "temperature": 0}
    answer: Any = gateway.engines[0].post("/v1/completions", asked)
    right = '"text":' + json.dumps(answer["choices"][0]["text"], ensure_ascii=False)
    if is_stream:  # whose pieces are cut as they come; the end of all of them is one
        asked["stream"], right = True, "data: [DONE]\n\n"
    script = tmp_path / "script.lua"
    script.write_text(COUNTING % (lua(json.dumps(asked)), lua(right)), encoding="utf-8")
    before = outcomes(gateway).get(("/v1/completions", "ok"), 0)
    command = [
        tool("wrk"),
        "-t1",
        f"-c{CONNECTIONS}",
        f"-d{SECONDS}s",
        "--timeout",
        "20s",
        "-s",
        str(script),
        gateway.url,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60 + SECONDS)
    asyncio.run(settled(gateway))
    counted = msgspec.json.decode(done.stdout.splitlines()[-1], type=Counted)
    assert counted.wrong == 0, done.stdout
    assert counted.right == counted.requests > CONNECTIONS
    assert counted.errors == [0] * 5
    # Those that are under way when wrk's time is over are left.
    assert counted.requests <= outcomes(gateway)["/v1/completions", "ok"] - before <= counted.requests + CONNECTIONS


def lua(text: str) -> str:
    """As a string of Lua's."""
    return "[==[" + ("\n" if text.startswith("\n") else "") + text + "]==]"
