"""Writes the figures of all scenarios as they are now: ``.venv/bin/python -m tests.simulations.pathologies.record``.

What has changed is told before it is written. Look at it: a figure that got worse is a finding, and no reason to record it.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.simulations.pathologies.scenarios import SCENARIOS, Figures

STORED: Final = Path(__file__).parent / "figures.toml"

TOLERANCE: Final = 0.05
"""The share of a figure by which it may differ from the stored one: runs repeat to the bit, logarithms not everywhere."""


def stored() -> dict[str, Figures]:
    """By scenario, its figures as they were recorded."""
    told = tomllib.loads(STORED.read_text(encoding="utf-8"))
    return {
        name: {figure: each for figure, each in figures.items() if figure != "what"} for name, figures in told.items()
    }


def differences(before: Mapping[str, float], now: Mapping[str, float]) -> list[str]:
    """A line for each figure that is no longer what it was."""
    lines = []
    for figure in [*before, *(new for new in now if new not in before)]:
        was, now_is = before.get(figure), now.get(figure)
        if was is None or now_is is None or abs(now_is - was) > TOLERANCE * abs(was) + 1e-4:
            lines.append(f"{figure}: stored {was}, now {now_is if now_is is None else round(now_is, 4)}")
    return lines


def main() -> None:
    before = stored() if STORED.exists() else {}
    lines = [f"# What comes of each scenario; written by {__spec__.name}, never by hand.\n"]
    for name, made in SCENARIOS.items():
        figures = made()
        for line in differences(before.get(name, {}), figures):
            print(f"{name}: {line}")
        what = (made.__doc__ or "").strip()
        lines += [
            f"[{name}]",
            f'what = "{what}"',
            *[f'"{figure}" = {each:.4f}' for figure, each in figures.items()],
            "",
        ]
    STORED.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
