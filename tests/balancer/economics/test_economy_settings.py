"""``balancer/economics/settings.py``: what ``[[links]]`` and ``[[models]]`` may say."""

import pytest

from balancer.economics.links import LINKS, SHARE
from balancer.errors import ConfigError
from balancer.settings import load

MODEL = '[[models]]\nname = "m"\nbytes_per_token = 131072\n'


def test_a_link_is_named_or_has_a_rate_with_delays_of_its_own() -> None:
    settings = load(
        '[[links]]\nsource = "CPU"\nlink = "ram-pcie5"\n'
        '[[links]]\nsource = "store:fast"\ngigabits_per_second = 80\nlatency_ms = 3\nsetup_ms = 20\n' + MODEL
    )
    cpu, store = (each.made("links") for each in settings.links)
    assert cpu == LINKS["ram-pcie5"]
    assert store.bandwidth == pytest.approx(80 * 125e6 * SHARE)
    assert (store.latency, store.setup) == (0.003, 0.02)
    (model,) = settings.models
    assert model.bytes_per_token == 131_072


def test_a_place_may_have_a_link_for_all_and_others_for_single_replicas() -> None:
    text = (
        '[[links]]\nsource = "CPU"\nlink = "ram-pcie5"\n'
        '[[links]]\nsource = "CPU"\nreplicas = ["http://a:1"]\nlink = "ram-pcie4"\n'
    )
    assert len(load(text).links) == 2
    with pytest.raises(ConfigError, match=r"links\[2\].source: 'CPU' of 'http://a:1' is in links\[1\], too"):
        load(text + '[[links]]\nsource = "CPU"\nreplicas = ["http://b:1", "http://A:1/"]\nlink = "ram-pcie4"\n')
    with pytest.raises(ConfigError, match=r"links\[2\].source: 'CPU' of all replicas is in links\[0\], too"):
        load(text + '[[links]]\nsource = "CPU"\nlink = "ram-pcie4"\n')


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[links]]\nlink = "10gbe"', "links.*: .*source"),
        ('[[links]]\nsource = "GPU"\nlink = "10gbe"', r"links\[0\].source: 'GPU' is no place to load from"),
        ('[[links]]\nsource = "CPU"', r"links\[0\]: give either link, a name like 100gbe, or gigabits_per_second"),
        ('[[links]]\nsource = "CPU"\nlink = "10gbe"\ngigabits_per_second = 1', r"links\[0\]: give either"),
        ('[[links]]\nsource = "CPU"\nlink = "10gb"', r"links\[0\].link: there is no link '10gb'; did you mean 10gbe\?"),
        ('[[links]]\nsource = "CPU"\ngigabits_per_second = 0', r"links\[0\].gigabits_per_second: 0.0 cannot be used"),
        ('[[links]]\nsource = "CPU"\nlink = "10gbe"\nlatency_ms = -1', r"links\[0\].latency_ms: -1.0 cannot be used"),
        ('[[links]]\nsource = "CPU"\nlink = "10gbe"\nsetup_ms = inf', r"links\[0\].setup_ms: inf cannot be used"),
        ('[[links]]\nsource = "CPU"\nlink = "10gbe"\nreplicas = ["a"]', r"links\[0\].replicas: 'a' is not an endpoint"),
        ('[[links]]\nsource = "http://"\nlink = "10gbe"', r"links\[0\].source: 'http://' is not an endpoint"),
        ('[[links]]\nsource = "http://p:1/v1"\nlink = "10gbe"', r"links\[0\].source: 'http://p:1/v1' has a path"),
        (
            '[[links]]\nsource = "http://p:1"\nlink = "10gbe"\n[[links]]\nsource = "http://P:1/"\nlink = "10gbe"',
            r"links\[1\].source: 'http://P:1/' of all replicas is in links\[0\], too",
        ),
        ('[links]\nsource = "CPU"', r"links: written as one table; write \[\[links\]\]"),
        ('[models]\nname = "m"', r"models: written as one table; write \[\[models\]\]"),
        (MODEL + MODEL, r"models\[1\].name: 'm' is that of models\[0\], too"),
        ('[[models]]\nname = "m"', r"models\[0\]: give either bytes_per_token or config"),
        (MODEL + 'config = "x"', r"models\[0\]: give either bytes_per_token or config"),
        ('[[models]]\nname = "m"\nbytes_per_token = 0', r"models\[0\].bytes_per_token: 0.0 cannot be used"),
        (MODEL + 'kv_cache_dtype = "int3"', r"models\[0\].kv_cache_dtype: 'int3' is unknown; use one of auto"),
        (MODEL + "weight = 1", r"models\[0\].weight: unknown setting|weight: unknown"),
    ],
)
def test_what_cannot_be_used_is_named(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load(text)
