"""vLLM's release numbers.

Knows how a version is written. Never knows what a release can do.
"""

import re


def release(text: str | None) -> tuple[int, int] | None:
    """Major and minor number of a version, or None where there is none."""
    found = re.match(r"v?(\d{1,4})\.(\d{1,4})", text or "")
    return (int(found[1]), int(found[2])) if found else None
