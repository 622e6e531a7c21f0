"""``balancer/economics/links.py``: seconds of a transfer, and the links that have a name."""

import math

import pytest

from balancer.economics.links import LINKS, SHARE, Link, link_named, network
from balancer.errors import ConfigError


def test_a_transfer_takes_its_delays_once_and_its_bytes_at_the_rate() -> None:
    link = Link(1e9, latency=0.002, setup=0.05)
    assert link.fixed == pytest.approx(0.052)
    assert link.seconds(5e8) == pytest.approx(0.552)
    assert link.seconds(0) == 0.0


@pytest.mark.parametrize("gbits", [10, 25, 100, 400])
def test_ethernet_carries_its_line_rate_but_for_a_share(gbits: int) -> None:
    link = LINKS[f"{gbits}gbe"]
    assert link.bandwidth == pytest.approx(gbits * 125e6 * SHARE)
    assert link == network(gbits, link.source)
    assert "IEEE 802.3" in link.source


def test_links_are_named_from_slow_to_fast_within_their_kind_and_say_where_they_are_from() -> None:
    rates = [link.bandwidth for link in LINKS.values()]
    assert rates[:4] == sorted(rates[:4])
    assert rates[4:] == sorted(rates[4:])
    assert all("of it data" in link.source for link in LINKS.values())
    assert network(40).source == "40 Gbit/s, 90% of it data"


@pytest.mark.parametrize("bandwidth", [0, -1, math.inf, math.nan])
def test_a_rate_is_a_number_above_0(bandwidth: float) -> None:
    with pytest.raises(ValueError, match="bandwidth must be"):
        Link(bandwidth)


@pytest.mark.parametrize("seconds", [-1, math.inf, math.nan])
def test_delays_are_0_or_more(seconds: float) -> None:
    with pytest.raises(ValueError, match="latency must be"):
        Link(1.0, latency=seconds)
    with pytest.raises(ValueError, match="setup must be"):
        Link(1.0, setup=seconds)


def test_a_name_that_nobody_has_is_refused_with_the_nearest() -> None:
    assert link_named("--link", "100GbE") is LINKS["100gbe"]
    with pytest.raises(ConfigError, match=r"--link: there is no link '100gb'; did you mean 100gbe\?"):
        link_named("--link", "100gb")
    with pytest.raises(ConfigError, match="there are: 10gbe, 25gbe"):
        link_named("--link", "pigeon")
