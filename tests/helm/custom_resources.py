"""Schemas of the custom resources that the chart renders: the fields that it uses, as they are defined, and no others.

Taken from Gateway API 1.2 (HTTPRoute, Gateway), the Inference Extension 1.0 (InferencePool), the Prometheus operator 0.79
(ServiceMonitor, PrometheusRule), KEDA 2.16 (ScaledObject) and Istio 1.24 (DestinationRule).
"""

from typing import Any, Final

from tests.helm.definitions import BOOLEAN, INTEGER, LABELS, STRING, a_list, an_object

PORT: Final = {"type": "integer", "minimum": 1, "maximum": 65535}
DURATION: Final = {"type": "string", "pattern": "^([0-9]+(ms|h|m|s))+$"}
PARENTS: Final = a_list(
    an_object(("name",), group=STRING, kind=STRING, name=STRING, namespace=STRING, sectionName=STRING, port=PORT), 1
)
ISTIO_TLS: Final = an_object(
    ("mode",), mode={"enum": ["DISABLE", "SIMPLE", "MUTUAL", "ISTIO_MUTUAL"]}, insecureSkipVerify=BOOLEAN
)
LABELLED: Final = an_object(("matchLabels",), matchLabels={**LABELS, "minProperties": 1})

SPECS: Final[dict[tuple[str, str], dict[str, Any]]] = {
    ("gateway.networking.k8s.io/v1", "HTTPRoute"): an_object(
        ("parentRefs", "rules"),
        parentRefs=PARENTS,
        hostnames=a_list(STRING, 1),
        rules=a_list(
            an_object(
                ("backendRefs",),
                matches=a_list(
                    an_object(path=an_object(("type", "value"), type={"enum": ["PathPrefix", "Exact"]}, value=STRING))
                ),
                backendRefs=a_list(an_object(("name",), group=STRING, kind=STRING, name=STRING, port=PORT), 1),
                timeouts=an_object(request=DURATION, backendRequest=DURATION),
            ),
            1,
        ),
    ),
    ("gateway.networking.k8s.io/v1", "Gateway"): an_object(
        ("gatewayClassName", "listeners"),
        gatewayClassName={"type": "string", "minLength": 1},
        listeners=a_list(
            an_object(
                ("name", "port", "protocol"),
                name=STRING,
                port=PORT,
                protocol={"enum": ["HTTP", "HTTPS"]},
                allowedRoutes=an_object(namespaces=an_object(("from",), **{"from": {"enum": ["Same", "All"]}})),
            ),
            1,
        ),
    ),
    ("inference.networking.k8s.io/v1", "InferencePool"): an_object(
        ("selector", "targetPorts", "endpointPickerRef"),
        selector=LABELLED,
        targetPorts={**a_list(an_object(("number",), number=PORT), 1), "maxItems": 8},
        endpointPickerRef=an_object(
            ("name", "port"),
            group=STRING,
            kind={"const": "Service"},
            name=STRING,
            port=an_object(("number",), number=PORT),
            failureMode={"enum": ["FailOpen", "FailClose"]},
        ),
    ),
    ("monitoring.coreos.com/v1", "ServiceMonitor"): an_object(
        ("selector", "endpoints"),
        selector=LABELLED,
        endpoints=a_list(
            an_object(
                port=STRING,
                path=STRING,
                interval=DURATION,
                scheme={"enum": ["http", "https"]},
                tlsConfig=an_object(insecureSkipVerify=BOOLEAN),
                authorization=an_object(credentials=an_object(("name", "key"), name=STRING, key=STRING)),
            ),
            1,
        ),
    ),
    ("monitoring.coreos.com/v1", "PrometheusRule"): an_object(
        ("groups",),
        groups=a_list(
            an_object(
                ("name", "rules"),
                name=STRING,
                rules=a_list(
                    {
                        **an_object(("alert", "expr"), alert=STRING, expr=STRING, labels=LABELS, annotations=LABELS),
                        "properties": {
                            "alert": {"type": "string", "pattern": "^Kvlb[A-Za-z]+$"},
                            "expr": STRING,
                            "for": DURATION,
                            "labels": an_object(("severity",), severity={"enum": ["critical", "warning"]}),
                            "annotations": an_object(("summary", "description"), summary=STRING, description=STRING),
                        },
                    },
                    1,
                ),
            ),
            1,
        ),
    ),
    ("keda.sh/v1alpha1", "ScaledObject"): an_object(
        ("scaleTargetRef", "triggers"),
        scaleTargetRef=an_object(("name",), apiVersion=STRING, kind=STRING, name=STRING),
        minReplicaCount=INTEGER,
        maxReplicaCount=INTEGER,
        pollingInterval=INTEGER,
        cooldownPeriod=INTEGER,
        triggers=a_list(
            an_object(
                ("type", "metadata"),
                type={"const": "prometheus"},
                metricType={"enum": ["AverageValue", "Value", "Utilization"]},
                metadata=an_object(
                    ("serverAddress", "query", "threshold"),
                    serverAddress={"type": "string", "pattern": "^https?://"},
                    query=STRING,
                    threshold={"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?$"},
                ),
            ),
            1,
        ),
    ),
    ("networking.istio.io/v1", "DestinationRule"): an_object(
        ("host",),
        host=STRING,
        trafficPolicy=an_object(
            tls=ISTIO_TLS, portLevelSettings=a_list(an_object(("port",), port=an_object(number=PORT), tls=ISTIO_TLS), 1)
        ),
    ),
}
