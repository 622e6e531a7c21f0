"""Every metric that kvlb exposes, with its help text.

Knows names, labels and where each value comes from: counters are told, everything about replicas and the index is looked up
when the page is read. Labels are bounded: a model that is not served is ``other``.
"""

import time
from collections.abc import Iterable
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from balancer.audit import ERROR_BOUNDS
from balancer.core import Decision, Outcome
from balancer.errors import RequestError
from balancer.fleet import Status
from balancer.knowledge import Knowledge
from balancer.service import RouterService

disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each counter, which nobody here reads

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    """All metrics of one gateway process."""

    def __init__(self, service: RouterService) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "kvlb_requests",
            "Attempts at a replica, by how they ended (ok, error, cancelled, unreachable).",
            ["model", "path", "outcome"],
            registry=self._registry,
        )
        self._refused = Counter(
            "kvlb_refused_requests",
            "Requests that kvlb answered itself with an error, by status.",
            ["path", "status"],
            registry=self._registry,
        )
        self._first_byte = Histogram(
            "kvlb_time_to_first_byte_seconds",
            "From the request's arrival to the first byte of the answer's body.",
            ["model"],
            buckets=SECONDS,
            registry=self._registry,
        )
        self._prompt_tokens = Counter(
            "kvlb_routed_prompt_tokens",
            "Prompt tokens of routed requests whose tokens are known.",
            ["model", "replica"],
            registry=self._registry,
        )
        self._cached_tokens = Counter(
            "kvlb_routed_cached_tokens",
            "Of these, tokens that the chosen replica was predicted to hold.",
            ["model", "replica"],
            registry=self._registry,
        )
        self._registry.register(_RouterCollector(service))

    def finished(self, model: str, path: str, decision: Decision, outcome: Outcome) -> None:
        """An attempt at a replica has ended."""
        self._requests.labels(model, path, outcome).inc()
        if decision.knows_tokens and outcome is not Outcome.UNREACHABLE:
            self._prompt_tokens.labels(model, decision.replica.id).inc(decision.prompt_tokens)
            self._cached_tokens.labels(model, decision.replica.id).inc(decision.cached_tokens)

    def refused(self, path: str, error: RequestError) -> None:
        """A request was answered with an error of our own."""
        self._refused.labels(path, str(error.status)).inc()

    def first_byte(self, model: str, seconds: float) -> None:
        self._first_byte.labels(model).observe(seconds)

    def page(self) -> bytes:
        """The text of ``GET /metrics``."""
        return generate_latest(self._registry)


class _RouterCollector(Collector):
    """Looks up, at the moment of reading, what the router and the event reader know."""

    def __init__(self, service: RouterService) -> None:
        self._service = service

    def collect(self) -> Iterable[Metric]:
        yield from self._replicas()
        yield from self._index()
        yield from self._events()
        yield from self._audit()
        yield from self._tokenizer()
        yield from self._snapshot()

    def _replicas(self) -> Iterable[Metric]:
        in_flight = GaugeMetricFamily(
            "kvlb_in_flight_requests", "Requests sent to the replica that have not ended.", labels=["replica"]
        )
        queued = GaugeMetricFamily(
            "kvlb_queued_tokens",
            "Uncached prompt tokens sent to the replica that it has not answered yet.",
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
        for live in self._service.router.fleet:
            name = [live.replica.id]
            in_flight.add_metric(name, live.in_flight)
            queued.add_metric(name, live.queued_tokens)
            silent.add_metric(name, self._service.silence.unheard(live.replica.id))
            for each in Status:
                status.add_metric([*name, each], float(live.status is each))
        return [in_flight, queued, silent, status, self._knowledge()]

    def _knowledge(self) -> Metric:
        states = GaugeMetricFamily(
            "kvlb_cache_knowledge",
            "1 for how much is known of the replica's cache: exact, learned, partial, blind.",
            labels=["replica", "state"],
        )
        router, now = self._service.router, time.monotonic()
        for live in router.fleet:
            view = router.view(live.replica.id, now)
            for each in Knowledge:
                states.add_metric([live.replica.id, each], float(view.state is each))
        return states

    def _index(self) -> Iterable[Metric]:
        blocks = GaugeMetricFamily(
            "kvlb_index_blocks", "Different blocks that the replica holds, by tier.", labels=["replica", "tier"]
        )
        copies = GaugeMetricFamily(
            "kvlb_index_copies",
            "Physical blocks named by hashes; on GPU at most num_gpu_blocks - 1.",
            labels=["replica", "tier"],
        )
        unknown = CounterMetricFamily(
            "kvlb_index_unknown_removals", "Removals of blocks that were never stored, by tier.", labels=["tier"]
        )
        dropped = CounterMetricFamily(
            "kvlb_index_dropped_events",
            "Batches of replicas that had been removed, and events of tiers beyond the 32nd or cache groups beyond the 256th.",
        )
        size = GaugeMetricFamily(
            "kvlb_index_size_blocks", "Different blocks in the index, each counted once in each tier and cache group."
        )
        most = GaugeMetricFamily("kvlb_index_max_blocks", "The most that the index will ever hold of them.")
        evicted = CounterMetricFamily(
            "kvlb_index_evicted_blocks", "Blocks that were let go because that limit was reached."
        )
        index = self._service.router.index
        for tier, table in index.tiers.items():
            for replica in index.replicas:
                blocks.add_metric([replica, tier.label], table.blocks(replica))
                copies.add_metric([replica, tier.label], table.copies(replica))
            unknown.add_metric([tier.label], table.unknown_removals)
        dropped.add_metric([], index.events_dropped)
        size.add_metric([], index.size)
        most.add_metric([], index.max_blocks)
        evicted.add_metric([], index.evicted)
        return [blocks, copies, unknown, dropped, size, most, evicted]

    def _events(self) -> Iterable[Metric]:
        connected = GaugeMetricFamily(
            "kvlb_events_connected", "1 while the event subscription stands.", labels=["replica"]
        )
        complete = GaugeMetricFamily(
            "kvlb_events_complete", "1 while every event of the engine's life has been applied.", labels=["replica"]
        )
        incarnations = CounterMetricFamily(
            "kvlb_events_restarts", "Restarts of the engine that were noticed.", labels=["replica"]
        )
        age = GaugeMetricFamily(
            "kvlb_events_last_age_seconds", "Seconds since the last live batch.", labels=["replica"]
        )
        counts = CounterMetricFamily(
            "kvlb_events",
            "What happened on the event stream: batches, gaps, replays, replays_unanswered, lost_batches, duplicates, "
            "events_skipped, malformed_messages, foreign_topics, messages_of_two_connections, connections.",
            labels=["replica", "what"],
        )
        for replica, status in self._service.publishers().items():
            connected.add_metric([replica], float(status.is_connected))
            complete.add_metric([replica], float(status.is_complete))
            incarnations.add_metric([replica], status.incarnation)
            if status.last_event_age is not None:
                age.add_metric([replica], status.last_event_age)
            for what, count in status.counters.items():
                counts.add_metric([replica, what], count)
        return [connected, complete, incarnations, age, counts]

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
        for key, tally in router.audit.tallies.items():
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
        for correction, count in router.healer.corrections.items():
            corrections.add_metric([correction], count)
        return [results, causes, predicted, actual, share, errors, corrections]

    def _tokenizer(self) -> Iterable[Metric]:
        asked = CounterMetricFamily(
            "kvlb_tokenizations",
            "Texts tokenised: asked of a replica, cached, or failed (routed without tokens).",
            labels=["how"],
        )
        for how in ("asked", "cached", "failed"):
            asked.add_metric([how], self._service.tokenizer.counters[how])
        return [asked]

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
