import re
from typing import Any

import msgspec
import pytest

from simulations.report.result import Result
from simulations.report.table import table
from simulations.store import StoreSettings
from tests.support.runs import report, result

MANY = [result(name, ttft=at + 1.0) for at, name in enumerate(("cache_aware", "least_load", "round_robin"))]


def test_the_table_of_one_fleet() -> None:
    made = report(result("cache_aware", ttft=1.0), result("round_robin", ttft=4.0, hit=0.3, refused=0.1))
    assert (
        table(made, width=128)
        == """\
made up: 200 requests in 199 s, 38.1 k prompt tokens, 2 k answered

4 replicas with 640 tokens of cache each
policy                         hit  TTFT mean    p50   p95   p99  spread  refused  evicted  elsewhere  in flight  first time
cache_aware                 50.0 %      0.992  0.996  1.47  1.49    1.00        0    5.0 %      5.0 %      0.0 %      40.0 %
round_robin                 30.0 %       4.01   4.04  5.87  5.98    1.00   12.0 %    5.0 %      5.0 %      0.0 %      60.0 %
one LRU cache of that size  36.0 %
… that knows the future     56.8 %
nothing forgotten           66.4 %

Where do prompt tokens come from? 50.0 % from a cache, of 66.4 % that can be had
Of 100 prompt tokens under cache_aware, 50 came from a cache, and 40 nobody had computed before. 5.0 had been evicted (the
cache), 5.0 lay on another replica (the routing), and 0 were just being computed (the timing).

Do I need cache-aware routing? Yes
round_robin, the best of those run that look at load alone, refuses 12.0 % of requests, cache_aware 0.0 %.

How much cache? More would pay (estimate)
Eviction costs 5 points of hit, routing 5 points. Twice the cache should bring about 5 points of it back, and leave 10.0 % less
to compute.

How many replicas? 2 at least (estimate)
4 have time to spare, and the work alone takes 2. That is a lower bound and was not run: fewer caches and longer queues may take
more. Run it before you take any away (--sweep replicas=4,2). Now 95 % of first tokens come within 1.47 s.
"""
    )


@pytest.mark.parametrize("width", [30, 40, 60, 80, 100, 132])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    long = result("a_policy_with_a_long_name(and_a=1, few=2, settings=3)", ttft=0.5)
    for report_ in (report(*MANY, long), report(), report(result(refused=1.0))):
        lines = table(report_, width=width).split("\n")
        assert [line for line in lines if len(line) > width] == []


def test_columns_that_do_not_fit_come_below() -> None:
    made = table(report(*MANY), width=60)
    heads = re.findall(r"^policy .*$", made, re.M)
    assert len(heads) > 1
    assert " ".join(" ".join(head.split()[1:]) for head in heads).split() == (
        "hit TTFT mean p50 p95 p99 spread refused evicted elsewhere in flight first time".split()
    )


def test_colours_only_where_they_are_asked_for() -> None:
    assert "\x1b" not in table(report(*MANY))
    painted = table(report(*MANY), colour=True)
    assert "\x1b[1mcache_aware" in painted
    assert re.sub(r"\x1b\[\d*m", "", painted) == table(report(*MANY))


def test_names_cannot_speak_to_the_terminal() -> None:
    made = table(
        report(result("evil\x1b[2J\r\nname", settings={"x\x1b": "\x07"}), result("evil", settings={"x\x1b": "y"}))
    )
    assert set(filter(lambda each: not each.isprintable(), made)) == {"\n"}


def test_each_fleet_has_a_table_with_what_is_different_about_it() -> None:
    made = table(
        report(
            result(settings={"blocks": 40, "lag": 0.0}),
            result(cache_tokens=1280, settings={"blocks": 80, "lag": 0.0}),
            result(settings={"blocks": 40, "lag": 0.123456789}),
        )
    )
    heads = re.findall(r"^4 replicas.*$", made, re.M)
    assert heads == [
        "4 replicas with 640 tokens of cache each (lag=0)",
        "4 replicas with 1.28 k tokens of cache each (lag=0)",
        "4 replicas with 640 tokens of cache each (lag=0.123457)",
    ]


def test_findings_of_several_fleets_say_which_they_speak_of() -> None:
    def large(policy: str) -> Result:
        return result(policy, cache_tokens=1280, settings={"lag": 2.0})

    made = report(result("a", settings={"lag": 0.0}), large("a"), large("b"))
    words = (
        "What follows compares policies on 4 replicas with 1.28 k tokens of cache each, and other fleets with it: "
        "of the 2 that were run, the first on which most policies served anybody."
    )
    told = table(made, width=300)
    assert told.index(words) < told.index(made.findings[0].question), "most were run on that one"
    assert told.index("\n4 replicas with 640 tokens of cache each\n") < told.index(words)
    assert "What follows" not in table(report(large("a"), large("b")))


def test_several_seeds_show_how_far_the_mean_may_be_off() -> None:
    made = table(report(*(result(ttft=1 + at / 10, seed=at) for at in range(3))))
    assert "means over 3 seeds" in made
    assert re.search(r"cache_aware .* 1\.\d\d ±0\.\d{3} ", made)


def test_who_served_nothing_has_no_figures() -> None:
    assert re.search(
        r"^cache_aware +- +- +- +- +- +- +100\.0 % +- +- +- +-$", table(report(result(refused=1.0)), width=140), re.M
    )


def test_the_fleet_that_others_are_compared_with_is_the_first_that_was_asked_for() -> None:
    some = [result("a", settings={"lag": lag}) for lag in (2.0, 1.0, 0.0)]
    told = table(report(*some), width=300)
    assert (
        "What follows compares policies on 4 replicas with 640 tokens of cache each (lag=2), and other fleets with it: "
        "the first of the 3 that were run; name another one first to compare with that.\n"
    ) in told
    assert "(lag=0), and other fleets" in table(report(*reversed(some)), width=300)


def test_a_store_is_called_what_its_link_was_called() -> None:
    def of(**fields: Any) -> Result:
        return result(settings={"store": msgspec.json.encode(StoreSettings(**fields)).decode()})

    named = of(gbits=90.0, name="100gbe")
    told = table(report(result(), named, of(gbits=9.0, name="10gbe", loads="always")), width=128)
    heads = re.findall(r"^4 replicas with 640 tokens of cache each \((.*)\)$", told, re.M)
    assert heads == ["store=none", "store=100gbe", "store={link=10gbe, loads=always}"]
    assert "With a store (10gbe, loads=always) cache_aware" in told
    told = table(report(result(), named), width=128)
    assert "4 replicas with 640 tokens of cache each (store=100gbe)" in told
    assert "With a store (100gbe) cache_aware" in told


def test_a_store_is_folded_between_its_settings() -> None:
    text = msgspec.json.encode(
        StoreSettings(gbits=25.0, loads="always", tokens=9_000_000_000, write_gbits=3.0)
    ).decode()
    other = msgspec.json.encode(StoreSettings()).decode()
    made = table(report(result(settings={"store": text}), result(settings={"store": other})), width=60)
    assert "{gbits=25, loads=always, tokens=9000000000, write_gbits=3}" in made.replace("\n", " ")


ANSWERS = "latency p95 TPOT ms p95"


def test_answers_that_were_played_token_by_token_have_columns_that_fit_beside_first_tokens() -> None:
    none = result("least_load", refused=1.0)
    made = table(report(result(ttft=1.0, pace=0.0123), result("round_robin", ttft=4.0, pace=0.5), none))
    (first, second, *_) = [" ".join(head.split()) for head in re.findall(r"^policy .*$", made, re.M)]
    assert first == f"policy hit TTFT mean p50 p95 p99 {ANSWERS}"
    assert second == "policy spread refused evicted elsewhere in flight first time"
    assert re.search(r"^cache_aware .* 1\.11 +1\.59 +12\.3 +12\.3$", made, re.M)
    assert re.search(r"^round_robin .* 8\.97 +10\.9 +500 +500$", made, re.M)
    assert re.search(r"^least_load( +-){9}$", made, re.M)


def test_columns_that_belong_together_are_not_parted_where_they_fit() -> None:
    long = result("a_policy_with_a_name_of_thirty_one", pace=0.01)
    heads = [" ".join(head.split()) for head in re.findall(r"^policy .*$", table(report(long)), re.M)]
    assert heads == [
        "policy hit TTFT mean p50 p95 p99",
        f"policy {ANSWERS} spread refused",
        "policy evicted elsewhere in flight first time",
    ]


def test_who_answered_nothing_token_by_token_has_no_columns_for_it() -> None:
    assert "TPOT" not in table(report(*MANY), width=200)


def test_what_is_not_known_is_said_once() -> None:
    told = table(report(result("cache_aware")), width=100)
    assert "Do I need cache-aware routing? Not known\n" in told
    assert "(unknown)" not in told
    assert "What came of it? Nothing (not known)\n" in table(report(), width=100)
