"""``discovery/follower.py``: the last usable list stays, each change and each problem is told once."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence

import msgspec
import pytest

from balancer.discovery import follower as follower_module
from balancer.discovery.base import Failed, Found
from balancer.discovery.follower import Follower
from balancer.discovery.static import Static
from balancer.settings import ReplicaSettings
from tests.support.waiting import run

GIVEN = (ReplicaSettings(url="http://g:1", hash_seed="1"),)

News = Found | Failed | Exception


class Scripted(msgspec.Struct, frozen=True):
    """Says one thing after the other, in as many lives as it raises errors, and then no more."""

    news: list[News]

    async def watch(self) -> AsyncIterator[Found | Failed]:
        while self.news:
            each = self.news.pop(0)
            if isinstance(each, Exception):
                raise each
            yield each


def found(*urls: str, **settings: str) -> Found:
    return Found(tuple(ReplicaSettings(url=url, **settings) for url in urls), "it was said")  # type: ignore[arg-type]


def follow(*news: News, given: tuple[ReplicaSettings, ...] = GIVEN) -> tuple[Follower, list[Sequence[ReplicaSettings]]]:
    lists: list[Sequence[ReplicaSettings]] = []
    made = Follower(Scripted(list(news)), given, lists.append)
    run(made.run())
    return made, lists


def urls(replicas: Sequence[ReplicaSettings]) -> list[str]:
    return [each.url for each in replicas]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(follower_module, "BEGIN_ANEW_SECONDS", 0.001)
    caplog.set_level(logging.INFO)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.startswith("balancer")]


def test_endpoints_of_the_settings_are_always_there_and_say_the_last_word() -> None:
    _, lists = follow(found("http://a:1", "http://g:1", hash_seed="2"), found())
    assert [urls(each) for each in lists] == [["http://g:1", "http://a:1"], ["http://g:1"]]
    assert lists[0][0].hash_seed == "1"


def test_a_list_that_says_nothing_new_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    made, lists = follow(found(), found("http://a:1"), found("http://a:1"))
    assert len(lists) == made.counts["changed"] == 1
    assert told(caplog) == ["discovery: it was said: 2 endpoints; come: http://a:1; gone: none"]


def test_who_is_seen_and_not_used_is_told_when_that_changes(caplog: pytest.LogCaptureFixture) -> None:
    first = msgspec.structs.replace(found(), unused=("pod b (not Ready)",))
    then = msgspec.structs.replace(found("http://a:1"), unused=("pod b (terminating)",))
    made, _ = follow(first, first, then)
    assert made.unused == ("pod b (terminating)",)
    assert told(caplog) == [
        "discovery: it was said; not used: pod b (not Ready)",
        "discovery: it was said: 2 endpoints; come: http://a:1; gone: none; not used: pod b (terminating)",
    ]
    caplog.clear()
    follow(found(), given=())
    follow(found("http://a:1"), given=())
    assert told(caplog) == ["discovery: it was said: 1 endpoint; come: http://a:1; gone: none"]


def test_a_failure_is_told_once_and_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    made, lists = follow(found("http://a:1"), Failed("it is away"), Failed("it is away"), found("http://a:1"))
    assert len(lists) == 1
    assert made.counts["failed"] == 2
    assert made.problem is None
    assert told(caplog)[1:] == ["discovery: it is away", "discovery: works again"]


def test_a_list_may_have_a_problem_and_counts_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    bad = msgspec.structs.replace(found("http://a:1"), problem="pod b cannot be used")
    more = msgspec.structs.replace(found("http://a:1", "http://c:1"), problem="pod b cannot be used")
    made, lists = follow(bad, more)
    assert [urls(each) for each in lists] == [["http://g:1", "http://a:1"], ["http://g:1", "http://a:1", "http://c:1"]]
    assert (made.problem, made.counts["failed"]) == ("pod b cannot be used", 0)
    assert told(caplog).count("discovery: pod b cannot be used") == 1
    made, _ = follow(bad, found("http://a:1"))
    assert made.problem is None
    assert "discovery: works again" in told(caplog)


def test_others_behind_the_same_urls_are_another_list() -> None:
    lists = [msgspec.structs.replace(found("http://a:1"), lives={"http://a:1": uid}) for uid in ("1", "1", "2")]
    made, told = follow(*lists)
    assert (len(told), made.lives) == (2, {"http://a:1": "2"})


def test_a_list_that_cannot_be_used_is_a_failure() -> None:
    made, lists = follow(found("http://a:1"), found("http://b:1", "http://b:1"))
    assert [urls(each) for each in lists] == [["http://g:1", "http://a:1"]]
    assert made.problem == (
        "replicas[2].url: 'http://b:1' is the same engine as replicas[1], 'http://b:1'; name it once (its data-parallel ranks "
        "are found behind the one name); what was found last is kept"
    )


def test_another_spelling_of_one_that_is_given_is_that_one() -> None:
    _, lists = follow(found("http://G.:1", "http://a:1"))
    assert [urls(each) for each in lists] == [["http://g:1", "http://a:1"]]


def test_a_discovery_that_breaks_is_begun_anew(caplog: pytest.LogCaptureFixture) -> None:
    made, lists = follow(found("http://a:1"), ZeroDivisionError("oops"), found("http://b:1"))
    assert [urls(each)[1:] for each in lists] == [["http://a:1"], ["http://b:1"]]
    assert made.counts["failed"] == 1
    assert "Traceback" in caplog.text


def test_long_lists_are_told_in_one_short_line(caplog: pytest.LogCaptureFixture) -> None:
    follow(found(*(f"http://h{n:03}:1" for n in range(500))))
    (line,) = told(caplog)
    assert line.endswith("http://h009:1 and 490 more; gone: none")
    assert len(line) < 400


def test_without_a_discovery_nothing_ever_changes() -> None:
    lists: list[Sequence[ReplicaSettings]] = []
    made = Follower(Static(), GIVEN, lists.append)
    run(made.run())
    assert (lists, made.problem, made.has_told.is_set()) == ([], None, True)


def test_it_ends_when_it_is_cancelled() -> None:
    closed = []

    class Endless(msgspec.Struct, frozen=True):
        async def watch(self) -> AsyncIterator[Found | Failed]:
            try:
                yield found("http://a:1")
                await asyncio.Event().wait()
            finally:
                closed.append(True)

    async def check() -> None:
        made = Follower(Endless(), GIVEN, lambda _: None)
        task = asyncio.create_task(made.run())
        await made.has_told.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert closed == [True]

    run(check())
