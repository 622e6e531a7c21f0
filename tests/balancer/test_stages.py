"""``stages.py``: laps follow each other, each counts once, and hashing is taken out of the match around it."""

from hypothesis import given
from hypothesis import strategies as st

from balancer.stages import UNTIMED, Lap, Stage, Stages


class Clock:
    """A clock that goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 100

    def __call__(self) -> int:
        return self.now


def test_laps_follow_each_other() -> None:
    clock = Clock()
    stages = Stages(clock)
    for stage, until in ((Stage.READ, 130), (Stage.TOKENIZE, 150)):
        clock.now = until
        stages.passed(stage)
    assert stages.began == 100
    assert stages.laps == [Lap(Stage.READ, 100, 130), Lap(Stage.TOKENIZE, 130, 150)]
    assert stages.spent() == {Stage.READ: 30, Stage.TOKENIZE: 20}


def test_hashing_is_within_the_match_and_counts_once() -> None:
    clock = Clock()
    stages = Stages(clock)
    begin = stages.now()
    clock.now = 140
    stages.hashed(begin)
    clock.now = 150
    stages.passed(Stage.MATCH)
    assert stages.spent() == {Stage.MATCH: 10, Stage.HASH: 40}


@given(st.lists(st.tuples(st.sampled_from([s for s in Stage if s is not Stage.HASH]), st.integers(0, 1000))))
def test_what_is_spent_is_all_the_time_there_was(laps: list[tuple[Stage, int]]) -> None:
    clock = Clock()
    stages = Stages(clock)
    for stage, ns in laps:
        clock.now += ns
        stages.passed(stage)
    assert sum(stages.spent().values()) == clock.now - 100


def test_who_does_not_ask_keeps_nothing() -> None:
    UNTIMED.passed(Stage.READ)
    UNTIMED.hashed(UNTIMED.now())
    assert UNTIMED.spent() == {}


def test_what_somebody_else_has_spent_lies_within_the_time_that_has_passed() -> None:
    now = [100]
    stages = Stages(lambda: now[0])
    now[0] = 200
    stages.passed_elsewhere(Stage.ASK, {Stage.QUEUE: 10, Stage.MATCH: 30})
    assert stages.laps == [Lap(Stage.ASK, 100, 160), Lap(Stage.QUEUE, 160, 170), Lap(Stage.MATCH, 170, 200)]
    now[0] = 210
    stages.passed_elsewhere(Stage.ASK, {Stage.MATCH: 500})  # clocks may differ by a hair
    assert stages.spent() == {Stage.ASK: 60, Stage.QUEUE: 10, Stage.MATCH: 40}
    UNTIMED.passed_elsewhere(Stage.ASK, {Stage.MATCH: 1})
    assert UNTIMED.laps == []
