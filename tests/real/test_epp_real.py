"""``kvlb epp`` and a real Envoy in front of two real vLLM 0.32.0 engines: what is predicted is what they report.

Run by ``scripts/test-real tests/real/test_epp_real.py``; the engines take a minute to start. Prompts come as token ids and as
chats, streamed and not; each comes twice, with others in between, and must be found where it was computed.
"""

import asyncio
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.real.engines import BLOCK_SIZE
from tests.real.gateway import Engines
from tests.real.traffic import MODEL
from tests.support.envoy import Wiring, envoy
from tests.support.processes import ask, started, wait_for
from tests.support.several import STAYING, until

pytestmark = pytest.mark.real

WORDS = "river stone lamp winter paper glass honey thunder garden silver music window bridge candle".split()


@pytest.fixture(scope="module")
def fronts(engines: Engines, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """(the proxy, the picker's control plane)."""
    from simulations.demo import free_ports

    folder = tmp_path_factory.mktemp("epp")
    http, port = free_ports(2)
    settings = folder / "kvlb.toml"
    settings.write_text(
        f"[server]\nport = {http}\nexpose_decisions = true\n[epp]\nhost = '127.0.0.1'\nport = {port}\n{STAYING}"
        + "".join(f"[[replicas]]\nurl = '{engine.url}'\n" for engine in engines.running)
    )
    endpoints = [engine.url.partition("://")[2] for engine in engines.running]
    with started("epp", "--config", str(settings)) as process, _proxy(port, endpoints, folder) as proxy:
        control = f"http://127.0.0.1:{http}"
        wait_for(f"{control}/ready", process)
        until(
            lambda: all(each["knowledge"]["state"] == "exact" for each in ask(f"{control}/kvlb/status")[0]["replicas"])
        )
        yield proxy.url, control


def _proxy(port: int, endpoints: list[str], folder: Path) -> Any:
    return envoy(Wiring(port, endpoints, cluster="metadata"), folder)


def asks() -> list[tuple[str, dict[str, Any]]]:
    """(path, body) of different prompts, short enough that all of them stay where they are."""
    dice, found = random.Random(5), list[tuple[str, dict[str, Any]]]()
    for at in range(4):
        ids = [dice.randrange(100, 250) for _ in range(dice.randrange(60, 120))]
        found.append(("/v1/completions", {"prompt": ids}))
        text = " ".join(dice.choices(WORDS, k=dice.randrange(12, 20)))
        found.append(("/v1/chat/completions", {"messages": [{"role": "user", "content": f"{at} {text}"}]}))
    more = {"model": MODEL, "max_tokens": 4, "temperature": 0}
    return [(path, {**body, **more, **_streamed(at)}) for at, (path, body) in enumerate(found)]


def _streamed(at: int) -> dict[str, Any]:
    return {"stream": True, "stream_options": {"include_usage": True}} if at % 4 > 1 else {}


def usage_of(body: bytes) -> dict[str, Any]:
    """What an answer says of its tokens, whole or streamed."""
    if body.startswith(b"{"):
        return dict(json.loads(body)["usage"])
    events = [json.loads(line[6:]) for line in body.split(b"\n") if line.startswith(b"data: {")]
    return dict(next(event["usage"] for event in reversed(events) if event.get("usage")))


def test_what_is_predicted_is_what_the_engines_report(fronts: tuple[str, str]) -> None:
    proxy, control = fronts

    async def send(session: aiohttp.ClientSession, path: str, body: dict[str, Any]) -> tuple[str, int, int, int]:
        """(replica, predicted, cached, prompt tokens)."""
        async with session.post(proxy + path, json=body) as response:
            data = await response.read()
            assert response.status == 200, data
            told, usage = response.headers, usage_of(data)
            assert told["x-kvlb-predicted"] == "exact"
            cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
            return told["x-kvlb-replica"], int(told["x-kvlb-cached-tokens"]), cached, usage["prompt_tokens"]

    async def scenario() -> None:
        async with aiohttp.ClientSession() as session:
            first = [await send(session, *each) for each in asks()]
            again = [await send(session, *each) for each in asks()]
        for one, other in zip(first, again, strict=True):
            assert one[1] == one[2]
            assert other[1] == other[2] == (other[3] - 1) // BLOCK_SIZE * BLOCK_SIZE
            assert other[0] == one[0]

    asyncio.run(scenario())
    until(lambda: ask(f"{control}/kvlb/status")[0]["open_leases"] == 0)
    counted = [each["predictions"] for each in ask(f"{control}/kvlb/status")[0]["replicas"]]
    assert sum(each["exact"] for each in counted) == 2 * len(asks()), counted
