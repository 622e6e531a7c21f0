"""``[[stores]]``: what can be written there, and what a mistake is told."""

import pytest

from balancer.errors import ConfigError
from balancer.settings import load
from balancer.store_settings import StoreSettings


def test_what_is_not_ours_is_the_connectors_own() -> None:
    text = '[[stores]]\nname = "s"\nconnector = "events"\nreading = "whole"\nreplicas = ["HTTP://A:80/"]\n'
    (store,) = load(text).stores
    assert store == StoreSettings(name="s", connector="events", replicas=("http://a",), settings={"reading": "whole"})
    assert store.is_attached("http://a")
    assert not store.is_attached("http://b")
    assert StoreSettings(name="s").is_attached("http://anybody")


@pytest.mark.parametrize(
    ("tiers", "spoken_of"),
    [
        (("STORAGE",), {"local", "remote", "owned"}),
        (("STORAGE/REMOTE",), {"remote", "owned"}),
        (("STORAGE/REMOTE/kvcr",), {"owned"}),
        (("cpu",), {"mooncake"}),
        (("CPU",), {"memory"}),
        ((), set()),
    ],
)
def test_events_speak_of_a_store_by_their_fields_as_they_are_spelt(tiers: tuple[str, ...], spoken_of: set[str]) -> None:
    store = StoreSettings(name="s", tiers=tiers)
    events = {
        "gpu": ("GPU", None, None),
        "none": (None, None, None),
        "memory": ("CPU", None, None),
        "mooncake": ("cpu", None, None),
        "local": ("STORAGE", "LOCAL", None),
        "remote": ("STORAGE", "REMOTE", None),
        "owned": ("STORAGE", "REMOTE", "kvcr"),
    }
    assert {name for name, fields in events.items() if store.speaks_of(*fields)} == spoken_of


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[stores]\nname = "s"', "stores: written as one table; write [[stores]]"),
        ("[[stores]]\ntopic = 'x'", "missing required field `name`"),
        ('[[stores]]\nname = "a b"', "stores[0].name: 'a b' cannot be used"),
        ('[[stores]]\nname = "s"\n[[stores]]\nname = "s"', "stores[1].name: 's' is that of stores[0], too"),
        ('[[stores]]\nname = "s"\ntiers = ["GPU"]', "stores[0].tiers: 'GPU' names no tier"),
        ('[[stores]]\nname = "s"\ntiers = ["A/B/C/D"]', "stores[0].tiers: 'A/B/C/D' names no tier"),
        ('[[stores]]\nname = "s"\ntimeout_ms = 0', "stores[0].timeout_ms: 0.0 cannot be used"),
        ('[[stores]]\nname = "s"\ncache_seconds = -1', "stores[0].cache_seconds: -1.0 cannot be used"),
        ('[[stores]]\nname = "s"\ngigabits_per_second = inf', "stores[0].gigabits_per_second: inf cannot be used"),
        ('[[stores]]\nname = "s"\nevents = "nowhere"', "stores[0].events: 'nowhere' cannot be connected to"),
        ('[[stores]]\nname = "s"\nreplicas = ["nowhere"]', "stores[0].replicas: 'nowhere' is not an endpoint"),
        ('[[stores]]\nname = "s"\nfailures = "many"', "stores[0].failures: expected `int`, got `str`"),
        ("stores = 3", "stores: expected `array`, got `int`"),
    ],
)
def test_a_mistake_is_told_with_its_path(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(text)
    assert message in str(caught.value)


def test_there_are_not_many_stores() -> None:
    with pytest.raises(ConfigError, match="stores: 17 are too many"):
        load("\n".join(f'[[stores]]\nname = "s{at}"' for at in range(17)))
