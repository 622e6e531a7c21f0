"""helm/dashboards/kvlb.json: what to look at first, in the order in which one would ask.

Knows queries and titles; how Grafana writes a panel is one function. Every metric is one of docs/metrics.md (a test).
"""

import json
from typing import Any, Final, NamedTuple

OF: Final = 'namespace="$namespace",job="$job"'
RATE: Final = "$__rate_interval"


class Panel(NamedTuple):
    title: str
    unit: str
    queries: dict[str, str]
    """Legend -> query."""
    says: str = ""


def _rate(metric: str, by: str = "", more: str = "") -> str:
    return f"sum{f' by ({by})' if by else ''} (rate({metric}{{{OF}{more}}}[{RATE}]))"


def _sum(metric: str, by: str = "", more: str = "") -> str:
    return f"sum{f' by ({by})' if by else ''} ({metric}{{{OF}{more}}})"


def _quantile(share: float, metric: str, by: str = "") -> str:
    within = f"le, {by}" if by else "le"
    return f"histogram_quantile({share}, sum by ({within}) (rate({metric}_bucket{{{OF}}}[{RATE}])))"


ROWS: Final[dict[str, list[Panel]]] = {
    "Are clients served?": [
        Panel("Attempts at replicas, by outcome", "reqps", {"{{outcome}}": _rate("kvlb_requests_total", "outcome")}),
        Panel("Refused by kvlb, by status", "reqps", {"{{status}}": _rate("kvlb_refused_requests_total", "status")}),
        Panel(
            "Time to first byte",
            "s",
            {
                "p50": _quantile(0.5, "kvlb_time_to_first_byte_seconds"),
                "p95": _quantile(0.95, "kvlb_time_to_first_byte_seconds"),
                "p99": _quantile(0.99, "kvlb_time_to_first_byte_seconds"),
            },
        ),
        Panel("Stages of a request, p95", "s", {"{{stage}}": _quantile(0.95, "kvlb_stage_seconds", "stage")}),
        Panel("Retries, by fault", "reqps", {"{{fault}} {{verdict}}": _rate("kvlb_retries_total", "fault, verdict")}),
        Panel("Waiting for a place", "short", {"{{class}}": _sum("kvlb_admission_waiting", "class")}),
    ],
    "Does the cache pay?": [
        Panel(
            "Share of prompt tokens that were cached",
            "percentunit",
            {
                "predicted": f"{_rate('kvlb_routed_cached_tokens_total')} / {_rate('kvlb_routed_prompt_tokens_total')}",
                "reported by engines": (
                    f"{_rate('kvlb_policy_reported_cached_tokens_total')}"
                    f" / {_rate('kvlb_policy_reported_prompt_tokens_total')}"
                ),
            },
        ),
        Panel(
            "Exact predictions",
            "percentunit",
            {"{{model}}": f"avg by (model) (kvlb_prediction_exact_ratio{{{OF}}})"},
            "The share among the last 1,000 that were promised.",
        ),
        Panel("Wrong predictions, by cause", "cps", {"{{cause}}": _rate("kvlb_prediction_errors_total", "cause")}),
        Panel("What is known of caches", "short", {"{{state}}": _sum("kvlb_cache_knowledge", "state")}),
        Panel(
            "Blocks in the index",
            "short",
            {
                "blocks": f"max(kvlb_index_size_blocks{{{OF}}})",
                "limit": f"min(kvlb_index_max_blocks{{{OF}}})",
            },
        ),
        Panel("Tokenised, by how", "reqps", {"{{how}}": _rate("kvlb_tokenizations_total", "how")}),
    ],
    "Are the replicas well?": [
        Panel(
            "Replicas, by status",
            "short",
            {"{{status}}": f"max by (status) (sum by (pod, status) (kvlb_replica_status{{{OF}}}))"},
        ),
        Panel("In flight", "short", {"{{replica}}": _sum("kvlb_in_flight_requests", "replica")}),
        Panel("Prompt tokens that wait", "short", {"{{replica}}": _sum("kvlb_queued_tokens", "replica")}),
        Panel(
            "Failures, by fault",
            "cps",
            {"{{replica}} {{fault}}": _rate("kvlb_replica_failures_total", "replica, fault")},
        ),
        Panel(
            "Event streams that are complete",
            "short",
            {"{{replica}}": f"min by (replica) (kvlb_events_complete{{{OF}}})"},
        ),
        Panel(
            "Endpoints",
            "short",
            {"watched": f"max(kvlb_endpoints{{{OF}}})", "list out of date": f"max(kvlb_discovery_problem{{{OF}}})"},
        ),
    ],
    "Prefill and decode, tiers and stores": [
        Panel(
            "Legs, by outcome",
            "reqps",
            {"{{leg}} {{outcome}}": _rate("kvlb_disaggregation_legs_total", "leg, outcome")},
        ),
        Panel(
            "Prompts computed where they are answered, although",
            "reqps",
            {"{{reason}}": _rate("kvlb_disaggregation_alone_total", "reason")},
        ),
        Panel(
            "Tokens that could be loaded",
            "cps",
            {"{{source}} {{result}}": _rate("kvlb_loadable_tokens_total", "source, result")},
        ),
        Panel("Stores that can be used", "short", {"{{store}}": f"min by (store) (kvlb_store_up{{{OF}}})"}),
    ],
}


def text() -> str:
    """The file."""
    panels: list[dict[str, Any]] = []
    down = 0
    for title, row in ROWS.items():
        panels.append(
            {"id": len(panels) + 1, "type": "row", "title": title, "gridPos": {"x": 0, "y": down, "w": 24, "h": 1}}
        )
        for at, panel in enumerate(row):
            place = {"x": at % 3 * 8, "y": down + 1 + at // 3 * 8, "w": 8, "h": 8}
            panels.append({"id": len(panels) + 1, "gridPos": place, **_panel(panel)})
        down += 1 + (len(row) + 2) // 3 * 8
    return (
        json.dumps(
            {
                "uid": "kvlb",
                "title": "kvlb",
                "tags": ["kvlb", "vllm"],
                "schemaVersion": 39,
                "refresh": "30s",
                "time": {"from": "now-1h", "to": "now"},
                "templating": {
                    "list": [_source(), _variable("namespace", ""), _variable("job", 'namespace="$namespace"')]
                },
                "panels": panels,
            },
            indent=1,
        )
        + "\n"
    )


def _panel(panel: Panel) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + at), "expr": query, "legendFormat": legend}
        for at, (legend, query) in enumerate(panel.queries.items())
    ]
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": panel.says,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": targets,
    }


def _source() -> dict[str, Any]:
    return {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}


def _variable(name: str, within: str) -> dict[str, Any]:
    query = f"label_values(kvlb_endpoints{f'{{{within}}}' if within else ''}, {name})"
    return {
        "name": name,
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
    }
