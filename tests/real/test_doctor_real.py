"""``kvlb doctor`` before a real engine: nothing is wrong with one that is started as the docs say, and its recipe is proven."""

import json

import pytest

from balancer import cli
from tests.real.engines import free_ports, running_engine

pytestmark = pytest.mark.real


def test_a_sound_engine_is_sound_and_proves_its_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    with running_engine(*free_ports()) as engine:
        code = cli.main(["doctor", "--json", "--probe", "--timeout", "20", f"--replica={engine.url}"])
        results = json.loads(capsys.readouterr().out)["results"]
        wrong = [each for each in results if each["verdict"] in {"degraded", "broken"}]
        assert (code, wrong) == (0, [])
        right = {each["check"] for each in results if each["verdict"] == "ok"}
        assert {"version", "caching", "port", "replay", "buffers", "recipe", "knowledge", "tokenizer", "usage"} <= right
        assert {each["told"] for each in results if each["check"] == "version"} == {"vLLM 0.32.0"}
