"""The fuzz targets, for a moment each; ``python -m tests.fuzz`` takes the time that it is given."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.targets import TARGETS


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@given(data=st.binary(max_size=60))
@settings(max_examples=150)
def test_short_inputs_are_withstood(target: Callable[[bytes], None], data: bytes) -> None:
    target(data)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_long_inputs_are_withstood(target: Callable[[bytes], None]) -> None:
    dice = random.Random(7)
    for _ in range(60):
        target(dice.randbytes(dice.randrange(60, 600)))
