"""``simulations/simple.py`` against a reference model of others: the same traces, the same fleets, the same figures.

Two programs that agree with each other have made the tables (8 replicas, blocks of 512 tokens, 10,000 tokens a second). Where
the rule is the same one, hits are within 0.002 and mean times to the first token within 2 %. They are not where chance, ties or
what a hash makes of a name decide: these stand in ``HITS_ALONE`` and ``OTHERWISE`` with what is known of the reason.

For the chat trace the reference gives five figures four digits: 0.1273 and 4.088 (round robin), 0.3671 and 2.741 (conversations
hashed), 0.3665 and 2.158 (longest prefix), 0.3182 and 1.030 (predicted time), 0.3587 and 1.391 (llm-d). Here, as means of four
seeds: 0.1273 and 4.088, 0.3667 and 2.736, 0.3668 and 2.143, 0.3194 and 1.025, 0.3585 and 1.381.
"""

from functools import cache
from itertools import combinations
from statistics import fmean
from typing import Final

import pytest

from simulations.named_policies import parse
from simulations.paths import Paths
from simulations.results import Summary, summarise
from simulations.simple import SimpleFleet, play
from simulations.traces.sessions import derived_sessions
from simulations.traces.trace import Trace
from tests.support.golden_traces import read

FLEETS: Final = {
    "mooncake_conversation": SimpleFleet(load=0.85),
    "toolagent_like": SimpleFleet(load=1.5),
    "agentic_a": SimpleFleet(blocks=2048, load=2.0),
}
CHAT, TOOL, AGENTIC = FLEETS
POOLED: Final = "pooled"

TABLES: Final = {
    CHAT: {
        "round_robin": (0.1273, 4.088),
        "random": (0.124, 6.13),
        "least_load": (0.126, 3.42),
        "power_of_two": (0.120, 3.70),
        "consistent_hash(prefix_tokens=512)": (0.192, 5008),
        "consistent_hash": (0.364, 2.76),
        "consistent_hash(by=session)": (0.3671, 2.741),
        "consistent_hash(load_factor=1.25)": (0.293, 2.60),
        "session_sticky": (0.367, 1.25),
        "like_sglang": (0.360, 2.12),
        "longest_prefix": (0.3665, 2.158),
        "like_llm_d": (0.3587, 1.391),
        "like_preble": (0.360, 1.15),
        "like_lmetric": (0.296, 1.18),
        "like_dualmap": (0.326, 1.31),
        "like_dynamo": (0.2401, 1.708),
        "like_dynamo(overlap_weight=4)": (0.280, 1.29),
        "like_dynamo(overlap_weight=16)": (0.289, 1.19),
        "predicted_ttft(price=1,counts_expected=false)": (0.3182, 1.030),
        "predicted_ttft(price=1)": (0.318, 1.03),
        "predicted_ttft(price=3)": (0.349, 1.02),
        "predicted_ttft": (0.330, 1.02),
        POOLED: (0.367, 0.88),
    },
    TOOL: {
        "round_robin": (0.457, 4.92),
        "power_of_two": (0.454, 2.88),
        "consistent_hash(prefix_tokens=512)": (0.493, 1463),
        "session_sticky": (0.588, 0.67),
        "longest_prefix": (0.588, 1.44),
        "like_llm_d": (0.584, 0.99),
        "like_preble": (0.584, 0.79),
        "like_lmetric": (0.551, 0.65),
        "like_dualmap": (0.568, 1.05),
        "like_dynamo": (0.519, 1.34),
        "like_dynamo(overlap_weight=16)": (0.548, 0.72),
        "predicted_ttft(price=1)": (0.561, 0.60),
        "predicted_ttft(price=3)": (0.578, 0.60),
        "predicted_ttft": (0.572, 0.59),
        POOLED: (0.588, 0.51),
    },
    AGENTIC: {
        "round_robin": (0.317, 522),
        "session_sticky": (0.957, 0.70),
        "like_sglang": (0.957, 0.76),
        "longest_prefix": (0.957, 0.82),
        "like_llm_d": (0.954, 0.80),
        "like_dynamo": (0.693, 4.71),
        "like_dynamo(overlap_weight=16)": (0.928, 1.26),
        "predicted_ttft(price=1,counts_expected=false)": (0.947, 1.02),
        "predicted_ttft(price=1)": (0.955, 0.68),
        "predicted_ttft(price=3)": (0.958, 0.60),
        POOLED: (0.957, 0.50),
    },
}
"""By trace and policy: share of prompt tokens from the cache, mean time to the first token in seconds."""

HITS_ALONE: Final = {
    # Which conversations meet at one replica is what a hash makes of their names: other names, other queues.
    (CHAT, "consistent_hash"): "mean 2.91 for 2.76",
    # A first request goes where the wait is shortest, which falls as time goes by; theirs looks at the whole prompts that wait.
    # With theirs, means are 1.246 and 0.657: within 2 %. Ours is quicker.
    (CHAT, "session_sticky"): "mean 1.216 for 1.25",
    (TOOL, "session_sticky"): "mean 0.628 for 0.67",
    # Chance between equals moves it by 0.7 %; the rest is unknown.
    (TOOL, "longest_prefix"): "mean 1.482 for 1.44",
    # Unknown. Of several holders the one with the shortest wait is taken; by requests in flight or by chance it would be much
    # slower than theirs (1.13, 1.22), by queued tokens nearly as quick (0.70). On chat it agrees.
    (TOOL, "like_preble"): "mean 0.678 for 0.79",
}
"""Where the hits agree and times do not, with the means of four seeds."""

OTHERWISE: Final = {
    # Chance alone: the standard deviation over four seeds is 5 % of the mean.
    (CHAT, "random"): "0.120, 5.77",
    # Of equals in flight the shortest queue is taken here. By chance instead, it is 3.51, and on the tool trace 2.56 for 2.58.
    (CHAT, "least_load"): "0.120, 3.09",
    # Names and hashes again: the bound moves what comes when a queue is full.
    (CHAT, "consistent_hash(load_factor=1.25)"): "0.300, 2.65",
    # Theirs counts as active what a request will hold, its answer included; a gateway does not know how long that will be. With
    # the answers it is 0.2396 and 1.690 (chat), 0.519 and 1.225 (tool): the hits of the table. The mean of tool stays 8 to 12 %
    # below theirs with every variant tried: blocks for tokens, unique blocks in use, new blocks without those that are held,
    # elapsed time taken off what waits, ties by chance or by name.
    (CHAT, "like_dynamo"): "0.2372, 1.712",
    (CHAT, "like_dynamo(overlap_weight=4)"): "0.2736, 1.304",
    (CHAT, "like_dynamo(overlap_weight=16)"): "0.2915, 1.177",
    (TOOL, "like_dynamo"): "0.523, 1.185",
    # How busy the fleet is is measured otherwise: ours pays more for computing. Means agree.
    (CHAT, "predicted_ttft"): "0.341, 1.016",
    (TOOL, "predicted_ttft"): "0.577, 0.592",
}
"""Where hits do not agree either, with ours: share of tokens, mean."""

CHANCE: Final = {
    (CHAT, "power_of_two"),
    (CHAT, "predicted_ttft(price=1,counts_expected=false)"),
    (TOOL, "predicted_ttft(price=1)"),
}
"""Where one run tells too little: means of four seeds are compared."""


@cache
def prepared(name: str) -> tuple[Trace, Paths, list[int]]:
    trace = read(name)
    return trace, Paths(trace, 512), list(derived_sessions(trace))


def figures(name: str, written: str, seed: int = 1) -> Summary:
    return _played(name, written, seed)


def _plain(written: str) -> str:
    """Their rule has no eviction, no weight of requests and no order."""
    if not written.startswith("predicted_ttft"):
        return written
    own = written.removeprefix("predicted_ttft").strip("()")
    plain = (
        "max_price=10,eviction=0,request_tokens=0,context_share=0,memory_seconds=0,session_seconds=0,trial_seconds=0"
    )
    return f"predicted_ttft({own + ',' if own else ''}{plain},ageing=off)"


@cache
def _played(name: str, written: str, seed: int) -> Summary:
    trace, paths, sessions = prepared(name)
    fleet = FLEETS[name]
    if written == POOLED:
        fleet, written = SimpleFleet(blocks=fleet.blocks, load=fleet.load, pooled=True), "predicted_ttft(price=1)"
    (policy,) = parse(_plain(written))
    return summarise(play(trace, paths, fleet, policy.make(), written, sessions, seed))


@pytest.mark.parametrize(
    ("name", "written"),
    [(name, written) for name in (CHAT, TOOL) for written in TABLES[name] if (name, written) not in OTHERWISE],
)
def test_the_figures_are_those_of_the_reference(name: str, written: str) -> None:
    seeds = range(1, 5 if (name, written) in CHANCE else 2)
    found, (hit, mean) = [figures(name, written, seed) for seed in seeds], TABLES[name][written]
    assert fmean([each.hit for each in found]) == pytest.approx(hit, abs=0.002)
    if (name, written) not in HITS_ALONE:
        assert fmean([each.ttft_mean for each in found]) == pytest.approx(mean, rel=0.02)


@pytest.mark.parametrize(("name", "apart"), [(CHAT, 1.1), (TOOL, 1.1), (AGENTIC, 1.3)])
def test_policies_that_are_apart_come_in_the_same_order(name: str, apart: float) -> None:
    """All of them. Of the third trace the reference has played another draw, so only what is far apart can be compared."""
    table = TABLES[name]
    for one, two in combinations(table, 2):
        theirs = table[one][1] / table[two][1]
        if max(theirs, 1 / theirs) > apart:
            assert (figures(name, one).ttft_mean > figures(name, two).ttft_mean) == (theirs > 1), f"{one} and {two}"


def test_the_shape_of_agentic_load() -> None:
    """Round robin overloads the fleet, affinity hits nearly as much as a pool, and Dynamo's rule least of those with any."""
    figure = {written: figures(AGENTIC, written) for written in TABLES[AGENTIC]}
    assert figure["round_robin"].hit < 0.4
    assert figure["round_robin"].ttft_mean > 200 * figure["session_sticky"].ttft_mean
    assert figure["like_dynamo"].hit == min(each.hit for name, each in figure.items() if name != "round_robin")
    assert figure["like_dynamo(overlap_weight=16)"].hit > 1.3 * figure["like_dynamo"].hit
    for written in ("session_sticky", "like_sglang", "longest_prefix", "predicted_ttft(price=3)"):
        assert figure[written].hit > figure[POOLED].hit - 0.005
    siblings = "predicted_ttft(price=1,counts_expected=false)"
    assert figure["predicted_ttft(price=1)"].ttft_mean < 0.75 * figure[siblings].ttft_mean
