"""Flags of ``kvlb serve`` for prefill and decode replicas, spelt as the tools that people come from spell them.

Knows the flags of ``vllm-router --vllm-pd-disaggregation`` and of vLLM's example proxies (``toy_proxy_server.py``,
``disagg_proxy_demo.py``, ``mooncake_connector_proxy.py``) that mean something here. Never opens an address.
"""

import argparse
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from balancer.errors import ConfigError

CONNECTORS: Final = {"mooncake": "mooncake", "nixl": "nixl", "moriio": "moriio", "nccl": "p2p_nccl"}
"""What others call them, by our names where those differ."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """All of them."""
    group = parser.add_argument_group("prefill and decode apart")
    group.add_argument(
        "--prefill",
        action="append",
        nargs="+",
        default=[],
        metavar="URL",
        help="replicas that compute prompts; the port of a Mooncake bootstrap server may follow a URL; repeat it",
    )
    group.add_argument(
        "--decode", action="append", nargs="+", default=[], metavar="URL", help="replicas that answer; repeat it"
    )
    for role in ("prefiller", "decoder"):
        group.add_argument(f"--{role}-hosts", f"--{role}-host", nargs="+", default=[], metavar="HOST", help=f"{role}s")
        group.add_argument(
            f"--{role}-ports", f"--{role}-port", nargs="+", type=int, default=[], metavar="PORT", help="their ports"
        )
    group.add_argument("--kv-connector", metavar="NAME", help="how a prompt gets from one to the other (default nixl)")
    group.add_argument(
        "--vllm-pd-disaggregation", action="store_true", help="says that --prefill and --decode are to be there"
    )
    group.add_argument(
        "--intra-node-data-parallel-size", type=int, metavar="N", help="data-parallel ranks behind each of them"
    )


def apply(args: argparse.Namespace, tree: dict[str, Any]) -> None:
    """Put what the flags say into a tree of settings.

    Raises:
        ConfigError: they do not fit each other.
    """
    found = [*_of_role(args, "prefill", "prefiller"), *_of_role(args, "decode", "decoder")]
    if args.vllm_pd_disaggregation and not found:
        raise ConfigError("--vllm-pd-disaggregation: name the replicas with --prefill URL and --decode URL")
    roles = {each["role"] for each in found}
    if len(roles) == 1:
        other = "decode" if "prefill" in roles else "prefill"
        raise ConfigError(f"--{other}: missing; name at least one replica of each kind")
    ranks = args.intra_node_data_parallel_size
    if ranks is not None:
        found = [{**each, "data_parallel_size": ranks} for each in found]
    if found:
        tree["replicas"] = [*({"url": url.rstrip("/")} for url in args.replica), *found]
    if args.kv_connector is not None:
        section = tree.setdefault("disaggregation", {})
        if isinstance(section, dict):
            section["name"] = CONNECTORS.get(args.kv_connector.lower(), args.kv_connector)


def _of_role(args: argparse.Namespace, role: str, other_name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for group in getattr(args, role):
        found += _replicas(role, group)
    hosts, ports = getattr(args, f"{other_name}_hosts"), getattr(args, f"{other_name}_ports")
    if len(ports) > 1 and len(hosts) == 1:
        hosts = hosts * len(ports)
    if hosts and len(hosts) != len(ports):
        raise ConfigError(f"--{other_name}-ports: {len(ports)} for {len(hosts)} hosts; give one for each")
    if ports and not hosts:
        hosts = ["localhost"] * len(ports)  # as toy_proxy_server.py has it
    return [*found, *({"url": f"http://{host}:{port}", "role": role} for host, port in zip(hosts, ports, strict=True))]


def _replicas(role: str, words: Sequence[str]) -> list[dict[str, Any]]:
    """URLs, each with the port of its bootstrap server after it or without."""
    found: list[dict[str, Any]] = []
    for word in words:
        if word.isdecimal() or word.lower() == "none":
            if not found or role != "prefill":
                raise ConfigError(f"--{role}: '{word}' is no URL; give one like http://10.0.0.1:8000")
            if word.isdecimal():
                host = urlsplit(found[-1]["url"]).hostname or ""
                host = f"[{host}]" if ":" in host else host
                found[-1]["transfer"] = {"bootstrap": f"http://{host}:{word}"}
        else:
            url = word if "://" in word else f"http://{word}"
            found.append({"url": url.rstrip("/"), "role": role})
    return found
