"""``GET /metrics`` of the index service.

Knows what is exposed besides the index itself: requests, and how the listeners stand.
"""

import time
from collections import Counter
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from balancer.http.routes import Served
from balancer.index_metrics import IndexCollector
from balancer.index_service.service import IndexService
from balancer.index_service.workers import Status


class MetricsPage:
    """All metrics of one index service."""

    def __init__(self, service: IndexService, served: Served) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(IndexCollector(service.caches, service.publishers))
        self._registry.register(_ServiceCollector(service, served))

    def text(self) -> bytes:
        return generate_latest(self._registry)


class _ServiceCollector(Collector):
    def __init__(self, service: IndexService, served: Served) -> None:
        self._service = service
        self._served = served

    def collect(self) -> Iterable[Metric]:
        requests = CounterMetricFamily("kvlb_index_requests", "Requests by path and status.", labels=["path", "status"])
        for (path, status), count in sorted(self._served.items()):
            requests.add_metric([path, str(status)], count)
        listeners = GaugeMetricFamily("kvlb_index_listeners", "Listeners by how they stand.", labels=["status"])
        now = time.monotonic()
        by_status = Counter(status for status, _ in self._service.workers.statuses(now))
        for each in Status:
            listeners.add_metric([each], by_status[each])
        return [requests, listeners]
