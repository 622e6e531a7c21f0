"""``balancer/snapshot_file.py``: what is somebody else's is not replaced."""

from pathlib import Path

import pytest

from balancer import snapshot_file
from indexer.snapshot import MAGIC


@pytest.mark.parametrize("begins", [b"", MAGIC[:3], MAGIC + b"and then damaged"])
def test_a_snapshot_however_damaged_may_be_replaced(tmp_path: Path, begins: bytes) -> None:
    path = tmp_path / "index"
    assert snapshot_file.problem(path) is None
    path.write_bytes(begins)
    assert snapshot_file.problem(path) is None


def test_other_files_and_folders_may_not(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_text("hello")
    assert snapshot_file.problem(path) == "it is there, and is no kvlb snapshot"
    assert snapshot_file.problem(tmp_path) == "it is a folder itself"
    assert snapshot_file.problem(tmp_path / "nodir" / "index") == f"there is no folder {tmp_path / 'nodir'}"
