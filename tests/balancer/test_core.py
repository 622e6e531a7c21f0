"""``balancer/core.py``: what the values work out from their fields."""

from balancer.core import NO_HASHES
from hashing.extras import Lora
from tests.support.routing import RECIPE, candidate, replica, request


def test_an_adapter_is_found_by_the_name_it_is_served_under() -> None:
    sql = Lora("sql", "/adapters/sql")
    found = replica("a", models=("m", "sql"), adapters=(sql,))
    assert found.adapter("sql") == sql
    assert found.adapter("m") is None
    assert found.base_models == ("m",)


def test_several_prompts_count_together() -> None:
    assert request([1] * 5, [2] * 7).prompt_tokens == 12


def test_the_size_is_guessed_only_where_no_tokens_are_known() -> None:
    assert request([1, 2, 3], size_hint=900).prompt_tokens == 3
    assert request(size_hint=900).prompt_tokens == 900


def test_what_is_not_cached_must_be_computed() -> None:
    assert candidate("a", prompt=100, cached=64).uncached_tokens == 36


def test_unknown_tokens_have_no_chain() -> None:
    assert list(NO_HASHES.chains(RECIPE, None)) == []
