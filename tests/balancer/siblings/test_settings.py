"""``[siblings]``: each mistake has a message that names the setting and the remedy."""

from typing import Any

import pytest

from balancer.errors import ConfigError
from balancer.settings import convert
from balancer.siblings.finding import Finder


def test_by_urls_or_by_a_name() -> None:
    assert not convert({}).siblings.has_any
    assert convert({"siblings": {"urls": ["http://Other:80/"]}}).siblings.urls == ("http://other",)
    assert convert({"siblings": {"host": "kvlb-gateways.default.svc", "port": 8080}}).siblings.has_any


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"urls": ["other:8080"]}, "siblings.urls[0]: 'other:8080' is not an endpoint; give one like http://"),
        ({"urls": ["http://a", "http://A/"]}, "siblings.urls: 'http://a' is there twice; name each gateway once"),
        ({"urls": ["http://a"], "host": "b", "port": 1}, "siblings.host: urls are given, too"),
        ({"host": "b"}, "siblings.port: missing; it goes with siblings.host"),
        ({"port": 8080}, "siblings.host: missing; it goes with siblings.port"),
        ({"host": "http://b", "port": 1}, "siblings.host: 'http://b' is no name; give one like"),
        ({"host": "", "port": 1}, "siblings.host: '' is no name"),
        ({"host": "b", "port": 0}, "siblings.port: 0 is not a port; use 1 to 65535"),
        ({"host": "b", "port": 1, "scheme": "ftp"}, "siblings.scheme: 'ftp' is neither http nor https"),
        ({"server": "10.0.0.1"}, "siblings.server: is asked for siblings.host, which is not given"),
        ({"interval_seconds": 0.01}, "siblings.interval_seconds: 0.01 cannot be used; give 0.05 to 60 seconds"),
        ({"interval_seconds": float("nan")}, "siblings.interval_seconds: nan cannot be used"),
        ({"timeout_seconds": 0}, "siblings.timeout_seconds: 0"),
        ({"timeout_seconds": float("inf")}, "siblings.timeout_seconds: inf cannot be used"),
        ({"api_key": "a\nb"}, "siblings.api_key: is empty or has a control character"),
        ({"api_key": ""}, "siblings.api_key: is empty"),
        ({"url": ["http://a"]}, "siblings.url: unknown setting; did you mean urls?"),
        ({"urls": "http://a"}, "siblings.urls: expected `array`, got `str`"),
    ],
)
def test_mistakes(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        convert({"siblings": given})
    assert told in str(caught.value)


def test_a_name_server_that_is_none() -> None:
    settings = convert({"siblings": {"host": "b", "port": 1, "server": "dns.example"}}).siblings
    with pytest.raises(ConfigError, match=r"siblings\.server: 'dns\.example' is no name server"):
        Finder(settings)
