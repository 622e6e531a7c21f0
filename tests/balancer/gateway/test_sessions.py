"""A conversation as clients name it: its requests stay together, those of two tenants are two, and nobody reads its name."""

import itertools
import json
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.support.gateways import Gateway, gateway, get, post, split
from tests.support.upstream import Upstream, upstream
from tests.support.waiting import run

PATH = "/v1/completions"
BODY = b'{"model":"m","prompt":[1,2,3]}'

KEYS = '[[keys]]\ntenant = "a"\nkey = "a-key-that-is-long-enough"\n[[keys]]\ntenant = "b"\nkey = "b-key-that-is-long-enough"\n'

STICKY = {"name": "session_sticky"}
HASHED = {"name": "consistent_hash", "by": "session"}

NAMED = [
    (BODY, "X-Session-Id: chat-{}"),
    (BODY, "x-session-affinity: chat-{}"),
    (BODY, "session_id: chat-{}"),
    (b'{"model":"m","prompt":[1,2,3],"session_id":"chat-%d"}', ""),
    (b'{"model":"m","messages":[{"role":"user","content":"hi"}],"prompt_cache_key":"chat-%d"}', ""),
]


async def homes(front: Gateway, engines: list[Upstream], data: list[bytes]) -> list[int]:
    """Which engine each of these requests went to, by number."""
    found = []
    for each in data:
        before = [len(engine.received) for engine in engines]
        assert b"200 OK" in (await front.exchange(each))[:20]
        (at,) = [at for at, engine in enumerate(engines) if len(engine.received) > before[at]]
        found.append(at)
    return found


def asked(body: bytes, header: str, chat: int) -> bytes:
    lines = [header.format(chat)] if header else []
    return post("/v1/chat/completions" if b"messages" in body else PATH, body % chat if b"%d" in body else body, *lines)


@pytest.mark.parametrize("policy", [STICKY, HASHED], ids=lambda policy: policy["name"])
@pytest.mark.parametrize(("body", "header"), NAMED, ids=["header", "affinity", "codex", "field", "cache key"])
def test_a_conversation_stays_where_it_is_and_others_go_elsewhere(
    policy: dict[str, str], body: bytes, header: str
) -> None:
    async def check() -> None:
        async with AsyncExitStack() as stack:
            engines = [await stack.enter_async_context(upstream()) for _ in range(3)]
            urls = [each.url for each in engines]
            front = await stack.enter_async_context(gateway(urls, policy=policy, tokenizer={"enabled": False}))
            turns = [await homes(front, engines, [asked(body, header, chat) for chat in range(12)]) for _ in range(3)]
            assert turns[0] == turns[1] == turns[2]
            assert len(set(turns[0])) > 1, "they are not all in one place"

    run(check())


def test_another_name_of_a_header_can_be_set_and_the_others_count_no_more() -> None:
    async def check() -> None:
        async with upstream() as one, upstream() as two:
            sessions = {"headers": ["X-User-Id"], "fields": []}
            async with gateway([one.url, two.url], policy=HASHED, sessions=sessions) as front:
                for number, header in itertools.product(range(3), ("x-user-id: u{}", "x-session-id: s{}")):
                    await front.exchange(post(PATH, BODY, header.format(number)))
                told = [entry.decision.asked.session for entry in front.service.decisions.last(6)]
                assert [bool(each) for each in told] == [False, True] * 3

    run(check())


def test_two_tenants_that_say_the_same_have_two_conversations(tmp_path: Path) -> None:
    (tmp_path / "keys.toml").write_text(KEYS)

    async def check() -> None:
        async with (
            upstream() as engine,
            gateway([engine.url], auth={"keys_file": str(tmp_path / "keys.toml")}) as front,
        ):
            for tenant in "aab":
                key = f"Authorization: Bearer {tenant}-key-that-is-long-enough"
                await front.exchange(post(PATH, BODY, "x-session-id: 7", key))
            told = Counter(entry.decision.asked.session for entry in front.service.decisions.last(3))
            assert sorted(told.values()) == [1, 2]
            assert 0 not in told

    run(check())


def test_a_question_is_of_the_conversation_that_it_names() -> None:
    async def check() -> None:
        async with upstream() as one, upstream() as two, gateway([one.url, two.url], policy=HASHED) as front:
            for chat in range(8):
                await front.exchange(post(PATH, BODY, f"x-session-id: {chat}"))
                (sent,) = front.service.decisions.last(1)
                told = split(await front.exchange(post("/debug/explain", BODY, f"X-Session-Id: {chat}")))[2]
                assert json.loads(told)["replica"] == sent.decision.replica.id

    run(check())


def test_its_name_goes_to_the_replica_and_is_told_nowhere_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = {"decisions": str(tmp_path / "decisions"), "access": str(tmp_path / "access")}

    async def check() -> None:
        async with upstream() as engine, gateway([engine.url], log=log, policy=STICKY) as front:
            body = b'{"model":"m","prompt":[1],"prompt_cache_key":"a-secret"}'
            await front.exchange(post(PATH, body, "x-session-id: a-secret"))
            assert engine.received[0].values("x-session-id") == ["a-secret"]
            for path in ("/metrics", "/debug/decisions", "/kvlb/status"):
                assert b"a-secret" not in await front.exchange(get(path))

    run(check())
    assert "a-secret" not in caplog.text
    assert (tmp_path / "decisions").read_text().count("\n") == 1
    assert "a-secret" not in (tmp_path / "decisions").read_text() + (tmp_path / "access").read_text()
