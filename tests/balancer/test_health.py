"""``balancer/health.py``: an endpoint is learned when it answers, lost when it does not, and learned anew when it is back."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import aiohttp
import pytest

from balancer.facts import Described
from balancer.fleet import Status
from balancer.health import Watcher, skew
from balancer.pulse import Pulse
from balancer.settings import HealthSettings, ReplicaSettings
from tests.support.upstream import Received, Upstream, upstream
from tests.support.waiting import eventually, run


class Watch:
    """A running watcher and what it has said."""

    def __init__(self, replica: ReplicaSettings, session: aiohttp.ClientSession, settings: HealthSettings) -> None:
        self.learned: list[list[Described]] = []
        self.statuses: list[Status] = []
        self.pulses: list[Pulse] = []
        headers = {"Authorization": "Bearer key"}
        self.watcher = Watcher(replica, settings, session, headers, self._learned, self._status, self._felt)

    def _learned(self, endpoint: str, described: list[Described]) -> None:
        self.learned.append(described)

    def _felt(self, endpoint: str, pulse: Pulse) -> None:
        self.pulses.append(pulse)

    def _status(self, endpoint: str, status: Status) -> None:
        if self.statuses[-1:] != [status]:
            self.statuses.append(status)


@contextlib.asynccontextmanager
async def watching(url: str, **settings: Any) -> AsyncIterator[Watch]:
    quick = HealthSettings(**{"interval_seconds": 0.02, "timeout_seconds": 0.2, **settings})
    async with aiohttp.ClientSession(skip_auto_headers=("User-Agent",)) as session:
        watch = Watch(ReplicaSettings(url=url), session, quick)
        task = asyncio.create_task(watch.watcher.run())
        try:
            yield watch
            assert not task.done(), "the watcher has given up"
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


def test_an_engine_is_learned_once_and_then_only_asked_whether_it_lives() -> None:
    async def check() -> None:
        async with upstream() as replica, watching(replica.url) as watch:
            await eventually(lambda: len(replica.questions) > 8)
            (described,) = watch.learned
            recipe = described[0].replica.recipe
            assert recipe is not None
            assert (recipe.block_size, described[0].replica.models) == (4, ("m",))
            assert watch.statuses == [Status.READY]
            assert {question.path for question in replica.questions[6:]} == {"/health", "/metrics"}
            assert all(question.values("Authorization") == ["Bearer key"] for question in replica.questions)

    run(check())


@pytest.mark.parametrize(
    ("path", "answer", "problem"),
    [
        ("/health", "503 Busy", "answers /health with 503"),
        ("/v1/models", "401 Unauthorized", "set upstream.api_key to the engine's"),
        ("/v1/models", "404 Not Found", "answers /v1/models with 404"),
    ],
)
def test_an_endpoint_that_is_no_usable_engine_says_why(path: str, answer: str, problem: str) -> None:
    async def refuse(request: Received) -> None:
        request.answer(b"{}", status=answer)

    async def check() -> None:
        async with upstream(paths={path: refuse}) as replica, watching(replica.url) as watch:
            await eventually(lambda: problem in str(watch.watcher.problem))
            assert not watch.watcher.is_known
            assert watch.statuses == [Status.LOST]
            replica.paths = Upstream().paths
            await eventually(lambda: watch.statuses == [Status.LOST, Status.READY])

    run(check())


@pytest.mark.parametrize("path", ["/v1/models", "/version", "/metrics", "/kv_event_sources"])
@pytest.mark.parametrize("body", [b"", b"{}", b"null", b"\xff\xfe", b'vllm:cache_config_info{engine="', b"[" * 50_000])
def test_nonsense_never_ends_the_watch(path: str, body: bytes) -> None:
    async def check() -> None:
        async with upstream(paths={path: body}) as replica, watching(replica.url) as watch:
            await eventually(lambda: len(replica.questions) > 6)
            assert watch.watcher.is_known is (path != "/v1/models")
            replica.paths = Upstream().paths
            await eventually(lambda: watch.statuses[-1] is Status.READY)

    run(check())


def test_one_probe_that_fails_is_forgiven_and_two_are_not() -> None:
    async def check() -> None:
        async with upstream() as replica, watching(replica.url) as watch:
            await eventually(lambda: watch.statuses == [Status.READY])
            failures = 1

            async def fail_for_a_while(request: Received) -> None:
                nonlocal failures
                failures -= 1
                request.answer(b"", status="200 OK" if failures < 0 else "503 Busy")

            replica.paths["/health"] = fail_for_a_while

            def is_over() -> bool:
                return failures < -1

            for _ in range(3):  # never two in a row
                failures = 1
                await eventually(is_over)
            assert watch.statuses == [Status.READY]
            failures = 2
            await eventually(lambda: watch.statuses == [Status.READY, Status.LOST, Status.READY])
            assert len(watch.learned) == 2, "who comes back may be another engine"

    run(check())


def test_silence_counts_as_failure() -> None:
    async def silence(request: Received) -> None: ...

    async def check() -> None:
        async with upstream() as replica, watching(replica.url) as watch:
            await eventually(lambda: watch.statuses == [Status.READY])
            replica.paths["/health"] = silence
            await eventually(lambda: watch.statuses == [Status.READY, Status.LOST])

    run(check())


def test_a_refused_connection_counts_at_once() -> None:
    async def check() -> None:
        async with contextlib.AsyncExitStack() as stack:
            replica = await stack.enter_async_context(upstream())
            async with watching(replica.url, failures=1000) as watch:
                await eventually(lambda: watch.statuses == [Status.READY])
                await stack.aclose()
                await eventually(lambda: watch.statuses == [Status.READY, Status.LOST])

    run(check())


def test_a_suspicion_is_followed_up_before_its_turn() -> None:
    async def check() -> None:
        async with upstream() as replica, watching(replica.url, interval_seconds=3600) as watch:
            await eventually(lambda: watch.statuses == [Status.READY])
            watch.watcher.suspect()
            assert watch.statuses == [Status.READY, Status.LOST]
            await eventually(lambda: watch.statuses == [Status.READY, Status.LOST, Status.READY])

    run(check())


def test_a_running_engine_is_asked_again_what_it_serves() -> None:
    """Adapters are loaded and unloaded without a restart."""

    async def check() -> None:
        async with upstream() as replica, watching(replica.url, relearn_seconds=0.05) as watch:
            await eventually(lambda: [question.path for question in replica.questions].count("/v1/models") > 3)
            assert len(watch.learned) == 1, "the same answer is no news"
            assert watch.statuses == [Status.READY]

    run(check())


def test_an_engine_that_may_be_another_one_is_asked_at_once() -> None:
    async def check() -> None:
        async with upstream() as replica, watching(replica.url, interval_seconds=60.0) as watch:
            await eventually(lambda: watch.statuses == [Status.READY])
            watch.watcher.refresh()
            await eventually(lambda: [question.path for question in replica.questions].count("/v1/models") == 2)
            assert watch.statuses == [Status.READY], "it is not lost meanwhile"

    run(check())


def test_nothing_that_an_endpoint_answers_ends_the_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A watcher that has ended would leave its endpoint lost for ever, without a word."""

    async def check() -> None:
        async with upstream() as replica:
            with monkeypatch.context() as patch:
                patch.setattr("balancer.facts.read_version", lambda body: 1 / 0)
                async with watching(replica.url) as watch:
                    await eventually(lambda: [question.path for question in replica.questions].count("/version") > 2)
                    assert watch.statuses == [Status.LOST]
                    patch.undo()
                    await eventually(lambda: watch.statuses == [Status.LOST, Status.READY])

    run(check())


DATE = "Thu, 01 Jan 2026 00:00:07 GMT"
AT_DATE = 1767225607.0


@pytest.mark.parametrize(
    ("date", "now", "expected"),
    [
        (DATE, AT_DATE + 0.5, 0.0),
        (DATE, AT_DATE - 60, 60.5),
        (DATE, AT_DATE + 60, -59.5),
        (None, AT_DATE, None),
        ("yesterday", AT_DATE, None),
        ("Thu, 99 Jan 2026 00:00:07 GMT", AT_DATE, None),
    ],
)
def test_a_clock_is_compared_with_ours_to_half_a_second(date: str | None, now: float, expected: float | None) -> None:
    assert skew(date, now) == expected


def test_the_clock_of_an_endpoint_is_read_from_its_answers() -> None:
    async def late(request: Received) -> None:
        told = format_datetime(datetime.now(UTC) - timedelta(seconds=100), usegmt=True)
        request.answer(b"", headers=f"Date: {told}\r\n")

    async def check() -> None:
        async with upstream(paths={"/health": late}) as replica, watching(replica.url) as watch:
            await eventually(lambda: len(watch.learned) == 1)
            await eventually(lambda: -102 < (watch.watcher.clock_skew or 0) < -98)

    run(check())


SLEEPS = b'vllm:engine_sleep_state{engine="0",sleep_state="awake"} 0.0\n'


def test_an_engine_that_sleeps_takes_no_requests_until_it_is_awake() -> None:
    async def check() -> None:
        async with upstream() as replica, watching(replica.url) as watch:
            await eventually(lambda: watch.statuses == [Status.READY])
            awake = replica.paths["/metrics"]
            assert isinstance(awake, bytes)
            replica.paths["/metrics"] = awake + SLEEPS
            await eventually(lambda: watch.statuses == [Status.READY, Status.ASLEEP])
            assert "POST /wake_up" in str(watch.watcher.problem)
            replica.paths["/metrics"] = awake
            await eventually(lambda: watch.statuses == [Status.READY, Status.ASLEEP, Status.READY])
            assert len(watch.learned) == 1, "it is the same engine"
            assert {pulse.asleep for pulse in watch.pulses} == {frozenset(), frozenset({0})}

    run(check())


def test_an_engine_that_refuses_its_key_is_heard_and_says_so() -> None:
    async def refuse(request: Received) -> None:
        request.answer(b"", status="401 Unauthorized")

    async def check() -> None:
        async with upstream(paths={"/v1/models": refuse}) as replica, watching(replica.url) as watch:
            await eventually(lambda: watch.watcher.refusal == 401)
            assert (watch.watcher.is_heard, watch.watcher.is_known) == (True, False)
            expected = "refuses the key (answers /v1/models with 401); set upstream.api_key to the engine's"
            assert watch.watcher.problem == expected
            replica.paths["/v1/models"] = b'{"data":[{"id":"m"}]}'
            await eventually(lambda: watch.watcher.is_known and not watch.watcher.refusal)
            await eventually(lambda: watch.watcher.problem is None)

    run(check())


def test_an_address_where_nobody_listens_is_not_heard() -> None:
    async def check() -> None:
        async with upstream() as replica:
            url = replica.url
        async with watching(url) as watch:
            await eventually(lambda: watch.watcher.problem == "connection refused")
            assert not watch.watcher.is_heard

    run(check())


def test_a_look_at_the_metrics_that_fails_does_not_end_the_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        async with upstream() as replica, watching(replica.url) as watch:
            await eventually(lambda: watch.statuses == [Status.READY])
            monkeypatch.setattr("balancer.health.read_pulse", lambda page: 1 / 0)
            before = len(replica.questions)
            await eventually(lambda: len(replica.questions) > before + 6)
            assert watch.statuses == [Status.READY]

    run(check())


def test_metrics_that_do_not_come_say_nothing_of_an_engines_health() -> None:
    async def silence(request: Received) -> None: ...

    async def refuse(request: Received) -> None:
        request.answer(b"", status="404 Not Found")

    async def check() -> None:
        async with upstream() as replica, watching(replica.url) as watch:
            awake = replica.paths["/metrics"]
            assert isinstance(awake, bytes)
            replica.paths["/metrics"] = awake + SLEEPS
            await eventually(lambda: watch.statuses[-1:] == [Status.ASLEEP])
            for answer in (silence, refuse):
                replica.paths["/metrics"] = answer
                before = len(replica.questions)
                await eventually(lambda before=before: len(replica.questions) > before + 4)  # type: ignore[misc]
            assert watch.statuses[-2:] == [Status.ASLEEP, Status.READY], "who sleeps and cannot be asked is tried"

    run(check())
