"""The simulator against real vLLM: the same chats through real engines behind ``kvlb serve``, and through the detailed model.

The engines' small caches overflow. The model is played with what a simulation cannot know: when each request came and which
engine got it, as they were seen. All else is its own: engines, caches, eviction, and time by ``kvlb calibrate`` of one of them.
What it says that each request had cached is held against what vLLM said. In turn, when nothing depends on time, they agree;
side by side they do as far as requests end in the same order.

Times are printed and not asserted: engines, gateway and client share the cores of the machine that tests run on.
"""

import asyncio
import contextlib
import io
import json
from collections.abc import Callable, Coroutine, Sequence
from statistics import fmean, quantiles
from typing import Any

import pytest

from balancer import cli
from simulations.generators.chat import Chat
from simulations.latency import LatencyModel
from simulations.traces.trace import Trace
from tests.real.engines import BLOCK_SIZE
from tests.real.gateway import NUM_BLOCKS, Engines, Gateway
from tests.real.simulated import Compared, Seen, compared, play_in_turn, play_together

pytestmark = [pytest.mark.real, pytest.mark.long]

CHUNK = 512  # as in ``tests.real.gateway.ENGINE_ARGS``
WORKLOAD = Chat(
    seconds=18,
    rate=2.2,
    block_size=BLOCK_SIZE,
    spread=0.4,
    turns=4,
    systems=4,
    system_tokens=150,
    question_tokens=60,
    answer_tokens=24,
    pause=2.5,
)
SEED = 1


@pytest.fixture(scope="module")
def latency(engines: Engines) -> LatencyModel:
    """By ``kvlb calibrate`` of the first engine, while nothing else is asked."""
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        words = ["calibrate", engines.running[0].url, "--max-num-batched-tokens", str(CHUNK), "--json"]
        assert cli.main(words) == 0
    return LatencyModel(**json.loads(told.getvalue())["latency"])


def compare(
    play: Callable[[Gateway, Trace], Coroutine[Any, Any, list[Seen]]],
    gateway: Gateway,
    latency: LatencyModel,
    capsys: pytest.CaptureFixture[str],
) -> Compared:
    for engine in gateway.engines:
        engine.post("/reset_prefix_cache")
    trace = WORKLOAD.generate(SEED)
    seen = asyncio.run(play(gateway, trace))
    assert {each.replica for each in seen} == set(gateway.replicas)
    found = compared(trace, seen, gateway.replicas, NUM_BLOCKS, CHUNK, latency)
    with capsys.disabled():
        print(
            f"\n{play.__name__}, {len(gateway.engines)} engines: {found.requests} requests, "
            f"{found.prompt_tokens:,} prompt tokens"
        )
        print(f"{found.evicted:,} of them evicted; busiest engine computed {found.load:.0%} of the time, by the model")
        print(
            f"cached tokens equal: {found.equal:.1%}; hit rate: vLLM {found.hit:.2%}, model {found.simulated_hit:.2%}"
        )
        print(f"TTFT, vLLM and model: {told(found.ttfts, found.simulated_ttfts)}")
        print(f"latency, vLLM and model: {told(found.seconds, found.simulated_seconds)}")
        print(latency)
    return found


def told(real: Sequence[float], simulated: Sequence[float]) -> str:
    (mean, median), (mean_too, median_too) = (
        (fmean(each) * 1000, quantiles(each)[1] * 1000) for each in (real, simulated)
    )
    return f"mean {mean:.1f} and {mean_too:.1f} ms, median {median:.1f} and {median_too:.1f} ms"


@pytest.mark.parametrize("front", ["gateway", "wide_gateway"], ids=["two engines", "four engines"])
def test_requests_in_turn_have_cached_what_vllm_says(
    front: str, request: pytest.FixtureRequest, latency: LatencyModel, capsys: pytest.CaptureFixture[str]
) -> None:
    found = compare(play_in_turn, request.getfixturevalue(front), latency, capsys)
    assert found.evicted > 0, "the caches must overflow"
    assert found.equal >= 0.98
    assert found.simulated_hit == pytest.approx(found.hit, abs=0.005)


def test_conversations_side_by_side_have_about_what_vllm_says(
    gateway: Gateway, latency: LatencyModel, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is evicted depends on who ends first, so on time, which a shared machine does not keep to."""
    found = compare(play_together, gateway, latency, capsys)
    assert found.evicted > 0, "the caches must overflow"
    assert found.equal >= 0.85
    assert found.simulated_hit == pytest.approx(found.hit, abs=0.03)
