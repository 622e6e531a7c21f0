"""How far somebody's runs have come, on standard error: a bar for people, lines for files.

Knows counts, seconds and whether a person looks on. Never knows what is played.
"""

import sys

from simulations.report.figures import duration

BAR = 30


def tell(done: int, of: int, seconds: float, what: str = "runs") -> None:
    """``done`` of about ``of`` are done, after so many seconds; how long the others take is worked out from these."""
    left = seconds / done * (of - done)
    words = f"{done} of {of} {what}, {duration(seconds)}" + (f", about {duration(left)} left" if done < of else "")
    if not sys.stderr.isatty():
        print(words, file=sys.stderr, flush=True)
        return
    filled = BAR * done // of
    bar = f"\r[{'#' * filled}{'.' * (BAR - filled)}] {words}\x1b[K"
    print(bar, end="" if done < of else "\n", file=sys.stderr, flush=True)


def say(words: str) -> None:
    """A line of its own, over the bar if one is there."""
    print(f"\r{words}\x1b[K" if sys.stderr.isatty() else words, file=sys.stderr, flush=True)
