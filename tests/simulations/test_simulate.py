"""``simulations/simulate.py``: the command, from a file to what is shown."""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from balancer.cli import main
from simulations.simulate import QUESTIONS


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
        capsys, trace, "--simple", "--replicas", "3", "--cache", "1M", "--prefill-tps", "5e3", "--decode-ms", "1e1",
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
        (
            "TRACE --simple --cache 1M --blocks 3",
            "--blocks 3, --cache 1M: both say how much a cache holds; leave one of",
        ),
        (
            "TRACE --gpus 2",
            "--gpus, --model: --gpus is of what --model and --gpu name, and both are missing; give them, too",
        ),
        ("TRACE --simple --weight-bits 8", "--weight-bits, --model: --weight-bits is of what --model and --gpu name"),
        ("TRACE --kv-bits 8", "--kv-bits, --model: "),
        ("TRACE --seed 1 --seed 2", "--seed 1, --seed 2: one of them would not count; give it once"),
        ("--generate chat --strict", "--strict, --generate: a made-up trace is not read from a file"),
        ("--generate chat --column a=b", "--column, --generate: a made-up trace is not read from a file"),
        (
            "--generate chat --trace-rate 2",
            "its settings stand in brackets, as in 'chat(rate=2)'; leave one of them out",
        ),
        (
            "TRACE --simple --trace-rate 1",
            "--trace-rate: each of the trace's requests has a time; what plays it faster is --l",
        ),
        (
            "TRACE --simple --column timestamp=a --column timestamp=b",
            "--column timestamp=a, --column timestamp=b: a field is called one thing; leave one of them out",
        ),
        (
            "--generate chat(rate=1,rate=2)",
            "--generate chat: rate is there twice in 'chat(rate=1,rate=2)'; give it once",
        ),
        ("TRACE --policy predicted_ttft(price=1,price=2)", "--policy predicted_ttft: price is there twice"),
        ("TRACE --simple --pause 3", "--pause: the trace has times, or no turns; leave it out"),
        ("TRACE --simple --sweep replicas", "write a field of the fleet"),
        ("TRACE --simple --fleet replicas=1,2", "--fleet replicas=1,2: give one value"),
        ("TRACE --prefill-tps 1000", "the detailed model needs both"),
        ("TRACE --model llama-3.1-8b", "a speed takes both"),
        ("TRACE --simple --seeds 0", "--seeds: must be a whole number of at least 1, got 0"),
        ("TRACE --simple --replicas 100001", "fleet.replicas: must be a whole number of at most 4,096, got 100001"),
        ("TRACE --replicas 100001", "fleet.replicas: must be a whole number of at most 4,096, got 100001"),
        ("TRACE --simple --ttft-p95 0", "--ttft-p95: must be a number above 0, got 0.0"),
        ("TRACE --simple --ttft-p95 nan", "--ttft-p95: must be a number above 0, got nan"),
        ("TRACE --simple --ttft-p95 inf", "--ttft-p95: must be a number of at most 1,000,000,000, got inf"),
        ("TRACE --simple --prefill-tps 1e999", "fleet.prefill_tps: must be a number, got '1e999'"),
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


def test_a_store_behind_engines_is_a_field_like_any_other(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = (trace, "--policy", "round_robin", "--replicas", "2", "--blocks", "200", "--no-bounds")
    stores = '{gbits=400,loads="never"},{gbits=400},{gbits=400,tokens=64}'
    runs = document(capsys, *words, "--sweep", f"store={stores}")["results"]
    hits = [each["summary"]["hit"] for each in runs]
    assert len(hits) == 3
    assert hits[1] > hits[2] > hits[0] - 1e-9


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


@pytest.mark.parametrize("bounds", [(), ("--no-bounds",)])
@pytest.mark.parametrize(
    "fleet",
    [("--simple", "--prefill-tps", "100"), ("--prefill-tps", "100", "--decode-ms", "1")],
    ids=["simple", "detailed"],
)
def test_a_goal_that_a_prompt_alone_breaks_is_not_held_by_more_replicas(
    fleet: tuple[str, ...], bounds: tuple[str, ...], trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (
        trace,
        *fleet,
        *bounds,
        "--cache",
        "1M",
        "--sweep",
        "replicas=8,32",
        "--policy",
        "predicted_ttft",
        "--ttft-p95",
    )
    (answer,) = [each for each in document(capsys, *words, "2")["findings"] if each["topic"] == "replicas"]
    assert (answer["verdict"], answer["certainty"]) == ("Not by number", "estimate")
    assert "is held by no number of these replicas" in answer["answer"]
    assert "where nobody waits and nothing is forgotten" in answer["answer"]
    (answer,) = [each for each in document(capsys, *words, "1000")["findings"] if each["topic"] == "replicas"]
    assert answer["verdict"] == "8"


def test_a_closed_loop_of_a_trace_without_pauses_is_told_to_change_nothing(
    trace: str, paused_talks: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--simple", "--policy", "random", "--no-bounds", "--closed-loop")
    assert run("simulate", trace, *words) == 0
    assert "--closed-loop changes nothing" in capsys.readouterr().err
    assert run("simulate", paused_talks, *words) == 0
    assert "--closed-loop" not in capsys.readouterr().err


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
