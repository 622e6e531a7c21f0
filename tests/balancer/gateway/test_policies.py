"""Two policies at once, in the gateway: each has its share, and what is on paper costs nobody anything."""

import json
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import pytest

from balancer.core import NOTHING_ASKED, Asked, Candidate
from tests.support.gateways import Gateway, gateway, get, post, split
from tests.support.upstream import Received, upstream
from tests.support.waiting import run

PATH = "/v1/completions"
BODY = b'{"model":"m","prompt":[1,2,3,4,5,6,7,8,9]}'
ANSWER = b'{"choices":[{"text":"x"}],"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":4}}}'


class Failing(msgspec.Struct, frozen=True):
    """A policy that never chooses."""

    def choose(self, candidates: Sequence[Candidate], draw: float, asked: Asked = NOTHING_ASKED, /) -> Candidate:
        raise ZeroDivisionError("it cannot")


FAILING = f"{__name__}:Failing"


async def answer(request: Received) -> None:
    request.answer(ANSWER)


async def told(front: Gateway, data: bytes) -> Any:
    return json.loads(split(await front.exchange(data))[2])


async def by_policy(front: Gateway, name: str) -> dict[str, float]:
    return {labels["policy"]: value for labels, value in await front.samples(name)}


def test_each_policy_has_its_share_and_its_own_figures() -> None:
    policy = {"name": "cache_aware", "ab": {"name": "random", "share": 0.5}}

    async def check() -> None:
        async with upstream() as one, upstream() as two, gateway([one.url, two.url], policy=policy) as front:
            one.answer = two.answer = answer
            for at in range(40):
                await front.exchange(post(PATH, BODY, f"x-request-id: r{at}"))
            made = (await told(front, get("/debug/decisions")))["decisions"]
            counts = {name: sum(each["policy"] == name for each in made) for name in ("cache_aware", "random")}
            assert all(counts.values())
            for each in made:
                assert (each["candidates"][0].get("cost") is None) is (each["policy"] == "random"), (
                    "explained by its own"
                )
            samples = await front.samples("kvlb_policy_requests_total")
            assert {(labels["policy"], labels["outcome"]): value for labels, value in samples} == {
                (name, "ok"): count for name, count in counts.items()
            }
            reported = await by_policy(front, "kvlb_policy_reported_cached_tokens_total")
            assert reported == {name: 4 * count for name, count in counts.items()}
            for name in ("reported_prompt_tokens_total", "prompt_tokens_total"):
                found = await by_policy(front, f"kvlb_policy_{name}")
                assert found == {each: 9 * count for each, count in counts.items()}
            assert await by_policy(front, "kvlb_policy_time_to_first_token_seconds_count") == counts
            predicted = await by_policy(front, "kvlb_policy_predicted_cached_tokens_total")
            assert sum(predicted.values()) == sum(each["cached_tokens"] for each in made)
            status = await told(front, get("/kvlb/status"))
            assert (status["policy"], status["ab"]) == ("cache_aware", {"policy": "random", "share": 0.5})

    run(check())


def test_a_conversation_stays_in_its_arm() -> None:
    policy = {"ab": {"name": "random", "share": 0.5}}

    async def check() -> None:
        async with upstream() as one, gateway([one.url], policy=policy) as front:
            arms: dict[int, set[str]] = {}
            for at in range(40):
                await front.exchange(post(PATH, BODY, f"x-session-id: {at % 8}"))
                arms.setdefault(at % 8, set()).add(front.service.decisions.last(1)[0].decision.policy)
            assert {len(each) for each in arms.values()} == {1}
            assert set.union(*arms.values()) == {"predicted_ttft", "random"}

    run(check())


def test_an_attempt_that_is_made_again_is_made_by_the_same_policy() -> None:
    async def refuse(request: Received) -> None:
        request.reset()

    async def check() -> None:
        async with AsyncExitStack() as stack:
            engines = [await stack.enter_async_context(upstream()) for _ in range(3)]
            policy = {"ab": {"name": "random", "share": 0.5}}
            front = await stack.enter_async_context(
                gateway([each.url for each in engines], policy=policy, ejection={"consecutive_failures": 1_000})
            )
            for engine in engines:
                engine.answer = refuse
            seen = set()
            for at in range(12):
                await front.exchange(post(PATH, BODY, f"x-request-id: r{at}"))
                attempts = front.service.decisions.last(9, f"r{at}")
                seen.add((len(attempts) > 1, len({each.decision.policy for each in attempts})))
            assert (True, 1) in seen
            assert {policies for _, policies in seen} <= {0, 1}

    run(check())


def test_what_is_on_paper_is_told_and_sent_nowhere() -> None:
    policy = {"name": "round_robin", "shadow": {"name": "cache_aware"}}

    async def check() -> None:
        async with upstream() as one, upstream() as two, gateway([one.url, two.url], policy=policy) as front:
            one.answer = two.answer = answer
            for at in range(10):
                await front.exchange(post(PATH, BODY, f"x-request-id: r{at}"))
            assert len(one.received) == len(two.received) == 5, "as the acting policy has it"
            made = (await told(front, get("/debug/decisions")))["decisions"]
            assert {each["shadow"]["policy"] for each in made} == {"cache_aware"}
            agree = sum(each["shadow"]["replica"] == each["replica"] for each in made)
            results = {labels["result"]: value for labels, value in await front.samples("kvlb_shadow_decisions_total")}
            assert results == {name: count for name, count in (("agree", agree), ("differ", 10 - agree)) if count}
            for name in ("cached_tokens", "uncached_tokens"):
                found = {labels["choice"]: value for labels, value in await front.samples(f"kvlb_shadow_{name}_total")}
                assert found["shadow"] == sum(each["shadow"][name] for each in made)
                mine = [
                    each["cached_tokens"] if name == "cached_tokens" else each["prompt_tokens"] - each["cached_tokens"]
                    for each in made
                ]
                assert found["acting"] == sum(mine)
            assert len(await front.samples("kvlb_shadow_wait_seconds_total")) == 2
            asked = await told(front, post("/debug/explain", BODY))
            assert asked["shadow"]["policy"] == "cache_aware"
            assert (await told(front, get("/kvlb/status")))["shadow"] == "cache_aware"
            assert front.is_idle()

    run(check())


def test_one_on_paper_that_fails_fails_no_request(caplog: pytest.LogCaptureFixture) -> None:
    policy = {"name": "round_robin", "shadow": {"name": FAILING}}

    async def check() -> None:
        async with upstream() as one, gateway([one.url], policy=policy) as front:
            for _ in range(3):
                assert b"200 OK" in (await front.exchange(post(PATH, BODY)))[:20]
            (sample,) = await front.samples("kvlb_shadow_decisions_total")
            assert (sample[0]["result"], sample[1]) == ("failed", 3)
            (last,) = (await told(front, get("/debug/decisions?limit=1")))["decisions"]
            assert last["shadow"]["failure"] == "ZeroDivisionError: it cannot"

    run(check())
    assert caplog.text.count("ZeroDivisionError: it cannot") == 1, "told once"


def test_without_these_nothing_is_told_of_them() -> None:
    async def check() -> None:
        async with upstream() as one, gateway([one.url]) as front:
            await front.exchange(post(PATH, BODY))
            (made,) = (await told(front, get("/debug/decisions")))["decisions"]
            assert "shadow" not in made
            assert await front.samples("kvlb_shadow_decisions_total") == []
            status = await told(front, get("/kvlb/status"))
            assert (status["ab"], status["shadow"]) == (None, None)

    run(check())
