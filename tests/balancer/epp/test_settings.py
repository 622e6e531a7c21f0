"""``epp/settings.py``: what cannot be used is refused by its name."""

import argparse
from pathlib import Path

import pytest

from balancer.commands.epp import command
from balancer.epp.settings import check_beside
from balancer.errors import ConfigError
from balancer.settings import load


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[epp]\nport = 70000", "epp.port: 70000 is not a port"),
        ("[epp]\nport = 0\n[server]\nprocesses = 2", "epp.port: several processes share one port"),
        ("[epp]\nhealth_port = -1", "epp.health_port: -1 is not a port"),
        ("[epp]\nhealth_port = 9002", "epp.health_port: 9002 is epp.port"),
        ("[epp]\nkey_file = 'a'", "epp.cert_file: missing"),
        ("[epp]\nfallbacks = -1", "epp.fallbacks: -1 cannot be used"),
        ("[epp]\npiece_bytes = 10", "epp.piece_bytes: 10 cannot be used"),
        ("[epp]\nresponse = 'look'", "epp.response"),
        ("[epp]\nprot = 1", "did you mean port"),
    ],
)
def test_what_cannot_be_used_is_refused(text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        load(text)


def test_all_else_is_taken() -> None:
    settings = load("[epp]\nport = 9100\nhealth_port = 9003\nresponse = 'leave'\nfallbacks = 2\npiece_bytes = 62000")
    assert settings.epp.port == 9100


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[epp]\nport = 8081\n[server]\nport = 8081", "epp.port: 8081 is server.port"),
        ("[epp]\nhealth_port = 8081\n[server]\nport = 8081", "epp.health_port: 8081 is server.port"),
        ("[server]\nport = 9002", "epp.port: 9002 is server.port"),
    ],
)
def test_the_picker_is_not_where_its_control_plane_is(text: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "kvlb.toml"
    path.write_text(text + '\n[[replicas]]\nurl = "http://127.0.0.1:9"\n')
    parser = argparse.ArgumentParser()
    command.configure(parser)
    with pytest.raises(ConfigError, match=told):
        command.run(parser.parse_args(["--config", str(path), "--startup-timeout", "1"]))


def test_places_that_are_two_are_taken_and_no_gateway_minds() -> None:
    taken = load('[epp]\nhost = "127.0.0.2"\nport = 8081\n[server]\nport = 8081')  # as kvlb serve reads it, too
    check_beside(taken.epp, taken.server.host, taken.server.port)
    anywhere = load("[epp]\nport = 0\n[server]\nport = 0")
    check_beside(anywhere.epp, anywhere.server.host, anywhere.server.port)
