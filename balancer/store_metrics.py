"""Metrics of stores, and of tokens that could be loaded.

Knows what stores and the audit of loads have counted. Labels are bounded: stores are those of the settings, tiers those of the
index.
"""

from collections.abc import Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from balancer.caches import Caches


def collect(caches: Caches, hints: Mapping[str, int]) -> Iterable[Metric]:
    """How each store stands, what has happened to it, and whether engines found what was said to lie there.

    ``hints`` are requests by the field with which engines were told what to load.
    """
    up = GaugeMetricFamily(
        "kvlb_store_up",
        "1 while the store can be used; while it cannot, its blocks count for nothing.",
        labels=["store"],
    )
    blocks = GaugeMetricFamily(
        "kvlb_store_blocks", "Different blocks that the store is known to hold.", labels=["store"]
    )
    events = CounterMetricFamily(
        "kvlb_store_events",
        "What has happened: stored, removed, dropped (no room), failed, lost_batches, restarts; lookup_answered, "
        "lookup_remembered, lookup_late, lookup_failed.",
        labels=["store", "what"],
    )
    for store in caches.stores:
        up.add_metric([store.name], float(store.is_up))
        blocks.add_metric([store.name], caches.index.stores.blocks(store.name))
        for what, count in store.counts.items():
            events.add_metric([store.name, what], count)
    tokens = CounterMetricFamily(
        "kvlb_loadable_tokens",
        "Tokens that were said to be loadable by the chosen replica. Of those that were to be loaded: loaded, missed; of those "
        "that its engine was told to leave there: left, taken.",
        labels=["source", "result"],
    )
    dropped = CounterMetricFamily(
        "kvlb_load_corrections",
        "Prompts whose rest is not thought to be in a tier or store any more, as an engine has not found it there twice.",
        labels=["source"],
    )
    for (source, result), count in caches.load_audit.tokens.items():
        tokens.add_metric([source, result], count)
    for source, count in caches.load_audit.dropped.items():
        dropped.add_metric([source], count)
    told = CounterMetricFamily(
        "kvlb_load_hints",
        "Requests whose engine was told what to load, by the field of kv_transfer_params.",
        labels=["field"],
    )
    for field, count in hints.items():
        told.add_metric([field], count)
    return [up, blocks, events, tokens, dropped, told]
