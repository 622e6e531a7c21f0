"""Every metric that kvlb exposes, with its help text.

Knows names, labels and where each value comes from: counters are told, everything about replicas and the index is looked up
when the page is read. Labels are bounded: a model that is not served is ``other``.
"""

import time
from collections.abc import Iterable
from itertools import accumulate

from prometheus_client import CollectorRegistry, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from balancer import shadow_metrics, store_metrics
from balancer.admission import Urgency
from balancer.audit import ERROR_BOUNDS
from balancer.disaggregation.metrics import WitnessCollector
from balancer.fleet import Status
from balancer.index_metrics import IndexCollector
from balancer.observer import Observer
from balancer.request_counts import SECONDS, RequestCounts
from balancer.request_metrics import RequestCollector
from balancer.service import RouterService
from balancer.siblings import metrics as sibling_metrics

disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each counter, which nobody here reads

POSITIONS = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000)


class Metrics:
    """All metrics of one gateway process."""

    def __init__(self, service: RouterService, observer: Observer, counts: RequestCounts | None = None) -> None:
        self._service = service
        self._registry = CollectorRegistry()
        self.counts = counts or RequestCounts()
        """Tell it of every request."""
        self._ahead = Histogram(
            "kvlb_admission_position",
            "Of each request that had to wait: how many of its class were waiting when it came.",
            ["class"],
            buckets=POSITIONS,
            registry=self._registry,
        )
        self._waited = Histogram(
            "kvlb_admission_wait_seconds",
            "How long requests waited for a place, by how that ended: served, expired, displaced, cancelled, failed.",
            ["class", "outcome"],
            buckets=SECONDS,
            registry=self._registry,
        )
        service.waiting.on_entry = lambda ticket: self._ahead.labels(ticket.claim.urgency).observe(ticket.ahead)
        held = Histogram(
            "kvlb_held_seconds",
            "How long requests were held until their replica had less to do, however that ended.",
            buckets=SECONDS,
            registry=self._registry,
        )
        service.turns.on_end = held.observe
        service.waiting.on_end = lambda end: self._waited.labels(end.urgency, end.outcome).observe(end.seconds)
        self._registry.register(_RouterCollector(service))
        self._registry.register(RequestCollector(observer, self.counts))
        self._registry.register(WitnessCollector(service.witness))

    def page(self) -> bytes:
        """The text of ``GET /metrics``. Nothing is told of replicas that are gone: they may be thousands in the end."""
        fleet = self._service.router.fleet
        for model, replica in [each for each in self.counts.prompt_tokens if fleet.get(each[1]) is None]:
            self.counts.forget(model, replica)
        return generate_latest(self._registry)


class _RouterCollector(IndexCollector):
    """Looks up, at the moment of reading, what the router and the event reader know."""

    def __init__(self, service: RouterService) -> None:
        super().__init__(service.router.caches, service.publishers)
        self._service = service

    def collect(self) -> Iterable[Metric]:
        yield from self._replicas()
        yield from self._failures()
        yield from self._admission()
        yield from shadow_metrics.collect(self._service.router.shadow)
        yield from super().collect()
        yield from store_metrics.collect(self._service.router.caches, self._service.router.load_plans.hints)
        yield from self._audit()
        yield from self._tokenizer()
        yield from self._snapshot()
        yield from sibling_metrics.collect(self._service.siblings.told(), self._service.router.fleet)
        yield from self._discovery()
        yield from self._processes()

    def _replicas(self) -> Iterable[Metric]:
        in_flight = GaugeMetricFamily(
            "kvlb_in_flight_requests", "Requests sent to the replica that have not ended.", labels=["replica"]
        )
        queued = GaugeMetricFamily(
            "kvlb_queued_tokens",
            "Uncached prompt tokens sent to the replica that it has not answered yet.",
            labels=["replica"],
        )
        held = GaugeMetricFamily(
            "kvlb_held_requests", "Requests that are held until the replica has less to do.", labels=["replica"]
        )
        speed = GaugeMetricFamily(
            "kvlb_prefill_tokens_per_second",
            "Uncached prompt tokens that the replica is thought to compute a second, as far as learned.",
            labels=["replica"],
        )
        wait = GaugeMetricFamily(
            "kvlb_predicted_wait_seconds",
            "Seconds until the replica is thought to have computed all prompts that were routed to it.",
            labels=["replica"],
        )
        silent = GaugeMetricFamily(
            "kvlb_requests_without_events",
            "Requests that the replica answered, and must have cached something of, since its last KV event.",
            labels=["replica"],
        )
        status = GaugeMetricFamily(
            "kvlb_replica_status", "1 for the status that the replica has.", labels=["replica", "status"]
        )
        now = time.monotonic()
        for live in self._service.router.fleet:
            name = [live.replica.id]
            in_flight.add_metric(name, live.in_flight)
            queued.add_metric(name, live.queued_tokens)
            held.add_metric(name, len(live.held))
            speed.add_metric(name, live.prefill.speed(0.0, 0))
            wait.add_metric(name, live.wait(now))
            silent.add_metric(name, self._service.silence.unheard(live.replica.id))
            for each in Status:
                status.add_metric([*name, each], float(self._service.router.status(live) is each))
        return [in_flight, queued, held, speed, wait, silent, status]

    def _failures(self) -> Iterable[Metric]:
        failures = CounterMetricFamily(
            "kvlb_replica_failures",
            "Attempts that failed at the replica: connect, reset, abort, status, no_answer, broke_off, stalled.",
            labels=["replica", "fault"],
        )
        ejections = CounterMetricFamily(
            "kvlb_replica_ejections",
            "Times that the replica was left out: consecutive, share (of failures), trial (failed), stalled.",
            labels=["replica", "cause"],
        )
        retries = CounterMetricFamily(
            "kvlb_retries",
            "Failed attempts by what followed: retry, or why not: final, attempts, nobody, budget, deadline.",
            labels=["fault", "verdict"],
        )
        router, care = self._service.router, self._service.care
        for family, counts in (
            (failures, router.ejections.failures),
            (ejections, router.ejections.counts),
            (retries, care.retries.counts),
        ):
            for labels, count in counts.items():
                family.add_metric(labels, count)
        return [failures, ejections, retries]

    def _admission(self) -> Iterable[Metric]:
        waiting = GaugeMetricFamily(
            "kvlb_admission_waiting", "Requests that wait for a place at any replica.", labels=["class"]
        )
        full = CounterMetricFamily(
            "kvlb_admission_full", "Requests that were refused because too many waited already.", labels=["class"]
        )
        for urgency in Urgency:
            waiting.add_metric([urgency], self._service.waiting.queue.waiting(urgency))
            full.add_metric([urgency], self._service.waiting.refused[urgency])
        return [waiting, full]

    def _audit(self) -> Iterable[Metric]:
        labels = ["replica", "model"]
        results = CounterMetricFamily(
            "kvlb_predictions",
            "Predicted against reported cached tokens: exact, over, under; other_tokens: it was another prompt; "
            "estimate_exact, estimate_wrong: of partial or blind replicas, no promise.",
            labels=[*labels, "result"],
        )
        causes = CounterMetricFamily(
            "kvlb_prediction_errors",
            "Promised predictions that were not exact, by cause: index, routing, workload.",
            labels=[*labels, "cause"],
        )
        predicted = CounterMetricFamily(
            "kvlb_predicted_cached_tokens", "Predicted cached tokens of promised predictions.", labels=labels
        )
        actual = CounterMetricFamily(
            "kvlb_actual_cached_tokens", "Cached tokens that the engine reported for them.", labels=labels
        )
        share = GaugeMetricFamily(
            "kvlb_prediction_exact_ratio", "The share of exact ones among the last 1,000 promises.", labels=labels
        )
        errors = HistogramMetricFamily(
            "kvlb_prediction_error_tokens",
            "How far promised predictions were off, in tokens, whichever way.",
            labels=labels,
        )
        corrections = CounterMetricFamily(
            "kvlb_index_corrections",
            "What engines' figures have corrected: denied, dropped (a chain missing twice), learned.",
            labels=["correction"],
        )
        router = self._service.router
        for key, tally in router.caches.audit.tallies.items():
            for result in ("exact", "over", "under", "other_tokens"):
                results.add_metric([*key, result], getattr(tally, result))
            results.add_metric([*key, "estimate_exact"], tally.estimates_exact)
            results.add_metric([*key, "estimate_wrong"], tally.estimates - tally.estimates_exact)
            for cause, count in tally.causes.items():
                causes.add_metric([*key, cause], count)
            predicted.add_metric(key, tally.predicted_tokens)
            actual.add_metric(key, tally.actual_tokens)
            if (recent := tally.recent_exact_share) is not None:
                share.add_metric(key, recent)
            bounds = [*map(str, ERROR_BOUNDS), "+Inf"]
            errors.add_metric(key, list(zip(bounds, accumulate(tally.errors), strict=True)), tally.error_tokens)
        for correction, count in router.caches.healer.corrections.items():
            corrections.add_metric([correction], count)
        return [results, causes, predicted, actual, share, errors, corrections]

    def _tokenizer(self) -> Iterable[Metric]:
        asked = CounterMetricFamily(
            "kvlb_tokenizations",
            "Texts: asked of a replica, cached, or routed without tokens (failed, paused, untellable).",
            labels=["how"],
        )
        for how in ("asked", "cached", "failed", "paused", "untellable"):
            asked.add_metric([how], self._service.tokenizer.counters[how])
        return [asked]

    def _discovery(self) -> Iterable[Metric]:
        follower = self._service.follower
        endpoints = GaugeMetricFamily(
            "kvlb_endpoints", "Endpoints that are watched, whether they answer or not.", len(self._service.watchers)
        )
        lists = CounterMetricFamily(
            "kvlb_discovery_lists",
            "What discovery has said: changed, another list than before; failed, nothing that could be used.",
            labels=["result"],
        )
        for result in ("changed", "failed"):
            lists.add_metric([result], follower.counts[result])
        problem = GaugeMetricFamily(
            "kvlb_discovery_problem",
            "1 while the list of endpoints may be out of date, or some that should be there cannot be used;"
            " /kvlb/status says why.",
            float(follower.problem is not None),
        )
        return [endpoints, lists, problem]

    def _processes(self) -> Iterable[Metric]:
        census = self._service.census
        processes = GaugeMetricFamily(
            "kvlb_processes",
            "Processes by role; one that is both brain and gateway counts as a gateway.",
            labels=["role"],
        )
        restarts = CounterMetricFamily(
            "kvlb_process_restarts", "Processes that ended unasked and were started again.", labels=["role"]
        )
        for role, count in census.counts().items():
            processes.add_metric([role], count)
            restarts.add_metric([role], census.restarts[role])
        return [processes, restarts]

    def _snapshot(self) -> Iterable[Metric]:
        warm = self._service.warm
        saves = CounterMetricFamily("kvlb_snapshot_saves", "Snapshots of the index that were written.", warm.saves)
        failures = CounterMetricFamily(
            "kvlb_snapshot_failures", "Snapshots of the index that could not be written.", warm.failures
        )
        age = GaugeMetricFamily("kvlb_snapshot_age_seconds", "Seconds since the last one was written.")
        if warm.saved_at is not None:
            age.add_metric([], time.monotonic() - warm.saved_at)
        size = GaugeMetricFamily("kvlb_snapshot_bytes", "Size of the last one.", warm.size)
        seconds = GaugeMetricFamily("kvlb_snapshot_seconds", "How long the last one took.", warm.duration)
        restored = GaugeMetricFamily(
            "kvlb_snapshot_restored_blocks",
            "Blocks on GPU that were taken over from a snapshot at the start.",
            warm.restored_blocks,
        )
        return [saves, failures, age, size, seconds, restored]
