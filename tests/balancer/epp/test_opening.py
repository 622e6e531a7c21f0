"""``epp/opening.py``: without gRPC, one line says what to install."""

import sys
from typing import Any

import pytest

from balancer.epp.opening import open_picker
from balancer.errors import ConfigError


def test_without_grpc_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("balancer.epp.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "grpc", None)
    nobody: Any = None
    with pytest.raises(ConfigError, match=r"pip install 'kvlb\[epp\]'"):
        open_picker(nobody, nobody, nobody, nobody)
