"""``kvlb explain``: flags become the request they describe, and a decision is a table that people can read."""

import argparse
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from balancer.commands import explain
from balancer.core import Knowledge, Outcome, Paper, Truth
from balancer.errors import ConfigError
from balancer.explain import Explanation, NotAsked, Plan, Seen
from balancer.fleet import Status
from indexer.index import ReplicaId

A, B = ReplicaId("10.0.0.1:8000"), ReplicaId("b")


def asked(*words: str) -> tuple[str, dict[str, Any]]:
    parser = argparse.ArgumentParser()
    explain.configure(parser)
    return explain.request_of(parser.parse_args(words))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--prompt", "hi"], ("/v1/completions", {"prompt": "hi"})),
        (["--tokens", "1 2,3"], ("/v1/completions", {"prompt": [1, 2, 3]})),
        (["--tokens=[1, 2]", "--model", "m"], ("/v1/completions", {"prompt": [1, 2], "model": "m"})),
        (["--prompt", "hi", "--salt", "s"], ("/v1/completions", {"prompt": "hi", "cache_salt": "s"})),
    ],
)
def test_flags_are_a_request(words: list[str], expected: tuple[str, dict[str, Any]]) -> None:
    assert asked(*words) == expected


def test_messages_are_a_list_or_a_whole_request(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "hi"}]
    path = tmp_path / "chat.json"
    path.write_text(json.dumps(messages))
    assert asked("--messages", str(path)) == ("/v1/chat/completions", {"messages": messages})
    path.write_text(json.dumps({"model": "x", "messages": messages, "tools": []}))
    whole = {"model": "m", "messages": messages, "tools": []}
    assert asked("--messages", str(path), "--model", "m") == ("/v1/chat/completions", whole)


@pytest.mark.parametrize(("messages", "place"), [([], "--messages: "), (["hello"], "--messages[0]: "),
                                                 ([{"role": "user", "content": "hi"}, {}], "--messages[1]: ")])  # fmt: skip
def test_a_message_that_is_none_is_named(messages: list[object], place: str, tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    for whole in (messages, {"model": "m", "messages": messages}):
        path.write_text(json.dumps(whole))
        with pytest.raises(ConfigError) as caught:
            asked("--messages", str(path))
        assert str(caught.value).startswith(place)


@pytest.mark.parametrize("text", ["", "{", "1", '{"prompt": "hi"}', "[" * 5000])
def test_messages_that_are_none_are_one_line(text: str, tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"^--messages: "):
        asked("--messages", str(path))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--messages", "/no/such.json"], "--messages: cannot read '/no/such.json': No such file or directory"),
        (["--tokens", ""], "--tokens: it is empty; give a JSON list"),
        (["--tokens", "[1,"], "--tokens: Input data was truncated; give a JSON list"),
        (["--tokens", "1 x"], "--tokens: 'x' is not a token id; give a JSON list"),
        (["--tokens", "[1, -2]"], "--tokens[1]: -2 is not a token id"),
        (["--tokens", "4294967296"], "--tokens[0]: 4294967296 is not a token id"),
        (["--tokens", "[]"], "--tokens: the list is empty"),
        (["--prompt", ""], "--prompt: it is empty; give a text"),
        (["--prompt", "\udc80"], "--prompt: it is not valid UTF-8; give text"),
        (["--prompt", "x", "--salt", "\udc80"], "--salt: it is not valid UTF-8; give text"),
    ],
)
def test_a_flag_that_cannot_be_used_is_named(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        asked(*words)
    assert str(caught.value).startswith(message)


def told(**changes: Any) -> Explanation:
    seen = [
        Seen(
            replica=A,
            cached_tokens=1024,
            queued_tokens=0,
            in_flight=1,
            cost=33.0,
            wait_seconds=0.25,
            tokens_per_second=9800.0,
            knowledge=Knowledge.EXACT,
            reason="proven",
        ),
        Seen(
            replica=B,
            cached_tokens=0,
            queued_tokens=7,
            in_flight=0,
            cost=1048.0,
            tokens_per_second=10_000.0,
            knowledge=Knowledge.PARTIAL,
            reason="lost some",
        ),
    ]
    made = Explanation(
        request_id="r1",
        time=0.0,
        path="/v1/completions",
        model="m",
        prompt_tokens=1041,
        knows_tokens=True,
        is_predicted=True,
        policy="cache_aware",
        replica=A,
        cached_tokens=1024,
        why="it has the lowest cost, 33; next is b with 1,048",
        candidates=seen,
    )
    return msgspec.structs.replace(made, **changes)


def test_a_decision_is_a_table() -> None:
    assert explain.written(told()).splitlines() == [
        "/v1/completions, model m: 1,041 prompt tokens; policy cache_aware; request r1",
        "   replica        cached  queued  in flight     wait  tokens/s   cost  knowledge",
        "*  10.0.0.1:8000   1,024       0          1  0.250 s     9,800     33  exact",
        "   b                   0       7          0  0.000 s    10,000  1,048  partial",
        "10.0.0.1:8000: it has the lowest cost, 33; next is b with 1,048",
        "b is known as partial: lost some",
    ]


def test_what_each_tier_holds_is_a_column() -> None:
    tiers: list[dict[str, int]] = [{"GPU": 1024, "CPU": 16}, {}]
    seen = [msgspec.structs.replace(each, tiers=held) for each, held in zip(told().candidates, tiers, strict=True)]
    lines = explain.written(told(candidates=seen)).splitlines()
    assert [line.split("  ")[-1] for line in lines[1:4]] == ["by events", "GPU 1,024, CPU 16", "nothing"]


@pytest.mark.parametrize(
    ("truth", "line"),
    [
        (
            Truth(prompt_tokens=1041, cached_tokens=1008),
            "outcome: ok; predicted 1,024 cached tokens, the engine says 1,008",
        ),
        (Truth(prompt_tokens=1041), "outcome: ok; the engine did not say what it had cached"),
        (None, "outcome: ok; the engine did not say what it had cached"),
    ],
)
def test_what_came_of_it_is_the_last_line(truth: Truth | None, line: str) -> None:
    assert explain.written(told(outcome=Outcome.OK, truth=truth)).splitlines()[-1] == line


@pytest.mark.parametrize(
    ("paper", "line"),
    [
        (Paper("p", A, 1024, 17, 0.25, 0.25), "on paper, p would have chosen it, too"),
        (
            Paper("p", B, 0, 1041, 0.0, 0.25),
            "on paper, p would have chosen b: 0 cached, 1,041 to compute, after 0.000 s; it is 1,024 cached, 17 to compute, "
            "after 0.250 s",
        ),
        (Paper("p", ReplicaId(""), 0, 0, 0.0, 0.25, "KeyError: 3"), "on paper, p could not choose: KeyError: 3"),
    ],
)
def test_what_another_policy_would_have_chosen_is_a_line(paper: Paper, line: str) -> None:
    lines = explain.written(told(shadow=paper, outcome=Outcome.OK)).splitlines()
    assert lines[-2] == line
    assert "on paper" not in explain.written(told())


def test_what_is_found_loaded_and_computed_is_a_line() -> None:
    made = Plan(
        hit_tokens=1024,
        loads={"CPU": 2048, "store:s": 64},
        load_seconds=0.0123,
        computed_tokens=17,
        compute_seconds=0.5,
        hint={"max_load_tokens": 2112, "kv_load_tiers": []},
    )
    lines = explain.written(told(plan=made, outcome=Outcome.OK, truth=Truth(cached_tokens=3136))).splitlines()
    assert lines[-2] == (
        "planned: 1,024 cached, 2,048 from CPU, 64 from store:s in 0.012 s, 17 computed in 0.500 s; its engine is told "
        "max_load_tokens = 2112, kv_load_tiers = []"
    )
    assert lines[-1] == "outcome: ok; predicted 3,136 cached tokens, the engine says 3,136"
    none = msgspec.structs.replace(made, loads={}, hint={})
    assert "planned: 1,024 cached, nothing loaded, 17 computed in 0.500 s\n" in explain.written(told(plan=none)) + "\n"
    assert "planned" not in explain.written(told())


def test_an_engines_error_is_told_with_its_status() -> None:
    last = explain.written(told(outcome=Outcome.ERROR, truth=Truth(status=400))).splitlines()[-1]
    assert last == "outcome: error 400"


def test_what_was_never_sent_has_no_id_and_names_those_that_were_not_asked() -> None:
    lost = NotAsked(ReplicaId("c"), Status.LOST, {"GPU": 784})
    lines = explain.written(told(request_id="", not_asked=[lost])).splitlines()
    assert lines[0].endswith("; policy cache_aware")
    assert lines[-1] == "not asked: c (lost; GPU 784 by events)"


def test_a_guess_is_told_as_one() -> None:
    first = explain.written(told(knows_tokens=False)).splitlines()[0]
    assert "1,041 prompt tokens (a guess: nobody tokenised it)" in first


def test_a_policy_that_weighs_nothing_has_no_costs() -> None:
    seen = [msgspec.structs.replace(each, cost=None) for each in told().candidates]
    lines = explain.written(told(candidates=seen)).splitlines()
    assert [line.split() for line in lines[2:4]] == [
        ["*", "10.0.0.1:8000", "1,024", "0", "1", "0.250", "s", "9,800", "-", "exact"],
        ["b", "0", "7", "0", "0.000", "s", "10,000", "-", "partial"],
    ]


def test_what_a_gateway_says_gives_no_orders_to_a_terminal() -> None:
    shown = explain.written(told(model="m\x1b[2J", why="because\r\nof \x9b0m"))
    assert "model m\\x1b[2J: " in shown
    assert shown.splitlines() == [line for line in shown.split("\n") if line.isprintable()]
    assert "because\\r\\nof \\x9b0m" in shown
