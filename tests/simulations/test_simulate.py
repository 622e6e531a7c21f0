"""``simulations/simulate.py`` and ``plan.py``: the commands, from a file to what is shown."""

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from balancer.cli import main
from simulations import plan_runs
from simulations.results import Summary
from simulations.simulate import QUESTIONS


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """A few conversations of a few turns, in Mooncake's form."""
    lines = []
    for turn in range(4):
        for user in range(6):
            ids = [user * 10 + at for at in range(turn + 2)]
            line = {"timestamp": turn * 4000 + user * 300, "input_length": 512 * len(ids) - 100, "output_length": 20}
            lines.append(json.dumps({**line, "hash_ids": ids}))
    path = tmp_path / "chat.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def run(*words: str) -> int:
    return main(list(words))


def document(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert run("simulate", *words, "--json", "-", "--quiet") == 0
    return json.loads(capsys.readouterr().out)


def test_a_comparison_is_shown_with_bounds_and_findings(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("simulate", trace, "--simple", "--replicas", "2", "--policy", "predicted_ttft,round_robin") == 0
    told = capsys.readouterr()
    for words in ("predicted_ttft", "round_robin", "nothing forgotten", "Do I need cache-aware routing?"):
        assert words in told.out
    assert "24 requests, read as mooncake" in told.err
    assert "2 of 2 runs" in told.err


def test_flags_become_the_fleet(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(
        capsys, trace, "--simple", "--replicas", "3", "--cache", "1M", "--prefill-tps", "5k", "--decode-ms", "10",
        "--load", "0.5", "--closed-loop", "--fleet", "believed_tps=1000", "--policy", "predicted_ttft(price=3)", "--seed", "7",
    )  # fmt: skip
    (result,) = found["results"]
    assert result["policy"] == "predicted_ttft(price=3)"
    assert result["seed"] == 7
    settings = result["settings"]
    assert (settings["replicas"], settings["blocks"], settings["prefill_tps"]) == (3, 1_000_000 // 512, 5000)
    assert (settings["decode_seconds"], settings["load"], settings["closed_loop"]) == (0.01, 0.5, True)
    assert settings["believed_tps"] == 1000


def test_a_policy_of_ones_own_lies_in_the_folder_where_kvlb_is_started(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "policy_in_the_folder.py").write_text(
        "import msgspec\n"
        "class Mine(msgspec.Struct, frozen=True):\n"
        "    place: int = 0\n"
        "    def choose(self, candidates, draw, asked):\n"
        "        return candidates[self.place]\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each])
    found = document(capsys, trace, "--simple", "--replicas", "2", "--policy", "policy_in_the_folder:Mine(place=1)")
    assert [each["policy"] for each in found["results"]] == ["policy_in_the_folder:Mine(place=1)"]


def test_the_detailed_model_is_played_by_default(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(
        capsys, trace, "--replicas", "2", "--policy", "predicted_ttft", "--model", "llama-3.1-8b", "--gpu", "h100"
    )
    (result,) = found["results"]
    assert result["settings"]["model"] == "detailed"
    assert result["settings"]["block_size"] == 16
    assert 0.5 < result["summary"]["hit"] < 1


def test_a_sweep_plays_every_fleet_with_every_seed(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(
        capsys,
        trace,
        "--simple",
        "--sweep",
        "replicas=1,2",
        "--sweep",
        "cache=8k,1M",
        "--seeds",
        "2",
        "--policy",
        "random",
    )
    assert len(found["results"]) == 8
    assert {each["replicas"] for each in found["results"]} == {1, 2}
    assert {each["settings"]["blocks"] for each in found["results"]} == {15, 1953}


def test_a_scenario_says_the_same_and_flags_come_on_top(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario = tmp_path / "scenario.toml"
    scenario.write_text(
        'trace = "chat.jsonl"\nmodel = "simple"\npolicies = ["random", "round_robin"]\nseeds = 2\n'
        "[fleet]\nreplicas = 4\nblocks = 99\n"
    )
    found = document(capsys, "--scenario", str(scenario))
    assert len(found["results"]) == 4
    assert {each["replicas"] for each in found["results"]} == {4}
    found = document(
        capsys, "--scenario", str(scenario), "--replicas", "2", "--cache", "5120", "--policy", "random", "--seeds", "1"
    )
    assert [(each["policy"], each["replicas"], each["settings"]["blocks"]) for each in found["results"]] == [
        ("random", 2, 10)
    ]


def test_pages_plots_and_documents_are_written_and_equal_runs_are_equal(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (trace, "--simple", "--policy", "predicted_ttft,random", "--quiet")
    for name in ("a", "b"):
        files = [str(tmp_path / f"{name}.{kind}") for kind in ("json", "html")]
        assert run("simulate", *words, "--json", files[0], "--html", files[1], "--plots", str(tmp_path / name)) == 0
    for kind in ("json", "html"):
        assert (tmp_path / f"a.{kind}").read_bytes() == (tmp_path / f"b.{kind}").read_bytes()
    assert (tmp_path / "a.html").read_text().startswith("<!DOCTYPE html>")
    assert {each.suffix for each in (tmp_path / "a").iterdir()} == {".svg"}


def test_finished_runs_are_found_again(trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("simulate", trace, "--simple", "--policy", "random", "--resume", str(tmp_path / "runs"))
    assert run(*words) == 0
    first = capsys.readouterr().out
    (kept,) = (tmp_path / "runs").iterdir()
    before = kept.stat().st_mtime_ns
    assert run(*words) == 0
    assert capsys.readouterr().out == first
    assert kept.stat().st_mtime_ns == before, "it was not played again"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "trace: name a trace's file"),
        ("TRACE --policy nope", "there is no policy 'nope'"),
        ("TRACE --policy predicted_ttft(price=high)", "policy.predicted_ttft: Expected `float | null`"),
        ("TRACE --policy predicted_ttft(price", "a bracket is not closed"),
        ("TRACE --simple --fleet speed=3", "fleet.speed: a fleet of the simple model has no such field"),
        ("TRACE --simple --fleet event_lag=1", "the detailed model has it"),
        ("TRACE --simple --replicas 0", "fleet.replicas: must be a whole number of at least 1, got 0"),
        ("TRACE --simple --replicas many", "fleet.replicas: must be a whole number, got 'many'"),
        ("TRACE --simple --cache 1M --blocks 3", "give either cache (in tokens) or blocks"),
        ("TRACE --simple --sweep replicas", "write a field of the fleet"),
        ("TRACE --simple --fleet replicas=1,2", "--fleet replicas=1,2: give one value"),
        ("TRACE --prefill-tps 1000", "the detailed model needs both"),
        ("TRACE --model llama-3.1-8b", "a speed takes both"),
        ("TRACE --simple --seeds 0", "seeds"),
        ("TRACE --simple --jobs 0", "--jobs: must be at least 1"),
        ("TRACE --simple --png", "--png: name a folder"),
        ("TRACE.nothing --simple", "No such file"),
        ("TRACE --scenario TRACE.nothing", "No such file"),
        ("TRACE --simple --html /nowhere/page.html", "--html /nowhere/page.html: No such file or directory"),
    ],
)
def test_what_is_wrong_is_one_line_that_names_it(
    words: str, message: str, trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("simulate", *words.replace("TRACE", trace).split(), "--quiet") == 2
    told = capsys.readouterr().err
    assert message in told
    assert len(told.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("question", "topic"),
    [
        ("do I need cache-aware routing?", "routing"),
        ("how many replicas?", "replicas"),
        ("how much cache?", "cache"),
        ("is a shared store worth it?", "store"),
        ("is it worth it to part prefill and decode?", "disaggregation"),
    ],
)
def test_the_lines_of_the_help_answer_their_questions(
    question: str, topic: str, trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = QUESTIONS[question]
    name, command, first, *flags = shlex.split(line)
    assert (name, command, first) == ("kvlb", "simulate", "trace.jsonl")
    found = document(capsys, trace, *flags)
    (answer,) = [each for each in found["findings"] if each["topic"] == topic]
    assert answer["question"].lower() == question.lower()
    assert answer["certainty"] == "measured", "it rests on runs that the line plays"
    docs = (Path(__file__).parents[2] / "docs" / "simulate.md").read_text()
    assert f"# {question}\n{line}\n" in docs


def test_the_help_has_the_lines_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run("simulate", "--help")
    told = capsys.readouterr().out.splitlines()
    assert len(QUESTIONS) == 5
    assert any("store={link=" in line for line in told)
    assert any("disaggregation={prefill=2" in line for line in told)
    assert all(f"    {line}" in told for line in QUESTIONS.values())


def test_the_cheapest_fleet_that_holds_a_target_is_found(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("plan", trace, "--slo", "ttft_p95=80ms", "--model", "llama-3.1-8b", "--gpu", "h100,l4", "--rate", "20")
    assert run(*words, "--price", "h100=3", "--max-replicas", "16", "--json", "-") == 0
    document = json.loads(capsys.readouterr().out)
    found = document["plans"]
    assert [each["hardware"]["gpu"] for each in document["stopped"]] == ["l4"]
    assert found, "a fleet of h100 can hold it"
    assert {each["hardware"]["gpu"] for each in found} == {"h100"}, "one prompt takes an l4 longer than that"
    assert [each["price"] for each in found] == sorted(each["price"] for each in found)
    assert found[0]["price"] == 3 * found[0]["replicas"]
    assert found[0]["was_confirmed"]
    assert run(*words, "--no-confirm") == 0
    told = capsys.readouterr()
    assert "holds ttft_p95 <=" in told.out.replace("hold ttft", "holds ttft")
    assert "1 x l4 is not looked at further: no number of replicas holds the targets: ttft_p95 is" in told.out
    assert "1 x l4 is not looked at further" in told.err, "as soon as it is known"
    assert "fleets, " in told.err
    assert " left" in told.err


def by_detailed(monkeypatch: pytest.MonkeyPatch, p95: Callable[[int], float], refused: int = 0) -> list[int]:
    """The detailed model says so of each number of replicas; which it is asked for."""
    asked: list[int] = []

    def confirm(self: Any, build: Any, policy: Any, replicas: int) -> tuple[Summary, float]:
        asked.append(replicas)
        made = Summary("p", 10, refused, 0.5, 0, 0, 0, p95(replicas), 0, 0, 0, 1.0, 0.5)
        return made, 1.0

    monkeypatch.setattr(plan_runs.Runs, "confirm", confirm)
    return asked


@pytest.mark.parametrize(
    ("p95", "refused", "told"),
    [
        (lambda replicas: 0.080 * 23 / replicas, 0, "asks for 23 (ttft_p95 is 0.080 s there): plan with that."),
        (
            lambda replicas: 0.080 * 99 / replicas,
            0,
            "does not hold it with up to 64 replicas, the most there may be: ttft_p95 is 0.124 s there. Allow for more",
        ),
        (
            lambda replicas: 0.1 + 0.01 / replicas**8,
            0,
            "does not hold it, and more replicas do not help: ttft_p95 is 0.100 s with 2, and 0.100 s with 3.",
        ),
        (lambda _: 0.001, 4, "does not hold it: 4 requests do not fit into a replica's cache."),
    ],
    ids=["far above", "beyond the most", "never", "refused"],
)
def test_the_detailed_model_is_asked_until_it_is_known(
    p95: Callable[[int], float],
    refused: int,
    told: str,
    trace: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    by_detailed(monkeypatch, p95, refused)
    words = ("plan", trace, "--slo", "ttft_p95=80ms", "--model", "llama-3.1-8b", "--gpu", "h100", "--rate", "20")
    assert run(*words, "--max-replicas", "64", "--policy", "predicted_ttft", "--jobs", "1") == 0
    shown = capsys.readouterr()
    assert told in shown.out
    assert "the one before took 1.00 s" in shown.err or refused


def rows(shown: str) -> dict[str, list[str]]:
    """Of a plan's table, the first row by each model."""
    found: dict[str, list[str]] = {}
    for line in shown.splitlines():
        for model in ("simple", "detailed"):
            if f" {model} " in line and "%" in line:
                found.setdefault(model, line.split())
    return found


PLANNED: Final = ("--slo", "ttft_p95=80ms", "--model", "llama-3.1-8b", "--gpu", "h100", "--rate", "20", "--jobs", "1")


def test_the_table_has_what_both_models_ask_for(
    trace: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    by_detailed(monkeypatch, lambda replicas: 0.080 * 23 / replicas)
    words = ("plan", trace, *PLANNED, "--price", "h100=2", "--policy", "predicted_ttft")
    assert run(*words) == 0
    both = rows(capsys.readouterr().out)
    assert (both["simple"][0], both["detailed"][0]) == ("2", "23")
    assert both["detailed"][-3:] == ["0", "0.080", "0"], "its 95th percentile"
    assert both["detailed"][6] == "46", "and what so many cost"
    assert run(*words, "--no-confirm") == 0
    alone = capsys.readouterr().out
    assert "detailed" not in rows(alone)
    assert (
        "That is not confirmed: the detailed model, which lets prompts and answers share steps, was not asked" in alone
    )
    by_detailed(monkeypatch, lambda replicas: 0.1)
    assert run(*words) == 0
    assert "none  1 x h100  predicted_ttft  detailed        -" in capsys.readouterr().out


def test_where_more_replicas_are_slower_it_is_told(
    trace: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = by_detailed(monkeypatch, lambda replicas: {2: 0.2, 3: 0.07, 4: 0.1}[replicas])
    assert run("plan", trace, *PLANNED, "--policy", "predicted_ttft") == 0
    told = capsys.readouterr().out
    assert asked == [2, 3, 4], "one more than the fewest is looked at, too"
    assert "Tried by the detailed model: ttft_p95 0.200 s with 2, 0.070 s with 3, 0.100 s with 4." in told
    assert "It does not hold with 4: there, chance decides, so leave room." in told
    assert "The search takes more replicas to be quicker, and they were not always: 4 are slower than 3." in told


@pytest.mark.parametrize(
    "more",
    [
        ("--rate", "3"),
        ("--no-confirm", "--first", "150", "--seed", "7", "--gpus", "2", "--kv-bits", "8"),
        ("--sessions", "0.5", "--store-price", "1", "--store-link", "25", "--store-latency-ms", "0.3"),
        ("--no-confirm", "--store-price", "1", "--store-link", "ram-pcie5", "--weight-bits", "8"),
    ],
    ids=["detailed", "simple", "detailed with a store", "simple with a store"],
)
@pytest.mark.parametrize("has_pauses", [False, True], ids=["open", "closed"])
def test_what_is_planned_is_what_simulate_says_of_that_fleet(
    more: tuple[str, ...], has_pauses: bool, long_talks: str, paused_talks: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("plan", paused_talks if has_pauses else long_talks, *STORED, "--jobs", "1", *more)
    assert run(*words, "--json", "-") == 0
    plans = json.loads(capsys.readouterr().out)["plans"]
    assert {each["has_store"] for each in plans} == ({False, True} if "--store-price" in more else {False})
    for each in plans:
        name, command, *line = shlex.split(each["line"])
        assert (name, command, "--closed-loop" in line) == ("kvlb", "simulate", has_pauses)
        (result,) = document(capsys, *line, "--no-bounds")["results"]
        replicas, summary = each["replicas"], each["summary"]
        if each["confirmed"] is not None:
            replicas, summary = each["confirmed"], each["confirmed_summary"]
        assert result["settings"]["model"] == ("detailed" if each["was_confirmed"] else "simple")
        assert result["replicas"] == replicas
        assert result["summary"] == summary


def test_a_store_behind_engines_is_a_field_like_any_other(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = (trace, "--policy", "round_robin", "--replicas", "2", "--blocks", "200", "--no-bounds")
    stores = '{gbits=400,loads="never"},{gbits=400},{gbits=400,tokens=64}'
    runs = document(capsys, *words, "--sweep", f"store={stores}")["results"]
    hits = [each["summary"]["hit"] for each in runs]
    assert len(hits) == 3
    assert hits[1] > hits[2] > hits[0] - 1e-9


@pytest.fixture
def long_talks(tmp_path: Path) -> str:
    """Conversations, so many at once that a replica's cache does not keep them."""
    lines = []
    for turn in range(3):
        for user in range(100):
            ids = [user * 100 + at for at in range(4 * turn + 4)]
            line = {"timestamp": turn * 24000 + user * 240, "input_length": 512 * len(ids) - 100, "output_length": 5}
            lines.append(json.dumps({**line, "hash_ids": ids}))
    path = tmp_path / "long.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.fixture
def paused_talks(tmp_path: Path) -> str:
    """The same in sessions, whose turns come a while after the answer."""
    lines = []
    for user in range(100):
        for turn in range(3):
            ids = [user * 100 + at for at in range(4 * turn + 4)]
            told = {"session_id": f"s{user}", "input_length": 512 * len(ids) - 100, "output_length": 5, "hash_ids": ids}
            when = {"delay": 9000} if turn else {"timestamp": user * 240}
            lines.append(json.dumps({**told, **when}))
    path = tmp_path / "paused.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


STORED: Final = (
    "--slo",
    "ttft_p95=800ms",
    "--model",
    "llama-3.1-8b",
    "--gpu",
    "l40s",
    "--price",
    "l40s=2",
    "--policy",
    "predicted_ttft",
)


def test_what_a_store_is_worth_is_planned(long_talks: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("plan", long_talks, *STORED, "--jobs", "1")
    assert run(*words, "--no-confirm", "--json", "-") == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["moving"] is None
    assert run(*words, "--no-confirm", "--json", "-", "--store-price", "730/month", "--store-link", "25") == 0
    both = json.loads(capsys.readouterr().out)
    with_store, without = both["plans"]
    assert (with_store["has_store"], without["has_store"]) == (True, False)
    assert without == plain["plans"][0], "what is found without it is not another fleet"
    assert with_store["replicas"] < without["replicas"]
    assert with_store["price"] == 2 * with_store["replicas"] + 1
    assert both["moving"]["saves"] == without["price"] - with_store["price"] > 0
    assert both["moving"]["store_price"] == 1.0
    assert run(*words, "--store-price", "0.5", "--store-link", "400", "--store-latency-ms", "2") == 0
    told = capsys.readouterr()
    assert "1 x l40s + store" in told.out
    assert "Moving to the store saves" in told.out
    assert "400 Gbit/s, 90% of it data, 2 ms until the first byte" in told.out
    assert told.out.count("The detailed model") == 2
    assert "with the store" in told.err


@pytest.mark.parametrize("way", [("--store-link", "1"), ("--store-latency-ms", "1e7")])
def test_a_store_that_is_too_slow_is_not_worth_its_price(
    way: tuple[str, ...], long_talks: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("plan", long_talks, *STORED, "--jobs", "1", "--no-confirm", "--store-price", "1", *way) == 0
    told = capsys.readouterr().out
    assert "Moving to the store costs 1 an hour more" in told
    assert "that spares no replica" in told


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--store-price", "cheap"), "--store-price cheap: write a price of an hour, 0 or more, as in"),
        (("--store-price", "-1"), "--store-price -1: write a price of an hour"),
        (("--store-price", "3/week"), "--store-price 3/week: write a price of an hour"),
        (("--store-price", "3", "--store-link", "5gbe"), "--store-link: there is no link '5gbe'; did you mean 25gbe?"),
        (("--store-price", "3", "--store-link", "0"), "--store-link: 0 is not a rate; give a number of Gbit/s above 0"),
        (
            ("--store-price", "3", "--store-link", "1e12"),
            "--store-link: 1e12 carries 9e+11 Gbit/s of data; a store that is planned with carries from 1e-06 to 1,000,000",
        ),
        (("--store-price", "3", "--store-link", "1e-9"), "--store-link: 1e-9 carries 9e-10 Gbit/s of data"),
        (("--store-price", "3", "--store-latency-ms", "-1"), "--store-latency-ms: must be a number of milliseconds"),
        (
            ("--store-price", "3", "--store-latency-ms", "1e9"),
            "--store-latency-ms: must be a number of milliseconds from 0 to 86,400,000",
        ),
        (("--store-link", "10gbe"), "--store-price: say what the store costs, 0 if it is there already"),
        (("--store-price", "3", "--gpu", "h100,l4"), "give that of l4, too, as in --price l4=2.5"),
    ],
)
def test_what_is_wrong_with_a_store_is_told(
    trace: str, flags: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("plan", trace, "--slo", "ttft_p95=80ms", "--model", "llama-3.1-8b", "--gpu", "h100", "--price", "h100=3")
    assert run(*words, *flags) == 2
    assert message in capsys.readouterr().err


def test_what_nobody_can_hold_is_said(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("plan", trace, "--slo", "ttft_p95=1ms", "--model", "llama-3.1-8b", "--gpu", "h100", "--max-replicas", "8")
    assert run(*words) == 1
    assert "no fleet of up to 8 replicas holds ttft_p95" in capsys.readouterr().err


def test_a_made_up_trace_is_played_in_place_of_a_file(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--generate", "chat(rate=0.5,seconds=60)", "--simple", "--block-size", "16", "--policy", "random")
    found = document(capsys, *words)
    assert found["trace"]["requests"] > 20
    assert document(capsys, *words) == found
    assert run("simulate", trace, *words, "--quiet") == 2
    assert "give either a trace's file or a generator" in capsys.readouterr().err
    assert run("simulate", "--generate", "chats", "--simple", "--quiet") == 2
    assert "there is no generator 'chats'" in capsys.readouterr().err


def test_a_trace_is_cut_and_scaled_by_whole_conversations(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = (trace, "--simple", "--policy", "random")
    assert document(capsys, *words, "--first", "5")["trace"]["requests"] == 5
    assert document(capsys, *words, "--sessions", "2")["trace"]["requests"] == 48
    half = document(capsys, *words, "--sessions", "0.5")["trace"]["requests"]
    assert 0 < half < 24
    assert half % 4 == 0, "whole conversations of four turns"
    for flag, value, told in (("--first", "0", "--first: must be"), ("--sessions", "-1", "--sessions: times")):
        assert run("simulate", *words, flag, value, "--quiet") == 2
        assert told in capsys.readouterr().err


def test_how_many_requests_are_played_is_told_where_it_is_not_all(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (trace, "--simple", "--policy", "random", "--no-bounds")
    for flags, told in (
        (("--first", "5"), "\n  of these, 5 requests are played (--first 5)\n"),
        (("--first", "1"), "\n  of these, 1 request is played (--first 1)\n"),
        (("--sessions", "2"), "\n  of these, 48 requests are played (--sessions 2)\n"),
        (("--first", "12", "--sessions", "0.5"), " are played (--first 12, --sessions 0.5)\n"),
    ):
        assert run("simulate", *words, *flags) == 0
        assert told in capsys.readouterr().err
    assert run("simulate", *words, "--first", "100") == 0
    assert "of these" not in capsys.readouterr().err
    assert run("plan", trace, *PLANNED, "--policy", "predicted_ttft", "--no-confirm", "--first", "5") == 0
    assert "\n  of these, 5 requests are played (--first 5)\n" in capsys.readouterr().err


def test_seeds_that_bring_the_same_are_not_called_means(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("simulate", trace, "--simple", "--replicas", "2", "--seeds", "2", "--quiet", "--no-bounds", "--policy")
    assert run(*words, "round_robin") == 0
    told = capsys.readouterr().out
    assert "the same with each of 2 seeds: none of it was left to chance" in " ".join(told.split())
    assert "means over" not in told
    assert run(*words, "round_robin,random") == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "means over 2 seeds (round_robin: the same with each)" in told
    assert run(*words, "random") == 0
    assert "means over 2 seeds:" not in (told := capsys.readouterr().out)
    assert "means over 2 seeds" in told
