"""``balancer/tenants.py``: a key has one caller, no other text has any, and no message tells a key."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.errors import ConfigError, Unauthorized
from balancer.limits import Rates
from balancer.tenants import ANYBODY, MAX_KEY, Caller, KeyRing, key_of, read_file, read_variable

KEY = "sk-0123456789abcdef"
RATES = Rates(requests_per_minute=60, tokens_per_minute=1e5, concurrent_requests=4)
OTHER = "sk-fedcba9876543210"


def test_keys_are_given_in_plain_or_as_digests() -> None:
    digest = hashlib.sha256(OTHER.encode()).hexdigest().upper()
    ring = read_file(f"""
        [[keys]]
        key = "{KEY}"
        tenant = "search"
        models = ["llama", "ad-*"]
        priority = -3
        requests_per_minute = 60
        tokens_per_minute = 1e5
        concurrent_requests = 4

        [[keys]]
        sha256 = "{digest}"
        tenant = "ops"
        name = "grafana"
        admin = true
        trusted = true
    """)
    name = f"search-{hashlib.sha256(KEY.encode()).hexdigest()[:6]}"
    assert ring.caller(KEY) == Caller(name, "search", ("llama", "ad-*"), False, False, -3, RATES)
    assert ring.caller(OTHER) == Caller("grafana", "ops", is_admin=True, is_trusted=True)
    assert len(ring) == 2


def test_models_are_names_or_beginnings() -> None:
    caller = Caller(models=("llama", "ad-*"))
    assert [caller.may_use(model) for model in ("llama", "ad-", "ad-7", "llama-2", "Llama", "bad-7", "")] == [
        True,
        True,
        True,
        *[False] * 4,
    ]
    assert ANYBODY.may_use("anything")


@given(st.text(max_size=2 * MAX_KEY) | st.sampled_from([KEY[:-1], KEY + "a", KEY.upper(), " " + KEY, "\udcff"]))
def test_no_other_text_is_a_key(text: str) -> None:
    with pytest.raises(Unauthorized) as refusal:
        read_variable(KEY).caller(text)
    assert KEY not in refusal.value.message
    assert not text or len(text) < 5 or text not in refusal.value.message


def test_a_long_text_that_begins_with_a_long_key_is_none() -> None:
    key = "k" * MAX_KEY
    ring = read_variable(key)
    assert ring.caller(key).tenant == "default"
    with pytest.raises(Unauthorized):
        ring.caller(key + "k")
    with pytest.raises(Unauthorized, match="no API key"):
        ring.caller(None)


@pytest.mark.parametrize(
    ("authorization", "api_key", "found"),
    [
        (f"Bearer {KEY}", None, KEY),
        (f"bearer   {KEY} ", "other", KEY),
        (None, KEY, KEY),
        (f"Basic {KEY}", None, None),
        (f"Basic {KEY}", "own", "own"),
        (KEY, None, None),
        ("Bearer", None, ""),
        (None, None, None),
    ],
)
def test_a_key_comes_as_openais_clients_or_anthropics_send_it(
    authorization: str | None, api_key: str | None, found: str | None
) -> None:
    assert key_of(authorization, api_key) == found


def test_a_variable_has_keys_with_tenants_or_without() -> None:
    ring = read_variable(f" {KEY},\n search:{OTHER} ")
    assert [ring.caller(KEY).tenant, ring.caller(OTHER).tenant] == ["default", "search"]
    assert not ring.caller(KEY).is_admin


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "keys"),
        ("keys = [", "TOML"),
        (f'[[keys]]\nkey = "{KEY}" "', "TOML"),
        ("keys = 5", "keys"),
        (f'[[keys]]\nkey = "{KEY}"', "tenant"),
        (f'[[keys]]\nkey = "{KEY}"\ntenant = "a"\nmodel = "m"', "model"),
        ('[[keys]]\ntenant = "a"', "sha256"),
        (f'[[keys]]\nkey = "{KEY}"\nsha256 = "{"0" * 64}"\ntenant = "a"', "one of"),
        ('[[keys]]\nsha256 = "00"\ntenant = "a"', "hexadecimal"),
        ('[[keys]]\nkey = "short"\ntenant = "a"', "characters"),
        (f'[[keys]]\nkey = "{KEY} x"\ntenant = "a"', "blank"),
        (f'[[keys]]\nkey = "{KEY}é"\ntenant = "a"', "ASCII"),
        (f'[[keys]]\nkey = "{KEY}"\ntenant = "a b"', "tenant"),
        (f'[[keys]]\nkey = "{KEY}"\ntenant = "a\\nb"', "tenant"),
        (f'[[keys]]\nkey = "{KEY}"\ntenant = "a"\nname = ""', "name"),
        (f'[[keys]]\nkey = "{KEY}"\ntenant = "a"\nmodels = ["*x"]', "models"),
        (f'[[keys]]\nkey = "{KEY}"\ntenant = "a"\nmodels = [""]', "models"),
        (f'[[keys]]\nkey = "{KEY}"\ntenant = "a"\nrequests_per_minute = 0', "requests_per_minute"),
        (f'[[keys]]\nkey = "{KEY}"\ntenant = "a"\ntokens_per_minute = nan', "tokens_per_minute"),
        (f'[[keys]]\nkey = "{KEY}"\ntenant = "a"\n\n[[keys]]\nkey = "{KEY}"\ntenant = "b"', "twice"),
    ],
)
def test_a_file_that_cannot_be_used_is_told_without_its_keys(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refusal:
        read_file(text)
    assert KEY not in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("text", ["", " , ", "short", f"{KEY},{KEY}", f":{KEY}", f"a b:{KEY}"])
def test_a_variable_that_cannot_be_used_is_told_without_its_keys(text: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        read_variable(text)
    assert KEY not in str(refusal.value)


def test_sources_are_put_together_unless_they_have_the_same_key() -> None:
    rings = [read_variable(KEY), read_variable(f"b:{OTHER}")]
    assert KeyRing.together(rings).caller(OTHER).tenant == "b"
    with pytest.raises(ConfigError):
        KeyRing.together([*rings, read_variable(f"c:{KEY}")])
