"""Who may reach whom: the engines' events and replays are for kvlb alone."""

from typing import Any

import pytest

from tests.helm.rendering import NAMESPACE, Manifest, Rendered, container, labels_of_pods, render

EVENTS, REPLAY, HTTP = 5557, 5657, 8000


def reaches(policy: Manifest, peer: dict[str, str], namespace: str, port: int) -> bool:
    """Whether a Pod with these labels, in this namespace, may reach the port of the Pods that the policy is for."""
    home = policy["metadata"]["namespace"]
    for rule in policy["spec"]["ingress"]:
        ports = [
            range(each["port"], each.get("endPort", each["port"]) + 1)
            for each in rule.get("ports", [])
            if isinstance(each["port"], int)
        ]
        if rule.get("ports") and not any(port in each for each in ports):
            continue
        if "from" not in rule or any(_is(each, peer, namespace, home) for each in rule["from"]):
            return True
    return False


def _is(peer: dict[str, Any], labels: dict[str, str], namespace: str, home: str) -> bool:
    spaces = peer.get("namespaceSelector", {}).get("matchLabels")
    here = (
        namespace == home
        if "namespaceSelector" not in peer
        else spaces.items() <= {"kubernetes.io/metadata.name": namespace}.items()
    )
    wanted = peer.get("podSelector", {}).get("matchLabels", {})
    return bool(here and wanted.items() <= labels.items())


def engines(rendered: Rendered) -> Manifest:
    (found,) = [each for each in rendered.all("NetworkPolicy") if each["metadata"]["name"].endswith("-engines")]
    return found


STRANGER = {"app": "curious"}


@pytest.mark.parametrize("case", ["netpol", "dp", "pd", "lmcache", "epp"])
def test_events_and_replays_are_for_kvlb_alone(case: str) -> None:
    rendered = render(case)
    policy = engines(rendered)
    kvlb = labels_of_pods(rendered.gateway)
    others = [
        STRANGER,
        {"gateway.networking.k8s.io/gateway-name": "kvlb"},
        *map(labels_of_pods, rendered.all("StatefulSet")),
    ]
    ranks = {"netpol": 4, "dp": 2}.get(case, 1)
    for port in [*range(EVENTS, EVENTS + ranks), *range(REPLAY, REPLAY + ranks)]:
        assert reaches(policy, kvlb, NAMESPACE, port)
        for other in others:
            for namespace in (NAMESPACE, "engines", "monitoring", "apps"):
                assert not reaches(policy, other, namespace, port), (port, other)
    assert reaches(policy, kvlb, NAMESPACE, HTTP)
    assert not reaches(policy, STRANGER, NAMESPACE, HTTP)


def test_the_policy_is_for_the_pods_that_kvlb_finds() -> None:
    for case in ("netpol", "dp", "pd"):
        rendered = render(case)
        selector = engines(rendered)["spec"]["podSelector"]["matchLabels"]
        assert f'selector = "{",".join(f"{key}={value}" for key, value in selector.items())}"' in rendered.settings
        for kind in ("StatefulSet", "Deployment"):
            for each in rendered.all(kind):
                if container(each)["name"] == "vllm":
                    assert selector.items() <= labels_of_pods(each).items()


def test_engines_elsewhere_are_closed_there_and_open_to_kvlb_here() -> None:
    rendered = render("netpol")
    assert engines(rendered)["metadata"]["namespace"] == "engines"
    assert not reaches(engines(rendered), labels_of_pods(rendered.gateway), "engines", EVENTS), (
        "somebody with our labels"
    )


def test_who_reads_metrics_reaches_http_alone() -> None:
    policy = engines(render("netpol"))
    assert reaches(policy, STRANGER, "monitoring", HTTP)
    assert not reaches(policy, STRANGER, "monitoring", EVENTS)


def test_an_envoy_gateway_reaches_http_alone() -> None:
    envoy = {"gateway.networking.k8s.io/gateway-name": "kvlb"}
    policy = engines(render("epp"))
    assert reaches(policy, envoy, NAMESPACE, HTTP)
    assert not reaches(policy, envoy, NAMESPACE, REPLAY)


def test_engines_move_caches_among_each_other() -> None:
    rendered = render("pd")
    prefill, decode = (labels_of_pods(rendered.one("StatefulSet", f"kv-kvlb-{name}")) for name in ("prefill", "decode"))
    for port in (5600, 41234, 1024, 65535):
        assert reaches(engines(rendered), prefill, NAMESPACE, port)
        assert reaches(engines(rendered), decode, NAMESPACE, port)
    assert not reaches(
        engines(render("dp")), labels_of_pods(render("dp").one("Deployment", "kv-kvlb-engine")), NAMESPACE, 5600
    )


def test_kvlb_is_open_to_those_who_are_named_and_to_its_own() -> None:
    rendered = render("netpol")
    policy = rendered.one("NetworkPolicy", "kv-kvlb")
    (rule,) = policy["spec"]["ingress"]
    assert [port["port"] for port in rule["ports"]] == ["http"]
    peers = rule["from"]
    assert {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "apps"}}} in peers
    components = [
        each["podSelector"]["matchLabels"]["app.kubernetes.io/component"] for each in peers if "podSelector" in each
    ]
    assert components == ["gateway", "test"]
    everybody = render("default", networkPolicy__enabled=True).one("NetworkPolicy", "kv-kvlb")["spec"]["ingress"]
    assert "from" not in everybody[0]


def test_kvlb_reaches_what_it_needs() -> None:
    policy = render("netpol").one("NetworkPolicy", "kv-kvlb")
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    ports = [each["port"] for rule in policy["spec"]["egress"] for each in rule["ports"]]
    assert ports == [53, 53, 443, 6443, HTTP, EVENTS, REPLAY, "http"]
    assert {each.get("endPort") for rule in policy["spec"]["egress"] for each in rule["ports"]} == {None, 5560, 5660}
    store = render("lmcache").one("NetworkPolicy", "kv-kvlb")["spec"]["egress"][-1]
    assert store["to"][0]["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "store"


def test_a_store_is_for_engines_and_kvlb() -> None:
    rendered = render("lmcache")
    policy = rendered.one("NetworkPolicy", "kv-kvlb-store")
    assert reaches(policy, labels_of_pods(rendered.gateway), NAMESPACE, 6379)
    assert reaches(policy, labels_of_pods(rendered.one("StatefulSet")), NAMESPACE, 6379)
    assert not reaches(policy, STRANGER, NAMESPACE, 6379)
