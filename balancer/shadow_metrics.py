"""Metrics of a policy that decides on paper beside the one that acts.

Knows what a ``Shadow`` has counted. Labels are bounded: policies are those of the settings.
"""

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, Metric

from balancer.shadow import Shadow


def collect(shadow: Shadow | None) -> Iterable[Metric]:
    """How often it would have chosen the same replica, and what its choices and the others' had cost."""
    results = CounterMetricFamily(
        "kvlb_shadow_decisions",
        "Decisions that were made on paper, too: agree (the same replica), differ, or failed.",
        labels=["policy", "shadow", "result"],
    )
    cached, uncached, wait = (
        CounterMetricFamily(name, told, labels=["policy", "shadow", "choice"])
        for name, told in (
            (
                "kvlb_shadow_cached_tokens",
                "Predicted cached tokens where each of the two policies would have sent requests.",
            ),
            ("kvlb_shadow_uncached_tokens", "Predicted tokens to compute there."),
            ("kvlb_shadow_wait_seconds", "Predicted seconds until the replica begins there."),
        )
    )
    if shadow is not None:
        for (acting, result), count in shadow.results.items():
            results.add_metric([acting, shadow.arm.name, result], count)
        for (acting, choice), sums in shadow.sums.items():
            labels = [acting, shadow.arm.name, choice]
            cached.add_metric(labels, sums.cached_tokens)
            uncached.add_metric(labels, sums.uncached_tokens)
            wait.add_metric(labels, sums.wait)
    return [results, cached, uncached, wait]
