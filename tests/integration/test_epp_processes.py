"""``kvlb epp --processes N``: pickers that are processes of their own before one brain, behind one Envoy."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp

from simulations.demo import free_ports
from tests.support.envoy import Envoy, Wiring, envoy
from tests.support.processes import finished, started, wait_for
from tests.support.several import MODEL, STAYING, Kvlb, engines, until
from tests.support.waiting import run

PROMPT = list(range(300, 500))


@contextlib.contextmanager
def pickers(folder: Path, processes: int = 2, **changes: Any) -> Iterator[tuple[Kvlb, Envoy]]:
    with engines(2) as urls:
        http, port = free_ports(2)
        settings = folder / "kvlb.toml"
        settings.write_text(
            f"[server]\nport = {http}\nprocesses = {processes}\nexpose_decisions = true\ndrain_grace_seconds = 0.3\n"
            f"[epp]\nhost = '127.0.0.1'\nport = {port}\nfallbacks = 1\n[health]\ninterval_seconds = 0.2\n{STAYING}"
            + "".join(f"[[replicas]]\nurl = '{url}'\n" for url in urls)
        )
        endpoints = [url.partition("://")[2] for url in urls]
        wiring = Wiring(port, endpoints, cluster="metadata", tells_served=True, **changes)
        with started("epp", "--config", str(settings)) as process, envoy(wiring, folder) as proxy:
            made = Kvlb(process, f"http://127.0.0.1:{http}", settings)
            wait_for(f"{made.url}/ready", process)
            until(lambda: len(made.gateways()) == processes and made.knows(2))
            yield made, proxy


async def complete(url: str, prompt: list[int]) -> tuple[int, str, int]:
    """(status, replica, cached tokens)."""
    async with aiohttp.ClientSession() as session:
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 1}
        async with session.post(f"{url}/v1/completions", json=body) as response:
            if response.status != 200:
                return response.status, "", 0
            told = await response.json()
            cached = told["usage"]["prompt_tokens_details"]["cached_tokens"]
            return 200, response.headers["x-kvlb-replica"], cached


def test_whichever_is_asked_knows_where_a_prompt_lies(tmp_path: Path) -> None:
    async def asked(url: str) -> None:
        first = await complete(url, PROMPT)
        assert (first[0], first[2]) == (200, 0)
        for _ in range(4):
            found = await asyncio.gather(*[complete(url, PROMPT) for _ in range(8)])
            assert set(found) == {(200, first[1], 192)}

    with pickers(tmp_path) as (made, proxy):
        run(asked(proxy.url))
        until(lambda: made.status()["open_leases"] == 0)
        until(lambda: made.samples("kvlb_requests_total", outcome="ok") == 33)


def test_a_picker_or_the_brain_that_dies_is_replaced(tmp_path: Path) -> None:
    with pickers(tmp_path) as (made, proxy):
        for _ in range(2):
            assert run(complete(proxy.url, PROMPT))[0] == 200
            before = made.gateways()
            os.kill(before[1], signal.SIGKILL)
            until(lambda: run(complete(proxy.url, PROMPT))[0] == 200)
            until(lambda before=before: made.gateways().get(1, before[1]) != before[1])  # type: ignore[misc]
        brain = made.brain()
        os.kill(brain, signal.SIGKILL)
        until(lambda: made.brain() != brain)
        assert run(complete(proxy.url, PROMPT))[0] == 200
        until(lambda: made.status()["open_leases"] == 0)
        code, told = made.stop(signal.SIGINT)
        assert code == 0
        assert "Traceback" not in told


def test_settings_that_cannot_be_served_end_it_with_one_line(tmp_path: Path) -> None:
    settings = tmp_path / "kvlb.toml"
    settings.write_text(
        "[server]\nport = 0\n[epp]\nhost = '127.0.0.1'\ncert_file = 'nothing.pem'\n[[replicas]]\nurl = 'http://127.0.0.1:9'\n"
    )
    code, told = finished("epp", "--config", str(settings))
    assert code == 2
    assert "epp.cert_file: cannot read 'nothing.pem'" in told[-1]


def test_an_address_that_is_taken_ends_it_with_one_line(tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = tmp_path / "kvlb.toml"
        settings.write_text(
            f"[server]\nport = 0\ndrain_grace_seconds = 0\n[epp]\nhost = '127.0.0.1'\nport = {port}\n"
            "[[replicas]]\nurl = 'http://127.0.0.1:9'\n"
        )
        code, told = finished("epp", "--config", str(settings))
    assert code == 2
    assert f"epp.port: cannot listen on 127.0.0.1:{port}" in told[-1]
