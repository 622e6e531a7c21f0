"""``observer.py``: each request is timed, written down and traced once, however it ends."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from balancer import line_file
from balancer.stages import Stage
from tests.support.gateways import Gateway, close, gateway, post, split
from tests.support.upstream import Received, upstream
from tests.support.waiting import eventually, run

COMPLETIONS = "/v1/completions"
BODY = b'{"model":"m","prompt":[1,2,3,4,5]}'
TEXT = b'{"model":"m","prompt":"text"}'
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_file, "WRITE_SECONDS", 0.01)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


async def counts(front: Gateway) -> dict[str, int]:
    return {labels["stage"]: int(value) for labels, value in await front.samples("kvlb_stage_seconds_count")}


def counted(found: dict[str, int]) -> set[str]:
    return {stage for stage, count in found.items() if count}


def names(stages: Iterable[Stage]) -> set[str]:
    return {str(stage) for stage in stages}


def test_every_stage_of_a_request_is_timed() -> None:
    async def check() -> None:
        async with upstream() as one, gateway([one.url]) as front:
            assert counted(await counts(front)) == set()
            await front.exchange(post(COMPLETIONS, BODY))
            assert counted(await counts(front)) == names(Stage) - {"tokenize", "ask", "prefill"}  # the brain is here
            await front.exchange(post(COMPLETIONS, TEXT))
            found = await counts(front)
            assert found["tokenize"] == 1
            assert found["match"] == found["choose"] == found["stream"] == 2

    run(check())


def test_a_request_that_was_refused_is_timed_as_far_as_it_came() -> None:
    async def check() -> None:
        async with upstream() as one, gateway([one.url]) as front:
            await front.exchange(post(COMPLETIONS, b'{"model":"nope","prompt":[1]}'))
            await front.exchange(post(COMPLETIONS, b"{"))
            assert counted(await counts(front)) == {"read"}

    run(check())


def test_the_access_log_has_a_line_for_each_request_however_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "access.jsonl"

    async def hang(request: Received) -> None:
        request.begin_stream()
        request.chunk(b'data: {"choices":[{"text":"a"}]}\n\n')

    async def check() -> None:
        async with upstream() as one, gateway([one.url], log={"access": str(path)}) as front:
            await front.exchange(post(COMPLETIONS, BODY, "x-request-id: good"))
            await front.exchange(post(COMPLETIONS, b"{", "x-request-id: bad"))
            one.answer = hang
            reader, writer = await front.send(post(COMPLETIONS, BODY, "x-request-id: gone"))
            await reader.readuntil(b"data")
            await close(writer)
            await eventually(lambda: len(lines(path)) == 3)
        good, bad, gone = lines(path)
        assert (good["request_id"], good["status"], good["outcome"], good["path"]) == ("good", 200, "ok", COMPLETIONS)
        assert (good["client"], good["model"], good["attempts"]) == ("127.0.0.1", "m", 1)
        assert good["replica"] == one.url.removeprefix("http://")
        assert good["prompt_tokens"] == 4, "what the engine says, and not what was counted here"
        assert set(good["stages"]) == names(Stage) - {"tokenize", "ask", "prefill"}
        assert (bad["request_id"], bad["status"], "attempts" in bad) == ("bad", 400, False)
        assert bad["error"].startswith("the body is not")
        assert (gone["request_id"], gone["status"], gone["outcome"]) == ("gone", 200, "cancelled")

    run(check())


def test_no_prompt_key_or_salt_is_in_the_access_log(tmp_path: Path) -> None:
    path = tmp_path / "access.jsonl"
    body = b'{"model":"m","prompt":"a secret prompt","cache_salt":"a secret salt"}'

    async def check() -> None:
        async with upstream() as one, gateway([one.url], log={"access": str(path)}) as front:
            await front.exchange(post(COMPLETIONS, body, "Authorization: Bearer a-secret-key"))
        assert len(lines(path)) == 1
        assert "secret" not in path.read_text()

    run(check())


def sent(request: Received, name: str) -> list[str]:
    return request.values(name)


def test_without_tracing_a_clients_trace_passes_as_it_is() -> None:
    async def check() -> None:
        async with upstream() as one, gateway([one.url]) as front:
            await front.exchange(post(COMPLETIONS, BODY, "traceparent: odd", "tracestate: a=1"))
            await front.exchange(post(COMPLETIONS, BODY))
            first, second = one.received
            assert (sent(first, "traceparent"), sent(first, "tracestate")) == (["odd"], ["a=1"])
            assert sent(second, "traceparent") == []

    run(check())


def test_a_replica_works_within_the_span_of_its_attempt(tmp_path: Path) -> None:
    path = tmp_path / "access.jsonl"

    async def check() -> None:
        async with (
            upstream() as collector,
            upstream() as one,
            gateway([one.url], tracing={"endpoint": collector.url}, log={"access": str(path)}) as front,
        ):
            await front.exchange(post(COMPLETIONS, BODY, f"traceparent: {PARENT}", "tracestate: a=1"))
            await front.exchange(post(COMPLETIONS, BODY, "traceparent: odd", "tracestate: a=1"))
            went_on, anew = one.received
            (parent,) = sent(went_on, "traceparent")
            assert parent.split("-")[1] == PARENT.split("-")[1]
            assert parent.split("-")[2] != PARENT.split("-")[2]
            assert parent.split("-")[3] == "01"
            assert sent(went_on, "tracestate") == ["a=1"]
            (other,) = sent(anew, "traceparent")
            assert other.split("-")[1] not in {PARENT.split("-")[1], "0" * 32}
            assert sent(anew, "tracestate") == [], "of a trace that nobody knows"
        assert [line["trace_id"] for line in lines(path)] == [parent.split("-")[1], other.split("-")[1]]
        (delivered,) = collector.received or collector.questions[-1:]
        assert bytes.fromhex(parent.split("-")[2]) in delivered.body

    run(check())


def test_a_retry_is_an_attempt_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "access.jsonl"

    async def check() -> None:
        async with (
            upstream() as one,
            upstream() as other,
            gateway([one.url, other.url], log={"access": str(path)}) as front,
        ):
            failed: list[Received] = []

            async def once(request: Received) -> None:
                if failed:
                    request.answer(b"{}")
                else:
                    failed.append(request)
                    request.reset()

            one.answer = other.answer = once
            status, _, _ = split(await front.exchange(post(COMPLETIONS, BODY)))
            assert status == "HTTP/1.1 200 OK"
        (line,) = lines(path)
        assert line["attempts"] == 2
        assert line["outcome"] == "ok"

    run(check())


def test_what_the_gateway_ends_with_is_still_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_file, "WRITE_SECONDS", 3600)
    path = tmp_path / "access.jsonl"

    async def check() -> None:
        async with upstream() as one:
            async with gateway([one.url], log={"access": str(path)}) as front:
                await front.exchange(post(COMPLETIONS, BODY))
                assert lines(path) == []
            assert len(lines(path)) == 1

    run(check())
