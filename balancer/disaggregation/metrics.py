"""Metrics of split requests: their legs, and the proof that what one replica computed was fetched by the other.

Knows what ``LegCounts`` has counted, and the accounts of the ``Witness``. Labels are of fixed lists, but for replicas.
"""

from collections.abc import Iterable
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from balancer.disaggregation.counts import SECONDS, Alone, Ending, Leg, LegCounts, Miss
from balancer.disaggregation.witness import Witness


class WitnessCollector(Collector):
    """Looks up what decode replicas were to fetch, and what their engines have."""

    def __init__(self, witness: Witness) -> None:
        self._witness = witness

    def collect(self) -> Iterable[Metric]:
        expected = CounterMetricFamily(
            "kvlb_disaggregation_replica_expected_tokens",
            "Prompt tokens that a decode replica was to fetch from prefill replicas.",
            labels=["replica"],
        )
        fetched = CounterMetricFamily(
            "kvlb_disaggregation_replica_fetched_tokens",
            "Prompt tokens that its engine says a connector has brought (vllm:external_prefix_cache_hits_total).",
            labels=["replica"],
        )
        for replica, account in self._witness.accounts.items():
            expected.add_metric([replica], account.expected)
            fetched.add_metric([replica], account.fetched)
        return [expected, fetched]


class LegCollector(Collector):
    """Looks up, at the moment of reading, what has been counted."""

    def __init__(self, counts: LegCounts) -> None:
        self._counts = counts

    def collect(self) -> Iterable[Metric]:
        counts = self._counts
        legs = CounterMetricFamily(
            "kvlb_disaggregation_legs",
            "Legs of split requests, by how they ended (ok, refused, failed, transfer, cancelled).",
            labels=["leg", "outcome"],
        )
        for leg in Leg:
            for ending in Ending:
                legs.add_metric([leg, ending], counts.legs[leg, ending])
        seconds = HistogramMetricFamily(
            "kvlb_disaggregation_leg_seconds",
            "prefill: from sending the prefill leg to its answer; decode: from sending the decode leg to its first output, "
            "which takes the transfer.",
            labels=["leg"],
        )
        for leg in Leg:
            series = counts.seconds.get(leg) or [0.0] * (len(SECONDS) + 2)
            bounds = [*map(repr, map(float, SECONDS)), "+Inf"]
            seconds.add_metric([leg], list(zip(bounds, accumulate(series[:-1]), strict=True)), series[-1])
        alone = CounterMetricFamily(
            "kvlb_disaggregation_alone",
            "Requests whose prompt the decode replica computed although it was to be computed elsewhere, by reason.",
            labels=["reason"],
        )
        for reason in Alone:
            alone.add_metric([reason], counts.alone[reason])
        misses = CounterMetricFamily(
            "kvlb_disaggregation_silent_misses",
            "Answers of decode replicas that had less of the prompt than was computed for them, by likely cause.",
            labels=["cause"],
        )
        for miss in Miss:
            misses.add_metric([miss], counts.misses[miss])
        yield from (legs, seconds, alone, misses)
        for name, told, value in (
            (
                "kvlb_disaggregation_expected_tokens",
                "Tokens that decode replicas were to fetch, of answers that say how many they had.",
                counts.expected_tokens,
            ),
            ("kvlb_disaggregation_fetched_tokens", "Of these, tokens that they had.", counts.fetched_tokens),
            (
                "kvlb_disaggregation_released_prefills",
                "Prefills whose blocks were given back because nobody would fetch them.",
                counts.released,
            ),
            (
                "kvlb_disaggregation_stranded_prefills",
                "Prefills whose blocks nobody will fetch, and that their engine keeps until it gives them up.",
                counts.stranded,
            ),
        ):
            yield CounterMetricFamily(name, told, value)
