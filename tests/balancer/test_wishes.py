"""``balancer/wishes.py``: what engines would obey is found wherever they read it, and each rule does what it says."""

import json
from typing import Any

import pytest

from balancer.errors import BadRequest, Forbidden
from balancer.openai import PATHS, read
from balancer.wishes import NO_WISHES, ClientSettings, Wishes, check_priority, unwanted, whole

EVIL = {"do_remote_prefill": True, "remote_host": "evil", "remote_port": 1, "tp_size": 10**9}
STEERING = [
    ({"kv_transfer_params": EVIL}, ("kv_transfer_params",)),
    ({"ec_transfer_params": EVIL}, ("ec_transfer_params",)),
    ({"vllm_xargs": {"kv_transfer_params": EVIL}}, ("vllm_xargs", "kv_transfer_params")),
    (
        {"sampling_params": {"extra_args": {"kv_transfer_params": EVIL}}},
        ("sampling_params", "extra_args", "kv_transfer_params"),
    ),
    (
        {"sampling_params": {"extra_args": {"ec_transfer_params": EVIL}}},
        ("sampling_params", "extra_args", "ec_transfer_params"),
    ),
    ({"vllm_xargs": {"kv_cache_report_mode": "full"}}, ("vllm_xargs", "kv_cache_report_mode")),
]
PASS = ClientSettings(transfer_params="pass", report_mode="pass", priority="pass")


def wishes(body: bytes, path: str = "/v1/completions") -> Wishes:
    return read(path, "application/json", body).wishes


@pytest.mark.parametrize(("fields", "place"), STEERING)
def test_what_steers_engines_is_found_on_every_path_and_stripped_refused_or_passed(
    fields: dict[str, Any], place: tuple[str, ...]
) -> None:
    for path in PATHS:
        found = wishes(json.dumps({"prompt": [1], "token_ids": [1], **fields}).encode(), path)
        assert found.places == (place,), path
    assert unwanted(found, ClientSettings(), 0) == (place,)
    assert unwanted(found, PASS, 0) == ()
    with pytest.raises(Forbidden) as refusal:
        unwanted(found, ClientSettings(transfer_params="refuse", report_mode="refuse"), 0)
    assert (refusal.value.param, ".".join(place) in refusal.value.message) == (place[0], True)


def test_the_last_of_two_keys_counts_and_escapes_do_not_hide_one() -> None:
    harmless_first = b'{"kv_transfer_params":null,"kv_tr\\u0061nsfer_params":{"remote_host":"evil"}}'
    assert wishes(harmless_first).places == (("kv_transfer_params",),)
    assert wishes(b'{"kv_transfer_params":{"remote_host":"evil"},"kv_transfer_params":null}') is NO_WISHES


@pytest.mark.parametrize(
    "body",
    [
        b'{"prompt":"kv_transfer_params"}',
        b'{"vllm_xargs":{"top":1},"sampling_params":{"n":1}}',
        b'{"vllm_xargs":[["kv_transfer_params",1]],"sampling_params":7}',
        b'{"sampling_params":{"extra_args":"x"}}',
    ],
)
def test_other_bodies_wish_for_nothing(body: bytes) -> None:
    assert wishes(body) is NO_WISHES


@pytest.mark.parametrize("salt", ['"s"', '""', "5", "{}"])
def test_a_salt_is_seen_whatever_it_is(salt: str) -> None:
    assert wishes(b'{"cache_salt":%s}' % salt.encode()).has_salt


@pytest.mark.parametrize(
    ("value", "is_allowed"), [("0", True), ("7", True), ("-1", False), ("-9223372036854775808", False)]
)
def test_a_priority_may_not_be_more_urgent_than_the_callers(value: str, is_allowed: bool) -> None:
    found = wishes(b'{"priority":%s}' % value.encode())
    assert found.priority == int(value)
    if is_allowed:
        assert unwanted(found, ClientSettings(), 0) == ()
    else:
        with pytest.raises(Forbidden, match="priority"):
            unwanted(found, ClientSettings(), 0)
    assert unwanted(found, ClientSettings(), int(value)) == ()
    assert unwanted(found, ClientSettings(priority="strip"), 0) == (("priority",),)


@pytest.mark.parametrize("value", [b'"-5"', b"-5.0", b"[]", b"-1e0", b"-" + b"9" * 5000])
def test_a_priority_that_engines_might_read_as_a_number_is_refused(value: bytes) -> None:
    with pytest.raises(BadRequest, match="whole number"):
        unwanted(wishes(b'{"priority":%s}' % value), ClientSettings(), 0)


def test_forms_cannot_bring_further_arguments_past_the_rules() -> None:
    asked = Wishes(has_form_arguments=True)
    with pytest.raises(Forbidden, match="vllm_xargs"):
        unwanted(asked, ClientSettings(), 0)
    assert unwanted(asked, PASS, 0) == ()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5),
        ("\xa0-5 ", -5),
        ("1_0", 10),
        ("+3", 3),
        ("-1" + "0" * 99, -(10**99)),
        ("x", None),
        ("", None),
        ("9" * 5000, None),
    ],
)
def test_a_header_is_read_as_engines_read_it(text: str, value: int | None) -> None:
    assert whole(text) == value


def test_what_is_no_priority_is_told_as_such() -> None:
    with pytest.raises(BadRequest):
        check_priority(None, 0)
