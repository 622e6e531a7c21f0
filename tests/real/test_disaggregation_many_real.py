"""Prefill and decode on two real vLLM engines each, with each connector that runs on a CPU: any computes for any.

Four engines take some minutes to start on two cores; ``scripts/test-real tests/real/test_disaggregation_many_real.py -k nixl``
runs those of one connector. The last test leaves one engine less.
"""

import asyncio
import os
import signal
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pytest

from balancer.gateway.legs import Legs
from indexer.index import ReplicaId
from tests.real.engines import RealEngine
from tests.real.pairs import (
    COMPLETIONS,
    PROMPT_TOKENS,
    SETUPS,
    Two,
    ask,
    before,
    body,
    computed,
    fetched,
    figure,
    name,
    only,
    pairs,
    prompt,
    said,
    settled,
)
from tests.real.stores import eventually as until
from tests.support.gateways import Gateway
from tests.support.waiting import eventually, run

pytestmark = [pytest.mark.real, pytest.mark.long]

IN_TURN = {"name": "round_robin"}
TOGETHER = 8
"""Requests at once: each engine has several."""


@pytest.fixture(scope="module", params=list(SETUPS))
def four(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Two]]:
    with pairs(SETUPS[request.param], tmp_path_factory.mktemp(request.param), 2) as found:
        yield found


class Figures(NamedTuple):
    """Tokens, since the engines were started, by engine."""

    by_prefill: list[int]
    by_decode: list[int]
    moved: list[int]

    @classmethod
    def of(cls, four: Sequence[Two]) -> "Figures":
        by_prefill = [int(computed(each.prefill)) if is_alive(each.prefill) else 0 for each in four]
        return cls(
            by_prefill, [int(computed(each.decode)) for each in four], [int(fetched(each.decode)) for each in four]
        )

    def since(self, then: "Figures") -> "Figures":
        return Figures(
            *([now - was for now, was in zip(mine, old, strict=True)] for mine, old in zip(self, then, strict=True))
        )


def is_alive(engine: RealEngine) -> bool:
    return engine.process.poll() is None


async def assert_as_one_engine(engine: RealEngine, ids: list[int], answer: dict[str, Any]) -> None:
    """The answer has the words and the probabilities of one engine alone."""
    alone = await asyncio.to_thread(engine.post, COMPLETIONS, body(ids))
    assert said(answer)[0] == said(alone)[0]
    assert said(answer)[1] == pytest.approx(said(alone)[1], abs=1e-4)


async def assert_it_was_foretold(front: Gateway, four: Sequence[Two], then: Figures, requests: int) -> None:
    """What each decode engine has fetched is what kvlb expected of it, but for what its connector leaves of each prompt."""

    async def told(series: str) -> dict[str, float]:
        found = await front.samples(f"kvlb_disaggregation_replica_{series}_tokens_total")
        return {labels["replica"]: value for labels, value in found}

    setup = four[0].setup
    moved = Figures.of(four).since(then).moved
    deadline = asyncio.get_running_loop().time() + 30
    while [(await told("fetched")).get(name(each.decode), 0) for each in four] != moved:
        assert asyncio.get_running_loop().time() < deadline, (await told("fetched"), moved)
        await asyncio.sleep(0.1)
    expected = await told("expected")
    assert sum(expected.values()) == PROMPT_TOKENS * requests
    for each, tokens in zip(four, moved, strict=True):
        share, rest = divmod(expected[name(each.decode)], PROMPT_TOKENS)
        assert rest == 0
        assert tokens == share * setup.fetched(PROMPT_TOKENS)


def test_any_prefill_engine_computes_for_any_decode_engine(four: list[Two]) -> None:
    async def check() -> None:
        moved = four[0].setup.fetched(PROMPT_TOKENS)
        async with before(four, policy=IN_TURN) as (front, client):
            began = Figures.of(four)
            # What an engine has fetched before it was first asked counts for nobody.
            await eventually(
                lambda: all(
                    (account := front.service.witness.accounts.get(ReplicaId(name(each.decode)))) is not None
                    and account.last is not None
                    for each in four
                ),
                60,
            )
            ways = [(p, d) for p in range(2) for d in range(2)]
            for seed, (p, d) in enumerate(ways, 400):
                ids, then = prompt(seed), Figures.of(four)
                async with only(front, client, four, p, d):
                    headers, answer = await ask(front, client, body(ids))
                assert headers["x-kvlb-prefill"] == name(four[p].prefill)
                assert headers["x-kvlb-replica"] == name(four[d].decode)
                grown = Figures.of(four).since(then)
                assert grown.by_prefill == [PROMPT_TOKENS if at == p else 0 for at in range(2)], "computed once"
                assert grown.moved == [moved if at == d else 0 for at in range(2)]
                assert grown.by_decode[1 - d] == 0
                assert grown.by_decode[d] <= PROMPT_TOKENS - moved + 1
                assert answer["usage"]["prompt_tokens"] == PROMPT_TOKENS
                assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0, "what the prefill had found"
                assert answer["kv_transfer_params"] is None
                await assert_as_one_engine(four[p].prefill, ids, answer)

            prompts, then = [prompt(seed) for seed in range(410, 410 + TOGETHER)], Figures.of(four)
            answers = await asyncio.gather(*(ask(front, client, body(ids)) for ids in prompts))
            grown = Figures.of(four).since(then)
            assert sum(grown.by_prefill) == PROMPT_TOKENS * TOGETHER, "each prompt once"
            assert sum(grown.moved) == moved * TOGETHER
            assert sum(grown.by_decode) <= (PROMPT_TOKENS - moved + 1) * TOGETHER
            assert {headers["x-kvlb-prefill"] for headers, _ in answers} == {name(each.prefill) for each in four}
            assert {headers["x-kvlb-replica"] for headers, _ in answers} == {name(each.decode) for each in four}
            await assert_it_was_foretold(front, four, began, len(ways) + TOGETHER)
            for series in ("silent_misses", "alone", "stranded_prefills"):
                assert sum(value for _, value in await front.samples(f"kvlb_disaggregation_{series}_total")) == 0, (
                    series
                )
            for ids, (_, answer) in zip(prompts, answers, strict=True):
                await assert_as_one_engine(four[0].prefill, ids, answer)
            await eventually(front.is_idle, 30)
        await settled(*(engine for each in four for engine in (each.prefill, each.decode)))

    run(check(), 900)


def test_one_of_two_prefill_engines_dies_and_no_answer_is_lost(
    four: list[Two], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies with a prompt computed that nobody has fetched yet; where both legs go at once, while both are under way."""
    engines = {name(engine): engine for each in four for engine in (each.prefill, each.decode)}
    killed: list[str] = []

    async def die(replica: str) -> None:
        killed.append(replica)
        await asyncio.to_thread(engines[replica].kill)

    async def die_at_work(replica: str, decode: str) -> None:
        """Once the decode engine waits for what will not come."""
        names = ("num_requests_running", "num_requests_waiting")

        def waits() -> bool:
            return any(figure(engines[decode], each) for each in names)

        try:
            await asyncio.to_thread(until, "the decode engine has it", waits)
        finally:
            await die(replica)

    begin, answer_leg = Legs._at_once, Legs._answer

    async def freezes(self: Legs, first: Any, attempt: Any, chosen: Any, decision: Any, *rest: Any) -> None:
        if killed:
            return await begin(self, first, attempt, chosen, decision, *rest)
        victim = chosen.replica.id
        os.killpg(engines[victim].process.pid, signal.SIGSTOP)
        dying = asyncio.ensure_future(die_at_work(victim, decision.replica.id))
        try:
            return await begin(self, first, attempt, chosen, decision, *rest)
        finally:
            await dying

    async def kills(self: Legs, asking: Any, attempt: Any, decision: Any, computed: Any, state: Any) -> None:
        if not killed:
            await die(computed.decision.replica.id)
        await answer_leg(self, asking, attempt, decision, computed, state)

    async def check() -> None:
        async with before(four, policy=IN_TURN) as (front, client):
            monkeypatch.setattr(Legs, "_at_once", freezes)
            monkeypatch.setattr(Legs, "_answer", kills)
            ids = prompt(500)
            _, answer = await ask(front, client, body(ids))
            (dead,) = killed
            (left,) = (each.prefill for each in four if name(each.prefill) != dead)
            await assert_as_one_engine(left, ids, answer)

            # At once: nobody waits until a probe has found out.
            prompts, then = [prompt(seed) for seed in range(510, 510 + TOGETHER)], Figures.of(four)
            answers = await asyncio.gather(*(ask(front, client, body(each)) for each in prompts))
            grown = Figures.of(four).since(then)
            assert {headers["x-kvlb-prefill"] for headers, _ in answers} == {name(left)}
            assert sum(grown.by_prefill) == PROMPT_TOKENS * TOGETHER, "each prompt once"
            assert sum(grown.moved) == four[0].setup.fetched(PROMPT_TOKENS) * TOGETHER
            for each, (_, answer) in zip(prompts, answers, strict=True):
                await assert_as_one_engine(left, each, answer)
            await eventually(front.is_idle, 30)
        await settled(*(engine for engine in engines.values() if is_alive(engine)))

    run(check(), 900)
