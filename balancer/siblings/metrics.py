"""Metrics of the other gateways, and of what they have at each replica.

Knows the book and the fleet. Labels are bounded: siblings are those of the moment.
"""

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from balancer.fleet import Fleet
from balancer.siblings.book import Told

RESULTS = ("counted", "late", "refused", "failed", "self")


def collect(siblings: Iterable[Told], fleet: Fleet) -> Iterable[Metric]:
    """Who has told what, and how much of it counts."""
    number = GaugeMetricFamily(
        "kvlb_siblings",
        "Addresses of other gateways: counting (its last report counts), silent, self (this gateway).",
        labels=["state"],
    )
    age = GaugeMetricFamily(
        "kvlb_sibling_report_age_seconds",
        "Seconds since the last report of this gateway was asked for.",
        labels=["sibling"],
    )
    reports = CounterMetricFamily(
        "kvlb_sibling_reports",
        "Answers of this gateway: counted, late (a newer one had come), refused (no report), failed (no answer), self.",
        labels=["sibling", "result"],
    )
    differences = GaugeMetricFamily(
        "kvlb_sibling_differences", "Replicas that only one of the two gateways knows.", labels=["sibling"]
    )
    states = dict.fromkeys(("counting", "silent", "self"), 0)
    for each in siblings:
        states["self" if each.is_self else "counting" if each.weight else "silent"] += 1
        if each.age is not None:
            age.add_metric([each.address], each.age)
            differences.add_metric([each.address], each.differences)
        for result in RESULTS:
            reports.add_metric([each.address, result], each.results.get(result, 0))
    for state, count in states.items():
        number.add_metric([state], count)
    in_flight = GaugeMetricFamily(
        "kvlb_sibling_in_flight_requests",
        "Requests that other gateways have at the replica, as far as they count.",
        labels=["replica"],
    )
    queued = GaugeMetricFamily(
        "kvlb_sibling_queued_tokens",
        "Uncached prompt tokens that other gateways have sent to the replica and it has not answered yet.",
        labels=["replica"],
    )
    for live in fleet:
        in_flight.add_metric([live.replica.id], live.others.requests(live.in_flight))
        queued.add_metric([live.replica.id], live.others.queued(live.queued_tokens))
    return [number, age, reports, differences, in_flight, queued]
