"""``simulations/speeds.py``: the two speeds that everybody knows of a replica, in the words of each model."""

import pytest

from balancer.errors import ConfigError
from simulations.detailed_fleet import DetailedFleet
from simulations.scenario import Scenario, cases
from simulations.simple import SimpleFleet
from simulations.speeds import with_speeds


def test_speeds_may_be_swept_in_the_words_of_flags() -> None:
    swept = cases(Scenario(model="simple", policies=("random",), sweep={"decode_ms": [10, 20]}))
    assert [each.fleet for each in swept] == [SimpleFleet(decode_seconds=0.01), SimpleFleet(decode_seconds=0.02)]
    fixed = Scenario(policies=("random",), fleet={"prefill_tps": 1000}, sweep={"decode_ms": [10, 20]})
    fleets = [each.fleet for each in cases(fixed) if isinstance(each.fleet, DetailedFleet)]
    assert [fleet.latency.weights for fleet in fleets] == [0.01, 0.02]
    assert {fleet.latency.token for fleet in fleets} == {0.001}


def test_the_detailed_model_needs_both() -> None:
    with pytest.raises(ConfigError, match=r"^--prefill-tps, --decode-ms: the detailed model needs both"):
        cases(Scenario(policies=("random",), sweep={"prefill_tps": [1000, 2000]}))
    with pytest.raises(ConfigError, match=r"^fleet\.decode_ms: must be a number above 0, got 0$"):
        with_speeds("simple", {"decode_ms": 0})
