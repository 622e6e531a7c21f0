"""``balancer/cors.py``: pages of listed origins may read answers, and no others."""

from balancer.cors import headers, preflight
from balancer.security import CorsSettings

ONE = CorsSettings(origins=("https://a.example",))


def test_without_origins_nothing_is_said() -> None:
    assert headers(CorsSettings(), "https://a.example") == {}
    assert preflight(CorsSettings(), "https://a.example", "POST", "authorization") == {}


def test_a_listed_origin_may_read_and_caches_are_told_that_it_matters() -> None:
    told = headers(ONE, "https://a.example")
    assert (told["Access-Control-Allow-Origin"], told["Vary"]) == ("https://a.example", "Origin")
    for origin in ("https://b.example", "https://a.example.evil", "null", None):
        assert headers(ONE, origin) == {"Vary": "Origin"}
        assert preflight(ONE, origin, "POST", "authorization") == {"Vary": "Origin"}


def test_everybody_is_a_star_and_never_the_origin_itself() -> None:
    assert headers(CorsSettings(origins=("*",)), "https://a.example")["Access-Control-Allow-Origin"] == "*"


def test_a_preflight_is_told_methods_and_the_headers_that_it_asks_for() -> None:
    told = preflight(ONE, "https://a.example", "POST", "authorization, x-stainless-os")
    assert told["Access-Control-Allow-Methods"] == "GET, POST, OPTIONS"
    assert told["Access-Control-Allow-Headers"] == "authorization, x-stainless-os"
    assert told["Access-Control-Max-Age"] == "600"
    assert "Access-Control-Allow-Methods" not in preflight(ONE, "https://a.example", None, None)


def test_headers_that_are_none_are_not_repeated() -> None:
    for asked in ("a\r\nSet-Cookie: x=1", "a b", "", ","):
        assert "Access-Control-Allow-Headers" not in preflight(ONE, "https://a.example", "POST", asked)
