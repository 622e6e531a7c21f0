"""How long to wait before somebody is asked again who could not answer.

Knows counts and seconds. Never knows who is asked: the draw (0 to 1) is what keeps many who ask from asking at the same time.
"""

from typing import Final

FIRST_SECONDS: Final = 0.5
MOST_SECONDS: Final = 30.0

MOST_ASKED_FOR: Final = 120.0
"""Whoever asks for more (``Retry-After``) is asked again after this all the same."""


def pause(failures: int, draw: float, wanted: float | None = None) -> float:
    """Seconds after so many failures in a row, the first one included; ``wanted`` is the least that was asked for.

    Doubled each time, up to ``MOST_SECONDS``, and up to a half less by the draw; what was asked for, up to a half more.
    """
    doubled: float = 2.0 ** min(max(failures, 1) - 1, 16)
    own = min(MOST_SECONDS, FIRST_SECONDS * doubled) * (1 - draw / 2)
    return own if wanted is None else max(own, min(wanted, MOST_ASKED_FOR) * (1 + draw / 2))


def retry_after(header: str | None) -> float | None:
    """The seconds of a ``Retry-After``; None for another form, which the API server of Kubernetes does not use."""
    text = (header or "").strip()
    return float(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None
