"""The gateway before engines that cache and announce as vLLM does: what it predicts is what they then report."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from balancer.facts import replica_id
from balancer.knowledge import Knowledge
from hashing.extras import Lora
from indexer.recognition import KeyState
from simulations.fake_engine import FakeConfig, FakeEngine
from tests.support.engines import MODEL, Fleet, config, fleet
from tests.support.gateways import close, gateway, get, post, split
from tests.support.waiting import eventually, run

COMPLETIONS = "/v1/completions"
SMALL = config(num_gpu_blocks=40, max_model_len=512)  # room for two of four conversations: much is evicted
IDS = list(range(300, 370))  # 70 tokens: four blocks of 16, and 6 more


# Predictions

Turn = Callable[[random.Random, list[str]], tuple[str, dict[str, Any]]]


def _words(chance: random.Random, history: list[str]) -> str:
    history.append(" ".join(chance.choices(("alpha", "beta", "gamma", "delta"), k=40)))
    return history[-1]


def _ids(chance: random.Random, history: list[str]) -> list[int]:
    _words(chance, history)
    return [256 + sum(word.encode()) for text in history for word in text.split()]


def _messages(chance: random.Random, history: list[str]) -> list[dict[str, str]]:
    if history:
        history.append("answer")
    _words(chance, history)
    return [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(history)]


USAGE = {"stream": True, "stream_options": {"include_usage": True}}

TURNS: dict[str, Turn] = {
    "completions of ids": lambda c, h: (COMPLETIONS, {"prompt": _ids(c, h), "max_tokens": 3}),
    "completions of text": lambda c, h: (COMPLETIONS, {"prompt": " ".join([*h, _words(c, h)]), "max_tokens": 3}),
    "completions streamed": lambda c, h: (COMPLETIONS, {"prompt": _ids(c, h), "max_tokens": 3, **USAGE}),
    "completions salted": lambda c, h: (COMPLETIONS, {"prompt": _ids(c, h), "max_tokens": 3, "cache_salt": "pepper"}),
    "chat": lambda c, h: ("/v1/chat/completions", {"messages": _messages(c, h), "max_tokens": 3}),
    "chat streamed": lambda c, h: ("/v1/chat/completions", {"messages": _messages(c, h), "max_tokens": 3, **USAGE}),
    "responses": lambda c, h: ("/v1/responses", {"input": _messages(c, h), "max_output_tokens": 3}),
    "responses streamed": lambda c, h: (
        "/v1/responses",
        {"input": _messages(c, h), "max_output_tokens": 3, "stream": True},
    ),
    "messages": lambda c, h: ("/v1/messages", {"messages": _messages(c, h), "max_tokens": 3}),
    "messages streamed": lambda c, h: ("/v1/messages", {"messages": _messages(c, h), "max_tokens": 3, "stream": True}),
    "tokens in": lambda c, h: (
        "/inference/v1/generate",
        {"token_ids": _ids(c, h), "sampling_params": {"max_tokens": 3}},
    ),
}
"""The next turn of a conversation whose history is given and grows."""


async def talk(over: Fleet, turn: Turn, turns: int, seed: int = 1) -> None:
    """Several conversations by turns; between two requests all events arrive."""
    chance = random.Random(seed)
    histories: list[list[str]] = [[] for _ in range(4)]
    for at in range(turns):
        path, body = turn(chance, histories[at % len(histories)])
        await over.post(path, body)
        await over.settle()


@pytest.mark.parametrize("name", TURNS)
def test_what_is_predicted_is_what_the_engine_reports(name: str) -> None:
    async def check() -> None:
        async with fleet(SMALL, SMALL) as over:
            await talk(over, TURNS[name], 16)
            assert over.exact_share() == (16, 16)
            assert sum(tally.actual_tokens for tally in over.router.caches.audit.tallies.values()) > 0
            assert over.front.is_idle()

    run(check())


def test_adapters_are_predicted_apart_from_their_base() -> None:
    async def check() -> None:
        async with fleet(config(loras=(Lora("sql", "/adapters/sql", 1),))) as over:
            assert (await over.complete(IDS))[1:] == (0, 0)
            await over.settle()
            assert (await over.complete(IDS, model="sql"))[1:] == (0, 0)
            await over.settle()
            assert (await over.complete(IDS, model="sql"))[1:] == (64, 64)
            assert (await over.complete(IDS))[1:] == (64, 64)

    run(check())


def test_who_skips_the_cache_is_promised_nothing_and_still_fills_it() -> None:
    async def check() -> None:
        async with fleet(config()) as over:
            for _ in range(2):
                assert (await over.complete(IDS, prompt_logprobs=1))[1:] == (0, 0)
                await over.settle()
            assert (await over.complete(IDS))[1:] == (64, 64)
            assert over.exact_share() == (3, 3)

    run(check())


@pytest.mark.parametrize("prompt", [IDS, [IDS, IDS[:40]], "text " * 30, ["some text " * 20, "more text " * 20]])
def test_every_shape_of_prompt_is_served(prompt: Any) -> None:
    async def check() -> None:
        async with fleet(config(), config()) as over:
            first, _, _ = await over.complete(prompt)
            await over.settle()
            again, predicted, _ = await over.complete(prompt)
            assert again == first
            assert predicted > 0

    run(check())


def test_without_render_text_is_tokenised_another_way() -> None:
    async def check() -> None:
        async with fleet(config(has_scale_out=False)) as over:
            text = "text " * 40
            await over.complete(text)
            await over.settle()
            _, predicted, actual = await over.complete(text)
            assert predicted == actual > 0

    run(check())


def _named(engine: FakeEngine) -> str:
    return engine.events()


def _replayed(engine: FakeEngine) -> str | None:
    return engine.replay()


@pytest.mark.parametrize(
    ("version", "extra"),
    [
        ("0.30.0", {}),
        ("0.22.0", {"hash_seed": "0"}),
        ("0.18.0", {"hash_seed": "0"}),
        ("0.14.0", {"hash_seed": "0"}),
        ("0.11.0", {"hash_seed": "0"}),
    ],
)
def test_engines_too_old_to_tell_are_followed_with_settings(version: str, extra: dict[str, Any]) -> None:
    async def check() -> None:
        old = config(vllm_version=version, hash_seed=extra.get("hash_seed"), num_gpu_blocks=40, max_model_len=512)
        async with fleet(old, replicas=[{"events": _named, "replay": _replayed, **extra}]) as over:
            await talk(over, TURNS["completions of ids"], 8)
            await talk(over, TURNS["completions salted"], 8)
            await talk(over, TURNS["chat"], 8)
            assert over.exact_share() == (24, 24)

    run(check())


def test_engines_of_two_ages_serve_side_by_side() -> None:
    async def check() -> None:
        async with fleet(
            config(vllm_version="0.22.0", hash_seed="7", hash_algorithm="xxhash", block_size=32),
            config(hash_algorithm="sha256_cbor"),
            replicas=[{"events": _named, "replay": _replayed, "hash_seed": "7"}, {}],
            policy={"name": "round_robin"},
        ) as over:
            await talk(over, TURNS["completions of ids"], 16)
            exact, compared = over.exact_share()
            # Without a replay socket nothing is known of an engine before its first event: nothing is promised then.
            assert exact == compared >= 15
            assert len(over.router.caches.audit.tallies) == 2

    run(check())


# Hashes that nobody has told


def _held(over: Fleet, engine: FakeEngine) -> Counter[int]:
    """What is known of an engine's cache, by its own hashes."""
    replica = replica_id(engine.url, 0, 1)
    recognition = over.router.caches.recognitions[replica]
    if recognition.state is not KeyState.LEARNED:
        return over.router.caches.index.gpu.held(replica)
    return recognition.learned.held()


async def _arrived(over: Fleet) -> None:
    """Return once all events have arrived, in whatever way they are read."""
    await eventually(lambda: all(_held(over, engine) == engine.cached() for engine in over.engines))
    for engine in over.engines:
        assert over.router.caches.index.gpu.copies(replica_id(engine.url, 0, 1)) == sum(engine.cached().values())


async def _known(over: Fleet, *states: Knowledge) -> None:
    """Return once all events have arrived and every cache is known as one of these states."""
    await _arrived(over)
    router = over.router
    await eventually(lambda: all(router.caches.view(live.replica.id, 0.0).state in states for live in router.fleet))


async def _talk_of_all_kinds(over: Fleet) -> set[int]:
    """24 turns, all events between them; returns every hash that was ever cached."""
    chance = random.Random(3)
    histories: dict[tuple[str, int], list[str]] = {}
    names = ("completions of ids", "completions salted", "chat")
    seen: set[int] = set()
    for at in range(24):
        name = names[at % len(names)]
        path, body = TURNS[name](chance, histories.setdefault((name, at // len(names) % 2), []))
        await over.post(path, body)
        await _arrived(over)
        seen |= set(over.engines[0].cached())
    return seen


async def _knowledge(over: Fleet) -> list[tuple[str, str]]:
    """What the status page says of each replica's cache, and why."""
    page = json.loads(split(await over.front.exchange(get("/kvlb/status")))[2])
    return [(each["knowledge"]["state"], each["knowledge"]["reason"]) for each in page["replicas"]]


LEARNED = ("learned", "its hashes agree with no recipe that is known here; they are learned from its events")
FOUND = ("exact", "its events say that seed is '0', not None")

UNTOLD: dict[str, tuple[dict[str, Any], tuple[str, str]]] = {
    "random root": ({"vllm_version": "0.22.0"}, LEARNED),
    "random root, whole digests": ({"vllm_version": "0.28.0", "has_int_hashes": False}, LEARNED),
    "usual seed": ({"vllm_version": "0.22.0", "hash_seed": "0"}, FOUND),
    "seed of one's own": ({"vllm_version": "0.22.0", "hash_seed": "mystery"}, LEARNED),
    "xxhash": ({"vllm_version": "0.30.0", "hash_algorithm": "xxhash"}, LEARNED),
    "xxhash of a usual seed": ({"vllm_version": "0.30.0", "hash_algorithm": "xxhash", "hash_seed": "0"}, FOUND),
    "seed of one's own, newest": ({"hash_seed": "mystery"}, LEARNED),
    "usual seed, newest": ({"hash_seed": "0"}, FOUND),
    "xxhash, newest": ({"hash_algorithm": "xxhash_cbor"}, LEARNED),
}


@pytest.mark.parametrize("name", UNTOLD)
def test_hashes_that_nobody_has_told_are_found_or_learned(name: str) -> None:
    changes, knowledge = UNTOLD[name]

    async def check() -> None:
        engine = config(num_gpu_blocks=40, max_model_len=512, **changes)
        async with fleet(engine, replicas=[{"events": _named, "replay": _replayed}]) as over:
            await over.complete([7] * 40)  # the proof
            await _known(over, Knowledge(knowledge[0]))
            before = over.exact_share()[1]
            seen = await _talk_of_all_kinds(over)
            assert len(seen) > 39, "blocks have been evicted"
            assert over.exact_share()[1] - before == 24
            exact, compared = over.exact_share()
            assert exact == compared
            (tally,) = over.router.caches.audit.tallies.values()
            assert tally.actual_tokens > 0
            assert await _knowledge(over) == [knowledge]

    run(check())


def test_a_salted_prompt_may_be_the_first() -> None:
    async def check() -> None:
        async with fleet(config(vllm_version="0.22.0"), replicas=[{"events": _named, "replay": _replayed}]) as over:
            for expected in (0, 64):
                _, _, actual = await over.complete(IDS, cache_salt="pepper")
                assert actual == expected
                await _known(over, Knowledge.LEARNED)
            assert (await over.complete(IDS, cache_salt="pepper"))[1:] == (64, 64)
            assert (await over.complete(IDS))[1:] == (0, 0)
            assert await _knowledge(over) == [LEARNED]

    run(check())


def test_learned_adapters_are_apart_from_their_base() -> None:
    async def check() -> None:
        lora = (Lora("sql", "/adapters/sql", 1),)
        async with fleet(
            config(vllm_version="0.22.0", loras=lora), replicas=[{"events": _named, "replay": _replayed}]
        ) as over:
            for fields in ({}, {"model": "sql"}, {"model": "sql", "cache_salt": "sql"}):
                assert (await over.complete(IDS, **fields))[2] == 0
                await _arrived(over)
                assert (await over.complete(IDS, **fields))[1:] == (64, 64)
                await _arrived(over)

    run(check())


def test_after_a_restart_another_root_is_learned() -> None:
    async def check() -> None:
        async with fleet(config(vllm_version="0.22.0"), replicas=[{"events": _named, "replay": _replayed}]) as over:
            (engine,) = over.engines
            for _ in range(3):
                first = set(engine.cached())
                await over.complete(IDS)
                await _known(over, Knowledge.LEARNED)
                assert (await over.complete(IDS))[1:] == (64, 64)
                assert not first & set(engine.cached()), "the engine's own hashes are others in each life"
                assert await _knowledge(over) == [LEARNED]
                await engine.kill()
                await engine.start()
                await eventually(lambda: _is_empty(over) and _reason(over).startswith("how it hashes is not known"))
                await over.wait_usable(1)
            exact, compared = over.exact_share()
            assert exact == compared > 0

    run(check())


def _is_empty(over: Fleet) -> bool:
    return not any(over.router.caches.index.gpu.copies(replica) for replica in over.router.caches.index.replicas)


def _reason(over: Fleet) -> str:
    (live,) = over.router.fleet
    return over.router.caches.view(live.replica.id, 0.0).reason


def test_learned_and_proven_engines_serve_side_by_side() -> None:
    async def check() -> None:
        old = {"events": _named, "replay": _replayed}
        async with fleet(
            config(vllm_version="0.22.0", block_size=32),
            config(),
            config(vllm_version="0.30.0", hash_algorithm="xxhash", block_size=8),
            replicas=[old, {}, old],
        ) as over:
            for engine in over.engines:
                engine.hold()
            prompts = [[at] * 70 for at in (300, 301, 302)]
            asks = [asyncio.ensure_future(over.complete(prompt)) for prompt in prompts]
            await eventually(lambda: over.router.fleet.open_leases == 3)
            for engine in over.engines:
                engine.release()
            homes = [home for home, _, _ in await asyncio.gather(*asks)]
            assert len(set(homes)) == 3
            await _arrived(over)
            for prompt, home in zip(prompts, homes, strict=True):
                again, predicted, actual = await over.complete(prompt)
                assert again == home
                assert predicted == actual >= 64
            await _known(over, Knowledge.EXACT, Knowledge.LEARNED)
            assert sorted(state for state, _ in await _knowledge(over)) == ["exact", "learned", "learned"]

    run(check())


def test_an_event_address_where_nobody_answers_makes_a_replica_blind() -> None:
    async def check() -> None:
        engine = FakeEngine(config(vllm_version="0.22.0", hash_seed="0"))
        await engine.start()
        try:
            nobody = {"url": engine.url, "events": "tcp://127.0.0.1:9", "hash_seed": "0"}
            async with gateway([nobody]) as front:
                body = json.dumps({"model": MODEL, "prompt": IDS, "max_tokens": 1}).encode()
                for _ in range(2):
                    status, headers, _ = split(await front.exchange(post(COMPLETIONS, body)))
                    assert status == "HTTP/1.1 200 OK"
                    assert dict(headers)["x-kvlb-predicted"] == "unknown"
                page = json.loads(split(await front.exchange(get("/kvlb/status")))[2])
                knowledge = page["replicas"][0]["knowledge"]
                assert (knowledge["state"], knowledge["reason"]) == ("blind", "its event publisher cannot be reached")
                states = {labels["state"]: value for labels, value in await front.samples("kvlb_cache_knowledge")}
                assert states == {"exact": 0, "learned": 0, "partial": 0, "blind": 1}
                (tally,) = front.service.router.caches.audit.tallies.values()
                assert (tally.compared, tally.estimates) == (0, 2)
        finally:
            await engine.kill()

    run(check())


# Routing


def test_conversations_stay_with_their_holders_and_are_spread() -> None:
    async def check() -> None:
        async with fleet(*[config()] * 4) as over:
            prompts = [[number] * 64 for number in range(400, 416)]
            homes: dict[int, str] = {}
            for turn in range(3):
                for number, prompt in enumerate(prompts):
                    home, _, _ = await over.complete(prompt + [turn] * 8)
                    assert homes.setdefault(number, home) == home
                await over.settle()
            assert len(set(homes.values())) > 1

    run(check())


def test_what_is_being_computed_on_a_replica_is_there_for_the_next_one_sent_to_it() -> None:
    async def check() -> None:
        async with fleet(config(), config(), policy={"name": "round_robin"}) as over:
            for engine in over.engines:
                engine.hold()
            asks = [asyncio.ensure_future(over.complete([*([7] * 1600), at])) for at in range(4)]
            await eventually(lambda: over.router.fleet.open_leases == 4)
            assert [live.in_flight for live in over.router.fleet] == [2, 2]
            for engine in over.engines:
                engine.release()
            assert sorted(predicted for _, predicted, _ in await asyncio.gather(*asks)) == [0, 0, 1600, 1600]
            assert over.exact_share() == (4, 4)

    run(check())


def test_each_rank_is_a_replica_and_is_named_to_the_engine() -> None:
    async def check() -> None:
        async with fleet(config(data_parallel_size=2), policy={"name": "round_robin"}) as over:
            seen = {}
            for at in range(4):
                headers, _ = await over.post(
                    COMPLETIONS, {"prompt": [at + 300] * 40, "max_tokens": 1}, **{"X-data-parallel-rank": "99"}
                )
                seen[at] = headers["x-kvlb-replica"]
                await over.settle()
            (engine,) = over.engines
            netloc = engine.url.removeprefix("http://")
            assert [seen[at] for at in range(4)] == [f"{netloc}#0", f"{netloc}#1"] * 2
            assert [len(engine.cached(rank)) for rank in range(2)] == [4, 4]

    run(check())


def test_a_prompt_stays_with_its_rank() -> None:
    async def check() -> None:
        async with fleet(config(data_parallel_size=3)) as over:
            for prompt in ([at + 300] * 70 for at in range(4)):
                home, _, _ = await over.complete(prompt)
                for _ in range(2):
                    await over.settle()
                    assert await over.complete(prompt) == (home, 64, 64)

    run(check())


def test_predictions_hold_for_every_rank() -> None:
    async def check() -> None:
        ranks = config(data_parallel_size=2, num_gpu_blocks=40, max_model_len=512)
        async with fleet(ranks, policy={"name": "round_robin"}) as over:
            await talk(over, TURNS["completions of ids"], 16)
            assert over.exact_share() == (16, 16)
            assert len(over.router.caches.audit.tallies) == 2

    run(check())


POLICY = '''
"""The replica with the longest name."""

from collections.abc import Sequence

import msgspec

from balancer.core import NOTHING_ASKED, Asked, Candidate


class Longest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sign: int = 1

    def choose(self, candidates: Sequence[Candidate], draw: float, asked: Asked = NOTHING_ASKED, /) -> Candidate:
        return max(candidates, key=lambda each: (self.sign * each.cached_tokens, each.replica))
'''


def test_a_policy_of_ones_own_is_one_file_of_less_than_twenty_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(POLICY.strip().splitlines()) < 20
    (tmp_path / "longest_policy.py").write_text(POLICY)
    monkeypatch.syspath_prepend(tmp_path)

    async def check() -> None:
        named = {"name": "longest_policy:Longest", "sign": -1}
        async with fleet(config(), config(), policy=named) as over:
            last, first = sorted((engine.url.removeprefix("http://") for engine in over.engines), reverse=True)
            chosen = []
            for _ in range(3):
                chosen.append((await over.complete(IDS))[0])
                await over.settle()
            assert chosen == [last, first, last], "the fewest cached tokens, then the longest name"

    run(check())


# Restarts, failures, news that are lost


def test_a_restarted_engine_is_known_to_be_empty() -> None:
    async def check() -> None:
        async with fleet(config()) as over:
            (engine,) = over.engines
            await over.complete(IDS)
            await over.settle()
            before = over.router.caches.index.gpu.blocks(next(iter(over.router.caches.index.replicas)))
            assert before > 0
            await engine.kill()
            await engine.start()
            await over.wait_usable(1)
            await eventually(lambda: over.mirrors() and over.follows())
            assert (await over.complete(IDS))[1:] == (0, 0)
            await over.settle()
            assert (await over.complete(IDS))[1:] == (64, 64)
            assert over.exact_share() == (3, 3)

    run(check())


def test_an_engine_that_publishes_elsewhere_after_a_restart_is_followed_there() -> None:
    async def check() -> None:
        async with fleet(config()) as over:
            (engine,) = over.engines
            await over.complete(IDS)
            await over.settle()
            before = engine.events()
            await engine.kill()
            await over.wait_usable(0)
            engine.config = config(port=engine.config.port, event_port=0, replay_port=0)
            await engine.start()
            assert engine.events() != before
            await over.wait_usable(1)
            await eventually(lambda: over.mirrors() and over.follows())
            assert (await over.complete(IDS))[1:] == (0, 0)
            await over.settle()
            assert (await over.complete(IDS))[1:] == (64, 64)

    run(check())


def test_a_replica_that_is_down_is_passed_over_and_used_again_when_it_is_back() -> None:
    async def check() -> None:
        async with fleet(config(), config(), policy={"name": "round_robin"}) as over:
            gone, stays = over.engines
            await over.complete(IDS)
            await over.complete(IDS)
            await gone.kill()
            names = [(await over.complete([at] * 20))[0] for at in range(300, 306)]
            assert names == [stays.url.removeprefix("http://")] * 6, "not one request has failed"
            await gone.start()
            await over.wait_usable(2)
            names = [(await over.complete([at] * 20))[0] for at in range(300, 304)]
            assert set(names) == {engine.url.removeprefix("http://") for engine in over.engines}
            assert over.front.is_idle()

    run(check())


def test_it_starts_before_any_engine_and_serves_when_one_has_come() -> None:
    async def check() -> None:
        engine = FakeEngine(config())
        await engine.start()
        await engine.kill()
        body = json.dumps({"model": MODEL, "prompt": IDS, "max_tokens": 1}).encode()
        async with gateway([engine.url], wait=False) as front:
            assert split(await front.exchange(post(COMPLETIONS, body)))[0].startswith("HTTP/1.1 503")
            assert split(await front.exchange(get("/health")))[0] == "HTTP/1.1 200 OK"
            await engine.start()
            try:
                await eventually(lambda: front.service.is_ready)
                assert split(await front.exchange(post(COMPLETIONS, body)))[0] == "HTTP/1.1 200 OK"
            finally:
                await engine.kill()

    run(check())


def test_batches_lost_on_their_way_are_asked_for_again() -> None:
    async def check() -> None:
        async with fleet(config(num_gpu_blocks=40, max_model_len=512)) as over:
            await over.complete(IDS)
            await over.settle()
            over.engines[0].drop_next_batches(2)
            for at in range(4):
                await over.complete([at + 300] * 200)
            await over.settle()
            (status,) = over.front.service.publishers().values()
            assert status.counters["replays"] > 0
            assert status.counters["lost_batches"] == 0

    run(check())


def test_a_cache_that_is_reset_is_known_to_be_empty_with_the_next_step() -> None:
    async def check() -> None:
        async with fleet(config()) as over:
            await over.complete(IDS)
            await over.settle()
            over.engines[0].reset()
            await over.complete([9] * 40)
            await over.settle()
            assert (await over.complete(IDS))[1:] == (0, 0)

    run(check())


# Many, and impatient clients


def test_three_hundred_streams_run_at_once() -> None:
    async def check() -> None:
        async with fleet(config(num_gpu_blocks=4096), config(num_gpu_blocks=4096)) as over:
            for engine in over.engines:
                engine.hold()
            body = {"prompt": IDS, "max_tokens": 4, "stream": True}
            asks = [asyncio.ensure_future(over.post(COMPLETIONS, body)) for _ in range(300)]
            await eventually(lambda: sum(engine.rank().engine.num_waiting for engine in over.engines) == 300, 15)
            assert over.router.fleet.open_leases == 300, "none waits in the gateway"
            for engine in over.engines:
                engine.release()
            answers = await asyncio.gather(*asks)
            assert all(answer.endswith(b"data: [DONE]\n\n") for _, answer in answers)
            assert over.front.is_idle()
            assert await over.front.outcomes() == {"ok": 300}
            loads = [sum(replica == each for replica in (headers["x-kvlb-replica"] for headers, _ in answers)) for each in
                     over.router.fleet._live]  # fmt: skip
            assert min(loads) > 100, "one warm replica must not get everything"

    run(check(), 60)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_when_a_client_leaves_its_engine_stops_computing(is_streamed: bool) -> None:
    async def check() -> None:
        slow = config(latency=FakeConfig().latency)
        async with fleet(slow) as over:
            fields = {"model": MODEL, "prompt": IDS, "max_tokens": 1500, "ignore_eos": True, "stream": is_streamed}
            _, writer = await over.front.send(post(COMPLETIONS, json.dumps(fields).encode()))
            rank = over.engines[0].rank()
            await eventually(lambda: rank.engine.num_running == 1)
            await close(writer)
            await eventually(lambda: rank.load == 0, 1)
            await eventually(over.front.is_idle)
            assert await over.front.outcomes() == {"cancelled": 1}
            await over.settle()

    run(check())


def test_an_engine_killed_in_a_stream_is_no_end_and_the_next_request_finds_another() -> None:
    async def check() -> None:
        slow = config(latency=FakeConfig().latency)
        async with fleet(slow, slow) as over:
            fields = {"model": MODEL, "prompt": IDS, "max_tokens": 1500, "ignore_eos": True, "stream": True}
            reader, writer = await over.front.send(post(COMPLETIONS, json.dumps(fields).encode()))
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            await reader.readuntil(b"\n\n")
            victim = next(engine for engine in over.engines if engine.url.removeprefix("http://") in head)
            await victim.kill()
            rest = await reader.read()
            await close(writer)
            assert not rest.endswith(b"0\r\n\r\n"), "that would be a clean end"
            assert b'"code":"replica_failed"' in rest
            name, _, _ = await over.complete(IDS)
            assert name not in victim.url
            assert over.front.is_idle()

    run(check())


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"prompt": []}, 400),
        ({"prompt": [1] * 5000}, 400),
        ({"prompt": [2**40]}, 400),
        ({"prompt": [-1] * 40}, 400),
        ({"prompt": "x", "max_tokens": "many"}, 400),
        ({"prompt": {"odd": 1}}, 400),
        ({"prompt": "x", "cache_salt": ""}, 400),
        ({}, 400),
    ],
)
def test_what_the_engine_refuses_is_told_in_its_own_words(fields: dict[str, Any], status: int) -> None:
    async def check() -> None:
        async with fleet(config()) as over:
            body = json.dumps({"model": MODEL, "request_id": "r", **fields}).encode()
            through = split(await over.front.exchange(post(COMPLETIONS, body)))
            host, _, port = over.engines[0].url.removeprefix("http://").rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(post(COMPLETIONS, body))
            direct = split(await reader.read())
            await close(writer)
            assert (through[0], through[2]) == (direct[0], direct[2])
            assert int(through[0].split(" ")[1]) == status
            assert over.front.is_idle()

    run(check())


def test_other_inference_paths_are_served() -> None:
    async def check() -> None:
        async with fleet(config(), config()) as over:
            bodies: dict[str, dict[str, Any]] = {
                "/v1/embeddings": {"input": "x"},
                "/tokenize": {"prompt": "x"},
                "/detokenize": {"tokens": [97]},
                "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "x"}]},
                "/v1/completions/render": {"prompt": "x"},
                "/v1/chat/completions/render": {"messages": [{"role": "user", "content": "x"}]},
            }
            for path, fields in bodies.items():
                await over.post(path, fields)
            assert over.front.is_idle()

    run(check())
