"""``simulations/plan.py``: the command, from a trace to what is shown."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from balancer.cli import main
from simulations import plan_runs
from simulations.results import Summary


def run(*words: str) -> int:
    return main(list(words))


PLANNED: Final = ("--slo", "ttft_p95=80ms", "--model", "llama-3.1-8b", "--gpu", "h100", "--rate", "20", "--jobs", "1")


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


def test_the_cheapest_fleet_that_holds_a_target_is_found(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("plan", trace, "--slo", "ttft_p95=80ms", "--model", "llama-3.1-8b", "--gpu", "h100,l4", "--rate", "20")
    prices = ("--price", "h100=3,l4=1")
    assert run(*words, *prices, "--max-replicas", "16", "--json", "-") == 0
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
        (
            lambda replicas: 0.080 * 23 / replicas,
            0,
            "23 replicas of 1 x h100 with predicted_ttft hold ttft_p95 <= 0.080 s: ttft_p95 is 0.080 s by the detailed model, "
            "which lets prompts and answers share steps. The simple one asks for 2; plan with 23.",
        ),
        (
            lambda _: 0.07,
            0,
            "2 replicas of 1 x h100 with predicted_ttft hold ttft_p95 <= 0.080 s, by both models: ttft_p95",
        ),
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
    ids=["far above", "near", "beyond the most", "never", "refused"],
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
    code = run(*words, "--max-replicas", "64", "--policy", "predicted_ttft", "--jobs", "1")
    shown = capsys.readouterr()
    assert ("(--gpus, --max-replicas)" in shown.err) is ("Allow for more" in told)
    assert told in shown.out
    assert code == (1 if "does not hold" in told else 0)
    assert "the one before took 1.00 s" in shown.err or refused


def rows(shown: str) -> dict[str, list[str]]:
    """Of a plan's table, the first row by each model."""
    found: dict[str, list[str]] = {}
    for line in shown.splitlines():
        for model in ("simple", "detailed"):
            if f" {model} " in line and "%" in line:
                found.setdefault(model, line.split())
    return found


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
    assert run(*words) == 1
    assert "none  1 x h100  predicted_ttft  detailed        -" in capsys.readouterr().out


def test_what_the_detailed_model_never_holds_is_no_plan(
    trace: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    by_detailed(monkeypatch, lambda replicas: 0.2 / replicas**0.02)
    words = ("plan", trace, *PLANNED, "--policy", "predicted_ttft,cache_aware", "--max-replicas", "8")
    assert run(*words) == 1
    told = capsys.readouterr()
    first, *rest = told.out.partition("\n\n")[2].splitlines()
    assert first == "No fleet is known to hold ttft_p95 <= 0.080 s."
    why = [
        each for each in rest if "does not hold it, and more replicas do not help: ttft_p95 is 0.197 s with 2" in each
    ]
    assert {each.partition(":")[0] for each in why} == {"1 x h100 with predicted_ttft", "1 x h100 with cache_aware"}
    assert any(each.startswith("By the simple model alone 2 replicas of 1 x h100") for each in rest)
    assert any(each.endswith(": do not plan with that.") for each in rest)
    (line,) = [each for each in rest if each.startswith("To see the nearest fleet: ")]
    assert "--simple" not in line
    assert "kvlb: no fleet is known to hold ttft_p95 <= 0.080 s: the detailed model holds it with none" in told.err
    assert "--max-replicas" not in told.err, "more do not help"
    assert run(*words, "--json", "-") == 1
    document = json.loads(capsys.readouterr().out)
    assert document["outcome"] == "does not hold"
    assert [each["confirmed"] for each in document["plans"]] == [None, None]
    tried = {each["replicas"]: each["distance"] for each in document["plans"][0]["confirmed_tried"]}
    assert f"--replicas {min(tried, key=tried.__getitem__)} " in document["plans"][0]["line"]


def test_the_document_tells_what_came_of_it(
    trace: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("plan", trace, *PLANNED, "--policy", "predicted_ttft", "--json", "-")
    assert run(*words, "--no-confirm") == 0
    assert json.loads(capsys.readouterr().out)["outcome"] == "not confirmed"
    by_detailed(monkeypatch, lambda replicas: 0.1 / replicas)
    assert run(*words) == 0
    assert json.loads(capsys.readouterr().out)["outcome"] == "holds"
    assert run(*words, "--slo", "ttft_mean=1ms") == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["outcome"], document["plans"], len(document["stopped"])) == ("does not hold", [], 1)


@pytest.mark.parametrize("names", ["predicted_ttft,cache_aware", "cache_aware,predicted_ttft"])
def test_every_policy_that_may_be_the_cheapest_is_confirmed(
    names: str, trace: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def confirm(self: Any, build: Any, policy: Any, replicas: int) -> tuple[Summary, float]:
        least = {"predicted_ttft": 4, "cache_aware": 5}[policy.name]
        return Summary("p", 10, 0, 0.5, 0, 0, 0, 0.08 * least / replicas, 0, 0, 0, 1.0, 0.5), 1.0

    monkeypatch.setattr(plan_runs.Runs, "confirm", confirm)
    assert run("plan", trace, *PLANNED, "--policy", names) == 0
    told = capsys.readouterr()
    assert "\n4 replicas of 1 x h100 with predicted_ttft hold ttft_p95 <= 0.080 s: " in told.out
    assert [line.split()[0] for line in told.out.splitlines() if " detailed " in line and "%" in line] == ["4", "5"]
    assert "the simple model plays 2 fleets of 4 replicas, and about 4 after that ..." in told.err
    assert "the detailed model plays 2 replicas of 1 x h100 with" in told.err


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


def test_a_device_that_was_too_dear_and_goes_on_is_told(
    trace: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def confirm(self: Any, build: Any, policy: Any, replicas: int) -> tuple[Summary, float]:
        least = {"h100": 9, "h200": 2}[build.hardware.gpu]
        return Summary("p", 10, 0, 0.5, 0, 0, 0, 0.08 * least / replicas, 0, 0, 0, 1.0, 0.5), 1.0

    monkeypatch.setattr(plan_runs.Runs, "confirm", confirm)
    words = ("plan", trace, *PLANNED, "--policy", "predicted_ttft", "--price", "h100=1,h200=3")
    assert run(*("h100,h200" if each == "h100" else each for each in words)) == 0
    told = capsys.readouterr()
    stopped = "1 x h200 is not looked at further: 1 replica at least cost 3, and 2 is enough with another."
    again = "1 x h200 is looked at again: 1 replica at least cost 3, and what holds costs 9 after all."
    assert 0 < told.err.index(stopped) < told.err.index(again)
    assert "2 replicas of 1 x h200 with predicted_ttft hold" in told.out
    assert "not looked at" not in told.out


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
        assert run("simulate", *line, "--no-bounds", "--json", "-", "--quiet") == 0
        (result,) = json.loads(capsys.readouterr().out)["results"]
        replicas, summary = each["replicas"], each["summary"]
        if each["confirmed"] is not None:
            replicas, summary = each["confirmed"], each["confirmed_summary"]
        assert result["settings"]["model"] == ("detailed" if each["was_confirmed"] else "simple")
        assert result["replicas"] == replicas
        assert result["summary"] == summary


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
    assert told.out.count("Tried by the detailed model: ") == 2
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
        (("--store-link", "100gbe"), "--store-price: say what the store costs, 0 if it is there already"),
        (("--store-price", "3", "--gpu", "h100,l4"), "give that of l4, too, as in --price l4=2.5"),
    ],
)
def test_what_is_wrong_with_a_store_is_told(
    trace: str, flags: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("plan", trace, "--slo", "ttft_p95=80ms", "--model", "llama-3.1-8b", "--price", "h100=3")
    gpu = () if "--gpu" in flags else ("--gpu", "h100")
    assert run(*words, *gpu, *flags) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            "--price l4=1",
            "--price l4=1, --gpu h100: no l4 is planned with; name it in --gpu, too, or leave its price out",
        ),
        (
            "--gpu-list h100,l40s --price h100=6",
            "--price: devices are weighed against each other by their prices; give that of l40s, too, as in --price l40s=2.5",
        ),
        ("--slo ttft_p99=2s,ttft_p95=3s", "--slo ttft_p95=80ms, --slo ttft_p95=3s: ttft_p95 has one target"),
        ("--slo ttft_p99=2,5s", "--slo 5s: write a figure and a time above 0, as in --slo ttft_p95=2s"),
        ("--price h100=2,50", "--price 50: write a device and a price above 0, as in --price h100=2.5"),
        ("--cache 4M", "--cache: how much a replica keeps is worked out from the memory of its devices and the model"),
        ("--cache=4M", "--cache: how much a replica keeps is worked out from the memory of its devices and the model"),
        ("--replicas 4", "--replicas: how many it takes is what a plan finds; --max-replicas is where it ends; leave"),
        ("--ttft-p95 2", "--ttft-p95: targets are written as in --slo ttft_p95=2s; leave it out"),
        ("--price h100=1 --price H100=2", "--price h100=1, --price H100=2: a device has one price; leave one out"),
        ("--gpu l40s", "--gpu h100, --gpu l40s: one of them would not count; give both at once, as in --gpu h100,l40s"),
        ("--policy random --policy round_robin", "give both at once, as in --policy random,round_robin"),
        ("--slo ttft_p95=2s", "--slo ttft_p95=80ms, --slo ttft_p95=2s: ttft_p95 has one target; leave one of them out"),
        ("--rate 2 --rate 3", "--rate 2, --rate 3: one of them would not count; give it once"),
        (
            "--trace-rate 2",
            "--trace-rate: each of the trace's requests has a time; what plays it faster is --rate; leave",
        ),
    ],
)
def test_what_a_plan_would_not_count_is_refused(
    flags: str, message: str, trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = flags.replace("--gpu-list", "--gpu").split()
    gpu = () if "--gpu-list" in flags else ("--gpu", "h100")
    assert run("plan", trace, "--slo", "ttft_p95=80ms", "--model", "llama-3.1-8b", *gpu, *given) == 2
    assert message in capsys.readouterr().err


def test_targets_and_prices_may_stand_in_a_list(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = (
        "plan",
        trace,
        "--model",
        "llama-3.1-8b",
        "--gpu",
        "h100,l40s",
        "--rate",
        "20",
        "--jobs",
        "1",
        "--no-confirm",
    )
    apart = ("--slo", "ttft_p95=80ms", "--slo", "ttft_p99=1s", "--price", "h100=3", "--price", "l40s=1.5")
    together = ("--slo", "ttft_p95=80ms, ttft_p99=1s", "--price", "h100=3,l40s=1.5")
    found = []
    for flags in (apart, together):
        assert run(*words, *flags, "--json", "-") == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0]["slo"] == ["ttft_p95=80ms", "ttft_p99=1s"]
    assert found[0] == found[1]


def test_prices_are_of_all_devices_or_of_none(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("plan", trace, *PLANNED, "--policy", "predicted_ttft", "--no-confirm", "--json", "-")
    assert run(*words) == 0
    (plan,) = json.loads(capsys.readouterr().out)["plans"]
    assert plan["price"] == plan["devices"], "without prices each counts as 1"


def test_what_nobody_can_hold_is_said(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("plan", trace, "--slo", "ttft_p95=1ms", "--model", "llama-3.1-8b", "--gpu", "h100", "--max-replicas", "8")
    assert run(*words) == 1
    told = capsys.readouterr()
    assert "no fleet of up to 8 replicas holds ttft_p95" in told.err
    assert (
        "by the simple model, and more do not help. Allow for faster devices (--gpu), more of them (--gpus)" in told.err
    )
    assert "no number of replicas holds the targets: ttft_p95 is" in told.out
    assert "--max-replicas" not in told.err


def test_where_no_fleet_holds_the_nearest_is_told(paused_talks: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("plan", paused_talks, *STORED, "--slo", "ttft_p50=1ms", "--jobs", "1", "--no-confirm")
    assert run(*words, "--max-replicas", "300") == 1
    told = capsys.readouterr()
    first, *rest = told.out.splitlines()
    assert first == "No fleet holds ttft_p95 <= 0.800 s and ttft_p50 <= 0.001 s by the simple model."
    assert any(
        each.startswith("The nearest is 1 x l40s with predicted_ttft, and more replicas do not help it: ")
        for each in rest
    )
    assert any(each.startswith("The sample may be too short for that: ") for each in rest)
    (line,) = [each.partition(": ")[2] for each in rest if each.startswith("To see the nearest fleet: ")]
    assert "holds ttft_p95 <= 0.800 s and ttft_p50 <= 0.001 s by the simple model, and more do not help." in told.err
    assert "--max-replicas" not in told.err
    assert run(*words, "--max-replicas", "300", "--json", "-") == 1
    document = json.loads(capsys.readouterr().out)
    near = document["nearest"]
    assert (document["plans"], near["more_help"], near["plan"]["line"]) == ([], False, line)
    assert near["plan"]["summary"]["sample"]["requests"] == 300
    assert run(*shlex.split(line)[1:], "--no-bounds", "--json", "-", "--quiet") == 0
    (result,) = json.loads(capsys.readouterr().out)["results"]
    assert result["summary"] == near["plan"]["summary"], "it plays that fleet"
    assert run(*words, "--max-replicas", "2", "--json", "-") == 1
    told = capsys.readouterr()
    assert json.loads(told.out)["nearest"]["more_help"]
    assert "more of them (--gpus, --max-replicas) or more time (--slo)" in told.err


def test_how_many_requests_are_played_is_told_where_it_is_not_all(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("plan", trace, *PLANNED, "--policy", "predicted_ttft", "--no-confirm", "--first", "5") == 0
    assert "\n  of these, 5 requests are played (--first 5)\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--max-replicas", "100001"), "--max-replicas: must be a whole number from 1 to 4,096, got 100001"),
        (("--max-replicas", "0"), "--max-replicas: must be a whole number from 1 to 4,096, got 0"),
        (("--rate", "nan"), "--rate: must be a number above 0 and at most 1,000,000,000,000, got nan"),
        (("--rate", "2e12"), "--rate: must be a number above 0 and at most 1,000,000,000,000, got 2e12"),
        (("--jobs", "0"), "--jobs: must be at least 1, got 0"),
        (("--slo", "ttft_p95=1e999s"), "--slo ttft_p95=1e999s: write a figure and a time above 0"),
    ],
)
def test_what_is_wrong_is_one_line_that_names_the_flag(
    flags: tuple[str, ...], message: str, trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    planned = list(PLANNED)
    if flags[0] in planned:
        at = planned.index(flags[0])
        del planned[at : at + 2]
    assert run("plan", trace, *planned, *flags) == 2
    told = capsys.readouterr().err
    assert message in told
    assert len(told.strip().splitlines()) == 1


def test_what_is_named_twice_is_planned_once(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "plan",
        trace,
        *PLANNED,
        "--policy",
        "round_robin, round_robin",
        "--gpus",
        "1,1",
        "--json",
        "-",
        "--no-confirm",
    ]
    words[words.index("h100")] = "h100,H100"
    assert run(*words) == 0
    told = capsys.readouterr()
    assert len(json.loads(told.out)["plans"]) == 1
    for flag in ("--gpu h100,H100: h100", "--gpus 1,1: 1", "--policy round_robin, round_robin: round_robin"):
        assert f"{flag} is there more than once, and planned with once.\n" in told.err


def test_a_sample_that_is_too_short_is_told(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plan", trace, *PLANNED, "--policy", "predicted_ttft") == 0
    told = capsys.readouterr().out
    assert "\nThe sample may be too short for that: Caches were not yet full: all that was computed is" in told
    assert "Of 24 requests 1 is beyond the 95th percentile." in told
    assert "Plan with more of it (--first, or a longer trace)." in told
    assert run("plan", trace, *PLANNED, "--policy", "predicted_ttft", "--slo", "ttft_p99=9s", "--no-confirm") == 0
    assert "Of 24 requests 0 are beyond the 99th percentile." in capsys.readouterr().out


def test_caches_are_not_too_empty_where_nothing_can_be_hit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lengths = tmp_path / "lengths.csv"
    lengths.write_text(
        "timestamp,input_length,output_length\n" + "".join([f"{at},{400 + at},20\n" for at in range(30)])
    )
    assert run("plan", str(lengths), *PLANNED, "--policy", "round_robin", "--no-confirm") == 0
    told = capsys.readouterr().out
    assert "The sample may be too short for that: Of 30 requests 1 is beyond the 95th percentile." in told
    assert run("simulate", str(lengths), "--quiet", "--policy", "round_robin") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "Is the sample long enough? Too short Of 30 requests 1 is beyond the 95th percentile." in shown


def test_devices_that_cannot_hold_the_model_are_left_out_of_the_plan(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "plan",
        trace,
        "--slo",
        "ttft_p95=5s",
        "--model",
        "llama-3.1-70b",
        "--gpu",
        "h100,l4",
        "--policy",
        "round_robin",
    ]
    words += ["--no-confirm", "--jobs", "1"]
    assert run(*words, "--gpus", "1,4", "--price", "h100=1", "--json", "-") == 0, "nor does it take their price"
    told = capsys.readouterr()
    document = json.loads(told.out)
    assert {(each["hardware"]["gpu"], each["hardware"]["count"]) for each in document["plans"]} == {("h100", 4)}
    why = "it cannot hold llama-3.1-70b (141 GB of weights) and a cache; take 3 at least"
    assert [each["why"] for each in document["stopped"] if each["hardware"]["gpu"] == "h100"] == [why]
    assert f"1 x h100 is not looked at further: {why}." in told.err
    assert run(*words, "--gpus", "1") == 2
    assert (
        "gpu: 1 x h100 cannot hold llama-3.1-70b (141 GB of weights) and a cache; take 3 at least"
        in capsys.readouterr().err
    )
