"""``balancer/releases.py``: major and minor numbers of what vLLM calls itself."""

import pytest

from balancer.releases import release


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0.32.0", (0, 32)),
        ("v0.9.1", (0, 9)),
        ("1.0.0rc1+cpu", (1, 0)),
        ("0.30.dev1", (0, 30)),
        ("", None),
        (None, None),
        ("main", None),
    ],
)
def test_a_version_has_a_release(text: str | None, number: tuple[int, int] | None) -> None:
    assert release(text) == number
