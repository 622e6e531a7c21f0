"""``kvlb index`` under the faults that a peer's index was tried with: what it says is right, or it says that it may be wrong.

Every scenario has engines and a model of its own, so that they do not mix; all share one process, as they would in use.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.indexer.samples import CLEARED_MAP, removed_array, removed_map
from tests.support.publishing import BLOCK, Engine, IndexClient, chain, fresh, index_process, stored


@pytest.fixture(scope="module")
def index() -> Iterator[IndexClient]:
    with index_process("--log-level", "warning") as (client, _):
        yield client


def test_blocks_come_and_go(index: IndexClient) -> None:
    with Engine(index) as engine:
        engine.register()
        prompt = fresh(10)
        hashes = engine.store(prompt)
        assert engine.settled().blocks(prompt) == 10
        engine.publish(removed_map(hashes[-1:]))
        assert engine.settled().blocks(prompt) == 9
        engine.publish(removed_map(hashes[4:5]))
        assert engine.settled().blocks(prompt) == 4, "a match ends before the first block that is missing"
        engine.store(prompt, first=4, last=5)
        assert engine.settled().blocks(prompt) == 9, "what follows the block that is back counts again"


def test_a_clear_empties_the_cache_and_it_fills_anew(index: IndexClient) -> None:
    with Engine(index) as engine:
        engine.register()
        prompt = fresh(10)
        engine.store(prompt)
        engine.publish(CLEARED_MAP)
        assert engine.settled().blocks(prompt) == 0
        engine.store(prompt)
        assert engine.settled().blocks(prompt) == 10


def test_an_engine_that_is_warm_and_idle_is_caught_up_with(index: IndexClient) -> None:
    with Engine(index) as engine:
        old, new = fresh(8), fresh(2)
        engine.store(old)
        engine.register()
        assert engine.blocks(old) == 8, "without waiting for an event that may never come"
        engine.store(new)
        assert (engine.settled().blocks(old), engine.blocks(new)) == (8, 2)


def test_a_lost_batch_is_asked_for(index: IndexClient) -> None:
    with Engine(index) as engine:
        engine.register()
        before, lost, after = fresh(3), fresh(3), fresh(3)
        hashes = engine.store(before)
        engine.store(lost, is_lost=True)
        engine.store(after)
        assert [engine.settled().blocks(each) for each in (before, lost, after)] == [3, 3, 3]
        engine.publish(removed_map(hashes), is_lost=True)
        assert engine.settled().blocks(before) == 0, "a lost removal is asked for, too"


def test_a_lost_removal_that_nobody_can_replay_casts_doubt(index: IndexClient) -> None:
    with Engine(index, has_replay=False) as engine:
        engine.register()
        prompt = fresh(3)
        hashes = engine.store(prompt)
        assert engine.settled().blocks(prompt) == 3
        assert not engine.is_doubted()
        engine.publish(removed_map(hashes), is_lost=True)
        engine.settled()
        assert engine.is_doubted()


def test_a_lost_removal_that_is_no_longer_kept_casts_doubt(index: IndexClient) -> None:
    with Engine(index, keeps=3) as engine:
        engine.register()
        prompt = fresh(3)
        hashes = engine.store(prompt)
        assert engine.settled().blocks(prompt) == 3
        engine.publish(removed_map(hashes), is_lost=True)
        for _ in range(6):
            engine.store(fresh(1), is_lost=True)
        engine.store(fresh(1))
        engine.wait(engine.is_doubted)


def test_a_restart_begins_anew(index: IndexClient) -> None:
    with Engine(index) as engine:
        engine.register()
        old, new = fresh(4), fresh(4)
        for _ in range(20):
            engine.store(fresh(1))
        engine.store(old)
        assert engine.settled().blocks(old) == 4
        engine.publisher.stop()
        engine.wait(lambda: engine.statuses() == {"disconnected"})
        engine.publisher.start()
        engine.store(new)
        assert engine.settled().blocks(new) == 4
        assert engine.blocks(old) == 0


def test_an_engine_that_is_gone_is_marked(index: IndexClient) -> None:
    with Engine(index) as engine:
        engine.register()
        prompt = fresh(4)
        engine.store(prompt)
        assert engine.settled().blocks(prompt) == 4
        engine.publisher.stop()
        engine.wait(lambda: engine.statuses() == {"disconnected"})
        told = engine.query(prompt)["instances"].get(str(engine.instance), {})
        assert not told or told["status"]["0"].startswith("disconnected: ")
        engine.publisher.start()


def test_a_restart_that_hides_behind_plausible_numbers_is_seen(index: IndexClient) -> None:
    with Engine(index) as engine:
        engine.register()
        old, new = fresh(4), fresh(4)
        engine.store(old)
        assert engine.settled().blocks(old) == 4
        engine.publisher.stop()
        engine.publisher.start()
        missed = [fresh(1) for _ in range(5)]
        for each in missed:  # before the subscriber is back
            engine.store(each, is_lost=True)
        engine.wait(lambda: engine.statuses() == {"active"} and engine.blocks(missed[4]))
        engine.store(new)
        assert engine.settled().blocks(new) == 4
        assert [engine.blocks(each) for each in missed] == [1] * 5
        assert engine.blocks(old) == 0


def test_copies_are_counted(index: IndexClient) -> None:
    with Engine(index) as engine:
        engine.register()
        prompt = fresh(6)
        hashes = engine.store(prompt)
        engine.store(prompt, first=5)
        engine.publish(removed_map(hashes[5:]))
        assert engine.settled().blocks(prompt) == 6, "stored twice, removed once"
        engine.publish(removed_map(hashes[5:]))
        assert engine.settled().blocks(prompt) == 5
        engine.store(prompt, first=2, last=3)
        engine.publish(removed_map(hashes[2:3]))
        assert engine.settled().blocks(prompt) == 5, "in the middle of a chain just as at its end"


@pytest.mark.parametrize("form", ["int", "signed", "bytes"])
def test_hashes_are_read_in_every_form(index: IndexClient, form: str) -> None:
    with Engine(index) as engine:
        engine.register()
        prompt = fresh(4)
        hashes = engine.store(prompt, chain(prompt, form=form))
        assert engine.settled().blocks(prompt) == 4
        engine.publish(removed_map(hashes[2:]))
        assert engine.settled().blocks(prompt) == 2


def test_events_as_arrays_are_read(index: IndexClient) -> None:
    with Engine(index) as engine:
        engine.register()
        prompt = fresh(4)
        hashes = chain(prompt)
        engine.publish(["BlockStored", hashes, None, prompt, BLOCK, None, "GPU", None, [None] * 4])
        assert engine.settled().blocks(prompt) == 4
        engine.publish(removed_array(hashes[3:], length=3))
        assert engine.settled().blocks(prompt) == 3


def test_a_wrong_block_size_is_adapted_and_told(index: IndexClient) -> None:
    with Engine(index) as engine:
        engine.register(block_size=2 * BLOCK)
        prompt = fresh(4)
        engine.store(prompt)
        assert engine.settled().blocks(prompt) == 4
        (worker,) = [each for each in index.get("/workers") if each["instance_id"] == engine.instance]
        assert worker["listeners"]["0"]["warnings"] == [
            f"registered with block_size {2 * BLOCK}, but the engine has blocks of {BLOCK}; the engine is believed"
        ]


def test_engines_may_hash_the_same_tokens_otherwise(index: IndexClient) -> None:
    with Engine(index) as one, Engine(index, model=one.model) as two:
        prompt = fresh(8)
        by_one, by_two = chain(prompt, seed=1), chain(prompt, seed=2)
        for engine, hashes in ((one, by_one), (two, by_two)):
            engine.register()
            engine.store(prompt, hashes, last=4)
        for engine, hashes in ((one, by_one), (two, by_two)):
            engine.store(prompt, hashes, first=4)
        assert (one.settled().blocks(prompt), two.settled().blocks(prompt)) == (8, 8)
        two.publish(removed_map(by_two[6:]))
        assert (one.blocks(prompt), two.settled().blocks(prompt)) == (8, 6)
        one.publish(CLEARED_MAP)
        by_one = one.store(prompt, chain(prompt, seed=3))
        one.publish(removed_map(by_one[7:]))
        assert (one.settled().blocks(prompt), two.blocks(prompt)) == (7, 6)


def test_an_engine_may_hash_otherwise_after_a_clear(index: IndexClient) -> None:
    with Engine(index) as engine:
        engine.register()
        prompt = fresh(6)
        engine.store(prompt, chain(prompt, seed=1))
        assert engine.settled().blocks(prompt) == 6
        engine.publish(CLEARED_MAP)
        hashes = chain(prompt, seed=2)
        engine.store(prompt, hashes, last=3)
        engine.store(prompt, hashes, first=3)
        assert engine.settled().blocks(prompt) == 6
        engine.publish(removed_map(hashes[1:]))
        assert engine.settled().blocks(prompt) == 1


def test_salted_blocks_are_for_the_same_salt(index: IndexClient) -> None:
    with Engine(index) as engine:
        engine.register()
        prompt = fresh(6)
        engine.store(prompt, chain(prompt, extra="abc"), salt="abc")
        engine.settled()
        salts = (None, "abc", "other")
        assert [engine.blocks(prompt, **({"cache_salt": salt} if salt else {})) for salt in salts] == [0, 6, 0]
        hashes = chain(prompt)
        engine.store(prompt, hashes, last=3)
        engine.store(prompt, hashes, first=3)
        assert engine.settled().blocks(prompt) == 6, "the same tokens without a salt are other blocks"


def test_blocks_of_an_adapter_are_for_that_adapter(index: IndexClient) -> None:
    with Engine(index) as engine:
        engine.register()
        prompt = fresh(6)
        engine.store(prompt, chain(prompt, extra="sql"), lora="sql")
        engine.settled()
        adapters = (None, "sql", "other")
        assert [engine.blocks(prompt, **({"lora_name": name} if name else {})) for name in adapters] == [0, 6, 0]


def test_a_text_matches_up_to_an_image(index: IndexClient) -> None:
    with Engine(index) as engine:
        engine.register()
        prompt = fresh(4)
        extras = [None, [["f" * 64, 3]], [["f" * 64, -5]], None]
        engine.store(prompt, chain(prompt, extra="image"), extra_keys=extras)
        assert engine.settled().blocks(prompt) == 1


def test_each_tier_is_told(index: IndexClient) -> None:
    with Engine(index) as engine:
        engine.register()
        prompt = fresh(6)
        hashes = engine.store(prompt, last=3)
        engine.store(prompt, medium="CPU")

        def tiers() -> list[int]:
            told = engine.settled().query(prompt)["instances"][str(engine.instance)]
            return [told[name] // BLOCK for name in ("gpu", "cpu", "disk", "longest_matched")]

        assert tiers() == [3, 6, 6, 6]
        engine.publish(removed_map(hashes[:3]))
        assert tiers() == [0, 6, 6, 6]


def test_a_window_of_a_hybrid_model_leaves_the_full_group_alone(index: IndexClient) -> None:
    with Engine(index) as engine:
        engine.register()
        prompt = fresh(6)
        hashes = chain(prompt)
        window: dict[str, Any] = {
            "group_idx": 1,
            "kv_cache_spec_kind": "sliding_window",
            "kv_cache_spec_sliding_window": 2 * BLOCK,
        }
        engine.publish(stored(prompt, hashes), stored(prompt, hashes, 4, **window))
        assert engine.settled().blocks(prompt) == 6
        engine.publish(removed_map(hashes[4:5], group_idx=1))
        assert engine.settled().blocks(prompt) == 6


def test_a_batch_that_cannot_be_read_costs_only_itself(index: IndexClient) -> None:
    with Engine(index) as engine:
        engine.register()
        before, after = fresh(3), fresh(3)
        engine.store(before)
        engine.publisher.publish(b"\xc1garbage")
        engine.store(after)
        assert [engine.settled().blocks(each) for each in (before, after)] == [3, 3]


def test_an_orphan_counts_once_its_parents_are_there(index: IndexClient) -> None:
    with Engine(index) as engine:
        engine.register()
        prompt = fresh(4)
        engine.store(fresh(1))
        engine.store(prompt, first=2)
        assert engine.settled().blocks(prompt) == 0
        engine.store(prompt, last=2)
        assert engine.settled().blocks(prompt) == 4


def test_an_event_of_an_unknown_kind_is_skipped(index: IndexClient) -> None:
    with Engine(index) as engine:
        engine.register()
        prompt = fresh(2)
        engine.publish({"type": "SomethingNew", "x": 1}, stored(prompt, chain(prompt)))
        assert engine.settled().blocks(prompt) == 2


def test_a_batch_of_another_rank_is_filed_under_that_rank(index: IndexClient) -> None:
    with Engine(index) as engine:
        engine.register()
        prompt = fresh(3)
        engine.store(prompt, rank=3)
        assert engine.settled().query(prompt)["scores"] == {str(engine.instance): {"3": 3 * BLOCK}}


def test_what_is_unregistered_is_forgotten_and_comes_back_with_a_registration(index: IndexClient) -> None:
    with Engine(index) as engine:
        engine.register()
        prompt = fresh(3)
        engine.store(prompt)
        assert engine.settled().blocks(prompt) == 3
        engine.unregister()
        assert index.post("/query", model_name=engine.model, token_ids=prompt)[0] == 404
        engine.register()
        assert engine.blocks(prompt) == 3, "by replay, without waiting for an event"
        engine.store(fresh(1))
        assert engine.settled().blocks(prompt) == 3
