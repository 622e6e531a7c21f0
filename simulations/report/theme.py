"""Colours, for light and for dark, as names that style sheets use.

Knows which colour means what. Lines and marks stand out from the ground by 3:1 or more, text by 4.5:1 (WCAG 2.2, 1.4.3 and
1.4.11); what is told by colour is told by a dash, a place or a word too.
"""

import re
from typing import Final

SERIES: Final = 8
"""So many policies have a colour of their own."""

HEAT: Final = 10
"""Steps from idle to busy."""

LIGHT: Final = {
    "ground": "#ffffff",
    "panel": "#f6f7f9",
    "ink": "#1b1f27",
    "soft": "#565f6d",
    "line": "#c9ced6",
    "faint": "#e6e9ee",
    "accent": "#1f5fbf",
    "muted": "#8a929e",
    "bound": "#1b1f27",
    "s0": "#1f5fbf",
    "s1": "#c2560a",
    "s2": "#0c8060",
    "s3": "#8a3fb5",
    "s4": "#a67c00",
    "s5": "#c8386f",
    "s6": "#2b8fa8",
    "s7": "#5d5048",
    "hit": "#1f5fbf",
    "first": "#c9ced6",
    "in_flight": "#8a929e",
    "elsewhere": "#c9701a",
    "evicted": "#a0307a",
    **dict(
        zip(
            [f"h{at}" for at in range(10)],
            "#f1f5fa #dae6f3 #bfd5ea #9fc1df #7dabd3 #5c94c6 #3f7cb6 #2a63a0 #1b4a84 #0f3163".split(),
            strict=True,
        )
    ),
}

DARK: Final = {
    "ground": "#12151b",
    "panel": "#1a1f27",
    "ink": "#e8ebf0",
    "soft": "#a5afbd",
    "line": "#3c4552",
    "faint": "#272e38",
    "accent": "#74aaf5",
    "muted": "#77818f",
    "bound": "#e8ebf0",
    "s0": "#74aaf5",
    "s1": "#f0954a",
    "s2": "#4bc79d",
    "s3": "#c495ef",
    "s4": "#dcb84a",
    "s5": "#f584ad",
    "s6": "#63c8df",
    "s7": "#c2b3a6",
    "hit": "#5b95e8",
    "first": "#3c4552",
    "in_flight": "#77818f",
    "elsewhere": "#e79a48",
    "evicted": "#d06cb0",
    **dict(
        zip(
            [f"h{at}" for at in range(10)],
            "#1a212b #1d2d42 #203a59 #254971 #2d5a8a #3a6ea4 #4f86bd #6d9fd2 #94bce4 #c4ddf5".split(),
            strict=True,
        )
    ),
}

CHART_CSS: Final = """\
text{fill:var(--ink);font-family:system-ui,"Segoe UI",Roboto,"DejaVu Sans","Liberation Sans",Arial,sans-serif;font-size:12px}
text.soft{fill:var(--soft)}
text.small{font-size:11px}
text.strong{font-weight:600}
.axis{stroke:var(--line);fill:none}
.grid{stroke:var(--faint);fill:none}
.whisker{stroke:var(--ink);stroke-width:1.4;fill:none}
.curve{fill:none;stroke-width:2;stroke-linejoin:round}
.bound{stroke:var(--bound);fill:none;stroke-width:1.5}
.fbound{fill:var(--bound)}
.muted{stroke:var(--muted)}
.fmuted{fill:var(--muted)}
.gap{stroke:var(--ground)}
.over{fill:transparent}
""" + "".join(
    [f".s{at}{{stroke:var(--s{at})}}\n.f{at}{{fill:var(--s{at})}}\n" for at in range(SERIES)]
    + [f".{name}{{fill:var(--{name})}}\n" for name in ("hit", "first", "in_flight", "elsewhere", "evicted")]
    + [f".h{at}{{fill:var(--h{at})}}\n" for at in range(HEAT)]
)
"""How charts look; the variables are the colours."""


def variables(colours: dict[str, str]) -> str:
    return "".join(f"--{name}:{colour};" for name, colour in colours.items())


def resolved(css: str, colours: dict[str, str]) -> str:
    """With colours in place of variables, for programs that know none."""
    return re.sub(r"var\(--([a-z0-9_]+)\)", lambda found: colours[found[1]], css)
