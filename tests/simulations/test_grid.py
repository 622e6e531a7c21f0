"""``simulations/grid.py``: a case has one run, on any number of cores, at the first attempt or the second."""

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from balancer.errors import ConfigError
from simulations.detailed_fleet import DetailedFleet
from simulations.grid import Case, SimulationError, decode, encode, run_all
from simulations.named_policies import parse
from simulations.results import Run
from simulations.simple import SimpleFleet
from simulations.traces.trace import Trace, TraceBuilder

SIMPLE = SimpleFleet(replicas=2, blocks=12, block_size=4, prefill_tps=100.0)
DETAILED = DetailedFleet(replicas=2, blocks=20, block_size=4, event_loss=0.2)
CASES = [
    Case(policy, fleet, seed)
    for policy in parse("random,predicted_ttft(price=3)")
    for fleet in (SIMPLE, msgspec.structs.replace(SIMPLE, block_size=2), DETAILED)
    for seed in (1, 2)
]


def trace(name: str = "made", answer: int = 3) -> Trace:
    builder = TraceBuilder(name, 4, is_chained=False)
    for at in range(30):
        builder.add(at * 0.05, 8 + at % 4, answer, [at % 3, at % 5, *([9] if at % 4 else [])])
    return builder.build()


def same(case: Case, run: Run) -> Run:
    assert (case.policy.written, case.seed) == (run.policy, run.seed)
    return run


def played(cases: Sequence[Case], *, jobs: int = 1, folder: Path | None = None, of: Trace | None = None) -> list[bytes]:
    return [encode(run) for run in run_all(of or trace(), cases, jobs=jobs, folder=folder, keep=same)]


def found(cases: Sequence[Case], folder: Path, of: Trace | None = None) -> int:
    """How many of the cases are not played, because they were already: those are told first, and took no time."""
    told: list[tuple[int, float]] = []
    run_all(
        of or trace(), cases, jobs=1, folder=folder, keep=same, told=lambda done, _, took: told.append((done, took))
    )
    return told[0][0] if told[0][1] == 0 else 0


def test_runs_are_the_same_on_any_number_of_cores() -> None:
    one = played(CASES)
    assert one == played(CASES, jobs=2)
    assert len(set(one)) == len(CASES), "and each is another one"
    assert one[3] == played([CASES[3]])[0], "whoever is played beside it"


def test_what_is_told_comes_to_all_of_them() -> None:
    for jobs in (1, 2):
        told: list[tuple[int, int]] = []
        run_all(trace(), CASES, jobs=jobs, keep=same, told=lambda done, of, _, told=told: told.append((done, of)))  # type: ignore[misc]
        assert told == [(at + 1, len(CASES)) for at in range(len(CASES))]


def test_what_is_kept_is_what_was_made_of_the_run() -> None:
    kept = run_all(trace(), CASES[:3], jobs=1, keep=lambda case, run: (case, len(run.hits)))
    assert kept == [(case, 30) for case in CASES[:3]]


def test_no_cases_are_no_runs() -> None:
    assert run_all(trace(), [], keep=same) == []


def test_a_run_is_itself_once_it_was_bytes() -> None:
    for data in played(CASES[2:6:3]):
        run = decode(data)
        assert encode(run) == data
        assert (run.arrivals.typecode, run.hits.typecode) == ("d", "q")
        assert len(run.ttfts) == 30


def test_finished_runs_are_found_and_the_others_played(tmp_path: Path) -> None:
    whole = played(CASES)
    played(CASES[:5], folder=tmp_path / "runs")
    assert found(CASES[:5], tmp_path / "runs") == 5
    assert played(CASES, jobs=2, folder=tmp_path / "runs") == whole
    assert found(CASES, tmp_path / "runs") == len(CASES)
    assert played(CASES, folder=tmp_path / "runs") == whole


def test_whatever_is_broken_is_played_anew(tmp_path: Path) -> None:
    whole = played(CASES[:6], folder=tmp_path)
    files = sorted(tmp_path.glob("*.run"))
    assert len(files) == 6
    files[0].write_bytes(b"")
    files[1].write_bytes(files[1].read_bytes()[:-9])
    files[2].write_bytes(b"\x81" + files[2].read_bytes())
    files[3].write_bytes(msgspec.msgpack.encode({"trace": "made"}))
    files[4].unlink()
    files[4].mkdir()
    with pytest.raises(ConfigError, match=r"--resume .*: Is a directory; make room or leave it out"):
        played(CASES[:6], folder=tmp_path)
    files[4].rmdir()
    assert played(CASES[:6], folder=tmp_path) == whole
    assert found(CASES[:6], tmp_path) == 6


def test_another_trace_fleet_policy_or_seed_is_another_run(tmp_path: Path) -> None:
    played(CASES[:2], folder=tmp_path)
    others = [
        msgspec.structs.replace(CASES[0], seed=3),
        msgspec.structs.replace(CASES[0], fleet=msgspec.structs.replace(SIMPLE, blocks=13)),
        msgspec.structs.replace(CASES[0], policy=parse("round_robin")[0]),
    ]
    assert found(others, tmp_path) == 0
    assert found(CASES[:2], tmp_path, trace(answer=4)) == 0
    assert found(CASES[:2], tmp_path, trace("other")) == 0
    assert found(CASES[:2], tmp_path) == 2


def test_a_policy_that_was_changed_is_played_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    chosen = []
    for at in (0, -1):
        (tmp_path / "changing_policy.py").write_text(
            "import msgspec\n"
            "class Mine(msgspec.Struct, frozen=True):\n"
            "    def choose(self, candidates, draw, asked):\n"
            f"        return candidates[{at}]\n"
        )
        sys.modules.pop("changing_policy", None)
        case = Case(parse("changing_policy:Mine")[0], SIMPLE)
        (run,) = run_all(trace(), [case], jobs=1, folder=tmp_path / "runs", keep=same)
        chosen.append(set(run.chosen))
    assert chosen == [{0}, {1}]


def test_a_folder_that_cannot_be_used_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"--resume .*: .*; name a folder that can be written"):
        played(CASES[:1], folder=tmp_path / "file")


def with_failing_policy(module: str, does: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Case]:
    """Cases of which the first has a policy that does this where it is to choose. A ``module`` of one name is imported once."""
    (tmp_path / f"{module}.py").write_text(
        "import msgspec\n"
        "class Mine(msgspec.Struct, frozen=True):\n"
        "    def choose(self, candidates, draw, asked):\n"
        f"        {does}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return [Case(parse(f"{module}:Mine")[0], SIMPLE), *CASES]


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_policy_that_fails_ends_all_of_it(jobs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = with_failing_policy("failing_policy", "return 1 / 0", tmp_path, monkeypatch)
    with pytest.raises(ZeroDivisionError):
        played(cases, jobs=jobs)


@pytest.mark.parametrize("jobs", [1, 2])
def test_want_of_memory_is_told_with_what_helps(jobs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = with_failing_policy("large_policy", "raise MemoryError", tmp_path, monkeypatch)
    with pytest.raises(SimulationError, match=r"^a run takes more memory than there is: give replicas smaller caches"):
        played(cases, jobs=jobs)
