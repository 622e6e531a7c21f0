"""``balancer/economics/economy.py``: links and weights of a fleet, and what is planned with them."""

import pytest

from balancer.economics.economy import OWN, Economy, Place, tier_of
from balancer.economics.hints import Tier
from balancer.economics.links import LINKS, Link
from balancer.economics.mix import Control
from balancer.economics.prefill import Prefill
from balancer.economics.settings import LinkSettings, ModelSettings
from balancer.economics.shape import CacheShape

HERE, THERE = "http://10.0.0.1:8000", "http://10.0.0.2:8000"
PREFILL = Prefill.from_speed(10_000)
MODELS = (ModelSettings(name="m", bytes_per_token=131_072),)


def test_a_replicas_own_link_goes_before_that_of_all_and_that_before_what_is_usual() -> None:
    economy = Economy(
        [
            LinkSettings(source="CPU", replicas=(HERE,), link="ram-pcie5"),
            LinkSettings(source="store:s", gigabits_per_second=40),
        ],
        stores={"s": LINKS["10gbe"], "t": LINKS["25gbe"]},
    )
    assert economy.link(HERE, "CPU") is not None
    assert economy.link(HERE, "CPU") == LINKS["ram-pcie5"]
    assert economy.link("http://10.0.0.1.:8000/", "CPU") == LINKS["ram-pcie5"], "however it is spelled"
    assert economy.link(THERE, "CPU") == OWN["CPU"]
    assert economy.link(THERE, "store:t") == LINKS["25gbe"]
    found = economy.link(THERE, "store:s")
    assert found is not None
    assert found.bandwidth == pytest.approx(4 * LINKS["10gbe"].bandwidth)
    assert economy.link(HERE, "STORAGE/REMOTE") is None


def test_a_model_weighs_what_is_given_or_what_its_configuration_says() -> None:
    shape = CacheShape.uniform(5.0)
    economy = Economy(models=[*MODELS, ModelSettings(name="n", config="n.json")], shapes={"n": shape})
    assert economy.shape(["m"]) == CacheShape.uniform(131_072, "as given")
    assert economy.shape(["alias", "n"]) is shape
    assert economy.shape(["other"]) is None


def test_a_plan_loads_what_pays_over_the_replicas_own_links() -> None:
    economy = Economy(
        [LinkSettings(source="store:s", replicas=(THERE,), link="100gbe")], MODELS, stores={"s": Link(1e8)}
    )
    asked = (["m"], 8000, 1600, [Place("CPU", 1600), Place("store:s", 3200)], PREFILL, Control.LENGTH)
    slow, fast = economy.plan(HERE, *asked), economy.plan(THERE, *asked)
    assert slow is not None
    assert fast is not None
    assert [(load.source, load.start, load.end) for load in slow.loads] == [("CPU", 1600, 3200)]
    assert [(load.source, load.start, load.end) for load in fast.loads] == [
        ("CPU", 1600, 3200),
        ("store:s", 3200, 6400),
    ]
    assert fast.seconds < slow.seconds
    assert slow.loads[0].seconds == OWN["CPU"].seconds(1600 * 131_072)


def test_an_engine_that_cannot_be_told_loads_over_the_slow_link() -> None:
    economy = Economy(models=MODELS, stores={"s": Link(1e8)})
    told, untold = (
        economy.plan(HERE, ["m"], 8000, 0, [Place("store:s", 8000)], PREFILL, control)
        for control in (Control.LENGTH, Control.NOTHING)
    )
    assert told is not None
    assert untold is not None
    assert (told.loaded_tokens, untold.loaded_tokens) == (0, 8000)
    assert untold.seconds > 10


def test_without_a_link_or_a_weight_there_is_no_plan() -> None:
    asked = (8000, 0, [Place("store:s", 8000)], PREFILL, Control.LENGTH)
    assert Economy(models=MODELS).plan(HERE, ["m"], *asked) is None
    assert Economy(stores={"s": LINKS["10gbe"]}).plan(HERE, ["m"], *asked) is None
    nothing = Economy(models=MODELS).plan(HERE, ["m"], 8000, 0, [], PREFILL, Control.LENGTH)
    assert nothing is not None
    assert nothing.seconds == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("source", "tier"),
    [
        ("CPU", Tier("CPU")),
        ("STORAGE/LOCAL", Tier("STORAGE", "LOCAL")),
        ("STORAGE", Tier("STORAGE")),
        ("store:anything", Tier("STORAGE", "REMOTE")),
    ],
)
def test_places_have_a_name_for_filters(source: str, tier: Tier) -> None:
    assert tier_of(source) == tier


def test_loads_end_where_the_engine_can_end_them() -> None:
    """Rounded down by the engine, a length in the middle of a chunk would be a whole chunk less."""
    economy = Economy(models=MODELS, stores={"s": LINKS["100gbe"]})
    places = [Place("store:s", 96, 32)]
    mix = economy.plan(HERE, ["m"], 96, 0, places, PREFILL, Control.LENGTH)
    assert mix is not None
    assert mix.loaded_tokens in {0, 64, 96}
    free = Prefill(token=1e-4, least=40e-4)  # 40 tokens cost no more than one
    mix = economy.plan(HERE, ["m"], 4100, 1024, [Place("store:s", 4096 - 1024, 32)], free, Control.LENGTH)
    assert mix is not None
    assert mix.loaded_tokens == 4064 - 1024
    assert economy.hint(HERE, 1024, [Place("store:s", 4096 - 1024, 32)], mix, Control.LENGTH) == {
        "max_load_tokens": 3040
    }


def test_stores_that_a_filter_cannot_tell_apart_are_read_together() -> None:
    economy = Economy(models=MODELS, stores={"fast": LINKS["400gbe"], "slow": Link(1e6)})
    places = [Place("store:fast", 4000), Place("store:slow", 3000)]
    mix = economy.plan(HERE, ["m"], 8000, 0, places, PREFILL, Control.SOURCES)
    assert mix is not None
    assert mix.loaded_tokens == 7000
    assert economy.hint(HERE, 0, places, mix, Control.SOURCES) == {}
    mix = economy.plan(HERE, ["m"], 8000, 0, places, PREFILL, Control.LENGTH)
    assert mix is not None
    assert economy.hint(HERE, 0, places, mix, Control.LENGTH) == {"max_load_tokens": 4000}
