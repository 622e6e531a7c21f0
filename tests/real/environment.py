"""Where the real vLLM is: an interpreter of its own, named by ``KVLB_VLLM_PYTHON`` or in kvlb's cache folder.

Knows how to find it and what it means when it is not there: a skip on a developer's machine, a failure where
``KVLB_REQUIRE_REAL`` says that real engines were promised.
"""

import os
from pathlib import Path

import pytest

DEFAULT = Path("~/.cache/kvlb/vllm-0.32.0/bin/python")


def vllm_python() -> Path:
    """The interpreter that can import vLLM; skips or fails the calling test if there is none."""
    python = Path(os.environ.get("KVLB_VLLM_PYTHON") or DEFAULT).expanduser()
    if python.is_file():
        return python
    reason = f"no vLLM: {python} does not exist; set KVLB_VLLM_PYTHON"
    if os.environ.get("KVLB_REQUIRE_REAL"):
        pytest.fail(reason)
    pytest.skip(reason)
