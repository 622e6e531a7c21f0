"""``simulations/flags.py``: flags that stand on a command line, and those that would not count."""

import argparse

import pytest

from balancer.errors import ConfigError
from simulations.flags import given, once, refuse_unused


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    once(parser)
    parser.add_argument("file", nargs="?")
    group = parser.add_argument_group("some")
    group.add_argument("--seed-of", type=int, default=1, metavar="N")
    group.add_argument("--names", metavar="A,B")
    parser.add_argument("--each", action="append", default=[])
    parser.add_argument("--yes", action="store_true")
    return parser.parse_args(words)


def test_a_flag_with_another_value_is_refused_the_second_time() -> None:
    with pytest.raises(ConfigError, match=r"^--seed-of 1, --seed-of 2: one of them would not count; give it once$"):
        parsed("--seed-of", "1", "--seed-of", "2")
    with pytest.raises(ConfigError, match=r"^--names a,b, --names b,c: .*; give both at once, as in --names a,b,c$"):
        parsed("--names", "a,b", "--names", "b,c")


def test_the_same_twice_and_flags_that_may_be_repeated_are_no_mistake() -> None:
    args = parsed("x", "--seed-of", "2", "--seed-of", "2", "--each", "a", "--each", "b", "--yes", "--yes")
    assert (args.file, args.seed_of, args.each, args.yes) == ("x", 2, ["a", "b"], True)


def test_what_was_given_is_known_though_it_says_what_is_the_case_anyway() -> None:
    args = parsed("--seed-of", "1", "--each", "a")
    assert [given(args, name) for name in ("seed_of", "names", "each", "file")] == [True, False, True, False]
    assert not given(parsed(), "seed_of")
    assert not given(parsed(), "each")


@pytest.mark.parametrize("words", [("--seed-of", "1"), ("--yes",), ("--each", "a")])
def test_flags_that_mean_nothing_beside_another_are_refused_with_both_named(words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match=rf"^{words[0]}, --other: it says all; leave one of them out$"):
        refuse_unused(parsed(*words), ("seed_of", "yes", "each"), "--other", "it says all")
    refuse_unused(parsed("--names", "a"), ("seed_of", "yes", "each"), "--other", "it says all")
