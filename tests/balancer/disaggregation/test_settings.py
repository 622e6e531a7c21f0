"""``balancer/disaggregation/settings.py``: what ``[disaggregation]`` may say of the link and of what is split."""

from pathlib import Path

import pytest

from balancer.economics.links import LINKS, SHARE
from balancer.errors import ConfigError
from balancer.model_files import economy_of
from balancer.settings import Settings, load

P, D = "http://p:8000", "http://d:8000"


def settings(*lines: str, after: str = "") -> Settings:
    return load("\n".join(["[disaggregation]", *lines, after]))


def test_a_link_is_named_or_has_a_rate_with_delays_of_its_own() -> None:
    assert economy_of(settings('link = "100gbe"')).transfer(P, D) == LINKS["100gbe"]
    found = economy_of(settings("gigabits_per_second = 80", "latency_ms = 3", "setup_ms = 20")).transfer(P, D)
    assert found is not None
    assert found.bandwidth == pytest.approx(80 * 125e6 * SHARE)
    assert (found.latency, found.setup) == (0.003, 0.02)


def test_without_a_link_nothing_is_known_of_transfers() -> None:
    economy = economy_of(settings("threshold_tokens = 5"))
    assert (economy.transfer(P, D), economy.has_transfers) == (None, False)
    other = '[[links]]\nsource = "%s"\nlink = "25gbe"'
    assert not economy_of(load(other % "CPU")).has_transfers
    for source in ("prefill", P):
        economy = economy_of(load(other % source))
        assert (economy.transfer(P, D), economy.has_transfers) == (LINKS["25gbe"], True)


def test_a_link_of_the_list_goes_before_that_of_the_section() -> None:
    after = f'[[links]]\nsource = "prefill"\nreplicas = ["{D}"]\nlink = "10gbe"'
    economy = economy_of(settings('link = "100gbe"', after=after))
    assert economy.transfer(P, D) == LINKS["10gbe"]
    assert economy.transfer(P, "http://e:8000") == LINKS["100gbe"]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (['link = "100gb"'], r"disaggregation.link: there is no link '100gb'; did you mean 100gbe\?"),
        (['link = "10gbe"', "gigabits_per_second = 1"], "disaggregation: give either link"),
        (["gigabits_per_second = 0"], r"disaggregation.gigabits_per_second: 0.0 cannot be used"),
        (["gigabits_per_second = nan"], r"disaggregation.gigabits_per_second: nan cannot be used"),
        (['link = "10gbe"', "latency_ms = -1"], r"disaggregation.latency_ms: -1.0 cannot be used"),
        (['link = "10gbe"', "setup_ms = inf"], r"disaggregation.setup_ms: inf cannot be used"),
        (["latency_ms = 1"], "disaggregation: latency_ms and setup_ms are those of a link, which is not given"),
        (["setup_ms = 1"], "disaggregation: latency_ms and setup_ms are those of a link, which is not given"),
        (["answer_weight = -0.1"], r"disaggregation.answer_weight: -0.1 cannot be used"),
        (["answer_weight = nan"], r"disaggregation.answer_weight: nan cannot be used"),
        (["answer_weight = inf"], r"disaggregation.answer_weight: inf cannot be used"),
    ],
)
def test_what_cannot_be_used_is_named(lines: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        settings(*lines)


def test_a_weight_may_come_from_the_models_own_config(tmp_path: Path) -> None:
    heads = '"num_attention_heads": 4, "num_key_value_heads": 2'
    config = f'{{"model_type": "llama", "num_hidden_layers": 2, {heads}, "hidden_size": 64}}'
    (tmp_path / "config.json").write_text(config)
    economy = economy_of(settings('link = "10gbe"', after=f'[[models]]\nname = "m"\nconfig = "{tmp_path}"'))
    shape = economy.shape(("m",))
    assert shape is not None
    assert shape.bytes_per_token == 2 * 2 * 2 * 16 * 2, "keys and values, layers, heads, numbers, bytes of each"
