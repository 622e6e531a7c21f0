"""A gateway that is started again, or beside another one, knows what was known; and only what still holds."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from balancer.facts import replica_id
from balancer.knowledge import Knowledge
from indexer.index import ReplicaId
from simulations.fake_engine import FakeEngine, running
from tests.support.engines import MODEL, Fleet, config
from tests.support.gateways import gateway
from tests.support.waiting import eventually, run

SMALL = config(num_gpu_blocks=60, max_model_len=512)
ROOMY = config(num_gpu_blocks=4_000, max_model_len=4_096)
IDS = list(range(300, 370))
"""70 tokens: four blocks of 16, and 6 more."""


@contextlib.asynccontextmanager
async def engines(count: int, like: Any = ROOMY) -> AsyncIterator[list[FakeEngine]]:
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(running(like)) for _ in range(count)]


@contextlib.asynccontextmanager
async def front(
    over: Sequence[FakeEngine], replica: dict[str, str] | None = None, **snapshot: Any
) -> AsyncIterator[Fleet]:
    """A gateway before these engines, as soon as it answers: its subscriptions need not stand yet."""
    async with (
        gateway([{"url": engine.url, **(replica or {})} for engine in over], snapshot=snapshot) as made,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client,
    ):
        yield Fleet(over, made, client)


async def ask(engine: FakeEngine, prompt: Sequence[int]) -> None:
    """A request that no gateway knows of."""
    body = {"model": MODEL, "prompt": list(prompt), "max_tokens": 1}
    async with aiohttp.ClientSession() as client, client.post(engine.url + "/v1/completions", json=body) as response:
        assert response.status == 200


def name(engine: FakeEngine) -> ReplicaId:
    return replica_id(engine.url, 0, 1)


async def settled(over: Fleet, *prompts: Sequence[int]) -> None:
    """Follows the engines, has asked for each prompt, and has heard of all that came of it."""
    await eventually(over.follows)
    for prompt in prompts:
        await over.complete(prompt)
    await over.settle()


def views(over: Fleet) -> list[tuple[Knowledge, str]]:
    now = asyncio.get_running_loop().time()
    return [
        (view.state, view.reason)
        for each in over.router.fleet
        for view in [over.router.caches.view(each.replica.id, now)]
    ]


class Talks:
    """Conversations by turns; each turn repeats all that was said before."""

    def __init__(self, count: int) -> None:
        self._chance = random.Random(1)
        self._histories = [[self._chance.randrange(256, 5_000) for _ in range(400)] for _ in range(count)]

    async def round(self, over: Fleet, at_once: int = 4) -> float:
        """One turn of each conversation; the share of prompt tokens that the engines had."""
        prompt_tokens = cached = 0
        for start in range(0, len(self._histories), at_once):
            some = self._histories[start : start + at_once]
            for history in some:
                history += [self._chance.randrange(256, 5_000) for _ in range(20)]
            for history, (_, _, actual) in zip(
                some, await asyncio.gather(*(over.complete(history) for history in some)), strict=True
            ):
                prompt_tokens += len(history)
                cached += actual
        return cached / prompt_tokens


def test_a_restart_under_load_costs_no_hits(tmp_path: Path) -> None:
    async def scenario() -> None:
        talks = Talks(24)
        async with engines(4) as over:
            async with front(over, path=str(tmp_path / "index")) as before:
                await eventually(before.follows)
                for _ in range(2):
                    await talks.round(before)
                await before.settle()
                for engine in over:
                    engine.forget_replay()  # as one that has run for long: a replay alone would not bring it all back
                share = await talks.round(before)
                await before.settle()
            async with front(over, path=str(tmp_path / "index")) as after:
                assert await talks.round(after) > share - 0.02
                await settled(after)
                assert {state for state, _ in views(after)} == {Knowledge.EXACT}

    run(scenario())


def test_learned_keys_outlive_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with engines(1, config(vllm_version="0.22.0")) as over:  # with a root that nobody can know
            where = {"events": over[0].events(), "replay": over[0].replay() or ""}
            async with front(over, replica=where, path=str(tmp_path / "index")) as before:
                await eventually(before.follows)
                await before.complete(IDS)
                await eventually(lambda: views(before)[0][0] is Knowledge.LEARNED)
                over[0].forget_replay()
                await before.complete(IDS[::-1])
                await eventually(lambda: before.router.caches.index.gpu.blocks(name(over[0])) == 8)
            longer = [*IDS, *range(300, 340)]
            await ask(over[0], longer)  # the first of its blocks are known from the snapshot alone
            async with front(over, replica=where, path=str(tmp_path / "index")) as after:
                await eventually(after.follows)
                await eventually(lambda: after.router.caches.index.gpu.blocks(name(over[0])) == 10)
                assert views(after)[0][0] is Knowledge.LEARNED
                assert (await after.complete(longer))[1:] == (96, 96)

    run(scenario())


def test_what_happened_meanwhile_is_applied(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with engines(1, SMALL) as over:
            async with front(over, path=str(tmp_path / "index")) as before:
                await settled(before, *([at, *IDS] for at in range(4)))
            for at in range(2, 20):  # more than there is room for: blocks are stored, hit and evicted
                await ask(over[0], [at, *IDS, *IDS])
            async with front(over, path=str(tmp_path / "index")) as after:
                await settled(after)
                assert after.router.caches.index.gpu.unknown_removals == 0
                assert views(after)[0][0] is Knowledge.EXACT
                _, predicted, actual = await after.complete([19, *IDS, *IDS])
                assert predicted == actual > 0

    run(scenario())


def test_an_engine_that_was_restarted_meanwhile_begins_anew_and_the_others_do_not(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with engines(2) as over:
            async with front(over, path=str(tmp_path / "index")) as before:
                await settled(before, *([at, *IDS] for at in range(24)))
            held = over[1].cached()
            await over[0].kill()
            await over[0].start()
            async with front(over, path=str(tmp_path / "index")) as after:
                await settled(after)
                assert not after.router.caches.index.gpu.held(name(over[0]))
                assert after.router.caches.index.gpu.held(name(over[1])) == held
                assert held
                after.router.caches.index.check()

    run(scenario())


def test_an_engine_that_restarted_and_has_published_as_much_again_is_not_taken_for_the_old_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with engines(1) as over:
            async with front(over, path=str(tmp_path / "index")) as before:
                await settled(before, *([at, *IDS] for at in range(3)))
            await over[0].kill()
            await over[0].start()
            for at in range(10, 20):
                await ask(over[0], [at, *IDS])
            async with front(over, path=str(tmp_path / "index")) as after:
                await settled(after)
                assert views(after)[0][0] is Knowledge.EXACT

    run(scenario())


def test_until_its_publisher_has_confirmed_it_a_replica_is_partial(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with engines(1) as over:
            async with front(over, path=str(tmp_path / "index")) as before:
                await settled(before, IDS)
            nowhere = {"events": "tcp://127.0.0.1:9", "replay": "tcp://127.0.0.1:10"}
            async with front(over, path=str(tmp_path / "index"), replica=nowhere) as after:
                [(state, reason)] = views(after)
                assert (state, reason[:31]) == (Knowledge.PARTIAL, "taken over from a snapshot, and")
                _, predicted, actual = await after.complete(IDS)
                assert predicted == actual == 64, "and yet it is used"

    run(scenario())


def test_without_a_replay_socket_it_begins_anew(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with engines(1, config(vllm_version="0.30.0")) as over:  # which does not tell of its sockets
            endpoint = {"url": over[0].url, "events": over[0].events()}
            has_replay = {"events": over[0].events(), "replay": over[0].replay() or ""}
            async with front(over, has_replay, path=str(tmp_path / "index")) as before:
                await settled(before, IDS)
            async with gateway([endpoint], snapshot={"path": str(tmp_path / "index")}) as after:
                index = after.service.router.caches.index
                assert after.service.warm.restored_blocks == 4
                assert index.gpu.blocks(name(over[0])) == 0

    run(scenario())


def test_another_model_at_the_same_address_begins_anew(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with engines(1) as over:
            async with front(over, path=str(tmp_path / "index")) as before:
                await settled(before, IDS)
            await over[0].kill()
            async with (
                running(config(port=over[0].config.port, model="other")) as another,
                front([another], path=str(tmp_path / "index")) as after,
            ):
                assert after.front.service.warm.restored_blocks == 4
                assert after.router.caches.index.gpu.blocks(name(another)) == 0
                await eventually(after.follows)

    run(scenario())


def test_a_replica_that_is_no_longer_in_the_fleet_takes_no_memory(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with engines(2) as over:
            async with front(over, path=str(tmp_path / "index")) as before:
                await settled(before, *([at, *IDS] for at in range(24)))
            async with front(over[:1], path=str(tmp_path / "index")) as after:
                assert after.router.caches.index.replicas == {name(over[0])}
                await settled(after)

    run(scenario())


def test_a_new_gateway_takes_over_what_its_sibling_knows() -> None:
    async def scenario() -> None:
        async with engines(2) as over, front(over) as first:
            await eventually(first.follows)
            homes = {at: (await first.complete([at, *IDS]))[0] for at in range(8)}
            await first.settle()
            async with front(over, siblings=["http://127.0.0.1:9", first.front.url]) as second:
                for at, home in homes.items():
                    assert await second.complete([at, *IDS]) == (home, 64, 64)
                await settled(second)
                assert {state for state, _ in views(second)} == {Knowledge.EXACT}

    run(scenario())


@pytest.mark.parametrize("damage", ["changed", "cut", "foreign"])
def test_a_damaged_file_is_refused_with_a_line_and_a_cold_start(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "index"

    async def scenario() -> None:
        async with engines(1) as over:
            async with front(over, path=str(path)) as before:
                await settled(before, IDS)
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.write_bytes({"changed": bytes(data), "cut": bytes(data[:-5]), "foreign": b"not ours" * 9}[damage])
            async with front(over, path=str(path)) as after:
                assert after.front.service.warm.restored_blocks == 0
                await settled(after)
                assert views(after)[0][0] is Knowledge.EXACT
        warnings = [
            record.getMessage() for record in caplog.records if "the snapshot is not used" in record.getMessage()
        ]
        assert len(warnings) == 1
        assert str(path) in warnings[0]

    run(scenario())


def test_the_metrics_tell_of_snapshots(tmp_path: Path) -> None:
    async def scenario() -> None:
        path = tmp_path / "index"
        async with engines(1) as over:
            async with front(over, path=str(path), interval_seconds=0.05) as before:
                await settled(before, IDS)
                await eventually(lambda: before.front.service.warm.saves > 2)
                [(_, size)] = await before.front.samples("kvlb_snapshot_bytes")
                assert size > 0
                [(_, age)] = await before.front.samples("kvlb_snapshot_age_seconds")
                assert 0 <= age < 5
            async with front(over, path=str(path)) as after:
                assert await after.front.samples("kvlb_snapshot_restored_blocks") == [({}, 4.0)]
                assert await after.front.samples("kvlb_snapshot_age_seconds") == []

    run(scenario())
    assert [each.name for each in tmp_path.iterdir()] == ["index"], "no draft is left behind"
