import argparse

import pytest

from balancer.errors import ConfigError
from simulations.traces.formats.base import ReadingOptions
from simulations.traces.options import add_reading_options, reading_options


def parsed(*words: str) -> ReadingOptions:
    parser = argparse.ArgumentParser()
    add_reading_options(parser)
    return reading_options(parser.parse_args(words))


def test_without_flags_everything_is_as_it_is_by_default() -> None:
    assert parsed() == ReadingOptions()


def test_flags_become_options() -> None:
    words = (
        "--format mooncake --trace-block-size 16 --time-unit s --ids content --column timestamp=ts --column delay=d=e"
    )
    assert parsed(
        *words.split(), "--trace-rate", "3", "--pause", "4", "--strict", "--tokenizer", "x"
    ) == ReadingOptions(
        format="mooncake",
        block_size=16,
        time_unit="s",
        chained=False,
        columns={"timestamp": "ts", "delay": "d=e"},
        tokenizer="x",
        rate=3,
        pause=4,
        strict=True,
    )


@pytest.mark.parametrize(
    "words", ["--column x", "--column timestamp=", "--ids any", "--column foo=bar", "--trace-rate nan"]
)
def test_what_cannot_be_is_told(words: str) -> None:
    with pytest.raises(ConfigError, match=r"^--"):
        parsed(*words.split())
