"""The chart's own engines: vLLM's command line, ports, ends, and what they have to do with kvlb."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helm.rendering import (
    CASES,
    CHART,
    NAMESPACE,
    Manifest,
    Rendered,
    asked,
    container,
    labels_of_pods,
    matches,
    pod_of,
    render,
)

VLLM_FLAGS = {
    "--host", "--port", "--served-model-name", "--tensor-parallel-size", "--data-parallel-size", "--max-model-len",
    "--enable-prefix-caching", "--enable-prompt-tokens-details", "--enable-scale-out", "--shutdown-timeout",
    "--kv-events-config", "--kv-transfer-config", "--enable-lora", "--max-loras", "--max-lora-rank", "--lora-modules",
    "--gpu-memory-utilization", "--max-num-seqs",
}  # fmt: skip
"""Of vLLM 0.32.0, whose own parser reads these command lines in tests/real/test_chart_real.py."""

EVENT_FIELDS = {
    "enable_kv_cache_events",
    "publisher",
    "endpoint",
    "replay_endpoint",
    "buffer_steps",
    "hwm",
    "max_queue_size",
    "topic",
}

FLEETS = [
    case
    for case in CASES
    if any(
        container(each)["name"] == "vllm"
        for each in [*render(case).all("StatefulSet"), *render(case).all("Deployment")]
    )
]


def engines(rendered: Rendered) -> list[Manifest]:
    return [
        each
        for kind in ("StatefulSet", "Deployment")
        for each in rendered.all(kind)
        if container(each)["name"] == "vllm"
    ]


def flags(engine: Manifest) -> dict[str, str]:
    """Flag -> what is said for it, as one text."""
    found: dict[str, str] = {}
    name = ""
    for word in container(engine)["args"][2:]:
        if word.startswith("--"):
            name, _, value = word.partition("=")
            assert name not in found
            found[name] = value
        else:
            found[name] = f"{found[name]} {word}".strip()
    return found


def environment(engine: Manifest) -> dict[str, Any]:
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container(engine)["env"]}


def test_there_are_fleets_to_look_at() -> None:
    assert {"fleet", "dp", "lora", "pd", "lmcache", "mooncake", "epp-plain", "openshift"} <= set(FLEETS)


@pytest.mark.parametrize("case", FLEETS)
def test_command_lines_are_vllms(case: str) -> None:
    for engine in engines(render(case)):
        assert container(engine)["command"] == ["vllm"]
        assert container(engine)["args"][0] == "serve"
        assert not container(engine)["args"][1].startswith("-")
        assert set(flags(engine)) <= VLLM_FLAGS
        events = json.loads(flags(engine)["--kv-events-config"])
        assert set(events) <= EVENT_FIELDS
        assert events["enable_kv_cache_events"] is True
        assert {"--enable-prompt-tokens-details", "--enable-scale-out", "--enable-prefix-caching"} <= set(flags(engine))


@pytest.mark.parametrize("case", FLEETS)
def test_each_rank_has_ports_of_its_own_that_kvlb_is_told(case: str) -> None:
    rendered = render(case)
    for engine in engines(rendered):
        events = json.loads(flags(engine)["--kv-events-config"])
        first, replay = (int(events[name].rpartition(":")[2]) for name in ("endpoint", "replay_endpoint"))
        ranks = int(flags(engine).get("--data-parallel-size", "1"))
        ports = {each["name"]: each["containerPort"] for each in container(engine)["ports"]}
        assert [ports[f"events-{rank}"] for rank in range(ranks)] == list(range(first, first + ranks))
        assert [ports[f"replay-{rank}"] for rank in range(ranks)] == list(range(replay, replay + ranks))
        assert f"events-{ranks}" not in ports
        assert ports["http"] == int(flags(engine)["--port"])
        told = engine["spec"]["template"]["metadata"]["annotations"]
        assert told["kvlb.io/events"] == f"tcp://{{host}}:{first}"
        assert told["kvlb.io/replay"] == f"tcp://{{host}}:{replay}"
        assert told["kvlb.io/data-parallel-size"] == str(ranks)
        assert told["kvlb.io/port"] == str(ports["http"])
    assert tomllib.loads(rendered.settings)["discovery"]["port"] == ports["http"]


@pytest.mark.parametrize("case", FLEETS)
def test_kvlb_finds_exactly_the_engines(case: str) -> None:
    rendered = render(case)
    selector = tomllib.loads(rendered.settings)["discovery"]["selector"]
    wanted = dict(each.split("=") for each in selector.split(","))
    found = [
        each
        for kind in ("StatefulSet", "Deployment", "Pod")
        for each in rendered.all(kind)
        if matches(wanted, labels_of_pods(each))
    ]
    assert found == engines(rendered)
    for pool in rendered.all("InferencePool"):
        assert pool["spec"]["selector"]["matchLabels"] == wanted


def test_ranks_share_a_pods_accelerators() -> None:
    (engine,) = engines(render("dp"))
    assert engine["kind"] == "Deployment"
    assert container(engine)["resources"]["limits"]["nvidia.com/gpu"] == 4
    assert engine["spec"]["strategy"]["rollingUpdate"]["maxSurge"] == 0
    own = render("dp", fleet__engine__resources={"limits": {"nvidia.com/gpu": 1, "memory": "1Gi"}})
    assert container(engines(own)[0])["resources"] == {"limits": {"nvidia.com/gpu": 1, "memory": "1Gi"}}
    without = render("dp", fleet__engine__gpuResource="")
    assert "nvidia.com/gpu" not in json.dumps(engines(without))


def test_an_engine_is_given_its_time() -> None:
    for case in FLEETS:
        for engine in engines(render(case)):
            startup = container(engine)["startupProbe"]
            assert startup["periodSeconds"] * startup["failureThreshold"] >= 1800
            drain = int(flags(engine)["--shutdown-timeout"])
            assert pod_of(engine)["terminationGracePeriodSeconds"] >= drain + 60
            assert (
                f"until = time.monotonic() + {drain}\n"
                in container(engine)["lifecycle"]["preStop"]["exec"]["command"][2]
            )
    decode = next(each for each in engines(render("pd")) if each["metadata"]["name"].endswith("decode"))
    assert flags(decode)["--shutdown-timeout"] == "900"


def test_roles_are_told_to_engines_and_to_kvlb() -> None:
    rendered = render("pd")
    roles = {"prefill": "kv_producer", "decode": "kv_consumer"}
    for engine in engines(rendered):
        role = labels_of_pods(engine)["kvlb.io/role"]
        transfer = json.loads(flags(engine)["--kv-transfer-config"])
        assert transfer == {
            "kv_connector": "NixlConnector", "kv_role": roles.pop(role), "kv_connector_extra_config": {"backends": ["UCX"]},
        }  # fmt: skip
        assert environment(engine)["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "$(POD_IP)"
        assert environment(engine)["POD_IP"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    assert roles == {}
    assert tomllib.loads(rendered.settings)["disaggregation"] == {"name": "nixl", "threshold_tokens": 512}
    assert "--kv-transfer-config" not in flags(engines(render("fleet"))[0])
    assert "disaggregation" not in tomllib.loads(render("fleet").settings)


def test_a_pool_says_what_differs_also_with_nothing_and_no() -> None:
    values = {"replicas": 0, "drainSeconds": 0, "lora": {"enabled": False, "modules": []}, "gpuResource": ""}
    rendered = render("lora", fleet__pools={"small": values, "same": {}})
    small, same = (rendered.one("StatefulSet", f"kv-kvlb-{name}") for name in ("small", "same"))
    assert (small["spec"]["replicas"], same["spec"]["replicas"]) == (0, 1)
    assert flags(small)["--shutdown-timeout"] == "0"
    assert "--enable-lora" not in flags(small)
    assert "--enable-lora" in flags(same)
    assert container(small)["resources"] == {"limits": {}}


def test_adapters() -> None:
    (engine,) = engines(render("lora"))
    found = flags(engine)
    assert (found["--max-loras"], found["--max-lora-rank"]) == ("8", "64")
    assert found["--lora-modules"] == "sql=/adapters/sql legal=/adapters/legal"
    assert environment(engine)["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "True"
    assert {"name": "adapters", "mountPath": "/adapters", "readOnly": True} in container(engine)["volumeMounts"]


def test_models_are_kept_where_it_was_said() -> None:
    (engine,) = engines(render("fleet"))
    (claim,) = engine["spec"]["volumeClaimTemplates"]
    assert claim["spec"] == {
        "accessModes": ["ReadWriteOnce"], "storageClassName": "fast", "resources": {"requests": {"storage": "100Gi"}},
    }  # fmt: skip
    volumes = {each["name"]: each for each in pod_of(engines(render("dp"))[0])["volumes"]}
    assert volumes["cache"]["persistentVolumeClaim"] == {"claimName": "models"}
    assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "32Gi"}
    assert "volumeClaimTemplates" not in engines(render("lora"))[0]["spec"]
    found = environment(engine)
    kept = [found[name] for name in ("HF_HOME", "VLLM_CACHE_ROOT", "HOME")]
    assert all(each.startswith("/cache/") for each in kept), "the root is read-only"


def test_keys_come_from_secrets() -> None:
    found = environment(engines(render("fleet"))[0])
    assert found["VLLM_API_KEY"] == {"secretKeyRef": {"name": "engines", "key": "api-key"}}
    assert found["HF_TOKEN"] == {"secretKeyRef": {"name": "hf", "key": "token"}}


def test_lmcache_is_one_store_to_engines_and_kvlb() -> None:
    rendered = render("lmcache")
    (engine,) = engines(rendered)
    found = environment(engine)
    (store,) = tomllib.loads(rendered.settings)["stores"]
    assert json.loads(flags(engine)["--kv-transfer-config"]) == {
        "kv_connector": "LMCacheConnectorV1",
        "kv_role": "kv_both",
    }
    assert (store["url"], str(store["chunk_size"]), store["hash_seed"]) == (
        found["LMCACHE_REMOTE_URL"], found["LMCACHE_CHUNK_SIZE"], found["PYTHONHASHSEED"],
    )  # fmt: skip
    assert found["LMCACHE_PRE_CACHING_HASH_ALGORITHM"] == "sha256_cbor", "the only one whose names kvlb can compute"
    host, port = re.fullmatch(r"redis://([^:]+):(\d+)", store["url"]).groups()  # type: ignore[union-attr]
    assert rendered.one("Service", host)["spec"]["ports"][0]["port"] == int(port)
    elsewhere = render("lmcache", stores__lmcache__redis__url="redis://redis.data:6379")
    assert not [each for each in elsewhere if each["metadata"]["name"].endswith("-redis")]
    assert environment(engines(elsewhere)[0])["LMCACHE_REMOTE_URL"] == "redis://redis.data:6379"


def test_mooncake_beside_a_transfer_is_one_of_two_connectors() -> None:
    rendered = render("mooncake")
    for engine in engines(rendered):
        transfer = json.loads(flags(engine)["--kv-transfer-config"])
        parts = [each["kv_connector"] for each in transfer["kv_connector_extra_config"]["connectors"]]
        assert (transfer["kv_connector"], parts) == ("MultiConnector", ["NixlPushConnector", "MooncakeStoreConnector"])
        assert environment(engine)["MOONCAKE_CONFIG_PATH"] == "/etc/mooncake/mooncake.json"
    tree = tomllib.loads(rendered.settings)
    assert tree["disaggregation"] == {"name": "multi", "settings": {"of": ["nixl_push", "shared"]}}
    config = json.loads(rendered.one("ConfigMap", "kv-kvlb-mooncake")["data"]["mooncake.json"])
    ports = {each["port"] for each in rendered.one("Service", "kv-kvlb-mooncake")["spec"]["ports"]}
    named = [*(config[name] for name in ("metadata_server", "master_server_address")), tree["stores"][0]["url"]]
    for address in named:
        host, port = re.search(r"([a-z-]+):(\d+)", address.removeprefix("http://")).groups()  # type: ignore[union-attr]
        assert (host, int(port) in ports) == ("kv-kvlb-mooncake", True)
    master = container(rendered.one("Deployment", "kv-kvlb-mooncake"))
    assert {int(word.partition("=")[2]) for word in master["args"] if "_port=" in word} == ports
    assert master["image"] == container(engines(rendered)[0])["image"]


def test_what_waits_before_an_engine_ends_is_python() -> None:
    for case in FLEETS:
        for engine in engines(render(case)):
            words = container(engine)["lifecycle"]["preStop"]["exec"]["command"]
            assert words[:2] == ["python3", "-c"]
            compile(words[2], "preStop", "exec")
            done = subprocess.run(
                [sys.executable, "-W", "error", "-c", f"import ast; ast.parse({words[2]!r})"], check=False
            )
            assert done.returncode == 0


def test_another_version_of_the_chart_leaves_engines_and_stores_alone(tmp_path: Path) -> None:
    """Pods that are replaced have empty caches."""
    assert asked("package", str(CHART), "-d", str(tmp_path), "--version=9.8.7", "--app-version=6.5.4").returncode == 0
    (package,) = tmp_path.iterdir()
    for case in ("pd", "lmcache", "mooncake"):
        done = asked("template", "kv", str(package), "-n", NAMESPACE, "-f", str(CHART / "ci" / f"{case}-values.yaml"))
        later = Rendered([each for each in yaml.safe_load_all(done.stdout) if each])
        for kind in ("StatefulSet", "Deployment"):
            for before, after in zip(render(case).all(kind), later.all(kind), strict=True):
                if container(before)["name"] != "kvlb":
                    assert before["spec"] == after["spec"]
                assert before["metadata"]["labels"] != after["metadata"]["labels"]


@pytest.mark.parametrize(
    "text", ["a: b", "it's", 'say "x"', "x #y", "*a", "123", "two\nlines", "a\tb", "{{ .Values }}", "\u00e9"]
)
def test_whatever_the_text_engines_get_it_as_it_is(text: str) -> None:
    values = {"servedModelName": text, "model": text, "extraArgs": [text, f"--flag={text}"]}
    (engine,) = engines(render("fleet", **{f"fleet__engine__{name}": value for name, value in values.items()}))
    args = container(engine)["args"]
    assert args[1] == text
    assert args[-2:] == [text, f"--flag={text}"]
    assert f"--served-model-name={text}" in args
    for each in engines(render("pd", fleet__transfer__extraConfig={"key": text})):
        args = container(each)["args"]
        told = json.loads(args[args.index("--kv-transfer-config") + 1])
        assert told["kv_connector_extra_config"]["key"] == text


def test_a_long_drain_is_a_whole_number_to_vllm() -> None:
    (engine,) = engines(render("fleet", fleet__engine__drainSeconds=1_000_000))
    assert "--shutdown-timeout=1000000" in container(engine)["args"]
