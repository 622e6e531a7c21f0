"""What the chart makes of kvlb itself, in front of engines that are there."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.helm import sizing
from tests.helm.rendering import CASES, NAMESPACE, Rendered, container, labels_of_pods, matches, pod_of, render


def toml(rendered: Rendered) -> dict[str, Any]:
    return tomllib.loads(rendered.settings)


def checksum(rendered: Rendered) -> str:
    return str(rendered.gateway["spec"]["template"]["metadata"]["annotations"]["checksum/settings"])


def test_by_default_kvlb_finds_pods_by_their_label_and_may_read_them_and_nothing_else() -> None:
    rendered = render()
    assert {each["kind"] for each in rendered} == {
        "Deployment", "Service", "ServiceAccount", "Role", "RoleBinding", "ConfigMap", "PodDisruptionBudget", "Pod",
    }  # fmt: skip
    found = toml(rendered)["discovery"]
    assert found == {
        "name": "kubernetes", "namespace": NAMESPACE, "selector": "kvlb.io/engine=true", "port": 8000, "scheme": "http",
    }  # fmt: skip
    assert rendered.one("Role")["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}
    ]
    assert rendered.one("Role")["metadata"]["namespace"] == NAMESPACE
    assert rendered.one("RoleBinding")["subjects"] == [
        {"kind": "ServiceAccount", "name": "kv-kvlb", "namespace": NAMESPACE}
    ]
    assert pod_of(rendered.gateway)["serviceAccountName"] == "kv-kvlb"
    assert rendered.gateway["spec"]["replicas"] == 2


def test_slices_may_be_read_where_a_service_is_named() -> None:
    rendered = render("full")
    assert [rule["resources"] for rule in rendered.one("Role")["rules"]] == [["pods"], ["endpointslices"]]
    assert toml(rendered)["discovery"]["service"] == "vllm"
    assert toml(rendered)["discovery"]["selector"] == "app=vllm,tier=1"
    assert "selector" not in toml(render("default", engines__service="vllm"))["discovery"]


def test_engines_elsewhere_are_read_there_by_an_account_from_here() -> None:
    rendered = render("netpol")
    for kind in ("Role", "RoleBinding"):
        assert rendered.one(kind)["metadata"]["namespace"] == "engines"
    assert rendered.one("RoleBinding")["subjects"][0]["namespace"] == NAMESPACE
    assert toml(rendered)["discovery"]["namespace"] == "engines"


@pytest.mark.parametrize("case", ["static", "dns"])
def test_without_the_api_server_there_are_no_rights(case: str) -> None:
    rendered = render(case)
    assert rendered.all("Role") == rendered.all("RoleBinding") == []
    assert pod_of(rendered.gateway)["automountServiceAccountToken"] is False


def test_other_settings_are_other_pods() -> None:
    before = checksum(render())
    assert checksum(render("default", gateway__podLabels={"a": "b"})) == before
    for values in (
        {"settings__policy": {"name": "round_robin"}},
        {"engines__port": 9000},
        {"gateway__maxBlocks": 7000},
    ):
        assert checksum(render("default", **values)) != before
    secret = "checksum/secret-settings"
    seen = {
        render("default", secretSettings__values={"upstream": {"api_key": key}}).gateway["spec"]["template"][
            "metadata"
        ]["annotations"][secret]
        for key in ("one", "two")
    }
    assert len(seen) == 2


def test_what_is_set_stands_in_the_file_as_it_was_set() -> None:
    found = toml(render("full"))
    assert found["timeouts"] == {"total_seconds": 900, "/v1/embeddings": {"first_byte_seconds": 30}}
    assert found["models"] == [{"name": 'a "quoted" & odd/name', "bytes_per_token": 131072}]
    assert found["admission"] == {"max_in_flight": 64, "tenant_weights": {"acme": 3.5}}
    assert found["sessions"] == {"headers": ["x-session-id"], "fields": []}
    assert found["policy"]["shadow"] == {"name": "least_load"}
    assert found["index"]["max_blocks"] == 20_000_000
    assert found["server"]["processes"] == 2


@pytest.mark.parametrize(
    "value", ['a"b\\c', "two\nlines", "tab\t", "<&>", "é ☃ 𝔘", "\u007f\u0001", "'", "{{ .Values.mode }}", "true", "1e5"]
)
def test_any_string_comes_through(value: str) -> None:
    rendered = render("default", settings__tracing={"service_name": value})
    assert toml(rendered)["tracing"]["service_name"] == value


@pytest.mark.parametrize("number", [0, 1, 67108864, 1073741824, 0.25, 1e-6, 123456789012, 1e9])
def test_numbers_stay_what_they_are(number: float) -> None:
    found = toml(render("default", settings__hashing={"memory_bytes": number} if number == int(number) else {},
                        settings__slow_start={"seconds": number}))  # fmt: skip
    assert found["slow_start"]["seconds"] == number
    if number == int(number):
        assert isinstance(found["hashing"]["memory_bytes"], int)


def test_secrets_are_in_a_file_of_their_own_that_the_settings_include() -> None:
    rendered = render("secured")
    found = toml(rendered)
    assert found["include"] == ["/etc/kvlb/secret/kvlb.toml"]
    assert "api_key" not in rendered.settings
    secret = tomllib.loads(rendered.one("Secret", "kv-kvlb-settings")["stringData"]["kvlb.toml"])
    assert secret["upstream"] == {"api_key": "the-engines-own-key"}
    keys = tomllib.loads(rendered.one("Secret", "kv-kvlb-keys")["stringData"]["keys.toml"])["keys"]
    assert [each["tenant"] for each in keys] == ["search", "operations"]
    assert keys[1] == {
        "key": "sk-an-admin-key-of-many-characters", "tenant": "operations", "admin": True, "models": ["llama-*"],
        "requests_per_minute": 600,
    }  # fmt: skip


def files_of(rendered: Rendered) -> dict[str, tuple[str, str]]:
    """Where a file lies in the container -> (object, key)."""
    found = {}
    volumes = {each["name"]: each for each in pod_of(rendered.gateway)["volumes"]}
    for mount in container(rendered.gateway)["volumeMounts"]:
        for source in volumes[mount["name"]].get("projected", {}).get("sources", []):
            ((_, of),) = source.items()
            if "items" not in of:
                found[f"{mount['mountPath']}/kvlb.toml"] = (of["name"], "kvlb.toml")
            for item in of.get("items", []):
                found[f"{mount['mountPath']}/{item['path']}"] = (of["name"], item["key"])
    return found


@pytest.mark.parametrize("case", CASES)
def test_every_file_that_the_settings_name_is_mounted(case: str) -> None:
    rendered = render(case)
    mounted = files_of(rendered)
    named = set(re.findall(r'"(/etc/kvlb/[^"]+)"', rendered.settings))
    assert named | {"/etc/kvlb/kvlb.toml"} == set(mounted)
    assert f"--config={next(iter(mounted))}" in container(rendered.gateway)["args"]


def test_nothing_is_mounted_within_what_is_read_only() -> None:
    for case in CASES:
        mounts = container(render(case).gateway)["volumeMounts"]
        closed = [Path(each["mountPath"]) for each in mounts if each.get("readOnly")]
        assert not [each for each in mounts for outer in closed if outer in Path(each["mountPath"]).parents]


def test_what_kvlb_writes_can_be_written() -> None:
    rendered = render()
    volumes = {each["name"]: each for each in pod_of(rendered.gateway)["volumes"]}
    open_to_write = {
        each["mountPath"] for each in container(rendered.gateway)["volumeMounts"] if "emptyDir" in volumes[each["name"]]
    }
    assert open_to_write == {"/tmp", "/var/lib/kvlb"}
    assert toml(rendered)["snapshot"]["path"] == "/var/lib/kvlb/index.snapshot"
    assert "snapshot" not in toml(render("dns"))


def test_a_pod_is_given_the_time_that_it_drains_for() -> None:
    for case in CASES:
        rendered = render(case)
        server = toml(rendered)["server"]
        longest = server["drain_grace_seconds"] + server["drain_timeout_seconds"]
        assert pod_of(rendered.gateway)["terminationGracePeriodSeconds"] > longest


def test_probes_ask_what_says_so() -> None:
    only = container(render().gateway)
    assert only["livenessProbe"]["httpGet"]["path"] == only["startupProbe"]["httpGet"]["path"] == "/health"
    assert only["readinessProbe"]["httpGet"]["path"] == "/ready"
    assert container(render("tls").gateway)["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"
    startup = container(render("default", gateway__startupSeconds=301).gateway)["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 301


def test_an_update_takes_no_pod_before_another_one_is_ready() -> None:
    assert render().gateway["spec"]["strategy"] == {
        "type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
    }  # fmt: skip


def test_siblings_find_each_other_also_when_they_are_not_ready() -> None:
    rendered = render()
    service = rendered.one("Service", toml(rendered)["siblings"]["host"])
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["spec"]["ports"][0]["port"] == toml(rendered)["siblings"]["port"] == toml(rendered)["server"]["port"]
    assert "siblings" not in toml(render("dns"))
    assert [each["metadata"]["name"] for each in render("dns").all("Service")] == ["kv-kvlb"]


@pytest.mark.parametrize(
    ("values", "processes", "blocks", "more"),
    [
        ({}, 1, 5_000_000, 0),
        ({"gateway__processes": 4}, 4, 5_000_000, 0),
        ({"gateway__maxBlocks": 25_000_000}, 1, 25_000_000, 0),
        ({"settings__hashing": {"memory_bytes": 256 * 2**20}}, 1, 5_000_000, 192),
    ],
)
def test_resources_follow_the_rule(values: dict[str, Any], processes: int, blocks: int, more: int) -> None:
    resources = container(render("default", **values).gateway)["resources"]
    assert resources["requests"]["cpu"] == str(sizing.cores(processes))
    asked = int(resources["requests"]["memory"].removesuffix("Mi"))
    assert asked == sizing.memory_mib(processes, blocks) + more
    assert resources["limits"] == {"memory": f"{asked * 3 // 2}Mi"}
    own = {"requests": {"cpu": "3", "memory": "9Gi"}, "limits": {"memory": "9Gi"}}
    assert container(render("default", gateway__resources=own, **values).gateway)["resources"] == own


def test_the_limit_of_memory_holds_the_index_at_its_limit() -> None:
    """As measured: 5 million blocks with learned keys take 975 MiB while they are saved (docs/performance.md)."""
    limit = int(container(render().gateway)["resources"]["limits"]["memory"].removesuffix("Mi"))
    assert limit > 975 + sizing.PROCESS_MIB.value + sizing.MEMORY_MIB


def test_what_scales_it_says_how_many_there_are() -> None:
    for case in ("hpa", "keda"):
        assert "replicas" not in render(case).gateway["spec"]
    metrics = render("hpa").one("HorizontalPodAutoscaler")["spec"]["metrics"]
    assert [each["type"] for each in metrics] == ["Resource", "Pods"]
    spec = render("keda").one("ScaledObject")["spec"]
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (3, 12)
    (trigger,) = spec["triggers"]
    assert trigger["metadata"]["threshold"] == "120.5"
    service = render("keda").one("Service", "kv-kvlb")["metadata"]["name"]
    assert f'namespace="{NAMESPACE}",job="{service}"' in trigger["metadata"]["query"]


def test_the_service_monitor_finds_one_service() -> None:
    rendered = render("monitoring")
    monitor = rendered.one("ServiceMonitor")
    selector = monitor["spec"]["selector"]["matchLabels"]
    found = [each for each in rendered.all("Service") if matches(selector, each["metadata"]["labels"])]
    assert [each["metadata"]["name"] for each in found] == ["kv-kvlb"]
    assert monitor["spec"]["endpoints"][0]["port"] in {port["name"] for port in found[0]["spec"]["ports"]}
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    (endpoint,) = render("tls").one("ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["scheme"] == "https"
    assert endpoint["authorization"]["credentials"] == {"name": "kvlb-admin", "key": "api-key"}


def test_everything_that_pods_can_be_given_is_given() -> None:
    rendered = render("full")
    pod, only = pod_of(rendered.gateway), container(rendered.gateway)
    assert pod["imagePullSecrets"] == [{"name": "mirror"}]
    assert pod["nodeSelector"] == {"kubernetes.io/arch": "amd64"}
    assert pod["tolerations"][0]["key"] == "dedicated"
    assert pod["topologySpreadConstraints"][0]["topologyKey"] == "topology.kubernetes.io/zone"
    assert pod["priorityClassName"] == "high"
    assert "podAntiAffinity" in pod["affinity"]
    assert only["image"] == "mirror.example/kvlb:1.2.3"
    assert [each["name"] for each in only["env"]] == ["TZ", "NODE"]
    assert {"name": "policies", "mountPath": "/opt/policies"} in only["volumeMounts"]
    assert labels_of_pods(rendered.gateway)["cost"] == "shared"
    assert rendered.one("Service", "kv-router")["spec"]["type"] == "LoadBalancer"
    assert rendered.one("PodDisruptionBudget")["spec"]["minAvailable"] == "50%"
    assert all(each["metadata"]["labels"]["team"] == "inference" for each in rendered)
    digest = f"sha256:{'a' * 64}"
    assert container(render("default", image__digest=digest).gateway)["image"] == f"kvlb/kvlb@{digest}"


def test_a_route_gives_answers_all_the_time_that_they_take() -> None:
    (rule,) = render("static").one("HTTPRoute")["spec"]["rules"]
    assert rule["timeouts"] == {"request": "0s"}
    assert rule["backendRefs"] == [{"name": "kv-kvlb", "port": 8080}]
    hosts = [each["host"] for each in render("full").one("Ingress")["spec"]["rules"]]
    assert hosts == ["llm.example.org", "other.example.org"]


def test_the_platforms_users_are_left_to_the_platform() -> None:
    rendered = render("openshift")
    assert pod_of(rendered.gateway)["securityContext"] == {
        "runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"},
    }  # fmt: skip
    assert rendered.all("ServiceAccount") == []
    assert pod_of(rendered.gateway)["serviceAccountName"] == "kvlb"
    assert rendered.one("RoleBinding")["subjects"][0]["name"] == "kvlb"
