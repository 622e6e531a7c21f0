"""``balancer/disaggregation/flags.py``: command lines that people have for other tools start the same fleet here."""

import argparse
from typing import Any

import pytest

from balancer.commands import serve
from balancer.disaggregation.roles import Role
from balancer.discovery.file import read
from balancer.errors import ConfigError
from balancer.settings import Settings, convert


def settings(line: str) -> Settings:
    parser = argparse.ArgumentParser()
    serve.configure(parser)
    return serve.read_settings(parser.parse_args(line.split()))


def replicas(line: str) -> list[tuple[str, Role, str | None]]:
    return [(each.url, each.role, each.transfer.bootstrap) for each in settings(line).replicas]


P, D = Role.PREFILL, Role.DECODE


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--prefill http://p:1 --decode http://d:1", [("http://p:1", P, None), ("http://d:1", D, None)]),
        (  # vllm-router --vllm-pd-disaggregation --kv-connector mooncake
            "--vllm-pd-disaggregation --prefill http://p:1 8998 --prefill http://q:1/ none --decode http://d:1",
            [("http://p:1", P, "http://p:8998"), ("http://q:1", P, None), ("http://d:1", D, None)],
        ),
        (  # disagg_proxy_demo.py
            "--prefill p:1 q:2 --decode d:1 e:2",
            [
                ("http://p:1", P, None),
                ("http://q:2", P, None),
                ("http://d:1", D, None),
                ("http://e:2", D, None),
            ],
        ),
        (  # toy_proxy_server.py
            "--prefiller-hosts p q --prefiller-ports 1 2 --decoder-host d --decoder-port 3",
            [("http://p:1", P, None), ("http://q:2", P, None), ("http://d:3", D, None)],
        ),
        (
            "--prefiller-port 1 --decoder-hosts d --decoder-ports 3 4",
            [("http://localhost:1", P, None), ("http://d:3", D, None), ("http://d:4", D, None)],
        ),
        (
            "--prefill http://[::1]:1 8998 --decode http://d:1 --replica http://r:1",
            [("http://r:1", Role.BOTH, None), ("http://[::1]:1", P, "http://[::1]:8998"), ("http://d:1", D, None)],
        ),
    ],
)
def test_command_lines_of_other_tools(line: str, expected: list[Any]) -> None:
    assert replicas(line) == expected


def test_connectors_and_ranks_are_named_as_there() -> None:
    found = settings("--prefill p:1 --decode d:1 --kv-connector NCCL --intra-node-data-parallel-size 2")
    assert found.disaggregation.name == "p2p_nccl"
    assert [each.data_parallel_size for each in found.replicas] == [2, 2]
    assert settings("--prefill p:1 --decode d:1 --kv-connector mooncake").disaggregation.name == "mooncake"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("--prefill p:1", "--decode: missing"),
        ("--decode d:1", "--prefill: missing"),
        ("--vllm-pd-disaggregation --replica http://a:1", "name the replicas with --prefill"),
        ("--prefill 8998 --decode d:1", "--prefill: '8998' is no URL"),
        ("--prefill p:1 --decode d:1 8998", "--decode: '8998' is no URL"),
        ("--prefiller-hosts p q --prefiller-ports 1 2 3 --decode d:1", "--prefiller-ports: 3 for 2 hosts"),
        ("--prefill p:1 --decode d:1 --kv-connector nothing", "there is no disaggregation connector 'nothing'"),
    ],
)
def test_what_does_not_fit_is_told(line: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        settings(line)


def test_settings_that_cannot_be_used_are_named() -> None:
    for name, value in (("threshold_tokens", -1), ("prefill_attempts", 0), ("dispatch_seconds", 0.0)):
        with pytest.raises(ConfigError, match=rf"disaggregation\.{name}: "):
            convert({"disaggregation": {name: value}})
    with pytest.raises(ConfigError, match=r"replicas\[0\]\.role: .*use one of prefill, decode, both"):
        convert({"replicas": [{"url": "http://a:1", "role": "prefil"}]})
    with pytest.raises(ConfigError, match=r"replicas\[0\]\.transfer\.bootstrap: 'a' is not an endpoint"):
        convert({"replicas": [{"url": "http://a:1", "transfer": {"bootstrap": "a"}}]})


def test_files_of_discovery_say_who_does_what() -> None:
    found = read(b'{"replicas": [{"url": "http://p:1", "role": "prefill"}, "http://b:1"]}', is_json=True)
    assert [each.role for each in found] == [Role.PREFILL, Role.BOTH]
    toml = b'[[replicas]]\nurl = "http://d:1"\nrole = "decode"\ntransfer = {address = "10.0.0.1:7"}\n'
    (only,) = read(toml, is_json=False)
    assert (only.role, only.transfer.address) == (Role.DECODE, "10.0.0.1:7")
