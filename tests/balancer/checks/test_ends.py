"""``balancer/checks/ends.py``: both ends of a transfer agree, or the doctor says in what they do not."""

from typing import Any

import msgspec
import pytest

from balancer.checks import examine
from balancer.checks.ends import CLASSES, is_loopback, is_unspecified
from balancer.checks.facts import Address, Cache, End, Facts, SharedStore
from balancer.checks.finding import Result, Verdict
from balancer.disaggregation.plan import CONNECTORS
from tests.balancer.checks.samples import cache, endpoint, facts

OURS = ("roles", "ends", "connector", "channel", "stores")

PRODUCER = End(
    model="/m", dtype="bfloat16", connectors=("NixlConnector",), kv_role="kv_producer", addresses=(Address("p", 5600),)
)
CONSUMER = End(model="/m", dtype="bfloat16", connectors=("NixlConnector",), kv_role="kv_consumer")


def one(name: str, role: str, end: End, **changes: Any) -> Cache:
    return cache(
        replica=f"{name}:8000",
        endpoint=f"http://{name}:8000",
        role=role,
        root="/m",
        cache_dtype="auto",
        hash_root="c0ffee",
        end=end,
        **changes,
    )


P, D = one("p", "prefill", PRODUCER), one("d", "decode", CONSUMER)


def changed(which: Cache, **changes: Any) -> Cache:
    """The replica with changes; those of its end, with ``end_`` before them."""
    end = {name.removeprefix("end_"): value for name, value in changes.items() if name.startswith("end_")}
    rest = {name: value for name, value in changes.items() if not name.startswith("end_")}
    made = msgspec.structs.replace(which, **rest)
    return msgspec.structs.replace(made, end=msgspec.structs.replace(made.end, **end))


def fleet(*caches: Cache, name: tuple[str, ...] = ("nixl",), **changes: Any) -> Facts:
    urls = {each.endpoint for each in caches}
    return facts(*caches, endpoints=tuple(endpoint(url=url) for url in sorted(urls)), disaggregation=name, **changes)


def told(given: Facts, *checks: str) -> list[Result]:
    return [each for each in examine(given) if each.check in (checks or OURS)]


def test_where_both_ends_agree_all_is_well() -> None:
    results = told(fleet(P, D))
    assert [(each.check, each.verdict) for each in results] == [
        ("roles", Verdict.OK),
        ("ends", Verdict.OK),
        ("connector", Verdict.OK),
        ("connector", Verdict.OK),
        ("channel", Verdict.OK),
    ]
    assert results[0].told == "1 prefill, 1 decode"
    assert results[-1].told == "others reach its cache at p:5600"


def test_of_a_fleet_without_roles_and_stores_nothing_is_said() -> None:
    assert told(fleet(one("a", "both", PRODUCER), one("b", "both", CONSUMER))) == []
    assert told(facts()) == []
    assert told(facts(endpoints=())) == []


DIFFERENCES: list[tuple[str, dict[str, Any], dict[str, Verdict], str]] = [
    ("model", {"end_model": "/n"}, {"nixl": Verdict.BROKEN, "shared": Verdict.DEGRADED}, "/m (d:8000); /n (p:8000)"),
    ("dtype", {"end_dtype": "float16"}, {"nixl": Verdict.BROKEN, "shared": Verdict.BROKEN}, "float16 (p:8000)"),
    ("KV-cache dtype", {"cache_dtype": "fp8"}, {"nixl": Verdict.BROKEN, "shared": Verdict.BROKEN}, "fp8 (p:8000)"),
    (
        "block size",
        {"block_size": 32},
        {"nixl": Verdict.DEGRADED, "shared": Verdict.BROKEN},
        "16 (d:8000); 32 (p:8000)",
    ),
    (
        "version of vLLM",
        {"version": "0.31.0"},
        {"nixl_push": Verdict.BROKEN, "mooncake": Verdict.DEGRADED},
        "0.31.0 (p",
    ),
    ("hash algorithm", {"algorithm": "xxhash"}, {"shared": Verdict.DEGRADED}, "sha256 (d:8000); xxhash (p:8000)"),
    ("root of their hashes", {"hash_root": "beef"}, {"lmcache_mp": Verdict.DEGRADED}, "beef (p:8000); c0ffee (d:8000)"),
]


@pytest.mark.parametrize(("what", "changes", "verdicts", "text"), DIFFERENCES)
def test_a_difference_is_named_with_who_has_what(
    what: str, changes: dict[str, Any], verdicts: dict[str, Verdict], text: str
) -> None:
    for name, verdict in verdicts.items():
        (result,) = told(fleet(changed(P, **changes), D, name=(name,)), "ends")
        assert (result.verdict, result.subjects) == (verdict, ["m"])
        assert result.told.startswith(f"they differ in {what}: ")
        assert text in result.told
        assert result.remedy


def test_names_of_hashes_are_nothing_to_those_who_say_which_blocks_they_mean() -> None:
    for changes in ({"algorithm": "xxhash"}, {"hash_root": "beef"}):
        (result,) = told(fleet(changed(P, **changes), D), "ends")
        assert result.verdict is Verdict.OK


def test_what_is_not_told_is_neither_right_nor_wrong() -> None:
    silent = {"end": End(), "root": None, "cache_dtype": None, "version": None, "block_size": None}
    results = told(fleet(changed(P, **silent), changed(D, **silent)))
    assert {each.verdict for each in results if each.check != "roles"} == {Verdict.SKIPPED}
    texts = {each.check: (each.told, each.remedy) for each in results}
    assert (
        texts["ends"][0]
        == "not told by all that exchange its cache: model, dtype, KV-cache dtype, block size, version of vLLM"
    )
    assert "VLLM_SERVER_DEV_MODE=1" in texts["ends"][1]
    assert texts["channel"] == ("not told: where others reach its cache", "use --probe, which asks for it")
    assert "--probe asks for it" in next(each.remedy for each in results if each.subjects == ["p:8000"])
    (half, rest) = told(fleet(changed(P, end_dtype=None), D), "ends")
    assert (half.verdict, half.told) == (Verdict.SKIPPED, "not told by all that exchange its cache: dtype")
    assert rest.verdict is Verdict.OK


def test_three_of_which_one_is_odd() -> None:
    odd = changed(D, replica="e:8000", endpoint="http://e:8000", cache_dtype="fp8")
    (result,) = told(fleet(P, D, odd), "ends")
    assert result.told == "they differ in KV-cache dtype: auto (p:8000, d:8000); fp8 (e:8000)"


def test_models_are_compared_among_their_own() -> None:
    other = [
        changed(each, replica=f"{at}", models=("n",), end_dtype="float16", root="/n", end_model="/n")
        for at, each in enumerate((P, D))
    ]
    assert {each.verdict for each in told(fleet(P, D, *other), "ends")} == {Verdict.OK}


# Roles


def test_each_side_needs_the_other_one_of_the_same_model() -> None:
    (lonely,) = told(fleet(D))
    assert (lonely.check, lonely.verdict, lonely.subjects) == ("roles", Verdict.DEGRADED, ["m"])
    assert "compute its prompts themselves" in lonely.told
    (useless,) = told(fleet(P))
    assert (useless.check, useless.verdict) == ("roles", Verdict.BROKEN)
    results = told(fleet(P, changed(D, models=("n",))), "roles")
    assert [(each.subjects, each.verdict) for each in results] == [(["m"], Verdict.BROKEN), (["n"], Verdict.DEGRADED)]
    (both,) = told(fleet(one("b", "both", PRODUCER), D), "roles")
    assert (both.verdict, both.told) == (Verdict.OK, "1 decode, 1 both")
    (asked,) = told(fleet(P, one("b", "both", PRODUCER)), "roles")
    assert asked.verdict is Verdict.BROKEN, "one that does both asks nobody"


def test_of_what_cannot_be_reached_nothing_is_said() -> None:
    given = facts(
        P, D, endpoints=(endpoint(url="http://p:8000", problem="refused"), endpoint(url="http://d:8000")),
        disaggregation=("nixl",),
    )  # fmt: skip
    assert [each.check for each in told(given)] == ["roles"]


# The connector


CONNECTOR_FAULTS: list[tuple[Cache, dict[str, Any], str, str]] = [
    (P, {"end_connectors": ()}, "has no KV connector", "--kv-transfer-config for nixl"),
    (
        D,
        {"end_connectors": ("MooncakeConnector",)},
        "its connector is MooncakeConnector, and disaggregation.name is nixl",
        "set",
    ),
    (
        P,
        {"end_connectors": ("MultiConnector", "OffloadingConnector")},
        "MultiConnector with OffloadingConnector",
        "set",
    ),
    (
        P,
        {"end_kv_role": "kv_consumer"},
        "it is for prefill, and its connector is a kv_consumer",
        "kv_producer for prefill",
    ),
    (
        D,
        {"end_kv_role": "kv_producer"},
        "it is for decode, and its connector is a kv_producer",
        "kv_consumer for decode",
    ),
    (
        P,
        {"role": "both", "end_kv_role": "kv_consumer"},
        "it is for both, and its connector is a kv_consumer",
        "kv_both",
    ),
    (P, {"end_is_fetchable": False}, "answered a prefill without", "--kv-transfer-config"),
]


@pytest.mark.parametrize(("which", "changes", "text", "remedy"), CONNECTOR_FAULTS)
def test_a_connector_that_does_not_fit_is_broken(which: Cache, changes: dict[str, Any], text: str, remedy: str) -> None:
    caches = [changed(each, **changes) if each is which else each for each in (P, D)]
    (result,) = [each for each in told(fleet(*caches), "connector") if each.verdict is not Verdict.OK]
    assert (result.verdict, result.subjects) == (Verdict.BROKEN, [which.replica])
    assert text in result.told
    assert remedy in result.remedy


@pytest.mark.parametrize(
    "changes",
    [
        {"end_kv_role": "kv_both"},
        {"end_kv_role": None},
        {"end_connectors": ("NixlPullConnector",)},
        {"end_connectors": ("MultiConnector", "NixlConnector", "OffloadingConnector")},
        {"end_connectors": None, "end_is_fetchable": True},
    ],
)
def test_what_fits_is_told(changes: dict[str, Any]) -> None:
    results = told(fleet(changed(P, **changes), D), "connector")
    assert {each.verdict for each in results} == {Verdict.OK}


def test_what_metrics_name_is_told_where_engines_say_no_more() -> None:
    for name in ("nixl", "nixl_push"):
        results = told(fleet(changed(P, end=End(), connectors=("NixlConnector",)), D, name=(name,)), "connector")
        found = next(each for each in results if each.subjects == ["p:8000"])
        assert found.told == "NixlConnector, by its metrics or the settings; its role is not told"
    for changes in ({"end": End(), "connectors": ("OffloadingConnector",)}, {"end": End()}):
        results = told(fleet(changed(P, **changes), D), "connector")
        assert next(each.verdict for each in results if each.subjects == ["p:8000"]) is Verdict.SKIPPED
    results = told(fleet(changed(P, end_connectors=(), connectors=("NixlConnector",)), D), "connector")
    assert {each.verdict for each in results} == {Verdict.OK, Verdict.BROKEN}, "what it says itself counts"


def test_every_connector_of_ours_has_its_classes_and_others_are_not_judged() -> None:
    assert set(CLASSES) == set(CONNECTORS.names())
    results = told(fleet(P, D, name=("my.module:Own",)), "connector", "channel")
    assert {each.verdict for each in results} == {Verdict.OK}
    results = told(fleet(P, D, name=("multi", "nixl", "shared")), "connector")
    assert {each.verdict for each in results} == {Verdict.OK}, "one of the parts is there"


# Where others connect to


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST.", "::1", "127.8.0.1", "::ffff:127.0.0.1"])
def test_a_machines_name_for_itself_is_none_for_another_machine(host: str) -> None:
    assert is_loopback(host)
    at = changed(P, end_addresses=(Address(host, 5600),))
    (result,) = told(fleet(at, D), "channel")
    assert (result.verdict, result.subjects) == (Verdict.BROKEN, ["p:8000"])
    assert "which for d:8000 is their own machine" in result.told
    near = changed(D, endpoint="http://p:9000")
    assert {each.verdict for each in told(fleet(at, near), "channel")} == {Verdict.OK}, "both are on one machine"
    here = [changed(at, endpoint="http://127.0.0.1:8000"), changed(D, endpoint="http://localhost:8001")]
    assert {each.verdict for each in told(fleet(*here), "channel")} == {Verdict.OK}


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "[::]", "*", ""])
def test_an_address_to_listen_at_is_none_to_connect_to(host: str) -> None:
    assert is_unspecified(host)
    (result,) = told(fleet(changed(P, end_addresses=(Address(host, 5600),)), D), "channel")
    assert (result.verdict, "which is no address" in result.told) == (Verdict.BROKEN, True)


@pytest.mark.parametrize("host", ["10.0.0.1", "p", "fd00::1", "p.localhost.example", "127.example", "0", "no host"])
def test_other_addresses_are_taken_at_their_word(host: str) -> None:
    assert not is_loopback(host)
    assert not is_unspecified(host)


def test_an_address_that_cannot_be_reached_from_here_may_be_reached_from_there() -> None:
    (result,) = told(fleet(changed(P, end_addresses=(Address("p", 5600, "connection refused"),)), D), "channel")
    assert result.verdict is Verdict.DEGRADED
    assert "p:5600, where others reach its cache, cannot be reached from here: connection refused" in result.told


def test_of_several_addresses_the_worst_counts() -> None:
    several = (Address("p", 8998), Address("p", 1, "refused"), Address("127.0.0.1", 2))
    (result,) = told(
        fleet(changed(P, end_addresses=several, bootstrap="http://p:8998"), D, name=("mooncake",)), "channel"
    )
    assert (result.verdict, "127.0.0.1:2" in result.told) == (Verdict.BROKEN, True)


@pytest.mark.parametrize(
    ("name", "changes", "text"),
    [
        ("mooncake", {}, "where its bootstrap server is, is not set"),
        ("moriio", {}, "where others reach its cache is not set"),
        ("p2p_nccl", {"address": "nonsense"}, "transfer.address cannot be read: 'nonsense'"),
    ],
)
def test_an_address_that_the_settings_lack_is_broken(name: str, changes: dict[str, Any], text: str) -> None:
    results = told(fleet(changed(P, end_addresses=(), **changes), D, name=(name,)), "channel")
    assert {each.verdict for each in results} == {Verdict.BROKEN}
    assert text in results[0].told


def test_who_has_to_be_reached_depends_on_the_connector() -> None:
    for name, subjects in (
        ("nixl", ["p:8000"]), ("mooncake", ["p:8000"]), ("lmcache", ["d:8000"]), ("moriio", ["p:8000", "d:8000"]),
        ("shared", []), ("lmcache_mp", []),
    ):  # fmt: skip
        given = fleet(changed(P, end_addresses=()), D, name=(name,))
        assert [name for each in told(given, "channel") for name in each.subjects] == subjects


# Stores


STORE = SharedStore(name="files", connector="files", replicas=("p:8000", "d:8000"))


def stored(*caches: Cache, **changes: Any) -> list[Result]:
    return told(fleet(*caches, stores=(msgspec.structs.replace(STORE, **changes),)), "stores")


A, B = one("p", "both", End(dtype="bfloat16")), one("d", "both", End(dtype="bfloat16"))


def test_replicas_of_a_store_that_agree_are_told_so() -> None:
    (result,) = stored(A, B)
    assert (result.verdict, result.told) == (Verdict.OK, "those that read from it agree, as far as they tell")
    (alone,) = stored(A, B, replicas=("p:8000",))
    assert alone.told == "one replica reads from it"
    silent = changed(B, end_dtype=None, cache_dtype=None, block_size=None, algorithm=None, hash_root=None)
    assert {each.verdict for each in stored(A, silent)} == {Verdict.OK}


@pytest.mark.parametrize(
    ("what", "changes", "is_of_names"),
    [
        ("block size", {"block_size": 32}, True),
        ("hash algorithm", {"algorithm": "sha256_cbor"}, True),
        ("root of their hashes", {"hash_root": "beef"}, True),
        ("KV-cache dtype", {"cache_dtype": "fp8"}, False),
        ("dtype", {"end_dtype": "float16"}, False),
    ],
)
def test_replicas_of_a_store_that_do_not_find_each_others_blocks(
    what: str, changes: dict[str, Any], is_of_names: bool
) -> None:
    (result,) = stored(A, changed(B, **changes))
    assert (result.verdict, result.subjects) == (Verdict.DEGRADED, ["files"])
    assert f"replicas of m differ in {what}: " in result.told
    (named,) = stored(A, changed(B, **changes), has_own_names=True)
    assert (named.verdict is Verdict.OK) is is_of_names, "names of its own need no recipe"
    others = stored(A, changed(B, models=("n",), **changes))
    assert {each.verdict for each in others} == {Verdict.OK}, "they look for other blocks anyhow"


def test_a_store_of_which_nobody_reads_and_one_with_another_block_size() -> None:
    (nobody,) = stored(A, B, replicas=())
    assert (nobody.verdict, nobody.told) == (Verdict.DEGRADED, "no replica reads from it")
    results = stored(A, B, connector="example", has_own_names=True, block_size=32)
    assert {each.verdict for each in results} == {Verdict.BROKEN}
    assert "its block_size is 32, and p:8000 has 16" in results[0].told
    (gone,) = stored(A, changed(B, keys="learned"))
    assert "nobody knows how d:8000 names blocks" in gone.told
    assert stored(A, B, replicas=("x:1",)) == [], "of replicas that are gone nothing is said"
