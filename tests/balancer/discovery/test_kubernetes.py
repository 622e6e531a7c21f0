"""``discovery/kubernetes.py``: what the API server has is found, through everything that API servers and networks do."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any

import pytest

from balancer.discovery import api_server as api_module
from balancer.discovery import kubernetes as kubernetes_module
from balancer.discovery import pauses as pauses_module
from balancer.discovery.base import Failed, Found, make
from balancer.discovery.kubernetes import KubernetesDiscovery
from balancer.discovery.objects import Objects
from balancer.errors import ConfigError
from tests.conformance import discovery as suite
from tests.conformance.discovery import Case, until, watching
from tests.support.api_server import (
    NAMESPACE,
    PODS,
    SLICES,
    StandIn,
    api_server,
    api_server_apart,
    endpoint_slice,
    pod,
    target,
)
from tests.support.waiting import eventually, run

ONE, TWO, THREE = "10.0.0.1", "10.0.0.2", "10.0.0.3"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pauses_module, "FIRST_SECONDS", 0.01)
    monkeypatch.setattr(pauses_module, "MOST_SECONDS", 0.05)
    monkeypatch.setattr(kubernetes_module, "GATHER_SECONDS", 0.001)
    monkeypatch.setattr(kubernetes_module, "LASTS_SECONDS", 0.05)


def url(host: str) -> str:
    return f"http://{host}:8000"


# What is expected of every discovery


@pytest.fixture
def case() -> Iterator[Case]:
    with api_server_apart() as apart:

        def set_urls(urls: Sequence[str]) -> None:
            wanted = {f"pod-{each}": each.removeprefix("http://").removesuffix(":8000") for each in urls}

            def changed(server: StandIn) -> None:
                server.refusals.clear()
                for name in set(server.names(PODS)) - wanted.keys():
                    server.delete(PODS, name)
                for name in wanted.keys() - set(server.names(PODS)):
                    server.put(PODS, pod(name, wanted[name]))

            apart.do(changed)

        def break_it(server: StandIn) -> None:
            for verb in ("list", "watch"):  # the first watch may not have begun yet
                server.refuse(verb, 500, "etcd has no leader")
            server.break_watches()

        yield Case(
            make=lambda: KubernetesDiscovery(selector="app=vllm", api_server=apart.server.url, namespace=NAMESPACE),
            set_urls=set_urls,
            break_it=lambda: apart.do(break_it),
        )


test_the_first_list_is_complete_and_can_be_used = suite.test_the_first_list_is_complete_and_can_be_used
test_each_list_replaces_the_one_before = suite.test_each_list_replaces_the_one_before
test_what_cannot_be_told_is_said_and_is_no_empty_list = suite.test_what_cannot_be_told_is_said_and_is_no_empty_list
test_it_can_be_closed_at_any_time = suite.test_it_can_be_closed_at_any_time


# With a stand-in


def with_server(check: Callable[[StandIn], Awaitable[None]]) -> None:
    async def begin() -> None:
        async with api_server() as server:
            await check(server)

    run(begin())


def ask(server: StandIn, **settings: Any) -> KubernetesDiscovery:
    whom = {} if "service" in settings else {"selector": "app=vllm"}
    return KubernetesDiscovery(**{"api_server": server.url, "namespace": NAMESPACE, **whom, **settings})


async def failed(news: AsyncIterator[Found | Failed]) -> str:
    """The next reason why nobody can say who is there."""
    async for each in news:
        if isinstance(each, Failed):
            return each.reason
    raise AssertionError("it has ended")


async def found(news: AsyncIterator[Found | Failed], is_right: Callable[[Found], object]) -> Found:
    """The next list of this kind."""
    async for each in news:
        if isinstance(each, Found) and is_right(each):
            return each
    raise AssertionError("it has ended")


def test_of_pods_that_are_not_used_some_are_named() -> None:
    async def check(server: StandIn) -> None:
        for number in range(7):
            server.put(PODS, pod(f"p{number}", f"10.0.1.{number}", ready=False))
        async with watching(ask(server)) as news:
            first = await found(news, lambda each: each.unused)
            named = tuple(f"p{number} (not Ready)" for number in range(5))
            assert (first.unused, first.problem) == ((*named, "and 2 more"), None)

    with_server(check)


def test_pods_come_and_go_without_another_list() -> None:
    async def check(server: StandIn) -> None:
        server.put(PODS, pod("a", ONE))
        server.put(PODS, pod("stranger", THREE, labels={"app": "nginx"}))
        async with watching(ask(server)) as news:
            first = await until(news, [url(ONE)])
            assert first.reason == "app=vllm in namespace llm: 1 Pod seen"
            assert first.problem is None
            await eventually(lambda: server.watching)
            server.put(PODS, pod("b", TWO, ready=False))
            server.put(PODS, pod("b", TWO))
            await until(news, [url(ONE), url(TWO)])
            server.put(PODS, pod("b", TWO, deletionTimestamp="2026-01-01T00:00:00Z"))
            await until(news, [url(ONE)])
            server.put(PODS, pod("stranger", THREE))  # its label has changed
            await until(news, [url(ONE), url(THREE)])
            server.put(PODS, pod("a", ONE, labels={"app": "old"}))
            await until(news, [url(THREE)])
            server.delete(PODS, "stranger")
            await until(news, [])
        assert (server.count("list"), server.count("watch")) == (1, 1)
        listed, watched = server.asked
        assert listed.params == {"limit": "500", "labelSelector": "app=vllm"}
        assert watched.params["allowWatchBookmarks"] == "true"
        assert watched.params["labelSelector"] == "app=vllm"
        assert 270 <= int(watched.params["timeoutSeconds"]) <= 330, "it differs from gateway to gateway"

    with_server(check)


def test_a_service_names_pods_and_their_readiness() -> None:
    async def check(server: StandIn) -> None:
        a = server.put(PODS, pod("a", ONE, labels={"app": "vllm"}))
        b = server.put(PODS, pod("b", TWO, labels={"app": "vllm", "canary": "yes"}))
        server.put(SLICES, endpoint_slice("s1", target(a, ready=True), target(b, ready=False), ports={"http": 8001}))
        server.put(SLICES, endpoint_slice("o1", target(b, ready=True), service="other", ports={"http": 8001}))
        async with watching(ask(server, service="vllm", port="http")) as news:
            await until(news, ["http://10.0.0.1:8001"])
            server.put(SLICES, endpoint_slice("s1", target(a), target(b), ports={"http": 8001}))
            await until(news, ["http://10.0.0.1:8001", "http://10.0.0.2:8001"])
        async with watching(ask(server, service="vllm", selector="canary=yes", port="http")) as news:
            await until(news, ["http://10.0.0.2:8001"])
        assert {(each.verb, each.plural) for each in server.asked} == {
            (verb, plural) for verb in ("list", "watch") for plural in (PODS, SLICES)
        }

    with_server(check)


def test_with_a_selector_alone_only_pods_are_asked_for() -> None:
    async def check(server: StandIn) -> None:
        async with watching(ask(server)) as news:
            await until(news, [])
            await eventually(lambda: server.watching)
        assert {each.plural for each in server.asked} == {PODS}
        assert {each.namespace for each in server.asked} == {NAMESPACE}

    with_server(check)


def test_several_models_are_one_selector() -> None:
    async def check(server: StandIn) -> None:
        server.put(PODS, pod("llama", ONE, labels={"model": "llama"}))
        server.put(PODS, pod("qwen", TWO, labels={"model": "qwen"}))
        server.put(PODS, pod("bert", THREE, labels={"model": "bert"}))
        async with watching(ask(server, selector="model in (llama, qwen)")) as news:
            await until(news, [url(ONE), url(TWO)])
            server.put(PODS, pod("another", "10.0.0.4", labels={"model": "qwen"}))
            await until(news, [url(ONE), url(TWO), url("10.0.0.4")])

    with_server(check)


def test_a_list_of_many_pages_is_one_list() -> None:
    async def check(server: StandIn) -> None:
        server.max_page = 7
        hosts = [f"10.0.1.{n}" for n in range(100)]
        for n, host in enumerate(hosts):
            server.put(PODS, pod(f"p{n}", host))
        async with watching(ask(server)) as news:
            first = await anext(news)
            assert isinstance(first, Found)
            assert {each.url for each in first.replicas} == {url(host) for host in hosts}
        assert sum(each.verb == "list" for each in server.asked) == 15

    with_server(check)


def test_pages_that_become_too_old_are_begun_anew_in_one_piece() -> None:
    async def check(server: StandIn) -> None:
        server.max_page, server.expires_pages = 2, 1
        for n in range(5):
            server.put(PODS, pod(f"p{n}", f"10.0.1.{n}"))
        async with watching(ask(server)) as news:
            first = await anext(news)
            assert isinstance(first, Found)
            assert len(first.replicas) == 5
        lists = [each.params.get("limit") for each in server.asked if each.verb == "list"]
        assert lists == ["500", "500", "0"]

    with_server(check)


# Watches that end


Trouble = Callable[[StandIn], Awaitable[None]]


async def _is_expired(server: StandIn) -> None:
    await server.expire()


async def _is_refused_as_too_old(server: StandIn) -> None:
    """The list that is asked for next is answered late: its version is too old by then."""
    server.refuse("watch", 410, "too old resource version")
    server.end_watches()
    await eventually(lambda: server.count("watch") > 2)
    server.refusals.clear()


async def _is_closed(server: StandIn) -> None:
    server.end_watches()


async def _is_broken(server: StandIn) -> None:
    server.break_watches()


async def _is_cut_within_a_line(server: StandIn) -> None:
    await server.say(b'{"type":"DELETED","object":{"metadata":{"name":"a"')
    server.end_watches()


async def _has_a_line_that_cannot_be_read(server: StandIn) -> None:
    await server.say(b"<html>502 Bad Gateway</html>\n")


async def _has_an_event_of_an_unknown_type(server: StandIn) -> None:
    await server.say(b'{"type":"WHATEVER","object":{}}\n')


async def _has_an_event_without_an_object(server: StandIn) -> None:
    await server.say(b'{"type":"ADDED","object":7}\n')


async def _is_ended_with_an_error(server: StandIn) -> None:
    await server.say(b'{"type":"ERROR","object":{"kind":"Status","code":500,"message":"etcd has no leader"}}\n')


@pytest.mark.parametrize(
    "trouble",
    [
        _is_expired,
        _is_refused_as_too_old,
        _is_closed,
        _is_broken,
        _is_cut_within_a_line,
        _has_a_line_that_cannot_be_read,
        _has_an_event_of_an_unknown_type,
        _has_an_event_without_an_object,
        _is_ended_with_an_error,
    ],
    ids=lambda each: each.__name__.strip("_"),
)
def test_what_a_watch_has_missed_is_in_the_list_that_follows_its_end(trouble: Trouble) -> None:
    """Once is nothing to tell of, and no list in between is a shorter one."""

    async def check(server: StandIn) -> None:
        server.put(PODS, pod("a", ONE))
        server.put(PODS, pod("b", TWO))
        async with watching(ask(server)) as news:
            await until(news, [url(ONE), url(TWO)])
            await eventually(lambda: server.watching)
            server.loses = True
            server.delete(PODS, "a")
            server.put(PODS, pod("c", THREE))
            server.loses = False
            await trouble(server)
            then = await anext(news)
            assert isinstance(then, Found)
            assert {each.url for each in then.replicas} == {url(TWO), url(THREE)}
            assert server.count("list") >= 2

    with_server(check)


def test_a_deletion_that_no_watch_was_told_of_is_found_by_the_next_list() -> None:
    async def check(server: StandIn) -> None:
        server.put(PODS, pod("ghost", ONE))
        async with watching(ask(server, resync_seconds=0.3)) as news:
            await until(news, [url(ONE)])
            await eventually(lambda: server.watching)
            server.loses = True
            server.delete(PODS, "ghost")
            await until(news, [])

    with_server(check)


def test_a_watch_that_says_nothing_any_more_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection stands, and nothing comes of it, not even the end that was asked for."""
    monkeypatch.setattr(api_module, "GRACE_SECONDS", 0.05)

    async def check(server: StandIn) -> None:
        server.is_silent = server.ignores_timeouts = True
        server.put(PODS, pod("a", ONE))
        async with watching(ask(server, resync_seconds=0.2)) as news:
            await until(news, [url(ONE)])
            await eventually(lambda: server.watching)
            server.put(PODS, pod("b", TWO))
            await until(news, [url(ONE), url(TWO)])
            assert server.count("list") >= 2

    with_server(check)


def test_watches_that_end_at_once_are_not_begun_in_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each waits longer than the one before, and after a while that is told; lists keep it up to date meanwhile."""
    monkeypatch.setattr(pauses_module, "MOST_SECONDS", 3600.0)

    async def check(server: StandIn) -> None:
        server.put(PODS, pod("a", ONE))
        server.refuse("watch", 410, "too old resource version")
        async with watching(ask(server)) as news:
            began = asyncio.get_running_loop().time()
            await until(news, [url(ONE)])
            told = await found(news, lambda each: each.problem)
            assert told.problem is not None
            assert told.problem.startswith("pods are listed now and then, and cannot be watched: ")
            await eventually(lambda: server.count("list") >= 6)
            # Six lists have five pauses between them, of 10, 20, 40 ... ms, each up to a half less.
            assert asyncio.get_running_loop().time() - began >= 0.5 * 0.01 * (2**5 - 1)

    with_server(check)


def test_what_is_told_in_any_order_and_twice_ends_in_what_there_is() -> None:
    async def check(server: StandIn) -> None:
        server.is_doubled = server.is_reversed = True
        for n in range(4):
            server.put(PODS, pod(f"p{n}", f"10.0.1.{n}"))
        async with watching(ask(server)) as news:
            await until(news, [url(f"10.0.1.{n}") for n in range(4)])
            await eventually(lambda: server.watching)
            server.is_held = True
            server.delete(PODS, "p0")
            server.put(PODS, pod("p1", "10.0.1.1", ready=False))
            server.put(PODS, pod("p1", "10.0.1.1"))
            server.put(PODS, pod("p2", "10.0.1.2", ready=False))
            server.put(PODS, pod("new", ONE))
            server.delete(PODS, "new")
            server.put(PODS, pod("p3", "10.0.2.3", uid="another"))
            server.release()
            await until(news, [url("10.0.1.1"), url("10.0.2.3")])
        assert server.count("list") == 1

    with_server(check)


def test_bookmarks_are_no_news() -> None:
    async def check(server: StandIn) -> None:
        server.bookmark_seconds = 0.005
        server.put(PODS, pod("a", ONE))
        async with watching(ask(server)) as news:
            await until(news, [url(ONE)])
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await anext(news)
        assert server.count("list") == 1

    with_server(check)


@pytest.mark.parametrize("seed", range(4))
def test_whatever_goes_wrong_and_in_whatever_order_it_ends_in_what_there_is(seed: int) -> None:
    """And no list on the way has anybody who has never been there."""
    dice = random.Random(seed)

    async def check(server: StandIn) -> None:
        hosts = [f"10.0.1.{n}" for n in range(8)]
        server.bookmark_seconds = 0.01

        def change() -> None:
            host = dice.choice(hosts)
            if host in server.names(PODS) and dice.random() < 0.4:
                server.delete(PODS, host)
            else:
                server.put(PODS, pod(host, host, ready=dice.random() < 0.8, uid=f"uid-{dice.randrange(10**6)}"))

        async def misbehave() -> None:
            server.loses = dice.random() < 0.3
            server.is_held = dice.random() < 0.2
            server.is_reversed = dice.random() < 0.5
            server.is_doubled = dice.random() < 0.5
            server.max_page = dice.choice([1, 3, 1_000])
            server.expires_pages = dice.choice([0, 0, 1])
            server.answer_seconds = dice.choice([0.0, 0.0, 0.02])
            server.refusals.clear()
            if dice.random() < 0.4:
                server.refuse(dice.choice(["list", "watch"]), dice.choice([401, 403, 410, 429, 500]), retry_after=0)
            match dice.randrange(8):
                case 0:
                    await server.expire()
                case 1:
                    server.break_watches()
                case 2:
                    server.end_watches()
                case 3:
                    await server.say(b"{")
                case 4:
                    await server.say(b"nonsense\n")

        async with watching(ask(server, resync_seconds=0.5)) as news:
            heard: list[Found] = []

            async def hear() -> None:
                async for each in news:
                    heard.extend([each] if isinstance(each, Found) else [])

            listening = asyncio.create_task(hear())
            for _ in range(60):
                for _ in range(dice.randrange(4)):
                    change()
                await misbehave()
                await asyncio.sleep(dice.choice([0.0, 0.005, 0.03]))
            server.refusals.clear()
            server.loses = server.is_held = False
            server.answer_seconds = 0.0
            server.release()
            truth = {
                url(each["status"]["podIP"]): each["metadata"]["uid"]
                for each in server.objects(PODS)
                if each["status"]["conditions"][-1]["status"] == "True"
            }
            await eventually(lambda: heard and heard[-1].lives == truth and heard[-1].problem is None)
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
        assert all(each.url in {url(host) for host in hosts} for made in heard for each in made.replicas)

    with_server(check)


# A server that refuses


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (500, "the API server will not list pods in namespace llm (500: etcd has no leader)"),
        (429, "the API server will not list pods in namespace llm (429: etcd has no leader)"),
        (404, "the API server knows no pods in namespace llm (404: etcd has no leader); look at discovery.api_server"),
    ],
)
def test_a_server_that_refuses_changes_nothing_and_is_told(status: int, message: str) -> None:
    async def check(server: StandIn) -> None:
        server.put(PODS, pod("a", ONE))
        async with watching(ask(server)) as news:
            await until(news, [url(ONE)])
            await eventually(lambda: server.watching)
            server.refuse("list", status, "etcd has no leader", retry_after=0)
            server.put(PODS, pod("b", TWO))
            server.end_watches()
            for _ in range(3):
                told = await failed(news)
                assert told.startswith(message)
                assert told.endswith("; what was found last is kept")
            server.refusals.clear()
            again = await found(news, lambda each: each.problem is None)
            assert {each.url for each in again.replicas} == {url(ONE), url(TWO)}

    with_server(check)


def test_who_asks_to_be_left_alone_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float | None] = []

    def pause(failures: int, draw: float, wanted: float | None) -> float:
        waited.append(wanted)
        return 0.001

    monkeypatch.setattr(kubernetes_module, "pause", pause)

    async def check(server: StandIn) -> None:
        server.refuse("list", 429, "too many requests", retry_after=17)
        async with watching(ask(server)) as news:
            await failed(news)
            server.refusals.clear()
            server.refuse("watch", 429, "too many requests", retry_after=18)
            await until(news, [])
            await eventually(lambda: 18.0 in waited)
        assert waited[0] == 17.0

    with_server(check)


def test_a_server_that_is_not_there_is_asked_until_it_is() -> None:
    async def check(server: StandIn) -> None:
        nobody = KubernetesDiscovery(selector="app=vllm", api_server="http://127.0.0.1:9", namespace=NAMESPACE)
        async with watching(nobody) as news:
            for _ in range(2):
                assert await failed(news) == ("http://127.0.0.1:9: connection refused; what was found last is kept")

    with_server(check)


def test_slow_answers_are_given_so_long_and_no_longer() -> None:
    async def check(server: StandIn) -> None:
        server.put(PODS, pod("a", ONE))
        server.answer_seconds = 0.05
        async with watching(ask(server)) as news:
            await until(news, [url(ONE)])
        server.answer_seconds = 600
        async with watching(ask(server, timeout_seconds=0.05)) as news:
            assert "no answer in time" in await failed(news)

    with_server(check)


@pytest.mark.parametrize("verb", ["list", "watch"])
@pytest.mark.parametrize(("plural", "group"), [(PODS, ""), (SLICES, "discovery.k8s.io")])
def test_what_the_role_lacks_is_named(verb: str, plural: str, group: str) -> None:
    async def check(server: StandIn) -> None:
        a = server.put(PODS, pod("a", ONE))
        server.put(SLICES, endpoint_slice("s1", target(a)))
        server.refuse(verb, 403, f'{plural} is forbidden: User "x" cannot {verb} resource', plural=plural)
        async with watching(ask(server, service="vllm")) as news:
            if verb == "list":
                told = await failed(news)
            else:
                told = (await found(news, lambda each: each.problem and each.replicas)).problem or ""
            assert f"not allowed to {verb} {plural} in namespace llm (403: {plural} is forbidden" in told
            assert f'apiGroups: ["{group}"], resources: ["{plural}"], verbs: ["get", "list", "watch"]' in told
            server.refusals.clear()
            await found(news, lambda each: each.problem is None and each.replicas)

    with_server(check)


def test_of_two_kinds_one_may_be_refused_and_the_other_still_counts() -> None:
    """A Pod that ends is heard of, though slices are not; and whatever else is wrong is said beside it."""

    async def check(server: StandIn) -> None:
        a, b, bad = (
            server.put(PODS, pod(name, host, labels={"kvlb.io/role": role}))
            for name, host, role in (("a", ONE, "both"), ("b", TWO, "both"), ("bad", THREE, "boss"))
        )
        server.put(SLICES, endpoint_slice("s1", target(a), target(b), target(bad)))
        async with watching(ask(server, service="vllm")) as news:
            first = await until(news, [url(ONE), url(TWO)])
            assert (first.problem or "").startswith("pod bad: kvlb.io/role: 'boss' is no role")
            await eventually(lambda: server.watching == 2)
            server.refuse("list", 500, "etcd has no leader", plural=SLICES)
            server.end_watches()
            told = await failed(news)
            assert "will not list endpointslices" in told
            assert "pod bad: kvlb.io/role" in told
            server.put(PODS, pod("a", ONE, deletionTimestamp="2026-01-01T00:00:00Z"))
            then = await until(news, [url(TWO)])
            assert then.problem == told

    with_server(check)


def test_what_was_not_foreseen_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever follows begins anew."""

    async def check(server: StandIn) -> None:
        async with watching(ask(server)) as news:
            await until(news, [])
            await eventually(lambda: server.watching)
            monkeypatch.setattr(Objects, "told", lambda *_: 1 / 0)
            server.put(PODS, pod("a", ONE))
            with pytest.raises(ZeroDivisionError):
                await anext(news)

    with_server(check)


def test_a_watch_that_is_not_allowed_still_leaves_lists() -> None:
    async def check(server: StandIn) -> None:
        server.refuse("watch", 403, "forbidden")
        async with watching(ask(server)) as news:
            await until(news, [])
            server.put(PODS, pod("a", ONE))
            await until(news, [url(ONE)])

    with_server(check)


def test_its_own_settings_have_the_documented_defaults() -> None:
    made = make("kubernetes", {"selector": "app=vllm"})
    assert isinstance(made, KubernetesDiscovery)
    assert (made.port, made.scheme, made.resync_seconds, made.timeout_seconds) == (8000, "http", 300.0, 10.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "give selector"),
        ({"selector": " "}, "selector: it is empty"),
        ({"selector": "app in (x"}, "selector: 'app in \\(x' is no requirement; give one like app=vllm"),
        ({"selector": "app=a b"}, "selector: 'app=a b' is no requirement"),
        ({"service": "vllm", "port": "99999"}, "port: '99999' is text, and no name is all digits; give the number"),
        ({"service": "vllm", "port": "8000"}, "port: '8000' is text"),
        ({"service": "vllm.llm.svc"}, "service: 'vllm.llm.svc' is no name"),
        ({"service": "vllm", "namespace": "../x"}, "namespace: '../x' is no name"),
        ({"service": "vllm", "port": 0}, "port: 0 is no port"),
        ({"service": "vllm", "port": "a b"}, "port: 'a b' is no port"),
        ({"service": "vllm", "scheme": "ftp"}, "scheme: 'ftp' is neither"),
        ({"service": "vllm", "api_server": "kubernetes"}, "discovery.api_server: "),
        ({"service": "vllm", "resync_seconds": 0}, "resync_seconds: 0.0 cannot be used"),
        ({"service": "vllm", "timeout_seconds": -1}, "timeout_seconds: -1.0 cannot be used"),
        ({"service": "vllm", "replica": {"url": "http://h:1"}}, "replica.url: it is what the Pods tell"),
        ({"service": "vllm", "replica": {"hash_sed": "1"}}, "hash_sed: unknown setting; did you mean hash_seed"),
        ({"service": "vllm", "replica": {"events": "tcp://10.0.0.1:5557"}}, "nothing in an event says whose it is"),
        ({"service": "vllm", "label": "x"}, "label: kubernetes has no such setting"),
    ],
)
def test_its_own_settings_are_checked(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make("kubernetes", settings)
