"""Metrics of requests as a whole, and of those who tell of them.

Knows what an ``Observer`` has counted. Labels are bounded: stages are a fixed list.
"""

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from balancer.observer import Observer
from balancer.stages import Stage


class RequestCollector(Collector):
    """Looks up, at the moment of reading, what has been counted."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def collect(self) -> Iterable[Metric]:
        stages = HistogramMetricFamily(
            "kvlb_stage_seconds",
            "How long each stage of a request took: read, tokenize, queue, hash, match, choose, connect, first_byte, stream.",
            labels=["stage"],
        )
        for stage in Stage:
            timings = self._observer.timings
            stages.add_metric([stage], timings.buckets(stage), timings.seconds(stage))
        traced = CounterMetricFamily(
            "kvlb_traced_requests",
            "Requests whose spans were sent to the collector, or dropped because it did not take them.",
            labels=["result"],
        )
        for result, count in self._observer.tracer.counts.items():
            traced.add_metric([result], count)
        access = self._observer.access
        lost = CounterMetricFamily(
            "kvlb_access_log_lost_lines",
            "Lines of the access log that could not be written.",
            0 if access is None else access.lost,
        )
        return [stages, traced, lost]
