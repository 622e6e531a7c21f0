"""Where the real vLLM is: an interpreter of its own, named by ``KVLB_VLLM_PYTHON`` or in kvlb's cache folder.

Knows how to find it and what it means when it is not there: a skip on a developer's machine, a failure where
``KVLB_REQUIRE_REAL`` says that real engines were promised.
"""

import os
from pathlib import Path

import pytest

STORES = Path("~/.cache/kvlb/stores-1")
"""What ``scripts/real-stores`` makes."""

DEFAULT = Path("~/.cache/kvlb/vllm-0.32.0/bin/python")


TRANSFER = Path("~/.cache/kvlb/vllm-0.32.0-transfer/bin/python")


def transfer_python() -> Path:
    """The interpreter that has NIXL and Mooncake as well (``scripts/real-transfer``); as ``vllm_python``."""
    python = Path(os.environ.get("KVLB_TRANSFER_PYTHON") or TRANSFER).expanduser()
    if python.is_file():
        return python
    reason = (
        f"no engines that transfer: {python} does not exist; run scripts/real-transfer, or set KVLB_TRANSFER_PYTHON"
    )
    if os.environ.get("KVLB_REQUIRE_REAL"):
        pytest.fail(reason)
    pytest.skip(reason)


def vllm_python() -> Path:
    """The interpreter that can import vLLM; skips or fails the calling test if there is none."""
    python = Path(os.environ.get("KVLB_VLLM_PYTHON") or DEFAULT).expanduser()
    if python.is_file():
        return python
    reason = f"no vLLM: {python} does not exist; set KVLB_VLLM_PYTHON"
    if os.environ.get("KVLB_REQUIRE_REAL"):
        pytest.fail(reason)
    pytest.skip(reason)


def store_packages(name: str) -> Path:
    """The folder with the Python packages of shared stores; skips or fails the calling test if it has not this one."""
    folder = Path(os.environ.get("KVLB_STORE_PACKAGES") or STORES).expanduser()
    if (folder / name).is_dir():
        return folder
    reason = f"no {name}: it is not in {folder}; run scripts/real-stores, or set KVLB_STORE_PACKAGES"
    if os.environ.get("KVLB_REQUIRE_STORES"):
        pytest.fail(reason)
    pytest.skip(reason)
