"""``balancer/model_files.py``: models' config.json files, read at the start."""

import json
from pathlib import Path

import pytest

from balancer.errors import ConfigError
from balancer.model_files import economy_of, read_config
from balancer.service import RouterService
from balancer.settings import load

LLAMA = {"hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8}


def settings_of(path: Path, more: str = "") -> str:
    return f'[[models]]\nname = "m"\nconfig = "{path}"\n{more}'


def test_a_model_weighs_what_its_configuration_says(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    for path in (tmp_path, tmp_path / "config.json"):
        assert read_config("here", path) == LLAMA
        shape = economy_of(load(settings_of(path))).shape(["m"])
        assert shape is not None
        assert (shape.bytes_per_token, shape.source) == (128 * 1024, str(path))
    halved = economy_of(load(settings_of(tmp_path, 'kv_cache_dtype = "fp8"\n'))).shape(["m"])
    assert halved is not None
    assert halved.bytes_per_token == 64 * 1024


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, r"models\[0\].config: '.*': No such file or directory; name a model's config.json"),
        ("{", r"models\[0\].config: '.*' is not valid JSON"),
        ("[]", r"models\[0\].config: '.*' is not a JSON object"),
        ('{"num_hidden_layers": 2}', r"models\[0\].config: '.*': num_attention_heads: missing"),
    ],
)
def test_a_file_that_cannot_be_used_ends_the_start(tmp_path: Path, content: str | None, said: str) -> None:
    path = tmp_path / "model.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=said):
        RouterService(load(settings_of(path)))


def test_a_stores_own_rate_is_its_link() -> None:
    economy = economy_of(
        load('[[stores]]\nname = "s"\ngigabits_per_second = 80\nlatency_ms = 2\n[[stores]]\nname = "t"\n')
    )
    link = economy.link("http://a:1", "store:s")
    assert link is not None
    assert (link.bandwidth, link.fixed) == (1e10, 0.002)
    assert economy.link("http://a:1", "store:t") is None
