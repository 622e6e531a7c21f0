"""``balancer/isolation.py``: two tenants never have the same salt, whatever they are called and whatever they send."""

import string

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from balancer.errors import ConfigError
from balancer.isolation import MAX_REMEMBERED, Salts

SECRET = b"0123456789abcdef"
GROUPS = {"shared": ("a", "b"), "c": ("d",)}

ASKED = st.tuples(st.text(), st.none() | st.text())


@given(ASKED, ASKED)
def test_other_tenants_and_other_salts_of_clients_have_other_salts(
    one: tuple[str, str | None], other: tuple[str, str | None]
) -> None:
    assume(one != other)
    salts = Salts(SECRET, {})
    assert salts.salt(*one) != salts.salt(*other)


def test_a_boundary_between_names_cannot_be_moved() -> None:
    salts = Salts(SECRET, {})
    made = [salts.salt("org_1", "2345"), salts.salt("org_12345", ""), salts.salt("org_12345"), salts.salt("org_1")]
    assert len(set(made)) == 4
    assert salts.salt("a", "bnone") != salts.salt("aownb")


def test_a_group_shares_its_salts_and_is_no_tenant() -> None:
    salts = Salts(SECRET, GROUPS)
    assert salts.salt("a") == salts.salt("b")
    assert salts.salt("a", "x") == salts.salt("b", "x") != salts.salt("a")
    assert salts.salt("shared") != salts.salt("a")
    assert salts.salt("c") != salts.salt("d")


def test_nobody_gets_another_ones_salt_by_sending_it() -> None:
    salts = Salts(SECRET, {})
    stolen = salts.salt("victim")
    assert salts.salt("thief", stolen) != stolen


def test_a_salt_lasts_as_long_as_the_secret() -> None:
    assert Salts(SECRET, {}).salt("a") == Salts(SECRET, {}).salt("a")
    assert Salts(SECRET, {}).salt("a") != Salts(SECRET + b"x", {}).salt("a")
    assert Salts(SECRET, {}).salt("a", "é\ud800") != Salts(SECRET, {}).salt("a")


def test_engines_take_every_salt() -> None:
    salt = Salts(SECRET, {}).salt("a", "@/\\\0")
    assert set(salt) <= set(string.ascii_letters + string.digits + "-_")
    assert len(salt) == 43


def test_what_is_remembered_is_bounded() -> None:
    salts = Salts(SECRET, {})
    first = salts.salt("0")
    for number in range(MAX_REMEMBERED + 2):
        salts.salt(str(number))
    assert len(salts._plain) <= MAX_REMEMBERED
    assert salts.salt("0") == first


def test_a_short_secret_and_a_tenant_in_two_groups_are_refused() -> None:
    with pytest.raises(ConfigError, match="16"):
        Salts(b"short", {})
    with pytest.raises(ConfigError, match=r"tenants\.groups"):
        Salts(SECRET, {"one": ("a",), "two": ("a",)})
