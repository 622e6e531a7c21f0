"""``balancer/checks``: each fault has its line with a remedy, and where all is well nothing else is said."""

from typing import Any

import pytest

from balancer.checks import CHECKS, examine
from balancer.checks.facts import Cache, Facts, Overruled
from balancer.checks.finding import Result, Verdict
from tests.balancer.checks.samples import cache, endpoint, facts, sample

LOST = endpoint(problem="refused")
OTHER = endpoint(url="http://i:8000")


def told(check: str, given: Facts) -> list[Result]:
    return [each for each in examine(given) if each.check == check]


def test_where_all_is_well_every_check_says_so() -> None:
    results = examine(facts())
    assert {each.verdict for each in results} == {Verdict.OK}
    assert set(CHECKS) - {each.check for each in results} == {
        "discovery",
        "ranks",
        "roles",
        "ends",
        "connector",
        "channel",
        "stores",
        "siblings",
    }
    assert not any(each.remedy for each in results)


REPLICA_FAULTS: list[tuple[str, Verdict, Cache, str, str]] = [
    ("caching", Verdict.BROKEN, cache(has_prefix_caching=False), "prefix caching is off", "--enable-prefix-caching"),
    ("caching", Verdict.SKIPPED, cache(has_prefix_caching=None), "does not tell", ""),
    ("events", Verdict.BROKEN, cache(source=None, stream=None), "KV events are off", "enable_kv_cache_events"),
    ("events", Verdict.BROKEN, cache(version="0.22.1", source=None), "does not tell where its KV events are", 'events = "'),
    ("port", Verdict.BROKEN, cache(stream={"is_connected": False}), "no subscription to tcp://h:5557: no ZMQ", "open the port"),
    ("port", Verdict.BROKEN, cache(source={"is_dialling": True}, stream=None), "no subscription to", "kvlb's host"),
    ("port", Verdict.BROKEN, cache(stream={"is_connected": False, "problem": "firewall"}), "tcp://h:5557: firewall", ""),
    ("port", Verdict.BROKEN, cache(stream=None), "no subscription to tcp://h:5557", "open the port"),
    ("port", Verdict.BROKEN, cache(source={"is_set": True}, stream=None), "no subscription", "or mend events of [[replicas]]"),
    ("port", Verdict.BROKEN, cache(stream={"problem": "publishes under topic ''"}), "under topic", "remove topic"),
    ("port", Verdict.BROKEN, cache(stream=None, without_events=50), "50 requests were answered, and no event", "the topic and"),
    ("port", Verdict.BROKEN, cache(is_unheard=True), "the probe was answered, and no event came", "the topic and the port"),
    ("port", Verdict.DEGRADED, cache(stream={"malformed": 4}), "4 messages", "look whether"),
    ("replay", Verdict.DEGRADED, cache(source={"replay": None}), "has no replay socket", '"replay_endpoint"'),
    ("replay", Verdict.DEGRADED, cache(stream={"is_complete": False, "replays_unanswered": 2}), "not answered 2 times", "open"),
    ("replay", Verdict.DEGRADED, cache(stream={"is_complete": False}), "has not brought everything", '"buffer_steps"'),
    ("replay", Verdict.SKIPPED, cache(stream={"is_complete": False, "is_replaying": True}), "under way", "ask again"),
    ("recipe", Verdict.DEGRADED, cache(keys="learned", keys_reason="agree with none"), "agree with none", "PYTHONHASHSEED"),
    ("recipe", Verdict.DEGRADED, cache(keys="unproven", keys_reason="contradicted"), "contradicted", "version"),
    ("recipe", Verdict.SKIPPED, cache(keys="unproven", keys_reason="", stream={"batches": 0}), "no traffic", "--probe"),
    (
        "recipe", Verdict.DEGRADED, cache(overruled=(Overruled("block_size", "64", "16"),)),
        "block_size is set to 64, the engine has 16", "remove block_size of [[replicas]]",
    ),
    ("replay", Verdict.SKIPPED, cache(stream={"is_complete": False, "problem": "another topic"}), "see port", ""),
    ("seed", Verdict.SKIPPED, cache(keys="learned", has_known_root=False), "see recipe", ""),
    ("knowledge", Verdict.OK, cache(keys="unproven", keys_reason=""), "exact so far; no event has proven it", ""),
    ("recipe", Verdict.SKIPPED, cache(keys="unproven", keys_reason=""), "tokens in it", "--probe"),
    ("seed", Verdict.DEGRADED, cache(has_known_root=False, keys="unproven"), "vLLM before 0.30 hashes", "PYTHONHASHSEED=0"),
    ("seed", Verdict.DEGRADED, cache(has_known_root=False, keys="unproven", algorithm="xxhash"), "xxhash kinds", "seed"),
    ("knowledge", Verdict.DEGRADED, cache(knowledge="partial", reason="lost some"), "known as partial: lost some", "above"),
    ("copies", Verdict.BROKEN, cache(copies=1_000), "counts 1,000 blocks, and it has 1,000", "restart kvlb"),
    ("usage", Verdict.DEGRADED, cache(reports=0, silences=3), "does not say", "--enable-prompt-tokens-details"),
    ("usage", Verdict.SKIPPED, cache(reports=0), "no request yet", "--probe"),
    ("buffers", Verdict.DEGRADED, cache(source={"buffer_steps": 10, "hwm": 5}), "buffer_steps = 10, hwm = 5", "defaults"),
    ("ranks", Verdict.BROKEN, cache(source={"replay": "tcp://h:5557"}), "have one address", "two ports"),
]  # fmt: skip


@pytest.mark.parametrize(("check", "verdict", "given", "text", "remedy"), REPLICA_FAULTS)
def test_a_fault_of_a_replica_has_its_line(check: str, verdict: Verdict, given: Cache, text: str, remedy: str) -> None:
    (result,) = told(check, facts(given))
    assert (result.verdict, result.subjects) == (verdict, ["h:8000"])
    assert text in result.told or text == "have one address"
    assert remedy in result.remedy


FLEET_FAULTS: list[tuple[str, Verdict, dict[str, Any], str, str]] = [
    ("kvlb", Verdict.DEGRADED, {"doctor": "2.0"}, "the gateway is 1.0, this doctor 2.0", "the gateway's own"),
    ("endpoint", Verdict.BROKEN, {"endpoints": (LOST,)}, "cannot be used: refused", "start vLLM"),
    ("endpoint", Verdict.BROKEN, {"endpoints": (endpoint(problem="401", lacks_key=True),)}, "asks for a key", "--api-key KEY"),
    ("endpoint", Verdict.BROKEN, {"endpoints": (endpoint(problem="401", refuses_key=True),)}, "was refused", "--api-key KEY"),
    ("endpoint", Verdict.DEGRADED, {"endpoints": (endpoint(drains=True),)}, "is sent nothing new", "undrain"),
    ("endpoint", Verdict.BROKEN, {"endpoints": ()}, "there are no endpoints", "--replica"),
    ("addresses", Verdict.DEGRADED, {"endpoints": (endpoint(), endpoint(url="http://H:8000/"))}, "is the same address", "once"),
    ("version", Verdict.DEGRADED, {"endpoints": (endpoint(version=None),)}, "does not tell its version", "version ="),
    ("version", Verdict.DEGRADED, {"endpoints": (endpoint(version="0.8.5"),)}, "0.8.5 has no KV events", "update"),
    ("clock", Verdict.DEGRADED, {"endpoints": (endpoint(clock_skew=-7.2),)}, "its clock is 7 s behind", "time server"),
    ("clock", Verdict.DEGRADED, {"endpoints": (endpoint(clock_skew=2.6),)}, "its clock is 3 s ahead", "time server"),
    (
        "tokenizer", Verdict.OK, {"samples": (sample("a", 1, way="tokenize", sample="chat"),)},
        "by /tokenize; --enable-scale-out (vLLM 0.30) would make chats exact", "",
    ),
    ("tokenizer", Verdict.SKIPPED, {"samples": ()}, "no engine could be asked", ""),
    ("tokenizer", Verdict.DEGRADED, {"samples": (sample("a", error="refused"),)}, "nobody tokenises", "--enable-scale-out"),
    ("tokenizer", Verdict.BROKEN, {"samples": (sample("a", 1), sample("b", 2))}, "a (render) and b (render)", "same tokenizer"),
    ("tokenizer", Verdict.BROKEN, {"samples": (sample("a", 1), sample("a", 2, way="tokenize"))}, "a (tokenize)", "template"),
    ("salts", Verdict.SKIPPED, {"requests": 19}, "19 requests", ""),
    ("salts", Verdict.DEGRADED, {"salted": 90, "salts": 80}, "90% of the last 100 requests have a cache_salt", "tenant"),
    ("memory", Verdict.DEGRADED, {"max_blocks": 999}, "holds at most 999 blocks, and the fleet 1,000", "max_blocks"),
    ("memory", Verdict.SKIPPED, {"max_blocks": None}, "is not known", ""),
    ("snapshot", Verdict.SKIPPED, {"snapshot": None}, "is not saved", ""),
    ("snapshot", Verdict.OK, {"snapshot": None, "taken_over_from": "http://b", "taken_over_blocks": 630}, "630 blocks", ""),
    (
        "snapshot", Verdict.DEGRADED, {"snapshot": None, "is_gateway": False, "not_taken_over": "http://b: connection refused"},
        "it began with nothing: http://b: connection refused", "--sibling",
    ),
    ("snapshot", Verdict.BROKEN, {"snapshot_problem": "Permission denied"}, "Permission denied", "snapshot.path"),
]  # fmt: skip


@pytest.mark.parametrize(("check", "verdict", "changes", "text", "remedy"), FLEET_FAULTS)
def test_a_fault_of_the_fleet_has_its_line(
    check: str, verdict: Verdict, changes: dict[str, Any], text: str, remedy: str
) -> None:
    (result,) = told(check, facts(**changes))
    assert result.verdict is verdict
    assert text in result.told
    assert remedy in result.remedy


@pytest.mark.parametrize("changes", [
    {"salted": 90, "salts": 3}, {"salted": 10, "salts": 10}, {"max_blocks": 1_000},
    {"samples": (sample("a", 1), sample("b", 1), sample("c", error="refused"))},
    {"endpoints": (endpoint(clock_skew=1.9),)}, {"endpoints": (endpoint(version="0.33.0"),)},
])  # fmt: skip
def test_what_is_within_bounds_is_no_fault(changes: dict[str, Any]) -> None:
    assert {each.verdict for each in examine(facts(**changes))} == {Verdict.OK}


def test_a_newer_release_is_a_fault_until_its_recipe_is_proven() -> None:
    newer = (endpoint(version="0.33.0"),)
    (result,) = told("version", facts(cache(keys="unproven", keys_reason=""), endpoints=newer))
    assert result.verdict is Verdict.DEGRADED
    assert told("version", facts(endpoints=newer))[0].verdict is Verdict.OK


def test_of_a_lost_endpoint_nothing_else_is_said() -> None:
    broken = cache(source=None, stream=None, reports=0, knowledge="blind")
    results = [each for each in examine(facts(broken, endpoints=(LOST,))) if each.verdict is not Verdict.OK]
    assert [each.check for each in results] == ["endpoint"]


def test_a_fault_is_told_once_and_not_again_by_what_rests_on_it() -> None:
    for given, checks in (
        (cache(has_prefix_caching=False, source=None, stream=None, knowledge="blind", reports=0), ["caching"]),
        (cache(source=None, stream=None, knowledge="blind"), ["events"]),
        (cache(stream={"is_connected": False, "is_complete": False}, knowledge="blind", keys="unproven"), ["port"]),
        (cache(keys="learned", has_known_root=False, knowledge="learned"), ["recipe"]),
    ):
        results = [each for each in examine(facts(given)) if each.verdict in {Verdict.DEGRADED, Verdict.BROKEN}]
        assert [each.check for each in results] == checks


def test_replicas_that_differ_are_allowed_and_told() -> None:
    (result,) = told("alike", facts(cache(), cache(block_size=32)))
    assert (result.verdict, result.subjects) == (Verdict.OK, ["m"])
    assert "sha256 in blocks of 16; sha256 in blocks of 32" in result.told


def test_ranks_on_each_others_ports_are_found() -> None:
    one = cache(replica="h:8000#0", ranks=2)
    two = cache(replica="h:8000#1", ranks=2, source={"events": "tcp://h:5558", "replay": "tcp://h:5658"})
    (result,) = told("ranks", facts(one, two))
    assert (result.verdict, result.subjects) == (Verdict.OK, ["h:8000#0", "h:8000#1"])
    clash = cache(replica="h:8000#1", ranks=2, source={"events": "tcp://h:5657", "replay": "tcp://h:5757"})
    (result,) = told("ranks", facts(one, clash))
    assert result.verdict is Verdict.BROKEN
    assert result.told == "h:8000#0 and h:8000#1 have one address for their events or replays, tcp://h:5657"


@pytest.mark.parametrize("other", ["http://127.0.0.1:8000", "http://LOCALHOST:8000/", "http://[::1]:8000"])
def test_two_spellings_of_one_address_are_one(other: str) -> None:
    given = facts(endpoints=(endpoint(url="http://localhost:8000"), endpoint(url=other)))
    assert told("addresses", given)[0].verdict is Verdict.DEGRADED
    apart = facts(endpoints=(endpoint(url="http://localhost:8000"), endpoint(url="http://localhost:8001")))
    assert told("addresses", apart)[0].verdict is Verdict.OK
