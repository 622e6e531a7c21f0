"""``commands/asking.py``: a gateway's own errors come in its words, and whoever is no gateway is told apart."""

import asyncio
import json

import aiohttp
import pytest

from balancer import upstream as upstream_module
from balancer.commands import asking
from balancer.errors import BalancerError, ConfigError, Unreachable
from tests.support.upstream import Received, Upstream, upstream
from tests.support.waiting import run


async def asked(over: Upstream, body: bytes | None = None, api_key: str | None = None) -> bytes:
    async with aiohttp.ClientSession() as session:
        return await asking.ask(session, over.url + "/", "/debug/x?a=1", body, api_key)


def test_the_question_is_asked_with_its_key() -> None:
    async def check() -> None:
        async with upstream() as one:
            assert await asked(one, b"{}", "secret")
            (received,) = one.received
            assert (received.target, received.body) == ("/debug/x?a=1", b"{}")
            assert received.values("Authorization") == ["Bearer secret"]

    run(check())


OURS = b'{"error":{"message":"model: missing","type":"invalid_request_error","param":"model","code":null}}'


@pytest.mark.parametrize(
    ("status", "body", "kind", "message"),
    [
        ("400 Bad Request", OURS, ConfigError, "model: missing"),
        ("503 Service Unavailable", OURS, Unreachable, "model: missing"),
        (
            "404 Not Found",
            b'{"detail":"Not Found"}',
            Unreachable,
            "answers /debug/x with 404: it is no kvlb, or an older one",
        ),
        ("404 Not Found", OURS.replace(b"null", b'"unknown_path"'), Unreachable, "it is no kvlb, or an older one"),
        ("502 Bad Gateway", b"<html>", Unreachable, "answers /debug/x with 502"),
    ],
)
def test_an_error_is_told_as_what_it_is(status: str, body: bytes, kind: type[BalancerError], message: str) -> None:
    async def answer(request: Received) -> None:
        request.answer(body, status=status)

    async def check() -> None:
        async with upstream() as one:
            one.answer = answer
            with pytest.raises(kind) as caught:
                await asked(one)
            assert message in str(caught.value)

    run(check())


@pytest.mark.parametrize(
    ("error", "verdict"), [(Unreachable("nobody"), "unreachable"), (ConfigError("nobody"), "refused")]
)
def test_who_reads_json_reads_of_a_failure(
    error: BalancerError, verdict: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for is_wanted in (False, True):
        with pytest.raises(type(error)), asking.told_as_json(is_wanted):
            raise error
        out = capsys.readouterr().out
        assert out == (
            json.dumps({"verdict": verdict, "error": "nobody"}, separators=(",", ":")) + "\n" if is_wanted else ""
        )


def test_a_gateway_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "TIMEOUT_SECONDS", 0.05)

    async def never(request: Received) -> None:
        await request.gone.wait()

    async def check() -> None:
        async with upstream() as one:
            one.answer = never
            with pytest.raises(Unreachable, match=r"has not answered within 0\.05 s"):
                await asked(one)

    run(check())


def test_where_no_gateway_is_its_address_and_the_remedies_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        async with upstream() as one:
            pass
        monkeypatch.setattr(asking, "DEFAULT_GATEWAY", one.url)
        async with aiohttp.ClientSession() as session:
            with pytest.raises(Unreachable) as caught:
                await asking.ask(session, one.url, "/debug/x", otherwise=", or give --replica URL")
        assert str(caught.value) == (
            f"no gateway at {one.url} (the default): connection refused; start it with kvlb serve, "
            "or name it with --gateway, or give --replica URL"
        )

    run(check())


def test_an_answer_of_another_shape_is_told() -> None:
    with pytest.raises(Unreachable, match="http://h answers what no kvlb of this version would"):
        asking.decoded(b"[]", asking._Answer, "http://h")


def test_an_answer_without_end_is_not_read_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream_module, "MAX_ANSWER", 1 << 20)

    async def answer(request: Received) -> None:
        request.begin_stream()
        while not request.gone.is_set():
            request.chunk(b"x" * 100_000)
            await asyncio.sleep(0)

    async def check() -> None:
        async with upstream() as one:
            one.answer = answer
            with pytest.raises(Unreachable, match="is no kvlb: its answer is longer than 1 MiB"):
                await asked(one)

    run(check())
