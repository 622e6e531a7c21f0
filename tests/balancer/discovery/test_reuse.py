"""An address that another engine has now: nothing that was known of the one before holds for it.

And nothing waits there for the one before.
"""

import asyncio
import json
from typing import Any

import pytest

from balancer.core import Outcome, Truth
from balancer.discovery import kubernetes as kubernetes_module
from balancer.errors import NoReplica
from balancer.facts import Described, EventSource
from balancer.security import AuthSettings
from balancer.service import RouterService
from balancer.settings import ReplicaSettings, Settings
from indexer.index import ReplicaId
from indexer.stream import Apply
from indexer.wire import Batch
from tests.support.api_server import NAMESPACE, PODS, StandIn, api_server, pod
from tests.support.gateways import Gateway, gateway, get, post, split
from tests.support.routing import replica, request, stored
from tests.support.upstream import OK, Received, upstream
from tests.support.waiting import eventually, run

A, URL = ReplicaId("a"), "http://h:1"
PROMPT = list(range(41))
SOURCE = EventSource(0, "tcp://127.0.0.1:9", None, "")


def found(service: RouterService, uid: str | None) -> None:
    """The discovery says that this Pod is behind the URL, or that nobody is."""
    service.follower.lives = {} if uid is None else {URL: uid}
    service._set_endpoints(() if uid is None else (ReplicaSettings(url=URL),))


def learned(service: RouterService) -> None:
    service._learned(URL, [Described(replica("a", endpoint=URL), SOURCE, ())])


async def cached(service: RouterService) -> int:
    decision = await service.route(request(PROMPT))
    await service.release(decision.lease, Outcome.CANCELLED)
    return max(each.cached_tokens for each in decision.candidates)


@pytest.mark.parametrize("leaves", [False, True], ids=["at once", "after it has left"])
@pytest.mark.parametrize(("then", "inherits"), [("uid-1", True), ("uid-2", False)], ids=["same Pod", "another Pod"])
def test_another_pod_begins_with_nothing_although_requests_of_the_old_one_are_under_way(
    then: str, leaves: bool, inherits: bool
) -> None:
    async def check() -> None:
        service = RouterService(Settings())
        await service.start()
        try:
            found(service, "uid-1")
            learned(service)
            service.router.caches.observe(A, [Apply([Batch(0.0, [stored(PROMPT)])])])
            old = await service.route(request(PROMPT))
            assert await cached(service) == 40
            if leaves:
                found(service, None)
                assert service.behind(URL), "it has a request to finish"
            found(service, then)
            assert bool(service.behind(URL)) is inherits
            learned(service)
            assert await cached(service) == (40 if inherits else 0)
            (live,) = service.router.fleet
            assert live.in_flight == (1 if inherits else 0)
            await service.release(old.lease, Outcome.OK, Truth(cached_tokens=40))
            assert await cached(service) == (40 if inherits else 0), "nor does it inherit what the old one ends with"
            assert live.in_flight == 0
        finally:
            await service.stop()

    run(check())


def finding(server: StandIn) -> Any:
    return gateway(
        [],
        wait=False,
        discovery={
            "name": "kubernetes",
            "selector": "app=vllm",
            "port": "http",
            "api_server": server.url,
            "namespace": NAMESPACE,
        },
    )


def known(front: Gateway) -> set[str]:
    return {live.replica.endpoint for live in front.service.router.fleet if live.is_available()}


def test_what_waits_at_an_address_that_another_pod_has_is_answered_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes_module, "GATHER_SECONDS", 0.001)

    async def check() -> None:
        async with upstream() as one, upstream() as other, api_server() as server, finding(server) as front:
            held: list[Received] = []

            async def hold(request: Received) -> None:
                held.append(request)

            async def answer(request: Received) -> None:
                request.answer(OK)

            one.answer, other.answer = hold, answer
            first, second = (int(each.url.rpartition(":")[2]) for each in (one, other))
            server.put(PODS, pod("a", "127.0.0.1", ports={"http": first}, uid="uid-1"))
            await eventually(lambda: known(front) == {one.url})
            waiting = asyncio.create_task(front.exchange(post("/v1/completions", b'{"model":"m","prompt":[1,2,3]}')))
            await eventually(lambda: held)
            server.put(PODS, pod("b", "127.0.0.1", ports={"http": second}))
            await eventually(lambda: known(front) == {one.url, other.url})
            assert not waiting.done()
            server.put(PODS, pod("a", "127.0.0.1", ports={"http": first}, uid="uid-2"))
            status, headers, _ = split(await waiting)
            assert status == "HTTP/1.1 200 OK"
            assert dict(headers)["x-kvlb-replica"] == other.url.removeprefix("http://")
            await eventually(lambda: known(front) == {one.url, other.url})
            await eventually(front.is_idle)

    run(check())


def test_a_pod_that_ends_gets_nothing_new_and_finishes_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes_module, "GATHER_SECONDS", 0.001)

    async def check() -> None:
        async with upstream() as one, upstream() as other, api_server() as server, finding(server) as front:
            held: list[Received] = []

            async def hold(request: Received) -> None:
                held.append(request)

            one.answer = hold
            first, second = (int(each.url.rpartition(":")[2]) for each in (one, other))
            server.put(PODS, pod("a", "127.0.0.1", ports={"http": first}))
            await eventually(lambda: known(front) == {one.url})
            body = b'{"model":"m","prompt":[1,2,3]}'
            running = asyncio.create_task(front.exchange(post("/v1/completions", body)))
            await eventually(lambda: held)
            server.put(PODS, pod("b", "127.0.0.1", ports={"http": second}))
            await eventually(lambda: other.url in known(front))
            terminating = pod("a", "127.0.0.1", ports={"http": first}, deletionTimestamp="2026-01-01T00:00:00Z")
            server.put(PODS, terminating)  # and still ready, as it is for a while
            await eventually(lambda: known(front) == {other.url})
            for _ in range(3):
                _, headers, _ = split(await front.exchange(post("/v1/completions", body)))
                assert dict(headers)["x-kvlb-replica"] == other.url.removeprefix("http://")
            assert len(held) == 1
            held[0].answer(OK)
            assert split(await running)[0] == "HTTP/1.1 200 OK"
            await eventually(lambda: {live.replica.endpoint for live in front.service.router.fleet} == {other.url})

    run(check())


def test_where_keys_are_asked_for_clients_are_not_told_what_was_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVLB_TEST_KEYS", "secret")

    async def check() -> None:
        service = RouterService(Settings(auth=AuthSettings(keys_variable="KVLB_TEST_KEYS")))
        await service.start()
        try:
            await eventually(service.follower.has_told.is_set)
            with pytest.raises(NoReplica) as told:
                await service.route(request(PROMPT))
            assert str(told.value) == "no replica can be used"
        finally:
            await service.stop()

    run(check())


@pytest.mark.parametrize("named", [{"model": "m"}, {}], ids=["of a model", "of no model"])
def test_clients_are_told_what_ready_tells_where_all_pods_are_not_ready(named: dict[str, object]) -> None:
    body = json.dumps({**named, "prompt": "hello", "max_tokens": 1}).encode()

    async def check() -> None:
        async with api_server() as server, upstream() as one, finding(server) as front:
            port = int(one.url.rpartition(":")[2])
            server.put(PODS, pod("a", "127.0.0.1", ports={"http": port}))
            await eventually(lambda: known(front) == {one.url})
            server.put(PODS, pod("a", "127.0.0.1", ports={"http": port}, ready=False))
            await eventually(lambda: not len(front.service.router.fleet))
            _, _, ready = split(await front.exchange(get("/ready")))
            head, _, answer = split(await front.exchange(post("/v1/completions", body)))
            assert head.startswith("HTTP/1.1 503")
            assert "not used: a (not Ready)" in answer.decode()
            assert json.loads(answer)["error"]["message"] == json.loads(ready)["error"]["message"]

    run(check())


def test_without_any_endpoint_it_is_said_what_was_looked_for() -> None:
    async def check() -> None:
        async with api_server() as server, finding(server) as front:
            await eventually(front.service.follower.has_told.is_set)
            assert front.service.problems() == "there are no endpoints (app=vllm in namespace llm: 0 Pods seen)"
            server.put(PODS, pod("a", "10.0.0.1", ready=False))
            await eventually(lambda: front.service.follower.unused == ("a (not Ready)",))
            assert "1 Pod seen; not used: a (not Ready)" in front.service.problems()

    run(check())
