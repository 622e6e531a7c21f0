"""The container of kvlb as a process of this machine: its command line and its files, as the manifest has them.

Knows what a kubelet does with a Pod as far as kvlb notices it: volumes become folders, names of ports become numbers,
probes are asked. What has to differ here (folders, ports, the name of the headless Service) is replaced in the rendered
text, and nothing else.
"""

import contextlib
import os
import re
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

from simulations.demo import free_ports
from tests.helm.rendering import NAMESPACE, Manifest, Rendered, container, pod_of
from tests.support.api_server import PODS, Apart
from tests.support.processes import ROOT, SECONDS, kept


class Container:
    """kvlb, laid out in a folder; ``files`` are those of Secrets that are not of the release, by where they lie."""

    def __init__(self, rendered: Rendered, folder: Path, files: Mapping[str, str] | None = None, **lines: str) -> None:
        """``lines`` are put at the beginning of tables of the settings, by their names."""
        self._only = container(rendered.gateway)
        self._folder = folder
        self.ports = dict(
            zip((each["name"] for each in self._only["ports"]), free_ports(len(self._only["ports"])), strict=True)
        )
        texts = {**_files(rendered), **(files or {})}
        for place in (each["mountPath"] for each in self._only["volumeMounts"]):
            self.place(place).mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            path = self.place(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self._here(text, lines) if name.endswith("/kvlb.toml") else text)

    def place(self, path: str) -> Path:
        """Where this path of the container lies here."""
        return self._folder / path.lstrip("/")

    def _here(self, text: str, lines: Mapping[str, str]) -> str:
        folders = "|".join(re.escape(each["mountPath"]) for each in self._only["volumeMounts"])
        text = re.sub(rf'"({folders})/', lambda found: f'"{self.place(found[1])}/', text)
        for port in self._only["ports"]:
            text = re.sub(rf"^port = {port['containerPort']}$", f"port = {self.ports[port['name']]}", text, flags=re.M)
        text = re.sub(r'^host = "[a-z-]+-siblings"$', 'host = "localhost"', text, flags=re.M)
        for table, line in lines.items():
            text, found = re.subn(rf"^\[{table}\]$", f"[{table}]\n{line}", text, flags=re.M)
            assert found == 1
        return text

    @property
    def words(self) -> list[str]:
        """Its command line; ``kvlb`` is that of this environment."""
        assert self._only["command"] == ["kvlb"]
        args: list[str] = self._only["args"]
        return [sys.executable, "-m", "balancer", *(each.replace("=/", f"={self._folder}/") for each in args)]

    @contextlib.contextmanager
    def running(self) -> Iterator["subprocess.Popen[str]"]:
        environment = {**os.environ, "TMPDIR": str(self.place("/tmp"))}
        process = subprocess.Popen(self.words, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
        with kept(process):
            yield process

    def probe(self, name: str) -> int:
        """The status that a probe gets; 0 where nobody answers."""
        asked = self._only[name]["httpGet"]
        url = f"{asked['scheme'].lower()}://127.0.0.1:{self.ports[asked['port']]}{asked['path']}"
        try:
            # A kubelet does not look whose certificate it is.
            with urllib.request.urlopen(url, timeout=SECONDS, context=ssl._create_unverified_context()) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def wait(self, name: str, status: int, process: "subprocess.Popen[str]") -> None:
        """Return once the probe gets this."""
        until = time.monotonic() + SECONDS
        while (got := self.probe(name)) != status:
            assert process.poll() is None, process.stderr.read() if process.stderr else ""
            assert time.monotonic() < until, f"{name}: {got}"
            time.sleep(0.05)


def put(api: Apart, manifest: Manifest, ip: str) -> None:
    """Let the API server have a Pod of this Deployment or StatefulSet, which is ready."""
    template = manifest["spec"]["template"]
    meta = {**template["metadata"], "name": f"{manifest['metadata']['name']}-{ip}", "namespace": NAMESPACE}
    ready = [{"type": "Ready", "status": "True"}]
    status = {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "conditions": ready}
    api.do(lambda server: server.put(PODS, {"metadata": meta, "spec": template["spec"], "status": status}))


def ended(process: "subprocess.Popen[str]") -> int:
    """The exit code of a process that is asked to end, as a kubelet does it."""
    process.send_signal(signal.SIGTERM)
    return process.wait(timeout=SECONDS)


def _files(rendered: Rendered) -> dict[str, str]:
    """What the release itself puts into the container's folders, by where it lies."""
    found: dict[str, str] = {}
    volumes = {each["name"]: each for each in pod_of(rendered.gateway)["volumes"]}
    for mount in container(rendered.gateway)["volumeMounts"]:
        for source in volumes[mount["name"]].get("projected", {}).get("sources", []):
            found |= {f"{mount['mountPath']}/{path}": text for path, text in _projected(rendered, source).items()}
    return found


def _projected(rendered: Rendered, source: Manifest) -> dict[str, str]:
    ((kind, named),) = source.items()
    kinds = {"configMap": "ConfigMap", "secret": "Secret"}
    for each in rendered.all(kinds[kind]):
        if each["metadata"]["name"] == named["name"]:
            texts = {**each.get("data", {}), **each.get("stringData", {})}
            items = named.get("items") or [{"key": key, "path": key} for key in texts]
            return {item["path"]: texts[item["key"]] for item in items}
    return {}
