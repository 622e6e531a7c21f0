"""What the chart renders works: kvlb starts with that command line and those files, finds what it should, and ends."""

import argparse
import base64
import json
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import msgspec
import pytest

from balancer.commands import serve
from balancer.connectors.running import stores_of
from balancer.discovery import base as discovery
from balancer.settings import Settings
from simulations.demo import free_ports
from tests.helm import definitions
from tests.helm.rendering import CASES, NAMESPACE, Rendered, container, render
from tests.helm.running import Container, ended, put
from tests.support.api_server import PODS, api_server_apart
from tests.support.certificates import Authority, needs_openssl
from tests.support.processes import ask, started, wait_for

DRAINS = {"gateway__drain": {"graceSeconds": 0, "timeoutSeconds": 5}}

FROM_ELSEWHERE = {
    "fleet": {"/etc/kvlb/secret/kvlb.toml": '[upstream]\napi_key = "k"\n'},
    "secured": {"/etc/kvlb/tenants/salt-secret": "0123456789abcdef0123456789abcdef"},
}
"""Files of Secrets that are not of the release."""


class Engine:
    """A fake engine's ports, as values of the chart; ``words`` start it."""

    def __init__(self, *words: str) -> None:
        self.http, self.events, self.replay = free_ports(3)
        ports = [f"--port={self.http}", f"--event-port={self.events}", f"--replay-port={self.replay}"]
        self.words = ("fake-engine", *ports, "--model=m", *words)
        self.url = f"http://127.0.0.1:{self.http}"

    @property
    def values(self) -> dict[str, Any]:
        return {"engines__port": self.http, "engines__eventsPort": self.events, "engines__replayPort": self.replay}


def with_engine(engine: Engine, **values: Any) -> Rendered:
    return render("static", engines__replicas=[{"url": engine.url}], **DRAINS, **values)


@pytest.mark.parametrize("case", CASES)
def test_kvlb_takes_the_files_as_they_are_mounted(case: str, tmp_path: Path) -> None:
    made = Container(render(case), tmp_path, FROM_ELSEWHERE.get(case))
    parser = argparse.ArgumentParser()
    serve.configure(parser)
    command, *words = made.words[3:]
    assert command == ("epp" if case.startswith("epp") else "serve")
    settings = serve.read_settings(parser.parse_args(words))
    assert settings.server.port == made.ports["http"]
    assert discovery.make(settings.discovery.name, settings.discovery.settings)
    assert len(stores_of(settings.stores)) == len(settings.stores)
    assert msgspec.structs.asdict(settings)["siblings"].has_any == ("[siblings]" in render(case).settings)


def test_a_gateway_starts_answers_its_probes_and_ends_in_time(tmp_path: Path) -> None:
    engine = Engine()
    made = Container(with_engine(engine), tmp_path)
    with made.running() as process:
        made.wait("startupProbe", 200, process)
        assert (made.probe("livenessProbe"), made.probe("readinessProbe")) == (200, 503), "there is no engine yet"
        with started(*engine.words):
            made.wait("readinessProbe", 200, process)
            url = f"http://127.0.0.1:{made.ports['http']}"
            answer, _ = ask(f"{url}/v1/completions", {"model": "m", "prompt": [1, 2, 3], "max_tokens": 1})
            assert answer["usage"]["prompt_tokens"] == 3
        assert ended(process) == 0
    assert made.place("/var/lib/kvlb/index.snapshot").is_file(), "the index outlives the container"


def test_several_processes_start_as_well(tmp_path: Path) -> None:
    engine = Engine()
    made = Container(with_engine(engine, gateway__processes=2), tmp_path)
    with started(*engine.words), made.running() as process:
        made.wait("readinessProbe", 200, process)
        assert made.probe("livenessProbe") == 200
        assert ended(process) == 0


def test_the_test_of_helm_asks_until_kvlb_is_ready(tmp_path: Path) -> None:
    engine = Engine()
    rendered = with_engine(engine)
    only = container(rendered.one("Pod"))
    made = Container(rendered, tmp_path)
    assert only["command"] == ["python"]
    told = {each["name"]: each["value"] for each in only["env"]}
    assert told["KVLB_URL"] == "http://kv-kvlb:8080"
    url = f"http://127.0.0.1:{made.ports['http']}"

    def tested(seconds: float) -> "subprocess.CompletedProcess[str]":
        words = [sys.executable, *only["args"]]
        environment = {"KVLB_URL": url, "KVLB_SECONDS": str(seconds)}
        return subprocess.run(words, env=environment, capture_output=True, text=True, check=False)

    assert "refused" in tested(0).stderr
    with made.running() as process:
        made.wait("startupProbe", 200, process)
        early = tested(0)
        assert early.returncode == 1
        assert "503" in early.stderr
        with started(*engine.words):
            late = tested(60)
            assert (late.returncode, late.stderr) == (0, "")
            assert late.stdout == f"{url} is ready, and serves m\n"


def status(made: Container) -> Any:
    return ask(f"http://127.0.0.1:{made.ports['http']}/kvlb/status")[0]


def test_a_gateway_finds_the_charts_own_engines_by_what_their_pods_say(tmp_path: Path) -> None:
    """Pods of both pools lie at one address of this machine each; events and ports are those of their annotations."""
    engine = Engine("--data-parallel-size=2")
    ends = {
        "fleet__engine__dataParallelSize": 2,
        "fleet__pools__prefill": None,
        "fleet__pools__decode": {"role": "both"},
    }
    rendered = render("pd", **engine.values, **ends, **DRAINS)
    with api_server_apart() as api, started(*engine.words):
        for each in rendered.all("StatefulSet"):
            put(api, each, "127.0.0.1")
        token = tmp_path / "token"
        token.write_text("token")
        made = Container(rendered, tmp_path, discovery=f'api_server = "{api.server.url}"\ntoken_file = "{token}"')
        with made.running() as process:
            made.wait("readinessProbe", 200, process)
            until = time.monotonic() + 30
            while {each["knowledge"]["state"] for each in status(made)["replicas"]} != {"exact"}:
                assert time.monotonic() < until, status(made)["replicas"]
                ask(f"{engine.url}/v1/completions", {"model": "m", "prompt": list(range(64)), "max_tokens": 1})
                time.sleep(0.1)
            assert len(status(made)["replicas"]) == 2, "ranks"
            assert ended(process) == 0
        verbs = {each.verb for each in api.server.asked}
        selectors = {each.params["labelSelector"] for each in api.server.asked}
    (rule,) = rendered.one("Role")["rules"]
    assert verbs <= set(rule["verbs"])
    assert selectors == {"app.kubernetes.io/instance=kv,kvlb.io/engine=true"}


def test_roles_of_pools_are_roles_of_replicas(tmp_path: Path) -> None:
    engine = Engine()
    rendered = render("pd", **engine.values, **DRAINS)
    with api_server_apart() as api:
        for at, each in enumerate(rendered.all("StatefulSet")):
            put(api, each, f"127.0.0.{at + 2}")
        made = Container(rendered, tmp_path, discovery=f'api_server = "{api.server.url}"')
        with started(*engine.words, "--host=0.0.0.0"), made.running() as process:
            made.wait("readinessProbe", 200, process)
            until = time.monotonic() + 30
            while len(status(made)["replicas"]) < 2:
                assert time.monotonic() < until
                time.sleep(0.1)
            roles = {each["replica"].partition(":")[0]: each["role"] for each in status(made)["replicas"]}
            ips = {
                each["status"]["podIP"]: each["metadata"]["labels"]["kvlb.io/role"] for each in api.server.objects(PODS)
            }
            assert roles == ips
            assert set(roles.values()) == {"prefill", "decode"}


@needs_openssl
def test_a_gateway_with_tls_and_keys_of_other_secrets(tmp_path: Path) -> None:
    engine = Engine()
    cert, key = Authority(tmp_path / "authority").signed("kvlb")
    secret = "sk-an-admin-key-of-many-characters"
    files = {
        "/etc/kvlb/tls/tls.crt": Path(cert).read_text(),
        "/etc/kvlb/tls/tls.key": Path(key).read_text(),
        "/etc/kvlb/keys/keys.toml": f'[[keys]]\nkey = "{secret}"\ntenant = "t"\n',
    }
    made = Container(render("tls", **named(engine), **DRAINS), tmp_path, files)
    with started(*engine.words), made.running() as process:
        made.wait("readinessProbe", 200, process)
        assert answers(made, "https", secret) == (200, ["m"])
        assert answers(made, "https", "another") == (401, [])
        assert ended(process) == 0


def test_a_gateway_with_keys_and_secrets_of_its_own(tmp_path: Path) -> None:
    engine = Engine("--api-key=the-engines-own-key")
    rendered = render("secured", **named(engine), **DRAINS)
    made = Container(rendered, tmp_path, FROM_ELSEWHERE["secured"])
    with started(*engine.words), made.running() as process:
        made.wait("readinessProbe", 200, process)
        assert answers(made, "http", "") == (401, [])
        assert answers(made, "http", "sk-an-admin-key-of-many-characters") == (200, []), "it is for llama-* alone"
        assert ended(process) == 0


def named(engine: Engine) -> dict[str, Any]:
    return {"engines": {"discovery": "static", "replicas": [{"url": engine.url}]}}


def answers(made: Container, scheme: str, key: str) -> tuple[int, list[str]]:
    """The status for whoever has this key, and the models that it sees."""
    url = f"{scheme}://127.0.0.1:{made.ports['http']}/v1/models"
    asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"} if key else {})
    try:
        with urllib.request.urlopen(asked, context=ssl._create_unverified_context(), timeout=30) as answer:
            return answer.status, [model["id"] for model in json.loads(answer.read())["data"]]
    except urllib.error.HTTPError as error:
        return error.code, []


def test_a_picker_starts_with_the_certificate_that_was_made(tmp_path: Path) -> None:
    engine = Engine()
    rendered = render("epp", engines={"matchLabels": {"app": "vllm"}, "port": engine.http}, **DRAINS)
    certificate = rendered.one("Secret", "kv-kvlb-epp-tls")["data"]
    files = {f"/etc/kvlb/epp-tls/{name}": base64.b64decode(text).decode() for name, text in certificate.items()}
    pod = render("epp-plain", **engine.values).one("StatefulSet")
    pod["spec"]["template"]["metadata"]["labels"]["app"] = "vllm"
    with api_server_apart() as api, started(*engine.words):
        put(api, pod, "127.0.0.1")
        made = Container(rendered, tmp_path, files, discovery=f'api_server = "{api.server.url}"')
        with made.running() as process:
            made.wait("readinessProbe", 200, process)
            context = ssl.create_default_context(cadata=files["/etc/kvlb/epp-tls/tls.crt"])
            context.set_alpn_protocols(["h2"])
            name = f"kv-kvlb.{NAMESPACE}.svc"
            with (
                socket.create_connection(("127.0.0.1", made.ports["grpc-ext-proc"])) as plain,
                context.wrap_socket(plain, server_hostname=name) as wrapped,
            ):
                assert wrapped.selected_alpn_protocol() == "h2"
            assert ended(process) == 0


def test_what_may_be_set_beside_the_charts_own_are_settings_of_kvlb() -> None:
    defaults = msgspec.structs.asdict(Settings())
    known = {
        "discovery": {
            "name",
            *_fields(discovery.make("kubernetes", {"selector": "a=b"})),
            *_fields(discovery.make("dns", {"host": "a", "port": 1})),
        },
        "siblings": _fields(defaults["siblings"]),
        "epp": _fields(defaults["epp"]),
    }
    for section, names in known.items():
        beside, owned = {*definitions.BESIDE[section]["properties"]}, {*definitions.OWNED[section]}
        assert beside & owned == set()
        assert beside | owned <= names


def _fields(made: Any) -> set[str]:
    return {field.name for field in msgspec.structs.fields(made)}


def test_an_engine_is_not_told_to_end_before_its_last_answer(tmp_path: Path) -> None:
    """What preStop runs, beside a fake engine with a request of a few seconds under way."""
    engine = Engine("--decode-ms=50")
    words = container(render("epp-plain", **engine.values).one("StatefulSet"))["lifecycle"]["preStop"]["exec"][
        "command"
    ]
    script = words[2].replace("time.sleep(min(5, 300))", "pass")
    assert script != words[2]
    ends: dict[str, float] = {}

    def request() -> None:
        ask(f"{engine.url}/v1/completions", {"model": "m", "prompt": [1, 2, 3], "max_tokens": 80, "ignore_eos": True})
        ends["answer"] = time.monotonic()

    with started(*engine.words) as process:
        wait_for(f"{engine.url}/health", process)
        thread = threading.Thread(target=request)
        thread.start()
        until = time.monotonic() + 30
        while " 1" not in running_line(engine.url):
            assert time.monotonic() < until
            time.sleep(0.02)
        assert subprocess.run([sys.executable, "-c", script], check=False, timeout=60).returncode == 0
        ends["script"] = time.monotonic()
        thread.join()
        assert ends["script"] > ends["answer"]
        begun = time.monotonic()
        assert subprocess.run([sys.executable, "-c", script], check=False, timeout=60).returncode == 0
        assert time.monotonic() - begun < 20, "nobody is under way"
    assert subprocess.run([sys.executable, "-c", script], check=False, timeout=60).returncode == 0, "a dead engine"


def running_line(url: str) -> str:
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        page: str = answer.read().decode()
    return next(line for line in page.splitlines() if line.startswith("vllm:num_requests_running"))
