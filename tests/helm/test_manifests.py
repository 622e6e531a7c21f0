"""Every manifest of every file in helm/ci: valid, of no deprecated kind, safe, and in accord with the others."""

import json
import re
import tomllib
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.helm.custom_resources import SPECS
from tests.helm.rendering import (
    CASES,
    CHART,
    NAMESPACE,
    RELEASE,
    Manifest,
    Rendered,
    asked,
    container,
    labels_of_pods,
    matches,
    pod_of,
    render,
    with_pods,
)

OLDEST = re.sub(r"[^0-9.].*", "", yaml.safe_load((CHART / "Chart.yaml").read_text())["kubeVersion"].lstrip(">="))
NEWEST = kubernetes_validate.latest_version()

CURRENT = {
    "v1", "apps/v1", "autoscaling/v2", "policy/v1", "networking.k8s.io/v1", "rbac.authorization.k8s.io/v1",
    *(version for version, _ in SPECS),
}  # fmt: skip
"""Versions of APIs that no release of Kubernetes has called deprecated, or the only ones that there are."""


@pytest.fixture(params=CASES)
def rendered(request: pytest.FixtureRequest) -> Rendered:
    return render(request.param)


def test_there_is_a_file_for_each_thing_that_can_be_installed() -> None:
    assert len(CASES) >= 12
    kinds = {(each["apiVersion"], each["kind"]) for case in CASES for each in render(case)}
    assert set(SPECS) <= kinds
    templates = {path.relative_to(CHART / "templates") for path in (CHART / "templates").rglob("*.yaml")}
    sources = set()
    for case in CASES:
        values = str(CHART / "ci" / f"{case}-values.yaml")
        sources |= set(
            re.findall(r"# Source: kvlb/templates/(\S+)", asked("template", RELEASE, str(CHART), "-f", values).stdout)
        )
    assert {str(each) for each in templates} - sources == {"checks.yaml"}


@pytest.mark.parametrize("case", CASES)
def test_helm_finds_nothing_to_complain_of(case: str) -> None:
    done = asked("lint", "--strict", "--quiet", str(CHART), "--values", str(CHART / "ci" / f"{case}-values.yaml"))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_kubernetes_would_take_each_of_them(rendered: Rendered, version: str) -> None:
    for manifest in rendered:
        spec = SPECS.get((manifest["apiVersion"], manifest["kind"]))
        if spec is None:
            kubernetes_validate.validate(manifest, version, strict=True)
        else:
            jsonschema.validate(manifest["spec"], spec)
            assert set(manifest) == {"apiVersion", "kind", "metadata", "spec"}


def test_no_api_is_deprecated(rendered: Rendered) -> None:
    assert {each["apiVersion"] for each in rendered} <= CURRENT


def test_names_are_unique_and_fit(rendered: Rendered) -> None:
    names = [(each["kind"], each["metadata"]["namespace"], each["metadata"]["name"]) for each in rendered]
    assert len(names) == len(set(names))
    assert all(re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", name) for _, _, name in names)
    assert all(each["metadata"]["labels"]["app.kubernetes.io/instance"] == RELEASE for each in rendered)


def test_a_long_name_of_a_release_still_fits() -> None:
    done = asked("template", "r" * 53, str(CHART), "-f", str(CHART / "ci" / "mooncake-values.yaml"))
    assert done.returncode == 0, done.stderr
    names = [each["metadata"]["name"] for each in yaml.safe_load_all(done.stdout) if each]
    assert all(len(name) <= 63 for name in names)


@pytest.mark.parametrize("word", ["123", "1e3", "null", "true"])
def test_names_that_look_like_something_else_stay_text(word: str) -> None:
    values = str(CHART / "ci" / "fleet-values.yaml")
    pools = f'fleet.pools={{"{word}":{{}}}}' if word.isalpha() else "fleet.pools={}"
    done = asked("template", word, str(CHART), "--namespace", word, "-f", values, "--set-json", pools)
    assert done.returncode == 0, done.stderr
    for manifest in yaml.safe_load_all(done.stdout):
        assert manifest["metadata"]["namespace"] == word
        assert manifest["metadata"]["labels"]["app.kubernetes.io/instance"] == word
        kubernetes_validate.validate(manifest, NEWEST, strict=True)
        if "kvlb.toml" in manifest.get("data", {}):
            assert tomllib.loads(manifest["data"]["kvlb.toml"])["discovery"]["namespace"] == word


def test_labels_of_all_objects_give_way_to_those_of_one_kind_of_pods() -> None:
    rendered = render("fleet", commonLabels={"team": "a"}, gateway__podLabels={"team": "b"})
    assert labels_of_pods(rendered.gateway)["team"] == "b"
    assert rendered.gateway["metadata"]["labels"]["team"] == "a"


def test_everything_is_in_a_namespace_that_is_said(rendered: Rendered) -> None:
    spaces = {each["metadata"]["namespace"] for each in rendered}
    assert spaces <= {NAMESPACE, "engines"}


def test_selectors_find_the_pods_that_they_are_for(rendered: Rendered) -> None:
    pods = {each["metadata"]["name"]: labels_of_pods(each) for each in with_pods(rendered)}
    for manifest in rendered.all("Deployment") + rendered.all("StatefulSet"):
        selector = manifest["spec"]["selector"]["matchLabels"]
        assert [name for name, labels in pods.items() if matches(selector, labels)] == [manifest["metadata"]["name"]]
        assert not any(re.search("version|chart", name) for name in selector), "a selector cannot be changed"
    for manifest in rendered.all("PodDisruptionBudget"):
        selector = manifest["spec"]["selector"]["matchLabels"]
        assert [name for name, labels in pods.items() if matches(selector, labels)] == [manifest["metadata"]["name"]]
    for manifest in rendered.all("Service"):
        found = [each for each in with_pods(rendered) if matches(manifest["spec"]["selector"], labels_of_pods(each))]
        assert len(found) == 1
        named = {port["name"] for port in container(found[0])["ports"]}
        assert {port["targetPort"] for port in manifest["spec"]["ports"]} <= named


def test_ports_have_names_that_fit_and_numbers_of_their_own(rendered: Rendered) -> None:
    for manifest in with_pods(rendered):
        ports = container(manifest).get("ports", [])
        assert all(re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,13}[a-z0-9])?", port["name"]) for port in ports)
        assert len({port["name"] for port in ports}) == len({port["containerPort"] for port in ports}) == len(ports)
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            for way in ("httpGet", "tcpSocket"):
                if way in container(manifest).get(probe, {}):
                    assert container(manifest)[probe][way]["port"] in {port["name"] for port in ports}


def test_what_is_named_is_there(rendered: Rendered) -> None:
    """Objects of the release that others name; what comes from outside is named by values."""
    own = {(each["kind"], each["metadata"]["name"]) for each in rendered}
    prefix = rendered.gateway["metadata"]["name"]
    named: set[tuple[str, str]] = set()
    for manifest in with_pods(rendered):
        for volume in pod_of(manifest).get("volumes", []):
            sources = [volume, *volume.get("projected", {}).get("sources", [])]
            named |= {("ConfigMap", each["configMap"]["name"]) for each in sources if "configMap" in each}
            named |= {("Secret", each["secret"]["name"]) for each in sources if "secret" in each}
        mounted = {each["name"] for each in container(manifest).get("volumeMounts", [])}
        claims = {each["metadata"]["name"] for each in manifest["spec"].get("volumeClaimTemplates", [])}
        assert mounted == {each["name"] for each in pod_of(manifest).get("volumes", [])} | claims
    for manifest in rendered.all("HorizontalPodAutoscaler") + rendered.all("ScaledObject"):
        named.add(("Deployment", manifest["spec"]["scaleTargetRef"]["name"]))
    for manifest in rendered.all("Ingress"):
        for rule in manifest["spec"]["rules"]:
            named |= {("Service", path["backend"]["service"]["name"]) for path in rule["http"]["paths"]}
    for manifest in rendered.all("InferencePool"):
        named.add(("Service", manifest["spec"]["endpointPickerRef"]["name"]))
    for manifest in rendered.all("HTTPRoute"):
        for rule in manifest["spec"]["rules"]:
            named |= {(each.get("kind", "Service"), each["name"]) for each in rule["backendRefs"]}
    assert {each for each in named if each[1].startswith(prefix)} <= own


def test_pods_may_do_nothing_that_they_do_not_need(rendered: Rendered) -> None:
    for manifest in with_pods(rendered):
        pod, only = pod_of(manifest), container(manifest)
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert only["securityContext"]["allowPrivilegeEscalation"] is False
        assert only["securityContext"]["readOnlyRootFilesystem"] is True
        assert only["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
        assert pod["enableServiceLinks"] is False
        needs = only["name"] == "kvlb" and 'name = "kubernetes"' in rendered.settings
        assert pod["automountServiceAccountToken"] is needs
    assert all(each["automountServiceAccountToken"] is False for each in rendered.all("ServiceAccount"))


def test_pods_say_what_they_need(rendered: Rendered) -> None:
    for manifest in with_pods(rendered):
        if container(manifest)["name"] != "vllm":  # what an engine needs goes by its model
            resources = container(manifest)["resources"]
            assert set(resources["requests"]) == {"cpu", "memory"}
            assert set(resources["limits"]) == {"memory"}


def test_images_have_names_without_a_host_and_a_tag(rendered: Rendered) -> None:
    for manifest in with_pods(rendered):
        image = container(manifest)["image"]
        assert re.fullmatch(r"[a-z0-9./-]+(:[\w.-]+|@sha256:[0-9a-f]{64})", image), image
        assert not image.endswith(":latest")
        host = image.partition(":")[0].partition("/")[0]
        assert "." not in host or host == "mirror.example", "the only one that a file in helm/ci names"


def test_no_secret_is_in_a_config_map(rendered: Rendered) -> None:
    secrets: list[str] = []
    for manifest in rendered.all("Secret"):
        secrets += re.findall(
            r'"([^"]{12,})"', json.dumps(list(manifest.get("stringData", {}).values())).replace('\\"', '"')
        )
    maps = json.dumps([each["data"] for each in rendered.all("ConfigMap")])
    assert not [secret for secret in secrets if secret in maps]
    everything_else = json.dumps([each for each in rendered if each["kind"] != "Secret"])
    assert not re.search(r"sk-|api_key = ", everything_else)


def strings(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [each for inner in value.values() for each in strings(inner)]
    if isinstance(value, list):
        return [each for inner in value for each in strings(inner)]
    return [value] if isinstance(value, str) else []


def test_nothing_is_left_of_the_templates(rendered: Rendered) -> None:
    for text in strings(rendered.manifests):
        without_alerts = re.sub(r"\{\{ \$labels\.\w+ \}\}", "", text) if "kvlb.json" not in text else ""
        assert "<no value>" not in text
        assert "%!" not in text, "a number was printed as something else"
        assert "SELECTOR" not in text
        if "\n" not in text:
            assert "{{" not in without_alerts


@pytest.mark.parametrize(("image", "is_told"), [("kvlb/kvlb", True), ("registry.example/kvlb", False)])
def test_notes_say_what_to_do_where_the_image_is_one_that_nobody_publishes(image: str, is_told: bool) -> None:
    done = asked("install", RELEASE, str(CHART), "--dry-run=client", "--set", f"image.repository={image}")
    assert done.returncode == 0, done.stderr
    notes = done.stdout.partition("\nNOTES:\n")[2]
    assert ("docker build -t REGISTRY/kvlb:0.1.0 ." in notes) == is_told
    assert ("--set image.repository=REGISTRY/kvlb" in notes) == is_told
    assert ("image is kvlb/kvlb:0.1.0, which nobody publishes" in notes) == is_told


def test_istio_speaks_tls_with_the_picker_and_not_with_its_control_plane() -> None:
    for changes, tls in (
        ({"epp__port": 9100}, {"mode": "SIMPLE", "insecureSkipVerify": True}),
        ({"epp__port": 9100, "epp__tls__enabled": False}, {"mode": "DISABLE"}),
    ):
        rendered = render("epp", **changes)
        policy = rendered.one("DestinationRule")["spec"]["trafficPolicy"]
        assert policy == {"portLevelSettings": [{"port": {"number": 9100}, "tls": tls}]}
        (service,) = [each for each in rendered.all("Service") if each["metadata"]["name"] == "kv-kvlb"]
        assert 9100 in [each["port"] for each in service["spec"]["ports"]]


@pytest.mark.parametrize("case", CASES)
def test_notes_give_commands_that_name_what_is_there(case: str) -> None:
    words = ["install", RELEASE, str(CHART), "--dry-run=client", "--namespace", NAMESPACE]
    done = asked(*words, "--values", str(CHART / "ci" / f"{case}-values.yaml"))
    assert done.returncode == 0, done.stderr
    notes = done.stdout.partition("\nNOTES:\n")[2]
    made: Manifest = render(case).gateway
    assert f"rollout status deployment/{made['metadata']['name']}" in notes
    assert ("helm test" in notes) == bool([each for each in render(case) if each["kind"] == "Pod"])
    assert "<no value>" not in notes
