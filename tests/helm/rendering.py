"""What helm makes of the chart: its manifests, or why it refuses.

Knows how helm is asked. Never knows what a manifest should be. Each question is asked once in a process.
"""

import functools
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).parents[2]
CHART: Final = ROOT / "helm"
CASES: Final = sorted(path.name.removesuffix("-values.yaml") for path in (CHART / "ci").glob("*-values.yaml"))

NAMESPACE: Final = "llm"
"""That of the stand-in for the API server, too."""
RELEASE: Final = "kv"

Manifest = dict[str, Any]


@functools.cache
def helm() -> str:
    """The program; ``scripts/helm`` fetches it, and says what is missing where it cannot."""
    done = subprocess.run([str(ROOT / "scripts" / "helm")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def asked(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([helm(), *words], capture_output=True, text=True, check=False)


class Rendered:
    """Manifests of one installation."""

    def __init__(self, manifests: list[Manifest]) -> None:
        self.manifests = manifests

    def __iter__(self) -> Iterator[Manifest]:
        return iter(self.manifests)

    def all(self, kind: str) -> list[Manifest]:
        return [each for each in self.manifests if each["kind"] == kind]

    def one(self, kind: str, name: str | None = None) -> Manifest:
        """The only one of this kind, or of this kind and name."""
        found = [each for each in self.all(kind) if name in {None, each["metadata"]["name"]}]
        assert len(found) == 1, f"{kind} {name or ''}: {[each['metadata']['name'] for each in self.all(kind)]}"
        return found[0]

    @property
    def gateway(self) -> Manifest:
        """The Deployment of kvlb."""
        (found,) = [each for each in self.all("Deployment") if container(each)["name"] == "kvlb"]
        return found

    @property
    def settings(self) -> str:
        """The text of kvlb.toml."""
        name = f"{self.gateway['metadata']['name']}-settings"
        return str(self.one("ConfigMap", name)["data"]["kvlb.toml"])


def render(case: str = "default", /, **values: Any) -> Rendered:
    """The manifests of a file in helm/ci, with further values by dotted names (``__`` for the dots)."""
    return _rendered(case, json.dumps(values))


@functools.cache
def _rendered(case: str, values: str) -> Rendered:
    done = asked(*_words(case, json.loads(values)))
    assert done.returncode == 0, done.stderr
    return Rendered([each for each in yaml.safe_load_all(done.stdout) if each])


def refused(case: str = "default", /, **values: Any) -> str:
    """What helm says instead of rendering."""
    return _refused(case, json.dumps(values))


@functools.cache
def _refused(case: str, values: str) -> str:
    done = asked(*_words(case, json.loads(values)))
    assert done.returncode != 0, "these values were taken"
    return done.stderr


def _words(case: str, values: dict[str, Any]) -> list[str]:
    words = [
        "template",
        RELEASE,
        str(CHART),
        "--namespace",
        NAMESPACE,
        "--values",
        str(CHART / "ci" / f"{case}-values.yaml"),
    ]
    for name, value in values.items():
        words += ["--set-json", f"{name.replace('__', '.')}={json.dumps(value)}"]
    return words


def pod_of(manifest: Manifest) -> Manifest:
    """The spec of the Pods that it makes, or of the Pod that it is."""
    spec: Manifest = manifest["spec"]
    return spec["template"]["spec"] if "template" in spec else spec


def container(manifest: Manifest) -> Manifest:
    """The only container."""
    (only,) = pod_of(manifest)["containers"]
    return dict(only)


def with_pods(rendered: Rendered) -> list[Manifest]:
    return [each for each in rendered if each["kind"] in {"Deployment", "StatefulSet", "Pod"}]


def matches(selector: dict[str, str], labels: dict[str, str]) -> bool:
    return selector.items() <= labels.items()


def labels_of_pods(manifest: Manifest) -> dict[str, str]:
    of = manifest["spec"].get("template", manifest)
    return dict(of["metadata"]["labels"])
