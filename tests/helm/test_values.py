"""Values that cannot be used end the installation with words: what is misspelt, of another type, or contradicts itself."""

import json
import re
import tomllib
from typing import Any

import jsonschema
import pytest
import yaml

from balancer.errors import ConfigError
from balancer.policies import base as policies
from balancer.settings import load
from tests.helm.rendering import CHART, refused, render
from tests.helm.values_file import Value, read

SCHEMA = json.loads((CHART / "values.schema.json").read_text())

FLEET = {"enabled": True, "engine": {"model": "m"}}
KEYS = [{"sha256": "0" * 64, "tenant": "t"}]
DIGEST = f"sha256:{'0' * 64}"


def test_the_defaults_are_in_accord_with_the_schema() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    jsonschema.validate(yaml.safe_load((CHART / "values.yaml").read_text()), SCHEMA)


def test_every_default_has_its_place_in_the_schema_and_none_is_free() -> None:
    def walk(values: list[Value], schema: dict[str, Any]) -> None:
        assert schema["additionalProperties"] is False
        assert set(schema["properties"]) - {"global"} == {value.path[-1] for value in values}
        for value in values:
            if value.inner:
                walk(value.inner, schema["properties"][value.path[-1]])

    walk(read(), SCHEMA)


def objects(schema: Any, path: str = "") -> list[tuple[str, dict[str, Any]]]:
    found = []
    if isinstance(schema, dict):
        if "properties" in schema and isinstance(schema["properties"], dict) and schema.get("type") == "object":
            found.append((path, schema))
        for name, inner in schema.items():
            found += objects(inner, f"{path}/{name}")
    return found


def test_no_object_takes_names_that_are_not_known() -> None:
    named_ones_own = {"PolicySettings", "AbSettings", "ShadowSettings", "StoreSettings"}
    for path, schema in objects(SCHEMA):
        if path.rpartition("settings.")[2] not in named_ones_own:
            assert schema["additionalProperties"] is False, path


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"gatway": {}}, "gatway"),
        ({"gateway__replica": 2}, "replica"),
        ({"gateway__replicas": "2"}, "/gateway/replicas"),
        ({"gateway__processes": 0}, "/gateway/processes"),
        ({"gateway__service__type": "ExternalName"}, "/gateway/service/type"),
        ({"gateway__resources": {"limit": {}}}, "limit"),
        ({"gateway__resources": {"limits": {"memory": "2 GB"}}}, "memory"),
        ({"gateway__tolerations": [{"keys": "a"}]}, "keys"),
        ({"gateway__affinity": {"podAfinity": {}}}, "podAfinity"),
        ({"gateway__extraEnv": [{"nam": "a"}]}, "nam"),
        ({"gateway__extraVolumes": [{"name": "a", "configmap": {}}]}, "configmap"),
        ({"gateway__securityContext__readOnlyRootFileSystem": True}, "readOnlyRootFileSystem"),
        ({"mode": "router"}, "/mode"),
        ({"image__digest": "sha256:abc"}, "/image/digest"),
        ({"engines__port": 70000}, "/engines/port"),
        ({"engines__matchLabels": {"app": True}}, "/engines/matchLabels/app"),
        ({"engines__replicas": [{"uri": "http://a:1"}]}, "uri"),
        ({"engines__replica": {"url": "http://a:1"}}, "url"),
        ({"settings__polcy": {}}, "polcy"),
        ({"settings__siblings": {"timeout": 1}}, "timeout"),
        ({"settings__discovery": {"resync": 1}}, "resync"),
        ({"settings__epp": {"fallback": 1}}, "fallback"),
        ({"settings__timeouts": {"idle_second": 1}}, "idle_second"),
        ({"settings__timeouts": {"/v1/embeddings": {"first_bite_seconds": 1}}}, "first_bite_seconds"),
        ({"settings__admission": {"max_in_flight": "many"}}, "max_in_flight"),
        ({"secretSettings__values": {"upstream": {"apikey": "k"}}}, "apikey"),
        ({"auth__keys": [{"sha": "0", "tenant": "t"}]}, "sha"),
        ({"networkPolicy__clients": [{"podSelectr": {}}]}, "podSelectr"),
        ({"networkPolicy__clients": [{}]}, "/networkPolicy/clients/0"),
        ({"httpRoute__parentRefs": [{"names": "a"}]}, "names"),
        ({"ingress__hosts": [{"hosts": "a"}]}, "hosts"),
        ({"fleet__engine__tensorParallel": 2}, "tensorParallel"),
        ({"fleet__pools": {"a": {"rol": "prefill"}}}, "rol"),
        ({"fleet__pools": {"a": {"lora": {"maxLora": 1}}}}, "maxLora"),
        ({"fleet__pools": {"A_b": {}}}, "A_b"),
        ({"stores__redis": {}}, "redis"),
        ({"epp__inferencePool__failureMode": "Open"}, "failureMode"),
    ],
)
def test_what_is_misspelt_or_of_another_type_is_refused_by_name(values: dict[str, Any], told: str) -> None:
    said = refused("default", **values)
    assert "values don't meet the specifications of the schema" in said
    assert told in said


CONTRADICTIONS: list[tuple[str, dict[str, Any], str]] = [
    ("default", {"image__tag": "1", "image__digest": DIGEST}, "image.tag and image.digest: both name an image"),
    ("hpa", {"gateway__replicas": 3}, "gateway.replicas: autoscaling says how many Pods there are"),
    ("keda", {"gateway__replicas": 3}, "gateway.replicas: autoscaling says how many Pods there are"),
    ("keda", {"autoscaling__hpa__enabled": True}, "autoscaling.hpa and autoscaling.keda: both would scale"),
    ("keda", {"autoscaling__keda__serverAddress": ""}, "autoscaling.keda.serverAddress: KEDA has to know"),
    ("keda", {"autoscaling__keda__maxReplicas": 1}, "autoscaling.keda.minReplicas: is more than maxReplicas"),
    ("hpa", {"autoscaling__hpa__maxReplicas": 1}, "autoscaling.hpa.minReplicas: is more than maxReplicas"),
    ("hpa", {"autoscaling__hpa__targetCPU": 0, "autoscaling__hpa__targetRequestsPerSecond": 0},
     "has nothing to scale by"),
    ("default", {"podDisruptionBudget__minAvailable": 2}, "no node could ever be drained"),
    ("default", {"settings__upstream": {"api_key": "k"}},
     "settings.upstream.api_key: would be readable in a ConfigMap"),
    ("default", {"settings__snapshot": {"sibling_api_key": "k"}},
     "settings.snapshot.sibling_api_key: would be readable"),
    ("default", {"settings__stores": [{"name": "redis", "url": "redis://:secret@host:6379"}]},
     "settings: a URL there has a name or password before its @"),
    ("default", {"settings__stores": [{"name": "mine:Store", "password": "secret"}]},
     "settings: something there is called like a secret"),
    ("default", {"settings__tracing": {"endpoint": "http://user:secret@host"}}, "settings: a URL there has a name or"),
    ("static", {"engines__replicas": [{"url": "http://user:secret@host:8000"}]}, "engines.replicas: a URL there has"),
    ("default", {"commonLabels": {"app.kubernetes.io/name": "a"}}, "commonLabels: app.kubernetes.io/name is set by"),
    ("default", {"gateway__podLabels": {"app.kubernetes.io/instance": "a"}},
     "gateway.podLabels: app.kubernetes.io/instance is set by the chart"),
    ("default", {"gateway__podAnnotations": {"checksum/settings": "a"}},
     "gateway.podAnnotations: checksum/settings is set by the chart"),
    ("fleet", {"fleet__engine__podLabels": {"kvlb.io/role": "prefill"}},
     "fleet: podLabels of pool engine: kvlb.io/role is set by the chart; leave it out, or use role"),
    ("fleet", {"fleet__engine__podAnnotations": {"kvlb.io/port": "9"}},
     "fleet: podAnnotations of pool engine: kvlb.io/port is set by the chart"),
    ("fleet", {"fleet__pools": {"siblings": {}}}, "fleet.pools: siblings is the name of another object of the chart"),
    ("lmcache", {"fleet__pools": {"redis": {}}}, "fleet.pools: redis is the name of another object of the chart"),
    ("fleet", {"fleet__pools": {"a": None}}, "fleet.pools: all of them are let go with null"),
    ("pd", {"fleet__transfer__sideChannelPort": 5557}, "fleet.transfer.sideChannelPort: 5557 and those after it"),
    ("pd", {"fleet__transfer__sideChannelPort": 8000}, "reach into those of engines.port"),
    ("epp", {"epp__port": 8080}, "epp.port: 8080 is where kvlb's own HTTP port listens"),
    ("epp", {"epp__port": 81, "gateway__service__port": 81}, "epp.port: is gateway.service.port, too"),
    ("default", {"settings__server": {"port": 1}},
     "settings.server.port: is what the value gateway.service.port is for"),
    ("default", {"settings__server": {"processes": 2}},
     "settings.server.processes: is what the value gateway.processes"),
    ("default", {"settings__index": {"max_blocks": 1}},
     "settings.index.max_blocks: is what the value gateway.maxBlocks"),
    ("default", {"settings__replicas": []}, "settings.replicas: is what the value engines.replicas is for"),
    ("default", {"settings__discovery": {"name": "dns"}}, "settings.discovery.name: is what the value engines.discovery"),
    ("default", {"settings__siblings": {"urls": []}}, "settings.siblings.urls: is what the value siblings is for"),
    ("dns", {"settings__siblings": {"timeout_seconds": 1}}, "settings.siblings: there are none unless siblings.enabled"),
    ("static", {"settings__discovery": {"timeout_seconds": 1}}, "settings.discovery: with engines.discovery static nobody"),
    ("epp", {"settings__epp": {"port": 1}}, "settings.epp.port: is what the value epp.port is for"),
    ("default", {"settings__epp": {"fallbacks": 1}}, "epp: is for mode epp alone"),
    ("default", {"tls": {"enabled": True, "secretName": "a"}}, "siblings: with tls.enabled they would ask each other"),
    ("default", {"settings__include": "a"}, "settings.include: is what the value secretSettings is for"),
    ("default", {"settings__auth": {"keys_file": "a"}}, "settings.auth.keys_file: is what the value auth is for"),
    ("default", {"settings__tls": {"cert_file": "a"}}, "settings.tls.cert_file: is what the value tls.secretName"),
    ("default", {"settings__tls": {"client_ca_file": "a"}},
     "settings.tls.client_ca_file: the kubelet has no certificate"),
    ("default", {"secretSettings__existingSecret": "a", "secretSettings__values": {"upstream": {"api_key": "k"}}},
     "secretSettings.values and secretSettings.existingSecret: both say"),
    ("dns", {"engines__host": ""}, "engines.host: discovery by dns has to know a name"),
    ("default", {"engines__host": "a"}, "engines.host: is for engines.discovery dns alone"),
    ("static", {"engines__replicas": []}, "engines.replicas: with engines.discovery static there are no engines"),
    ("static", {"engines__service": "a"}, "engines.discovery static does not look at them"),
    ("default", {"engines__ranks": 4, "engines__replayPort": 5558},
     "with 4 data-parallel ranks, 5557 and those after it reach"),
    ("dp", {"engines__replayPort": 5558},
     "with 2 data-parallel ranks, 5557 and those after it reach into those from 5558"),
    ("default", {"engines__port": 5557}, "engines.port: lies among the ports of events"),
    ("default", {"engines__port": 5658, "engines__ranks": 2}, "engines.port: lies among the ports of replays"),
    ("default", {"auth__enabled": True}, "auth.keys: auth.enabled asks everybody for a key, and there is none"),
    ("default", {"auth__keys": KEYS}, "auth.keys: nobody is asked for a key unless auth.enabled"),
    ("secured", {"auth__existingSecret": "a"}, "auth.keys and auth.existingSecret: both say"),
    ("secured", {"secretSettings__values__siblings__api_key": ""}, "siblings: they ask each other for a key"),
    ("secured", {"monitoring__serviceMonitor__authorization__secretName": ""},
     "Prometheus needs a key with admin = true"),
    ("secured", {"tests__apiKey__secretName": ""}, "tests.apiKey.secretName: helm test needs a key"),
    ("tls", {"tls__secretName": ""}, "tls.secretName: name the Secret with the certificate"),
    ("default", {"tls__secretName": "a"}, "tls.secretName: is used only with tls.enabled"),
    ("default", {"tenants__isolation": True}, "tenants.isolation: tenants are told by their keys; set auth.enabled"),
    ("secured", {"tenants__existingSecret": ""}, "tenants.existingSecret: name a Secret with salt-secret"),
    ("epp", {"ingress": {"enabled": True, "hosts": [{"host": "a"}]}},
     "ingress: with mode epp clients ask the Envoy gateway"),
    ("epp", {"httpRoute": {"enabled": True, "parentRefs": [{"name": "a"}]}},
     "httpRoute: with mode epp the route leads to the pool"),
    ("epp", {"tls": {"enabled": True, "secretName": "a"}, "siblings__enabled": False},
     "tls: with mode epp clients do not ask kvlb"),
    ("epp", {"engines": {"discovery": "dns", "host": "a"}}, "engines.discovery: with mode epp the pool's Pods"),
    ("epp", {"engines__namespace": "other"}, "engines.namespace: an InferencePool selects Pods of its own namespace"),
    ("epp", {"networkPolicy__engineClients": []},
     "networkPolicy.engineClients: with mode epp it is the Envoy gateway that sends requests to engines"),
    ("epp-plain", {"networkPolicy__enabled": True}, "networkPolicy.engineClients: with mode epp"),
    ("epp", {"epp__gateway__className": ""}, "epp.gateway.className: a Gateway needs the name of a GatewayClass"),
    ("epp", {"epp__gateway__create": False}, "epp.route.parentRefs: name the Gateway that the route belongs to"),
    ("epp", {"mode": "gateway"}, "epp: is for mode epp alone"),
    ("full", {"httpRoute": {"enabled": True, "parentRefs": [{"name": "a"}]}},
     "ingress and httpRoute: both lead clients"),
    ("default", {"ingress__enabled": True}, "ingress.hosts: name at least one host"),
    ("default", {"httpRoute__enabled": True}, "httpRoute.parentRefs: name the Gateway"),
    ("default", {"fleet__enabled": True}, "fleet.engine.model: pool engine has no model"),
    ("fleet", {"engines__matchLabels": {"a": "b"}}, "the chart's own engines are found by labels of their own"),
    ("default", {"fleet": FLEET, "engines__discovery": "dns", "engines__host": "a"},
     "the chart's own engines are found by kubernetes"),
    ("fleet", {"engines__namespace": "other"},
     "engines.namespace: the chart's own engines are in the release's namespace"),
    ("fleet", {"engines__scheme": "https"}, "engines.scheme: the chart's own engines speak http"),
    ("fleet", {"secretSettings__existingSecret": ""}, "fleet.apiKey: kvlb needs the engines' key, too"),
    ("lmcache", {"stores__mooncake__enabled": True}, "stores.lmcache and stores.mooncake: engines have one store"),
    ("lmcache", {"gateway__processes": 2}, "gateway.processes: a store that is asked needs one process"),
    ("lmcache", {"settings__stores": [{"name": "a"}]},
     "settings.stores: the store of the chart's own engines is set by stores"),
    ("lmcache", {"stores__lmcache__redis__url": "redis://u:p@host"},
     "stores.lmcache.redis.url: a password in it would be readable"),
    ("lmcache", {"fleet__pools": {"a": {}, "b": {"tensorParallelSize": 2}}},
     "stores: pools differ in tensorParallelSize"),
    ("default", {"stores__lmcache__enabled": True}, "stores: they are for the chart's own engines"),
    ("pd", {"settings__disaggregation": {"name": "nixl"}},
     "settings.disaggregation.name: is what the value fleet.transfer.connector"),
    ("pd", {"fleet__pools__decode": None}, "there are pools that prefill, and none that decodes"),
    ("pd", {"fleet__pools__prefill": None}, "there are pools that decode, and none that prefills"),
    ("fleet", {"fleet__engine__cache__existingClaim": "a"}, "has cache.existingClaim and cache.size"),
    ("fleet", {"fleet__kind": "Deployment"}, "has cache.size, a claim for each Pod, which a Deployment has not"),
    ("lora", {"fleet__engine__lora__enabled": False}, "has lora.modules, which are used only with lora.enabled"),
    ("fleet", {"fleet__engine__extraArgs": ["--kv-events-config={}"]},
     "extraArgs has --kv-events-config, which the chart sets"),
]  # fmt: skip


@pytest.mark.parametrize(("case", "values", "sentence"), CONTRADICTIONS)
def test_what_contradicts_itself_is_refused_with_a_sentence(case: str, values: dict[str, Any], sentence: str) -> None:
    assert sentence in refused(case, **values)


def test_every_sentence_of_the_templates_is_said_to_somebody() -> None:
    text = "".join(path.read_text() for path in (CHART / "templates").glob("_checks*.tpl"))
    sentences = re.findall(r'fail (?:\(printf )?"([^"]+)"', text)
    assert len(sentences) == text.count("{{- fail ") > 50
    said = "\n".join(refused(case, **values) for case, values, _ in CONTRADICTIONS)
    patterns = [re.sub("%[sd]", ".+", re.escape(each)) for each in sentences]
    assert [each for each in patterns if not re.search(each, said)] == []


@pytest.mark.parametrize(
    ("policy", "told"), [({"name": "cach_aware"}, "cach_aware"), ({"name": "cache_aware", "bussy": 1}, "bussy")]
)
def test_names_of_policies_and_their_own_settings_are_for_kvlb_to_check(policy: dict[str, Any], told: str) -> None:
    """As the documents say: an image may have policies that no schema of the chart knows."""
    asked = load(render("default", settings__policy=policy).settings).policy
    with pytest.raises(ConfigError, match=told):
        policies.make(asked.name, asked.settings)


def test_engines_that_no_policy_closes_need_no_clients_named() -> None:
    changes = {"networkPolicy__engineClients": [], "networkPolicy__engines": False}
    assert len(render("epp", **changes).all("NetworkPolicy")) == 1
    assert len(render("fleet", networkPolicy__enabled=True).all("NetworkPolicy")) == 2


def test_values_that_are_let_go_with_null_are_as_if_they_were_not_there() -> None:
    rendered = render("default", gateway__extraEnv=None, podDisruptionBudget__minAvailable=None, engines__replica=None)
    assert rendered.one("PodDisruptionBudget")["spec"]["maxUnavailable"] == 1


def test_a_picker_can_keep_tenants_apart() -> None:
    """The salt is put into the body that the proxy is given back (tests/integration/test_epp.py)."""
    values = {"auth": {"enabled": True, "existingSecret": "a"}, "tenants": {"isolation": True, "existingSecret": "b"}}
    rendered = render("epp", siblings__enabled=False, tests__enabled=False, **values)
    assert tomllib.loads(rendered.settings)["tenants"]["isolation"] is True
