"""``epp/settings.py``: what cannot be used is refused by its name."""

import pytest

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
