"""``chats`` and what ``bench_routers_real`` counts: the same bytes for everybody, and no request left out in silence."""

import json
from itertools import pairwise

import msgspec
import pytest

from tests.bench.bench_routers_real import KVLB, Answered, Played, counted, play, spread, tell
from tests.bench.chats import Chat, Load, chats
from tests.support.upstream import Received, upstream
from tests.support.waiting import run

LOAD = Load(rate=20, seconds=30)


def messages(chat: Chat) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads(chat.body)["messages"]
    return found


def test_the_same_seed_makes_the_same_chats() -> None:
    assert chats(LOAD, "m", 1) == chats(LOAD, "m", 1)
    assert chats(LOAD, "m", 1) != chats(LOAD, "m", 2)


def test_a_turn_repeats_all_that_was_said() -> None:
    turns: dict[str, list[Chat]] = {}
    for each in chats(LOAD, "m", 1):
        turns.setdefault(each.session, []).append(each)
    pairs = [pair for each in turns.values() for pair in pairwise(each)]
    assert len(pairs) > 100
    for earlier, later in pairs:
        before, after = messages(earlier), messages(later)
        assert after[: len(before)] == before
        assert len(after) == len(before) + 2


def test_as_many_requests_as_were_wished_in_order_from_the_beginning_to_the_end() -> None:
    found = [each.at for seed in range(4) for each in chats(LOAD, "m", seed)]
    assert len(found) / 4 == pytest.approx(LOAD.rate * LOAD.seconds, rel=0.15)  # turns that are cut off are missing
    assert sum(at < 15 for at in found) / len(found) == pytest.approx(0.5, abs=0.05)
    one = [each.at for each in chats(LOAD, "m", 1)]
    assert one == sorted(one)
    assert 0 <= one[0] <= one[-1] < LOAD.seconds


def test_single_questions_have_their_share_and_few_prefixes() -> None:
    found = chats(LOAD, "m", 1)
    singles = [each for each in found if each.session.startswith("single")]
    assert len(singles) / len(found) == pytest.approx(LOAD.singles, abs=0.1)
    assert len({messages(each)[0]["content"] for each in singles}) == LOAD.documents


def test_what_is_asked_and_answered_is_counted_and_so_is_what_fails() -> None:
    async def answer(request: Received) -> None:
        if b"refused" in request.body:
            request.answer(b"{}", status="503 Service Unavailable")
            return
        request.begin_stream()
        request.chunk(b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n')
        usage = {"prompt_tokens": 100, "completion_tokens": 8, "prompt_tokens_details": {"cached_tokens": 60}}
        if b"mute" not in request.body:
            request.chunk(b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n")
        request.chunk(b"data: [DONE]\n\n")
        request.chunk(b"")

    async def check() -> None:
        async with upstream() as replica:
            replica.answer = answer
            replica.is_question = lambda _: False
            load = [Chat(0.0, "a", b"early"), *(Chat(0.1, "b", body) for body in (b"good", b"refused", b"mute"))]
            seen = counted(await play(replica.url, load), 0.05, 0, 0, "x")
        assert seen.requests == 3
        assert [why[:3] for why in seen.failed] == ["503", "no "]
        assert (seen.prompt_tokens, seen.cached_tokens, len(seen.ttfts)) == (100, 60, 1)
        assert 0 < seen.ttfts[0] <= seen.latencies[0]

    run(check())


def test_a_router_is_held_against_kvlb_of_the_same_round(capsys: pytest.CaptureFixture[str]) -> None:
    one = counted([Answered(9, 0.1, 0.2, 100, 50, 8), Answered(9, 0.3, 0.4, 100, 70, 8)], 6, 0, 0, KVLB)
    two = msgspec.structs.replace(one, round=1, ttfts=[0.4, 0.4], cached_tokens=20)
    others: list[Played] = [msgspec.structs.replace(each, router="x", ttfts=[0.8, 0.8]) for each in (one, two)]
    tell([one, two, *others], {})
    kvlb, other = map(json.loads, capsys.readouterr().out.splitlines())
    assert kvlb["ttft_mean_ms"] == {"mean": 300, "low": 200, "high": 400}
    assert kvlb["cached_share"] == {"mean": 0.35, "low": 0.1, "high": 0.6}
    assert other["ttft_mean_to_kvlb"] == {"mean": 3, "low": 2, "high": 4}
    assert spread([1.0], 1) == {"mean": 1, "low": 1, "high": 1}
