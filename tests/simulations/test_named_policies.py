"""``simulations/named_policies.py``: policies as people write them, and one clear error for what nobody can read."""

import sys
from pathlib import Path

import pytest

from balancer.errors import ConfigError
from balancer.policies.base import Policy
from balancer.policies.consistent_hash import ConsistentHash
from balancer.policies.predicted_ttft import PredictedTtft
from balancer.policies.round_robin import RoundRobin
from simulations.named_policies import parse, value_of


def test_names_settings_and_commas() -> None:
    made = parse(" predicted_ttft( price = 3 , counts_expected=false ), round_robin,consistent_hash(by=session)")
    wanted: list[Policy] = [
        PredictedTtft(price=3.0, counts_expected=False),
        RoundRobin(),
        ConsistentHash(by="session"),
    ]
    assert [each.make() for each in made] == wanted
    assert [each.written for each in made] == [
        "predicted_ttft(price=3,counts_expected=false)",
        "round_robin",
        "consistent_hash(by=session)",
    ]


def test_what_is_shown_can_be_read_again() -> None:
    first = parse('predicted_ttft(price=3,doubt=0.5),consistent_hash(by="session",load_factor=1.25),random()')
    again = parse(",".join(each.written for each in first))
    assert [(each.name, each.settings) for each in again] == [(each.name, each.settings) for each in first]


@pytest.mark.parametrize("text", ["random()", "random", " random ( ) "])
def test_empty_brackets_are_no_settings(text: str) -> None:
    (policy,) = parse(text)
    assert (policy.written, policy.settings) == ("random", {})


@pytest.mark.parametrize(
    ("text", "value"), [("3", 3), ("0.5", 0.5), ("true", True), ('"x"', "x"), ("session", "session"), ("1e2", 100.0)]
)
def test_values_are_those_of_toml_and_else_texts(text: str, value: object) -> None:
    assert value_of(text) == value


def test_one_of_ones_own_has_settings_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_policy_of_test.py").write_text(
        "import msgspec\n"
        "class Mine(msgspec.Struct, frozen=True):\n"
        "    busy: int = 8\n"
        "    def choose(self, candidates, draw, asked):\n"
        "        return candidates[0]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("own_policy_of_test", None)
    (policy,) = parse("own_policy_of_test:Mine(busy=3)")
    made = policy.make()
    assert made.busy == 3  # type: ignore[attr-defined]
    with pytest.raises(
        ConfigError, match=r"policy\.bussy: own_policy_of_test:Mine has no such setting; did you mean busy"
    ):
        parse("own_policy_of_test:Mine(bussy=3)")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "--policy: name at least one policy, as in --policy predicted_ttft,round_robin"),
        (" , ", "--policy: name at least one policy"),
        ("randum", r"policy\.name: there is no policy 'randum'; there are: cache_aware"),
        ("random(x=1)", r"policy\.x: random has no such setting; its settings are: none"),
        ("predicted_ttft(pric=3)", r"policy\.pric: predicted_ttft has no such setting; did you mean price"),
        ("predicted_ttft(price=much)", r"policy\.predicted_ttft: Expected `float \| null`"),
        (
            "predicted_ttft(3)",
            r"--policy predicted_ttft: '3' is no setting; write key=value, as in predicted_ttft\(price=3\)",
        ),
        ("predicted_ttft(price=3", "--policy: a bracket is not closed in"),
        ("predicted_ttft price=3)", "--policy: cannot read"),
        ("predicted_ttft(price=3)random", "--policy: cannot read"),
        ("predicted_ttft(price=3))", "--policy: cannot read"),
    ],
)
def test_what_nobody_can_read_is_one_clear_error(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(text)
