"""Every connector of ``balancer/disaggregation/legs``, held to what is asked of each."""

from typing import Any

import pytest

from balancer.disaggregation.plan import CONNECTORS, Connector, make
from tests.conformance.disaggregation import (  # noqa: F401
    test_a_leg_without_an_answer_is_planned_only_where_both_go_at_once,
    test_an_answer_that_is_of_no_use_is_no_mistake,
    test_both_legs_can_be_written,
    test_each_attempt_has_ids_of_its_own,
    test_the_same_pair_is_told_the_same,
)

CASES: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in CONNECTORS.names()),
    ("moriio", {"mode": "write"}),
    ("multi", {"of": ["mooncake"]}),
]


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0]} {case[1] or ''}".strip())
def connector(request: pytest.FixtureRequest) -> Connector:
    name, settings = request.param
    return make(name, settings)
