"""Metrics of the index and of what feeds it, wherever it runs: in the gateway or as a service of its own.

Knows names, labels and where each value comes from; everything is looked up when the page is read.
"""

import time
from collections.abc import Callable, Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from balancer.caches import Caches
from balancer.knowledge import Knowledge
from indexer.index import ReplicaId
from indexer.sources.vllm import PublisherStatus


class IndexCollector(Collector):
    """Looks up, at the moment of reading, what the index and the event reader know."""

    def __init__(self, caches: Caches, publishers: Callable[[], Mapping[ReplicaId, PublisherStatus]]) -> None:
        self._caches = caches
        self._publishers = publishers

    def collect(self) -> Iterable[Metric]:
        yield self._knowledge()
        yield from self._index()
        yield from self._events()

    def _knowledge(self) -> Metric:
        states = GaugeMetricFamily(
            "kvlb_cache_knowledge",
            "1 for how much is known of the replica's cache: exact, learned, partial, blind.",
            labels=["replica", "state"],
        )
        for replica, view in self._caches.views(time.monotonic()).items():
            for each in Knowledge:
                states.add_metric([replica, each], float(view.state is each))
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
        orphans = GaugeMetricFamily(
            "kvlb_index_orphans",
            "Blocks with learned keys that the replica holds and that have no key.",
            labels=["replica"],
        )
        placed = CounterMetricFamily(
            "kvlb_index_orphans_placed",
            "Of these, blocks whose beginning became known, in the engine's present life.",
            labels=["replica"],
        )
        for replica, recognition in self._caches.recognitions.items():
            orphans.add_metric([replica], recognition.unplaced)
            placed.add_metric([replica], recognition.learned.orphans.placed)
        index = self._caches.index
        for tier, table in index.tiers.items():
            for replica in index.replicas:
                blocks.add_metric([replica, tier.label], table.blocks(replica))
                copies.add_metric([replica, tier.label], table.copies(replica))
            unknown.add_metric([tier.label], table.unknown_removals)
        dropped.add_metric([], index.events_dropped)
        size.add_metric([], index.size)
        most.add_metric([], index.max_blocks)
        evicted.add_metric([], index.evicted)
        return [blocks, copies, orphans, placed, unknown, dropped, size, most, evicted]

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
        for replica, status in self._publishers().items():
            connected.add_metric([replica], float(status.is_connected))
            complete.add_metric([replica], float(status.is_complete))
            incarnations.add_metric([replica], status.incarnation)
            if status.last_event_age is not None:
                age.add_metric([replica], status.last_event_age)
            for what, count in status.counters.items():
                counts.add_metric([replica, what], count)
        return [connected, complete, incarnations, age, counts]
