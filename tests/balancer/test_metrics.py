"""``balancer/metrics.py``: the page says what happened, under names that stay, with labels that nobody outside can multiply."""

import msgspec

from indexer.events import NIL
from tests.indexer.announced import raw
from tests.indexer.samples import stored
from tests.support.gateways import Gateway, gateway, get, post, split
from tests.support.routing import RANDOM, told
from tests.support.upstream import Received, upstream
from tests.support.waiting import run

PATH = "/v1/completions"
BODY = b'{"model":"m","prompt":[1,2,3,4,5,6,7,8,9]}'


async def total(front: Gateway, name: str, **labels: str) -> float:
    """The sum of a metric's samples with these labels."""
    return sum(value for found, value in await front.samples(name) if labels.items() <= found.items())


def test_requests_are_counted_by_model_path_and_outcome() -> None:
    async def check() -> None:
        async with upstream() as replica, gateway([replica.url]) as front:
            for _ in range(3):
                await front.exchange(post(PATH, BODY))
            assert await front.samples("kvlb_requests_total") == [({"model": "m", "path": PATH, "outcome": "ok"}, 3)]
            assert await total(front, "kvlb_time_to_first_byte_seconds_count", model="m") == 3
            assert await total(front, "kvlb_routed_prompt_tokens_total", model="m") == 27
            assert await total(front, "kvlb_routed_cached_tokens_total", model="m") == 16

    run(check())


def test_tokens_that_nobody_knows_are_not_counted_as_a_guess() -> None:
    async def check() -> None:
        async with upstream() as replica, gateway([replica.url]) as front:
            await front.exchange(post(PATH, b'{"model":"m","prompt":"some text that nobody tokenises"}'))
            assert await total(front, "kvlb_requests_total", outcome="ok") == 1
            assert await front.samples("kvlb_routed_prompt_tokens_total") == []

    run(check())


def test_what_clients_invent_makes_no_new_series() -> None:
    async def check() -> None:
        async with upstream() as replica, gateway([replica.url]) as front:
            await front.exchange(post(PATH, b'{"model":"zero"}'))
            before = len(split(await front.exchange(get("/metrics")))[2].splitlines())
            for at in range(20):
                await front.exchange(post(PATH, b'{"model":"invented-%d"}' % at))
                await front.exchange(post(f"/invented-{at}", BODY))
            assert len(split(await front.exchange(get("/metrics")))[2].splitlines()) == before
            assert await total(front, "kvlb_refused_requests_total", path=PATH, status="404") == 21

    run(check())


def test_loads_are_seen_while_they_last() -> None:
    async def check() -> None:
        async with upstream() as replica, gateway([replica.url]) as front:

            async def look_first(request: Received) -> None:
                assert await total(front, "kvlb_in_flight_requests") == 1
                assert await total(front, "kvlb_queued_tokens") == 9
                request.answer(b"{}")

            replica.answer = look_first
            assert split(await front.exchange(post(PATH, BODY)))[2] == b"{}"
            assert await total(front, "kvlb_in_flight_requests") == 0
            assert await total(front, "kvlb_queued_tokens") == 0

    run(check())


def test_each_replica_has_one_status() -> None:
    async def check() -> None:
        async with upstream() as replica, gateway([replica.url]) as front:
            found = {labels["status"]: value for labels, value in await front.samples("kvlb_replica_status")}
            assert found == {"ready": 1, "draining": 0, "ejected": 0, "asleep": 0, "lost": 0}

    run(check())


def test_texts_are_counted_by_how_their_tokens_came() -> None:
    async def check() -> None:
        paths = {f"{PATH}/render": b'[{"token_ids":[1,2,3]}]'}
        async with upstream(paths=paths) as replica, gateway([replica.url]) as front:
            for _ in range(3):
                await front.exchange(post(PATH, b'{"model":"m","prompt":"text"}'))
            await front.exchange(post("/v1/messages", b'{"model":"m","messages":[]}'))
            found = {labels["how"]: value for labels, value in await front.samples("kvlb_tokenizations_total")}
            assert found == {"asked": 1, "cached": 2, "failed": 0, "paused": 0, "untellable": 1}

    run(check())


def test_what_the_index_lets_go_at_its_limit_is_seen() -> None:
    async def check() -> None:
        async with upstream() as replica, gateway([replica.url], index={"max_blocks": 10}) as front:
            router = front.service.router
            (live,) = router.fleet
            for key in range(25):
                router.caches.apply(live.replica.id, [stored(key)])
            assert await total(front, "kvlb_index_max_blocks") == 10
            assert 0 < await total(front, "kvlb_index_size_blocks") <= 10
            assert await total(front, "kvlb_index_evicted_blocks_total") == 25 - router.caches.index.size

    run(check())


def test_blocks_that_wait_for_their_beginning_are_told() -> None:
    async def check() -> None:
        async with upstream() as replica, gateway([replica.url]) as front:
            (live,) = front.service.router.fleet
            prompt = told(range(12), RANDOM)
            tail = msgspec.structs.replace(
                prompt,
                block_hashes=prompt.block_hashes[1:],
                parent_block_hash=prompt.block_hashes[0],
                token_ids=raw(list(range(4, 12))),
                extra_keys=NIL,
            )
            front.service.router.caches.apply(live.replica.id, [told(range(50, 54), RANDOM), tail])
            assert await total(front, "kvlb_index_orphans") == 2
            front.service.router.caches.apply(live.replica.id, [prompt])
            assert await total(front, "kvlb_index_orphans") == 0
            assert await total(front, "kvlb_index_orphans_placed_total") == 2

    run(check())
