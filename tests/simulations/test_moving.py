"""``simulations/moving.py``: which of two fleets is cheaper, by how much, and the reason that goes with it."""

from typing import Any, Final

import msgspec
import pytest

from balancer.economics.links import network
from simulations.hardware.estimate import Hardware, estimate
from simulations.moving import Moving, cost, money, moving, words
from simulations.planning import Plan
from simulations.results import Summary

H100: Final = Hardware("llama-3.1-8b", "h100")
SUMMARY: Final = Summary("p", 10, 0, 0.5, 0, 0, 0, 0, 0, 0, 0, 1.0, 0.5)
QUICK: Final = network(100)


def plan(replicas: int, store_price: float | None = None, hit: float = 0.5, **more: Any) -> Plan:
    """Of devices that cost 2 an hour."""
    price = 2.0 * replicas + (store_price or 0.0)
    summary = msgspec.structs.replace(SUMMARY, hit=hit)
    return Plan(H100, "predicted_ttft", replicas, replicas, price, summary, store_price is not None, **more)


def told(
    plans: list[Plan], store_price: float, tokens: int = 8000, gbits: float = 100, longest: int = 10**6
) -> tuple[Moving, str]:
    found = moving(plans, store_price, network(gbits), tokens, longest=longest)
    return found, " ".join(words(found, plans))


@pytest.mark.parametrize(
    ("price", "saves", "said"),
    [
        (
            1.0,
            3.0,
            "Moving to the store saves 3 an hour (30.0 %), 2,190 a month of 730 hours; it pays up to 4 an hour.",
        ),
        (4.0, 0.0, "Both cost the same."),
        (
            9.5,
            -5.5,
            "Moving to the store costs 5.50 an hour more, 4,015 a month of 730 hours; it would pay up to 4 an hour.",
        ),
    ],
)
def test_the_store_is_worth_the_replicas_that_it_spares(price: float, saves: float, said: str) -> None:
    found, text = told([plan(3, price, hit=0.8), plan(5)], price)
    assert (found.saves, found.worth) == (saves, 4.0)
    assert said in text
    assert "Without the store 5 replicas of 1 x h100 cost 10 an hour; with it 3 replicas" in text
    assert "With the store 80.0 % of prompt tokens are not computed, without it 50.0 %: that spares 2 replicas." in text


def test_a_store_that_spares_nothing_is_worth_nothing() -> None:
    found, text = told([plan(5), plan(5, 1.0)], 1.0)
    assert (found.saves, found.worth) == (-1.0, 0.0)
    assert "that spares no replica" in text
    found, text = told([plan(5), plan(6, 0.0)], 0.0)
    assert (found.saves, found.worth) == (-2.0, 0.0)
    assert "it would not pay even for free" in text


def test_the_detailed_models_word_counts() -> None:
    plans = [plan(3, 1.0, confirmed=4, was_confirmed=True), plan(5, confirmed=5, was_confirmed=True)]
    assert [cost(each, 1.0) for each in plans] == [9.0, 10.0]
    found, text = told(plans, 1.0)
    assert (found.saves, found.worth) == (1.0, 2.0)
    assert "with it 4 replicas" in text
    plans[1] = plan(5, was_confirmed=True)
    found, text = told(plans, 1.0)
    assert (found.saves, found.worth) == (None, None)
    assert "is not known: the detailed model does not hold the targets" in text


def test_where_the_detailed_model_holds_it_on_one_side_only_nothing_is_spared() -> None:
    sides = plan(3, 1.0, hit=0.8, was_confirmed=True), plan(5, confirmed=6, confirmed_hit=0.4, was_confirmed=True)
    _, text = told(list(sides), 1.0)
    assert (
        "By the simple model alone, with the store 80.0 % of prompt tokens are not computed, without it 50.0 %; how many "
        "replicas that spares is not known." in text
    ), "of both sides by one model"
    assert "that spares 2" not in text
    sides = plan(3, 1.0, hit=0.8, confirmed=4, confirmed_hit=0.7, was_confirmed=True), sides[1]
    assert (
        "With the store 70.0 % of prompt tokens are not computed, without it 40.0 %: that spares 2 replicas."
        in told(list(sides), 1.0)[1]
    )


@pytest.mark.parametrize(
    ("only", "said"), [(None, "Only fleets without the store"), (1.0, "Only fleets with the store")]
)
def test_where_one_side_holds_nothing_there_is_nothing_to_compare(only: float | None, said: str) -> None:
    found, text = told([plan(4, only)], 1.0)
    assert found.saves is None
    assert said in text


def test_the_reason_is_what_economics_says_of_the_link() -> None:
    found, text = told([plan(3, 1.0), plan(5)], 1.0)
    known = estimate(H100)
    assert found.verdict.compute_seconds == pytest.approx(8000 / known.prefill_tps)
    assert found.verdict.move_seconds == pytest.approx(0.001 + 8000 * known.kv_bytes / 11.25e9 + 1 / known.prefill_tps)
    assert f"moving is quicker from {found.verdict.break_even_tokens} tokens on" in text
    assert "Attention's share" not in text, "it changes nothing here"


def test_where_attention_turns_it_that_is_said() -> None:
    found, text = told([plan(5), plan(5, 1.0)], 1.0, tokens=60_000, gbits=25)
    assert not found.verdict.moves
    assert found.attended.moves
    assert "moving is never quicker, and for this one from 32.3 Gbit/s of data on" in text
    assert (
        f"with it moving is quicker from {found.attended.break_even_tokens:,} tokens on. So the store may be worth"
        in text
    )
    assert text.index("leave out --no-confirm.") > text.index("So the store may be worth more than was found here; ")
    asked = [plan(5, was_confirmed=True), plan(5, 1.0, was_confirmed=True)]
    _, text = told(asked, 1.0, tokens=60_000, gbits=25)
    assert "tokens on. The detailed model, which was asked here, has it." in text
    assert "worth more" not in text, "it was in what was found"


def test_a_length_beyond_all_prompts_is_none() -> None:
    found, text = told([plan(5), plan(5, 1.0)], 1.0, tokens=8000, gbits=35.95, longest=9000)
    assert found.verdict.break_even_tokens is not None
    assert found.verdict.break_even_tokens > 9000
    assert (
        "moving is quicker for longer prompts alone: none of yours is that long (the longest has 9,000), and for this"
        in text
    )
    assert f"{found.verdict.break_even_tokens:,} tokens" not in text
    found, text = told([plan(5), plan(5, 1.0)], 1.0, tokens=8000, gbits=35.95)
    assert f"moving is quicker from {found.verdict.break_even_tokens:,} tokens on" in text


@pytest.mark.parametrize(
    ("value", "text"), [(25.0, "25"), (13.5959, "13.60"), (1.1, "1.10"), (1234.5, "1,234.50"), (0, "0")]
)
def test_a_price_has_no_more_digits_than_prices_have(value: float, text: str) -> None:
    assert money(value) == text
