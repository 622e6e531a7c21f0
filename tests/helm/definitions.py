"""Schemas of values that several places of the chart take: pieces of Kubernetes' own objects, and kvlb's settings.

Knows what may stand there, so that a name that is misspelt is refused before anything is installed. kvlb's settings are
those of ``balancer.settings``; their defaults are left out, for they are not the chart's to say.
"""

from typing import Any, Final

import msgspec

from balancer import tenants
from balancer.settings import ReplicaSettings, Settings

Schema = dict[str, Any]

STRING: Final[Schema] = {"type": "string"}
INTEGER: Final[Schema] = {"type": "integer"}
BOOLEAN: Final[Schema] = {"type": "boolean"}
ANYTHING: Final[Schema] = {"type": "object"}

OBJECT_NAME: Final = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$"
QUANTITY: Final = r"^[0-9]+(\.[0-9]+)?(m|[eE][0-9]+|[kKMGTPE]i?)?$"


def an_object(required: tuple[str, ...] = (), /, **properties: Any) -> Schema:
    """An object with these properties and no others."""
    made: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**made, "required": list(required)} if required else made


def a_list(of: Schema, at_least: int = 0) -> Schema:
    made: Schema = {"type": "array", "items": of}
    return {**made, "minItems": at_least} if at_least else made


def a_map(of: Schema) -> Schema:
    return {"type": "object", "additionalProperties": of}


QUANTITIES: Final = a_map({"type": ["string", "number"], "pattern": QUANTITY})
LABELS: Final = a_map(STRING)
SELECTOR: Final = an_object(
    matchLabels=LABELS,
    matchExpressions=a_list(an_object(("key", "operator"), key=STRING, operator=STRING, values=a_list(STRING))),
)
SOURCES: Final = (
    "configMap secret emptyDir persistentVolumeClaim projected hostPath nfs csi downwardAPI ephemeral image".split()
)
SECURITY: Final = {
    "runAsNonRoot": BOOLEAN,
    "runAsUser": INTEGER,
    "runAsGroup": INTEGER,
    "seLinuxOptions": ANYTHING,
    "seccompProfile": an_object(("type",), type=STRING, localhostProfile=STRING),
    "appArmorProfile": an_object(("type",), type=STRING, localhostProfile=STRING),
}

PIECES: Final[dict[str, Schema]] = {
    "anything": ANYTHING,
    "labels": LABELS,
    "names": a_list({"type": "string", "minLength": 1}),
    "strings": a_list(STRING),
    "objectName": {"type": "string", "pattern": OBJECT_NAME, "maxLength": 253},
    "port": {"type": "integer", "minimum": 1, "maximum": 65535},
    "ports": a_list({"type": "integer", "minimum": 1, "maximum": 65535}, 1),
    "quantity": {"type": "string", "pattern": QUANTITY},
    "quantityOrNone": {"type": "string", "pattern": f"^$|{QUANTITY}"},
    "intOrPercent": {"type": ["integer", "string", "null"], "pattern": "^[0-9]{1,3}%$", "minimum": 0},
    "resources": an_object(limits=QUANTITIES, requests=QUANTITIES, claims=a_list(ANYTHING)),
    "tolerations": a_list(
        an_object(
            key=STRING,
            operator={"enum": ["Equal", "Exists"]},
            value=STRING,
            effect={"enum": ["NoSchedule", "PreferNoSchedule", "NoExecute"]},
            tolerationSeconds=INTEGER,
        )
    ),
    "affinity": an_object(nodeAffinity=ANYTHING, podAffinity=ANYTHING, podAntiAffinity=ANYTHING),
    "topologySpread": a_list(
        an_object(
            ("maxSkew", "topologyKey", "whenUnsatisfiable"),
            maxSkew=INTEGER,
            topologyKey=STRING,
            whenUnsatisfiable={"enum": ["DoNotSchedule", "ScheduleAnyway"]},
            labelSelector=SELECTOR,
            minDomains=INTEGER,
            matchLabelKeys=a_list(STRING),
            nodeAffinityPolicy=STRING,
            nodeTaintsPolicy=STRING,
        )
    ),
    "env": a_list(an_object(("name",), name=STRING, value=STRING, valueFrom=ANYTHING)),
    "volumes": a_list({**an_object(("name",), name=STRING, **dict.fromkeys(SOURCES, ANYTHING)), "minProperties": 2}),
    "mounts": a_list(
        an_object(
            ("name", "mountPath"),
            name=STRING,
            mountPath=STRING,
            readOnly=BOOLEAN,
            subPath=STRING,
            subPathExpr=STRING,
            mountPropagation=STRING,
        )
    ),
    "podSecurityContext": an_object(
        **SECURITY,
        fsGroup=INTEGER,
        fsGroupChangePolicy=STRING,
        supplementalGroups=a_list(INTEGER),
        sysctls=a_list(ANYTHING),
    ),
    "securityContext": an_object(
        **SECURITY,
        allowPrivilegeEscalation=BOOLEAN,
        readOnlyRootFilesystem=BOOLEAN,
        privileged=BOOLEAN,
        capabilities=an_object(add=a_list(STRING), drop=a_list(STRING)),
    ),
    "peers": a_list(
        {
            **an_object(
                podSelector=SELECTOR,
                namespaceSelector=SELECTOR,
                ipBlock=an_object(("cidr",), cidr=STRING, **{"except": a_list(STRING)}),
            ),
            "minProperties": 1,
        }
    ),
    "parentRefs": a_list(
        an_object(("name",), group=STRING, kind=STRING, name=STRING, namespace=STRING, sectionName=STRING, port=INTEGER)
    ),
    "hosts": a_list(
        an_object(
            ("host",),
            host=STRING,
            paths=a_list(
                an_object(("path",), path=STRING, pathType={"enum": ["Prefix", "Exact", "ImplementationSpecific"]})
            ),
        )
    ),
    "ingressTls": a_list(an_object(hosts=a_list(STRING), secretName=STRING)),
    "adapters": a_list(
        an_object(("name", "path"), name={"type": "string", "minLength": 1}, path={"type": "string", "minLength": 1})
    ),
}

NUMBER: Final[Schema] = {"type": "number"}

BESIDE: Final[dict[str, Schema]] = {
    "discovery": an_object(
        api_server=STRING,
        token_file=STRING,
        ca_file=STRING,
        server=STRING,
        resync_seconds=NUMBER,
        timeout_seconds=NUMBER,
        ttl_seconds=NUMBER,
        leave_seconds=NUMBER,
        grace_seconds=NUMBER,
    ),
    "siblings": an_object(api_key=STRING, server=STRING, timeout_seconds=NUMBER),
    "epp": an_object(fallbacks=INTEGER, subset_header=BOOLEAN, piece_bytes=INTEGER),
}
"""What may be set in sections of which other values say the rest; of discovery by either kind."""

OWNED: Final = {
    "discovery": ("name", "namespace", "selector", "service", "host", "port", "scheme", "replica"),
    "siblings": ("urls", "host", "port", "scheme", "interval_seconds", "prewarm"),
    "epp": ("host", "port", "response", "cert_file", "key_file"),
}

CHARTS: Final = ("include", "replicas")
"""Settings that other values are for, as ``OWNED`` are. Templates refuse them with a sentence; a schema could not."""


def settings() -> dict[str, Schema]:
    """``settings`` (a whole settings file), ``replica``, ``replicas`` and ``keys``, and what they are made of."""
    whole = msgspec.json.schema(Settings)["$defs"]
    made = {f"settings.{name}": _plain(schema) for name, schema in whole.items() if name != "Settings"}
    for name in ("PolicySettings", "AbSettings", "ShadowSettings", "StoreSettings"):
        of = made[f"settings.{name}"]  # what stands beside is the named one's own
        of["properties"].pop("settings")
        of["additionalProperties"] = True
    timeouts = made["settings.TimeoutSettings"]
    timeouts["patternProperties"] = {"^/": timeouts["properties"].pop("routes")["additionalProperties"]}
    top = _plain(whole["Settings"])
    top["properties"] |= dict.fromkeys(CHARTS, True)
    for name, beside in BESIDE.items():
        owned = dict.fromkeys(OWNED[name], True)
        top["properties"][name] = {**beside, "properties": {**beside["properties"], **owned}}
    replica = made[f"settings.{ReplicaSettings.__name__}"]
    others = {name: schema for name, schema in replica["properties"].items() if name != "url"}
    keys = _plain(msgspec.json.schema(tenants._Key)["$defs"]["_Key"])
    for name in ("DiscoverySettings", "SiblingSettings", "EppSettings"):
        made.pop(f"settings.{name}", None)
    return {
        **made,
        "settings": top,
        "replica": an_object(**others),
        "replicas": a_list(replica),
        "keys": a_list(keys),
    }


def _plain(schema: Any) -> Any:
    """Without titles, sentences and defaults; references lead to the chart's definitions."""
    if isinstance(schema, list):
        return [_plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {}
    for name, value in schema.items():
        if name == "properties":
            made[name] = {each: _plain(of) for each, of in value.items()}
        elif name == "$ref":
            made[name] = value.replace("#/$defs/", "#/definitions/settings.")
        elif name not in {"title", "description", "default"} and not (name == "required" and not value):
            made[name] = _plain(value)
    return made
