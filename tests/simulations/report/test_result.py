from array import array
from typing import Any

import msgspec
import pytest

from simulations.detailed_fleet import Disaggregation, Restart
from simulations.report.result import BINS, ROWS, SHARES, downtimes, result_of, split_of, table_of
from simulations.results import REFUSED
from tests.support.runs import run


def test_figures_of_a_run_stay_and_its_columns_go() -> None:
    made = result_of(run(hit=0.25, ttft=2.0), cache_tokens=640)
    assert (made.policy, made.seed, made.replicas, made.cache_tokens) == ("cache_aware", 1, 4, 640)
    assert made.summary.hit == pytest.approx(0.25, abs=0.001)
    assert len(made.ttfts) == len(SHARES)
    assert made.ttfts == sorted(made.ttfts)
    assert made.ttfts[50] == pytest.approx(made.summary.ttft_p50, rel=1e-5)


def test_hits_are_by_time_of_arrival() -> None:
    made = result_of(run(requests=60, hit=0.5, step=1.0))
    assert made.bin_seconds == 1.0
    assert len(made.hit_by_time) == BINS
    assert all(share == pytest.approx(0.5, abs=0.01) for share in made.hit_by_time)


def test_steps_in_which_nothing_came_have_no_hit() -> None:
    made = result_of(run(requests=3, step=20.0))
    assert [at for at, share in enumerate(made.hit_by_time) if share is not None] == [0, 20, 40]


def test_the_ceiling_takes_the_same_requests() -> None:
    some = run(requests=60, hit=0.5)
    made = result_of(some, infinite=some.inputs)
    assert made.ceiling_by_time == [1.0] * BINS
    assert result_of(some).ceiling_by_time == []


def test_a_replica_is_busy_while_somebody_waits_for_the_first_token() -> None:
    some = run(requests=5, replicas=2, step=12.0)  # from 0 to 60 s, a second a step
    chosen, ttfts = array("q", [0, 0, 0, 1, REFUSED]), array("d", [20.0, 30.0, 6.0, 7.5, 0.0])
    made = result_of(msgspec.structs.replace(some, chosen=chosen, ttfts=ttfts))
    first, second = made.busy_by_time
    assert first == [1.0] * 42 + [0.0] * 18  # the second one waited longest, the third was done before it
    assert second == [0.0] * 36 + [1.0] * 7 + [0.5] + [0.0] * 16
    assert made.prompt_busy == (42 + 7.5) / 96  # of two replicas, up to the last arrival

    late = result_of(msgspec.structs.replace(some, chosen=chosen, ttfts=array("d", [99.0] * 5)))
    assert late.prompt_busy == (48 + 12) / 96


@pytest.mark.parametrize(
    ("restarts", "down"),
    [
        ([], [[], []]),
        ([(5.0, 1, 2.0)], [[], [(5.0, 7.0)]]),
        ([(9.0, 0, 1.0), (5.0, 0, 2.0)], [[(5.0, 7.0), (9.0, 10.0)], []]),
        ([(5.0, 0, 9.0), (6.0, 0, 2.0)], [[(5.0, 8.0)], []]),
    ],
    ids=["none", "one", "two", "again while it is down"],
)
def test_when_replicas_were_down(
    restarts: list[tuple[float, int, float]], down: list[list[tuple[float, float]]]
) -> None:
    settings = {"restarts": msgspec.json.encode([Restart(*each) for each in restarts]).decode()}
    assert downtimes(settings, 2) == down
    assert downtimes({}, 2) == [[], []]


def test_a_replica_that_is_down_is_neither_busy_nor_idle() -> None:
    restarts = [Restart(at=6.0, replica=0, down=12.0), Restart(at=40.0, replica=1, down=100.0)]
    settings: dict[str, Any] = {"restarts": msgspec.json.encode(restarts).decode()}
    some = run(requests=5, replicas=2, step=12.0, settings=settings)
    chosen, ttfts = array("q", [0, 0, 0, 1, REFUSED]), array("d", [20.0, 30.0, 6.0, 7.5, 0.0])
    made = result_of(msgspec.structs.replace(some, chosen=chosen, ttfts=ttfts))
    assert made.down == pytest.approx((12 + 8) / 96)
    assert made.prompt_busy == made.prompt_work == pytest.approx((42 - 12 + 40 - 36) / (96 - 20))


def test_large_fleets_share_rows() -> None:
    made = result_of(run(replicas=500))
    assert made.rows == 8
    assert len(made.busy_by_time) == 63 <= ROWS
    assert result_of(run(replicas=64)).rows == 1


@pytest.mark.parametrize("requests", [0, 1])
def test_runs_of_little_are_runs(requests: int) -> None:
    made = result_of(run(requests=requests))
    assert made.summary.requests == requests
    assert len(made.ttfts) == (len(SHARES) if requests else 0)


def test_runs_of_no_time_have_no_steps() -> None:
    made = result_of(run(step=0.0, ttft=0.0))
    assert made.bin_seconds == 0
    assert made.hit_by_time[0] == pytest.approx(0.5, abs=0.01)
    assert made.ttfts == [0.0] * len(SHARES)
    assert set(map(max, made.busy_by_time)) == {0.0}


def test_refused_requests_are_in_no_figure() -> None:
    made = result_of(run(refused=1.0))
    assert made.tokens == 0
    assert made.ttfts == []
    assert set(made.hit_by_time) == {None}


def test_what_is_computed_after_the_last_arrival_is_work_too() -> None:
    some = run(requests=5, replicas=2, step=12.0)
    chosen, ttfts = array("q", [0, 0, 0, 1, REFUSED]), array("d", [20.0, 30.0, 6.0, 100.0, 0.0])
    made = result_of(msgspec.structs.replace(some, chosen=chosen, ttfts=ttfts))
    assert made.prompt_busy == (42 + 12) / 96
    assert made.prompt_work == (42 + 100) / 96
    assert made.link_busy == 0


def test_with_a_split_the_work_is_that_of_those_who_compute_prompts_and_links_are_the_others() -> None:
    split: dict[str, Any] = {"disaggregation": msgspec.json.encode(Disaggregation(prefill=1)).decode()}
    some = run(requests=5, replicas=3, step=12.0, settings=split)
    made = result_of(msgspec.structs.replace(some, busy=[60.0, 9.0, 9.0], loading=[0.0, 24.0, 12.0]))
    assert made.prompt_work == 60 / 48
    assert made.link_busy == (24 + 12) / (2 * 48)


@pytest.mark.parametrize("text", ["a word", "[1]", "{}", None])
def test_settings_that_nobody_reads_are_no_table(text: str | None) -> None:
    assert table_of({"store": text}, "store") == {}
    assert split_of({"disaggregation": text}) == 0
