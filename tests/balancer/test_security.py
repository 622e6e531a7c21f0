"""``balancer/security.py``: settings that do not go together are told with their remedy before anybody is served."""

import pytest

from balancer.errors import ConfigError
from balancer.settings import load

KEYS = '[auth]\nkeys_file = "keys.toml"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[auth]\nopen_paths = ["metrics"]', r"auth\.open_paths"),
        ('[auth]\nkeys_variable = "A B"', r"auth\.keys_variable"),
        ('[tls]\nkey_file = "k.pem"', r"tls\.cert_file"),
        ('[upstream]\nkey_file = "k.pem"', r"upstream\.cert_file"),
        ('[tls]\nclient_ca_file = "ca.pem"', r"tls\.cert_file"),
        ('[tls]\ncert_file = "c.pem"\nminimum_version = "1.0"', r"tls\.minimum_version"),
        ('[tenants]\nisolation = true\nsecret_file = "s"', "keys"),
        (KEYS + "[tenants]\nisolation = true", "secret"),
        (KEYS + '[tenants]\nisolation = true\nsecret_file = "s"\nsecret_variable = "S"', "one of"),
        (KEYS + '[tenants]\nisolation = true\nsecret_variable = "1"', r"tenants\.secret_variable"),
        ('[[replicas]]\nurl = "http://e:1"\nevents_from = ["10.0.0.1"]', r"replicas\[0\]\.events_from"),
        (
            '[[replicas]]\nurl = "http://e:1"\nevents_bind = "tcp://*:5557"\nevents_from = ["e"]',
            r"replicas\[0\]\.events_from: 'e' is no address",
        ),
        ('[tenants]\nunsalted = "maybe"', r"tenants\.unsalted"),
        ('[clients]\npriority = "maybe"', r"clients\.priority"),
        ('[clients]\nreport_mode = "check"', r"clients\.report_mode"),
        ('[cors]\norigins = ["a.example"]', r"cors\.origins"),
        ('[cors]\norigins = ["https://a.example/path"]', r"cors\.origins"),
        ("[cors]\nmax_age_seconds = -1", r"cors\.max_age_seconds"),
    ],
)
def test_what_cannot_be_used_is_named(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load(text)


def test_keys_and_a_secret_are_enough_to_keep_tenants_apart() -> None:
    settings = load(KEYS + '[tenants]\nisolation = true\nsecret_file = "s"\n[tenants.groups]\nteam = ["a", "b"]')
    assert settings.auth.is_on
    assert settings.tenants.groups == {"team": ("a", "b")}
    assert not load("").auth.is_on
