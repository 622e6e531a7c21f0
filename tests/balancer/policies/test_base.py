"""``policies/base.py``: every policy chooses a candidate, is found by its name, and says what is wrong with its settings."""

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.core import Candidate
from balancer.errors import ConfigError
from balancer.policies.base import lowest, make, names, pick
from balancer.policies.cache_aware import CacheAware
from indexer.index import ReplicaId
from tests.support.routing import candidate

CANDIDATES = st.lists(
    st.builds(
        Candidate,
        replica=st.text("abc", min_size=1, max_size=3).map(ReplicaId),
        prompt_tokens=st.integers(100, 200),
        cached_tokens=st.integers(0, 99),
        queued_tokens=st.integers(0, 50),
        in_flight=st.integers(0, 3),
        last_lease=st.integers(0, 9),
    ),
    min_size=1,
    max_size=6,
)
DRAW = st.floats(0, 1, exclude_max=True)


@pytest.mark.parametrize("name", names())
@given(candidates=CANDIDATES, draw=DRAW)
def test_a_policy_always_chooses_one_of_the_candidates(name: str, candidates: list[Candidate], draw: float) -> None:
    policy = make(name)
    assert any(policy.choose(candidates, draw) is each for each in candidates)


@pytest.mark.parametrize("name", names())
@given(candidates=CANDIDATES, draw=DRAW)
def test_a_policy_gives_the_same_answer_to_the_same_question(
    name: str, candidates: list[Candidate], draw: float
) -> None:
    assert make(name).choose(candidates, draw) is make(name).choose(candidates, draw)


@given(st.integers(1, 9), DRAW)
def test_a_draw_always_picks_someone(count: int, draw: float) -> None:
    tied = [candidate(str(at)) for at in range(count)]
    assert pick(tied, draw) in tied


def test_the_lowest_cost_wins_and_equal_costs_are_drawn_for() -> None:
    tied = [candidate("a", flight=1), candidate("b", flight=2), candidate("c", flight=1)]
    assert [lowest(tied, lambda each: each.in_flight, draw).replica for draw in (0.0, 0.49, 0.5, 0.99)] == list("aacc")


def test_where_a_prompt_leans_decides_between_equals_and_nothing_else() -> None:
    leaning = [
        msgspec.structs.replace(candidate(name, flight=flight), lean=lean)
        for name, flight, lean in (("a", 1, 7), ("b", 2, 9), ("c", 1, 8))
    ]
    for order in (leaning, leaning[::-1]):
        assert {lowest(order, lambda each: each.in_flight, draw).replica for draw in (0.0, 0.49, 0.5, 0.99)} == {"c"}


def test_the_policies_of_the_documentation_exist() -> None:
    assert {"cache_aware", "least_load", "round_robin"} <= set(names())


def test_settings_become_fields() -> None:
    assert make("cache_aware", {"queue_weight": 2}) == CacheAware(queue_weight=2.0)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("nope", {}, r"policy\.name: there is no policy 'nope'; there are: cache_aware, consistent_hash, least_load"),
        (
            "cache_aware",
            {"wait": 1},
            r"policy\.wait: cache_aware has no such setting; its settings are: queue_weight, request_weight",
        ),
        ("cache_aware", {"queue_weight": "much"}, r"policy\.cache_aware: Expected `float`"),
        (
            "cache_aware",
            {"queue_weight": -1.0},
            r"policy\.cache_aware: Expected `float` >= 0\.0 - at `\$\.queue_weight`",
        ),
        ("cache_aware", {"doubt": 1.5}, r"policy\.cache_aware: Expected `float` <= 1\.0 - at `\$\.doubt`"),
        (
            "predicted_ttft",
            {"ageing": -1},
            r"policy\.predicted_ttft: Expected `float` >= 0\.0 - at `\$\.ageing` \(words that it takes: 'off'\); its",
        ),
        (
            "predicted_ttft",
            {"ageing": "of"},
            r"Invalid enum value 'of' - at `\$\.ageing` \(words that it takes: 'off'\)",
        ),
        (
            "consistent_hash",
            {"by": "x"},
            r"`\$\.by` \(words that it takes: 'session', 'prefix'\); its settings are: by",
        ),
        ("predicted_ttft", {"doubt": 2}, r"`\$\.doubt`; its settings are"),
        ("round_robin", {"weight": 1}, r"policy\.weight: round_robin has no such setting; its settings are: none"),
        ("no.such.module:Policy", {}, r"policy\.name: cannot load 'no\.such\.module:Policy'"),
        ("balancer.core:Nobody", {}, r"policy\.name: cannot load 'balancer\.core:Nobody'"),
        ("balancer.core:Candidate", {}, r"policy\.name: 'balancer\.core:Candidate' is no policy"),
        ("balancer.policies.base:make", {}, r"policy\.name: 'balancer\.policies\.base:make' is no policy"),
    ],
)
def test_what_cannot_be_used_is_one_clear_error(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(name, settings)


@pytest.mark.parametrize("source", ["def (", "1 / 0", "import no_such_module_anywhere"])
def test_a_policy_file_that_fails_is_one_clear_error(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_policy.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("broken_policy", None)
    with pytest.raises(ConfigError, match=r"policy\.name: cannot load 'broken_policy:Mine'"):
        make("broken_policy:Mine")
