"""Every decision as a line of JSON in a file, if the settings name one.

Knows what a line says. Never knows how it is written (``balancer.line_file``).
"""

import msgspec

from balancer.arms import Arms
from balancer.decisions import Entry
from balancer.line_file import LineFile
from balancer.settings import LogSettings


def open_decision_file(settings: LogSettings, arms: Arms) -> LineFile[Entry] | None:
    """Where ended decisions are written, as the policy that made each explains it; None where nobody wants them."""
    if settings.decisions is None:
        return None
    return LineFile(
        "log.decisions",
        settings.decisions,
        settings.decisions_max_bytes,
        lambda entry: msgspec.json.encode(entry.explained(arms.named(entry.decision.policy))),
    )
