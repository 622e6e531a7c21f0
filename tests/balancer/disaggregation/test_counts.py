"""``balancer/disaggregation/counts.py`` and ``metrics.py``: what several processes count adds up, once."""

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from balancer.disaggregation.counts import Alone, Ending, Leg, LegCounts, Miss
from balancer.disaggregation.metrics import LegCollector, WitnessCollector
from balancer.disaggregation.witness import Witness
from indexer.index import ReplicaId


def counted() -> LegCounts:
    counts = LegCounts()
    counts.ended(Leg.PREFILL, Ending.OK, 0.2)
    counts.ended(Leg.DECODE, Ending.TRANSFER)
    counts.alone[Alone.TRANSFER] += 1
    counts.proved(100, 90, None)
    counts.proved(100, 0, Miss.WHOLE)
    counts.released += 1
    counts.stranded += 2
    return counts


def page(*collectors: LegCollector | WitnessCollector) -> dict[tuple[str, ...], float]:
    registry = CollectorRegistry()
    for each in collectors:
        registry.register(each)
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {
        (sample.name.removeprefix("kvlb_disaggregation_"), *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }


def test_what_was_taken_is_counted_where_it_is_added_and_nowhere_else() -> None:
    gateway, brain = counted(), counted()
    brain.add(gateway.take())
    brain.add(gateway.take())
    told = page(LegCollector(brain))
    assert told["legs_total", "prefill", "ok"] == 2
    assert told["legs_total", "decode", "transfer"] == 2
    assert told["legs_total", "decode", "ok"] == 0
    assert told["leg_seconds_count", "prefill"] == 2
    assert told["leg_seconds_sum", "prefill"] == 0.4
    assert told["leg_seconds_bucket", "0.1", "prefill"] == 0
    assert told["leg_seconds_bucket", "0.25", "prefill"] == 2
    assert told["leg_seconds_count", "decode"] == 0
    assert told["alone_total", "transfer"] == 2
    assert told["silent_misses_total", "whole"] == 2
    assert (told["expected_tokens_total",], told["fetched_tokens_total",]) == (400, 180)
    assert (told["released_prefills_total",], told["stranded_prefills_total",]) == (2, 4)
    assert not any(page(LegCollector(gateway)).values())


def test_what_engines_say_is_told_for_each_replica() -> None:
    witness = Witness()
    witness.told(ReplicaId("d:1"), 5, 0.0)
    witness.handed(ReplicaId("d:1"), 100, 1.0)
    witness.told(ReplicaId("d:1"), 95, 2.0)
    told = page(WitnessCollector(witness))
    assert told["replica_expected_tokens_total", "d:1"] == 100
    assert told["replica_fetched_tokens_total", "d:1"] == 90
