"""``balancer/timeouts.py``: every phase has its limit, for all paths or for one."""

import pytest

from balancer.errors import ConfigError
from balancer.settings import load
from balancer.timeouts import NO_LIMIT, Timeouts, TimeoutSettings


def test_a_path_overrules_only_what_it_names() -> None:
    settings = load(
        """
        [timeouts]
        connect_seconds = 1
        total_seconds = 900

        [timeouts."/v1/embeddings"]
        first_byte_seconds = 5
        total_seconds = inf
        """
    ).timeouts
    assert settings.of("/v1/embeddings") == Timeouts(connect=1, first_byte=5, idle=300, total=NO_LIMIT)
    assert settings.of("/v1/completions") == Timeouts(connect=1, first_byte=600, idle=300, total=900)


def test_nothing_limits_the_whole_unless_it_is_asked_for() -> None:
    assert TimeoutSettings().of("/v1/completions").total == NO_LIMIT


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[timeouts]\nidle_seconds = 0", r"timeouts\.idle_seconds: 0.*inf for no limit"),
        ("[timeouts]\nidle_seconds = nan", r"timeouts\.idle_seconds: nan"),
        ("[timeouts]\nidle_second = 3", r"timeouts\.idle_second: unknown setting; did you mean idle_seconds"),
        ('[timeouts."/v1/nothing"]\nidle_seconds = 3', r'timeouts\."/v1/nothing": is no path that is forwarded'),
        ('[timeouts."/v1/score"]\ntotal_seconds = -1', r'timeouts\."/v1/score"\.total_seconds: -1'),
        (
            '[timeouts."/v1/score"]\ntotal_second = 1',
            r'timeouts\."/path"\.total_second: unknown setting; did you mean total_seconds',
        ),
        ("[timeouts.routes]\nx = 1", r"timeouts\.routes: a path is a table of its own"),
    ],
)
def test_what_cannot_be_used_is_named_with_the_remedy(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(text)
