"""``kvlb serve`` that finds its engines through the API server, as users run it: Pods come and go under load.

Each engine has an address of its own on loopback, and all of them one port, as Pods have.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from simulations.demo import free_ports
from tests.support.api_server import (
    NAMESPACE,
    PODS,
    SLICES,
    Apart,
    Json,
    StandIn,
    api_server_apart,
    endpoint_slice,
    pod,
    target,
)
from tests.support.processes import started, wait_for
from tests.support.several import MODEL, STAYING, Kvlb, Load, until
from tests.support.waiting import run

PORT, EVENTS, REPLAY = free_ports(3)


@contextlib.contextmanager
def engine(host: str) -> Iterator[None]:
    """One that takes next to no time."""
    ports = ("--port", PORT, "--event-port", EVENTS, "--replay-port", REPLAY)
    words = ("--host", host, *map(str, ports), "--model", MODEL, "--speed", "50")
    with started("fake-engine", *words) as process:
        wait_for(f"http://{host}:{PORT}/health", process)
        yield


class Cluster:
    """What the API server has: Pods of one Service, whose slice follows them as the controller's does."""

    def __init__(self, apart: Apart, token: Path) -> None:
        self.api = apart
        self._token = token
        self._pods: dict[str, Json] = {}

    def put(self, name: str, ip: str, **changes: Any) -> None:
        """The Pod is there, or is so from now on."""
        self._do(lambda server: self._pods.update({name: server.put(PODS, self._pod(name, ip, **changes))}))

    def delete(self, name: str) -> None:
        def delete(server: StandIn) -> None:
            server.delete(PODS, name)
            del self._pods[name]

        self._do(delete)

    def rotate(self, token: str) -> None:
        """Another token from now on, written to its file a little later than the old one ends."""

        def asked() -> int:
            return int(self.api.do(lambda server: len(server.asked)))

        self.api.do(lambda server: setattr(server, "tokens", {token}))
        before = asked()
        self.api.do(StandIn.end_watches)
        until(lambda: asked() > before + 1)  # both kinds, with the old token
        self._token.write_text(token)

    def _pod(self, name: str, ip: str, **changes: Any) -> Json:
        return pod(name, ip, ports={"http": PORT}, uid=f"uid-{name}", **changes)

    def _do(self, change: Callable[[StandIn], None]) -> None:
        def changed(server: StandIn) -> None:
            change(server)
            endpoints = [
                target(
                    each,
                    ready="deletionTimestamp" not in each["metadata"],
                    serving=True,
                    terminating="deletionTimestamp" in each["metadata"],
                )
                for each in self._pods.values()
            ]
            server.put(SLICES, endpoint_slice("vllm-1", *endpoints, ports={"http": PORT}))

        self.api.do(changed)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    token = tmp_path / "token"
    token.write_text("first\n")
    with api_server_apart() as apart:
        apart.do(lambda server: setattr(server, "tokens", {"first"}))
        yield Cluster(apart, token)


@contextlib.contextmanager
def kvlb(cluster: Cluster, folder: Path, *hosts: str, processes: int = 1) -> Iterator[Kvlb]:
    """One that knows exactly what these have."""
    (port,) = free_ports(1)
    config = folder / "kvlb.toml"
    config.write_text(
        f"[server]\nport = {port}\nprocesses = {processes}\nexpose_decisions = true\n"
        f"[health]\ninterval_seconds = 0.2\n{STAYING}"
        "[discovery]\nname = 'kubernetes'\nservice = 'vllm'\nselector = 'app=vllm'\nport = 'http'\n"
        f"namespace = '{NAMESPACE}'\napi_server = '{cluster.api.server.url}'\ntoken_file = '{folder / 'token'}'\n"
    )
    with started("serve", "--config", str(config)) as process:
        made = Kvlb(process, f"http://127.0.0.1:{port}", config)
        wait_for(f"{made.url}/ready", process)
        until(lambda: len(made.gateways()) == processes and found(made) == set(hosts) and made.knows(len(hosts)))
        yield made


def found(front: Kvlb) -> set[str]:
    """The addresses of the replicas that there are, those that end what they have included."""
    return {each["replica"].partition(":")[0] for each in front.status()["replicas"]}


async def in_thread(condition: Callable[[], object]) -> None:
    await asyncio.to_thread(until, condition)


async def reaches(load: Load, host: str) -> None:
    """Return once a prompt that nobody has goes there."""
    async with aiohttp.ClientSession() as client:
        for _ in range(500):
            replica, *_ = await load.one(client, [random.randrange(300, 100_000) for _ in range(98)])
            if replica == f"{host}:{PORT}":
                return
    raise AssertionError(f"{host} gets nothing")


@pytest.mark.parametrize("processes", [1, 2])
def test_one_leaves_and_one_comes_under_load_and_no_request_fails(
    cluster: Cluster, tmp_path: Path, processes: int
) -> None:
    one, other, third = "127.0.0.11", "127.0.0.12", "127.0.0.13"

    async def check(front: Kvlb, ends: Callable[[], None]) -> None:
        load = Load(front.url)
        async with load.running():
            await load.more()
            await asyncio.to_thread(cluster.put, "a", one, deletionTimestamp="2026-01-01T00:00:00Z")
            await in_thread(lambda: found(front) == {other})
            await asyncio.to_thread(ends)  # it had its time to finish what it had, and no longer
            await asyncio.to_thread(cluster.delete, "a")
            await load.more()
            await asyncio.to_thread(cluster.rotate, "second")
            await asyncio.to_thread(cluster.put, "c", third, ready=False)
            await load.more()
            await asyncio.to_thread(cluster.put, "c", third)
            await in_thread(lambda: found(front) == {other, third} and front.knows(2))
            await load.more()
            await reaches(load, third)
            await asyncio.to_thread(cluster.api.do, StandIn.break_watches)
            await load.more()
            await in_thread(lambda: front.status()["discovery"]["problem"] is None)
        assert load.failed == []

    with engine(other), engine(third), contextlib.ExitStack() as first:
        first.enter_context(engine(one))
        cluster.put("a", one)
        cluster.put("b", other)
        with kvlb(cluster, tmp_path, one, other, processes=processes) as front:
            run(check(front, first.close), seconds=180)


def test_another_pod_at_the_same_address_is_known_to_be_empty(cluster: Cluster, tmp_path: Path) -> None:
    host = "127.0.0.14"

    async def asked(front: Kvlb, times: int) -> list[tuple[int, int]]:
        """(predicted, actual) of the same prompt, again and again."""
        async with aiohttp.ClientSession() as client:
            answers = [await Load(front.url).one(client, range(300, 400)) for _ in range(times)]
        return [(int(predicted), actual) for _, _, predicted, actual in answers]

    cluster.put("a", host)
    with contextlib.ExitStack() as old:
        old.enter_context(engine(host))
        with kvlb(cluster, tmp_path, host) as front:
            assert run(asked(front, 2)) == [(0, 0), (96, 96)]
            assert set(front.status()["discovery"]["lives"].values()) == {"uid-a"}
            cluster.api.do(lambda server: setattr(server, "is_held", True))
            cluster.delete("a")
            old.close()
            with engine(host):
                cluster.put("b", host)
                cluster.api.do(StandIn.release)
                until(lambda: set(front.status()["discovery"]["lives"].values()) == {"uid-b"})
                until(lambda: front.knows(1))
                assert run(asked(front, 2)) == [(0, 0), (96, 96)]
