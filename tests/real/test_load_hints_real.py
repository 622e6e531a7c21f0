"""Two real vLLM 0.32.0 engines before one folder: what is cheaper of loading and computing is what they do.

Run by ``scripts/test-real tests/real/test_load_hints_real.py``; two engines are started once. The same tokens come out in
either case: the weights are random, and outputs depend on the cache.
"""

import contextlib
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.engines import MODEL_NAME
from tests.real.stores import Fleet, before, eventually, fleet, prompt
from tests.real.test_stores_real import SHIM, offloading

pytestmark = pytest.mark.real

MODEL = f'[[models]]\nname = "{MODEL_NAME}"\nbytes_per_token = 100000\n'
LONG = 500
"""Tokens of a prompt that keeps an engine busy, and of its answer: the cache has room for two of them."""


def store(shared: Path, gigabits: float) -> str:
    return (
        f'name = "files"\nconnector = "files"\npath = "{shared}"\ninterval_seconds = 0.2\n'
        f"gigabits_per_second = {gigabits}\nlatency_ms = 0.1\n"
    )


def external_hits(found: Fleet, at: int) -> float:
    """Tokens that the engine's connector has brought, as it says."""
    with urllib.request.urlopen(found.engines[at].url + "/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    return sum(
        float(line.rpartition(" ")[2]) for line in lines if line.startswith("vllm:external_prefix_cache_hits_total")
    )


@contextlib.contextmanager
def busy(found: Fleet, at: int, seed: int) -> Iterator[None]:
    """The engine has long prompts to compute, sent through the gateway, and answers to give."""
    threads = [
        threading.Thread(
            target=found.complete, args=(prompt(seed + each, LONG), LONG), kwargs={"ignore_eos": True}, daemon=True
        )
        for each in range(3)
    ]
    with found.without(1 - at):
        for thread in threads:
            thread.start()
        eventually("busy", lambda: found.decided(prompt(seed))["candidates"][0]["in_flight"] == 3)
    yield
    for thread in threads:
        thread.join()


def computed_by_the_first(found: Fleet, asked: list[int]) -> list[int]:
    with found.without(1):
        replica, cached, text = found.complete(asked)
    assert (replica, cached) == (found.names[0], 0)
    eventually("stored", lambda: found.loadable(asked) == {found.names[0]: {}, found.names[1]: {"store:files": 96}})
    return text


@pytest.mark.long
def test_what_another_has_computed_is_fetched_or_computed_by_arithmetic(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    with fleet(tmp_path, store(shared, 100), offloading(shared), offloading(shared), env=SHIM, more=MODEL) as found:
        first, second = found.names
        assert [each["kv_connectors"] for each in found.get("/kvlb/status")["replicas"]] == [
            ["OffloadingConnector"]
        ] * 2
        for number in (0, 1):  # how fast they are
            for seed in range(3):
                with found.without(1 - number):
                    found.complete(prompt(1000 + 10 * number + seed, 200))
        asked = prompt(1)
        text = computed_by_the_first(found, asked)
        assert found.decided(asked)["replica"] == first, "who holds it and has nothing to do"
        with busy(found, 0, 2000):
            before_it = external_hits(found, 1)
            decided = found.decided(asked)
            assert decided["replica"] == second
            plan = decided["plan"]
            assert (plan["hit_tokens"], plan["loads"], plan["computed_tokens"]) == (0, {"store:files": 96}, 4)
            assert plan["hint"] == {}
            assert found.complete(asked) == (second, 96, text)
            assert external_hits(found, 1) - before_it == 96
        assert found.metric("kvlb_loadable_tokens_total", source="store:files", result="loaded") == 96
        assert found.metric("kvlb_loadable_tokens_total", result="missed") == 0
        assert found.metric("kvlb_load_hints_total") == 0
        engines = found.engines

        slow = MODEL + '[[links]]\nsource = "CPU"\ngigabits_per_second = 0.0001\n'
        with before(tmp_path, engines, store(shared, 0.0001), slow, "--processes", "2") as other:
            for number in (0, 1):
                for seed in range(3):
                    with other.without(1 - number):
                        other.complete(prompt(3000 + 10 * number + seed, 200))
            asked = prompt(5)
            text = computed_by_the_first(other, asked)
            with busy(other, 0, 4000):
                before_it = external_hits(other, 1)
                decided = other.decided(asked)
                assert decided["replica"] == second
                assert (decided["plan"]["loads"], decided["plan"]["computed_tokens"]) == ({}, 100)
                assert decided["plan"]["hint"] == {"kv_load_tiers": []}
                assert other.complete(asked) == (second, 0, text)
                assert external_hits(other, 1) == before_it
            assert other.metric("kvlb_loadable_tokens_total", source="store:files", result="left") == 96
            assert other.metric("kvlb_loadable_tokens_total", result="taken") == 0
            assert other.metric("kvlb_load_hints_total", field="kv_load_tiers") >= 1

            with other.without(1):  # while it was busy, its memory had no room for it
                other.complete(asked)
            eventually("cpu events", lambda: other.explain(asked)[first]["tiers"].get("CPU") == 96)
            engines[0].post("/reset_prefix_cache")
            with other.without(1):
                other.complete(prompt(6, 40))  # a clear is published with the next step
            eventually("cleared", lambda: other.explain(asked)[first]["cached_tokens"] == 0)
            assert set(other.loadable(asked)[first]) == {"CPU"}
            with other.without(1):
                assert other.complete(asked) == (first, 0, text)
            assert other.last()["plan"]["hint"] == {"max_load_tokens": 0}
            assert other.metric("kvlb_loadable_tokens_total", source="CPU", result="left") == 96

        with before(tmp_path, engines, store(shared, 100), MODEL) as third:
            engines[0].post("/reset_prefix_cache")
            with third.without(1):
                third.complete(prompt(7, 40))
            eventually("loadable", lambda: third.loadable(asked)[first].get("CPU", 0) == 96)
            with third.without(1):
                assert third.complete(asked) == (first, 96, text), "nothing has kept it from loading but the hint"
