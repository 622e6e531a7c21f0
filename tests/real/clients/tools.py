"""Programs that the tests run beside Python: where they are, and what it means when they are not.

Knows Debian's names for them, no more.
"""

import os
import shutil

import pytest


def tool(name: str) -> str:
    """The path of a program; skips the calling test if there is none, or fails it where ``KVLB_REQUIRE_REAL`` is set."""
    found = shutil.which(name)
    if found is not None:
        return found
    reason = f"there is no {name} here; install the distribution's package {name} (scripts/test-tools does, as root)"
    if os.environ.get("KVLB_REQUIRE_REAL"):
        pytest.fail(reason)
    pytest.skip(reason)
