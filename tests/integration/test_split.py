"""Whatever a gateway does with its brain in the same loop, it does with one at the other end of a socket.

The very tests of the gateway are run again, each with a brain and a gateway that speak over their socket.
"""

import os
import subprocess
import sys

from tests.support.gateways import SPLIT
from tests.support.processes import ROOT

TESTS = (
    "tests/balancer/gateway",
    "tests/balancer/test_metrics.py",
    "tests/balancer/test_service.py",
    "tests/integration/test_aborts.py",
    "tests/integration/test_admission.py",
)

OF_ONE_LOOP = ("tests/balancer/gateway/test_proxy.py::test_a_text_request_of_many_prompts_is_routed_by_load",)
"""Replace parts of the brain that a gateway has for itself."""


def test_a_brain_at_the_other_end_of_a_socket_makes_no_difference() -> None:
    words = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *TESTS]
    words += [word for each in OF_ONE_LOOP for word in ("--deselect", each)]
    done = subprocess.run(
        words, cwd=ROOT, env={**os.environ, SPLIT: "1"}, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stdout[-5000:]
