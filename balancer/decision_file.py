"""Every decision as a line of JSON in a file, if the settings name one.

Knows what a line says. Never knows how it is written (``balancer.line_file``).
"""

import msgspec

from balancer.decisions import Entry
from balancer.line_file import LineFile
from balancer.policies.base import Policy
from balancer.settings import LogSettings


def open_decision_file(settings: LogSettings, policy: Policy) -> LineFile[Entry] | None:
    """Where ended decisions are written, as ``policy`` explains them; None where nobody wants them."""
    if settings.decisions is None:
        return None
    return LineFile(
        "log.decisions",
        settings.decisions,
        settings.decisions_max_bytes,
        lambda entry: msgspec.json.encode(entry.explained(policy)),
    )
