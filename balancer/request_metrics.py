"""Metrics of requests as a whole, and of those who tell of them.

Knows what an ``Observer`` has counted. Labels are bounded: stages are a fixed list, and policies those of the settings.
"""

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from balancer.disaggregation.metrics import LegCollector
from balancer.observer import Observer
from balancer.request_counts import RequestCounts
from balancer.stages import Stage


class RequestCollector(Collector):
    """Looks up, at the moment of reading, what has been counted."""

    def __init__(self, observer: Observer, counts: RequestCounts) -> None:
        self._observer = observer
        self._counts = counts

    def collect(self) -> Iterable[Metric]:
        yield from self._requests()
        yield from self._policies()
        yield from self._stages()
        yield from LegCollector(self._counts.legs).collect()

    def _requests(self) -> Iterable[Metric]:
        counts = self._counts
        attempts = CounterMetricFamily(
            "kvlb_requests",
            "Attempts at a replica, by how they ended (ok, error, cancelled, unreachable).",
            labels=["model", "path", "outcome"],
        )
        refused = CounterMetricFamily(
            "kvlb_refused_requests",
            "Requests that kvlb answered itself with an error, by status.",
            labels=["path", "status"],
        )
        limited = CounterMetricFamily(
            "kvlb_limited_requests",
            "Requests that were refused because a key or a tenant has had its share, by limit.",
            labels=["limit"],
        )
        prompt_tokens = CounterMetricFamily(
            "kvlb_routed_prompt_tokens",
            "Prompt tokens of routed requests whose tokens are known.",
            labels=["model", "replica"],
        )
        cached_tokens = CounterMetricFamily(
            "kvlb_routed_cached_tokens",
            "Of these, tokens that the chosen replica was predicted to hold.",
            labels=["model", "replica"],
        )
        first_bytes = HistogramMetricFamily(
            "kvlb_time_to_first_byte_seconds",
            "From the request's arrival to the first byte of the answer's body.",
            labels=["model"],
        )
        fallbacks = CounterMetricFamily(
            "kvlb_fallback_decisions", "Decisions of gateways that could not ask the brain.", counts.fallbacks
        )
        for family, values in (
            (attempts, counts.attempts),
            (refused, counts.refusals),
            (prompt_tokens, counts.prompt_tokens),
            (cached_tokens, counts.cached_tokens),
        ):
            for labels, value in values.items():
                family.add_metric(labels, value)
        for limit, value in counts.limited.items():
            limited.add_metric([limit], value)
        for model, observed in counts.first_bytes.items():
            first_bytes.add_metric([model], observed.buckets(), observed.sum)
        return [attempts, refused, limited, prompt_tokens, cached_tokens, first_bytes, fallbacks]

    def _policies(self) -> Iterable[Metric]:
        attempts = CounterMetricFamily(
            "kvlb_policy_requests",
            "Attempts at a replica by the policy that chose it, and how they ended.",
            labels=["policy", "outcome"],
        )
        prompt, predicted, reported, cached = (
            CounterMetricFamily(name, told, labels=["policy"])
            for name, told in (
                ("kvlb_policy_prompt_tokens", "Prompt tokens of routed requests whose tokens are known."),
                (
                    "kvlb_policy_predicted_cached_tokens",
                    "Of these, tokens that the chosen replica was predicted to hold.",
                ),
                ("kvlb_policy_reported_prompt_tokens", "Prompt tokens of answers that say how many were cached."),
                ("kvlb_policy_reported_cached_tokens", "Of these, tokens that the engine says were cached."),
            )
        )
        first_tokens = HistogramMetricFamily(
            "kvlb_policy_time_to_first_token_seconds",
            "From the request's arrival to its first token, by the policy that chose its replica.",
            labels=["policy"],
        )
        for name, of in self._counts.policies.items():
            for outcome, count in of.attempts.items():
                attempts.add_metric([name, outcome], count)
            prompt.add_metric([name], of.prompt_tokens)
            predicted.add_metric([name], of.predicted_tokens)
            reported.add_metric([name], of.reported_prompt_tokens)
            cached.add_metric([name], of.reported_cached_tokens)
            first_tokens.add_metric([name], of.first_tokens.buckets(), of.first_tokens.sum)
        return [attempts, prompt, predicted, reported, cached, first_tokens]

    def _stages(self) -> Iterable[Metric]:
        stages = HistogramMetricFamily(
            "kvlb_stage_seconds",
            "How long each stage of a request took: read, tokenize, queue, hash, match, choose, ask, prefill, connect, "
            "first_byte, stream.",
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
        lost = CounterMetricFamily(
            "kvlb_access_log_lost_lines",
            "Lines of the access log that could not be written.",
            self._observer.lost_lines,
        )
        return [stages, traced, lost]
