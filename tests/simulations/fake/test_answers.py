"""The fake engine's answers have the keys, in their order, and the types that a real vLLM's were recorded to have."""

import asyncio
import json
from typing import Any

import pytest

from simulations.fake_engine import running
from tests.simulations.fake.exchanges import EXCHANGES, RECORDED, ask
from tests.simulations.fake.samples import config, run

ANSWERS: dict[str, Any] = json.loads(RECORDED.read_text())


def test_every_exchange_is_recorded() -> None:
    assert list(ANSWERS) == list(EXCHANGES)


@pytest.fixture(scope="module")
def answers() -> dict[str, Any]:
    found: dict[str, Any] = {}

    async def all_of_them() -> None:
        async with running(config()) as engine:
            for name, exchange in EXCHANGES.items():
                found[name] = await asyncio.to_thread(ask, engine.url, exchange)

    run(all_of_them, seconds=60)
    return found


@pytest.mark.parametrize("name", EXCHANGES)
def test_an_answer_has_the_shape_of_vllms(name: str, answers: dict[str, Any]) -> None:
    assert json.loads(json.dumps(answers[name])) == ANSWERS[name]
