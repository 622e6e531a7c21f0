"""``balancer/facts.py``: what engines of each age tell of themselves, and what the settings add."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer import facts
from balancer.facts import CacheConfig, EngineFacts, EventSource, ModelCard
from balancer.settings import ReplicaSettings
from hashing.extras import Lora
from hashing.recipes import Recipe

URL = "http://10.0.0.1:8000"
CARD = ModelCard(id="m", root="org/m", max_model_len=4096)
TOLD = EngineFacts(
    models=(CARD,),
    version="0.32.0",
    cache=(CacheConfig(0, 16, "sha256", 4096, True),),
    sources=(EventSource(0, "tcp://10.0.0.1:5557", "tcp://10.0.0.1:5657", ""),),
)
NOTHING = EngineFacts(models=(CARD,))


def settings(**changes: Any) -> ReplicaSettings:
    return ReplicaSettings(url=URL, **changes)


def one(which: ReplicaSettings, told: EngineFacts) -> facts.Described:
    (found,) = facts.describe(which, told)
    return found


# What engines say


def test_models_keep_what_matters_of_them() -> None:
    base: dict[str, Any] = {
        "id": "m",
        "object": "model",
        "root": "org/m",
        "parent": None,
        "max_model_len": 4096,
        "permission": [{}],
    }
    adapter = {"id": "sql", "root": "/adapters/sql", "parent": "m", "max_model_len": None}
    body = json.dumps({"object": "list", "data": [base, adapter]}).encode()
    assert facts.read_models(body) == (CARD, ModelCard("sql", "/adapters/sql", "m"))
    assert facts.read_listing(body) == (base, adapter)


@pytest.mark.parametrize("body", [b"", b"null", b"[]", b'{"data": 1}', b'{"data": [{}]}', b"<html>", b"{}"])
def test_what_is_no_list_of_models_is_refused(body: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        facts.read_models(body)


@pytest.mark.parametrize(
    ("body", "version"),
    [(b'{"version": "0.32.0"}', "0.32.0"), (b"", None), (b'{"version": 3}', None), (b"[]", None), (b"{}", None)],
)
def test_a_version_is_a_text_or_unknown(body: bytes, version: str | None) -> None:
    assert facts.read_version(body) == version


PAGE = b"""# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{%s} 1.0
vllm:num_requests_running{engine="0"} 0.0
"""


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        # 0.32.0
        (
            'block_size="16",effective_attention_block_size="32",enable_prefix_caching="True",engine="0",'
            'num_gpu_blocks="4096",prefix_caching_hash_algo="sha256_cbor"',
            CacheConfig(0, 32, "sha256_cbor", 4096, True),
        ),
        # before 0.31
        (
            'block_size="16",enable_prefix_caching="False",engine="1",num_gpu_blocks="None",'
            'prefix_caching_hash_algo="sha256"',
            CacheConfig(1, 16, "sha256", None, False),
        ),
        ('block_size="None"', CacheConfig(0, None, None, None, None)),
    ],
)
def test_the_cache_configuration_is_in_the_metrics(labels: str, expected: CacheConfig) -> None:
    assert facts.read_cache_config(PAGE % labels.encode()) == (expected,)


def test_every_rank_has_its_line() -> None:
    page = b"".join(b'vllm:cache_config_info{engine="%d",block_size="16"} 1.0\n' % rank for rank in (1, 0))
    assert [each.rank for each in facts.read_cache_config(page)] == [0, 1]


@given(st.binary() | st.binary().map(lambda tail: b"vllm:cache_config_info{" + tail))
def test_any_metrics_page_can_be_read(body: bytes) -> None:
    facts.read_cache_config(body)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.dictionaries(st.text(), inner) | st.lists(inner),
)


@given(st.binary() | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_answer_can_be_read_for_versions_and_sources(body: bytes) -> None:
    facts.read_version(body)
    facts.read_event_sources(body, "h")


def test_event_sources_become_addresses_of_the_engines_host() -> None:
    def rank(**changes: Any) -> dict[str, Any]:
        plain = {"enable_kv_cache_events": True, "endpoint": "tcp://*:5557", "replay_endpoint": None, "topic": "t"}
        return {**plain, **changes}

    body = {
        "1": rank(endpoint="tcp://*:5558", replay_endpoint="tcp://*:5658", topic=""),
        "0": rank(buffer_steps=10_000, hwm=100_000, max_queue_size=-1),
        "2": rank(enable_kv_cache_events=False),
        "3": rank(endpoint=None),
        "x": rank(),
    }
    assert facts.read_event_sources(json.dumps(body).encode(), "10.0.0.1") == (
        EventSource(0, "tcp://10.0.0.1:5557", None, "t", buffer_steps=10_000, hwm=100_000, told_topic="t"),
        EventSource(1, "tcp://10.0.0.1:5558", "tcp://10.0.0.1:5658", "", told_topic=""),
    )


@pytest.mark.parametrize(
    ("endpoint", "host", "expected"),
    [
        ("tcp://*:5557", "10.0.0.1", "tcp://10.0.0.1:5557"),
        ("tcp://0.0.0.0:5557", "engine", "tcp://engine:5557"),
        ("tcp://[::]:5557", "fd00::1", "tcp://[fd00::1]:5557"),
        ("tcp://10.9.9.9:5557", "10.0.0.1", "tcp://10.9.9.9:5557"),
        ("ipc:///run/kv", "10.0.0.1", "ipc:///run/kv"),
        ("tcp://*:5557", r"\1", r"tcp://\1:5557"),
    ],
)
def test_a_wildcard_is_replaced_by_the_host(endpoint: str, host: str, expected: str) -> None:
    assert facts.reachable(endpoint, host) == expected


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        ("tcp://*:5557", False),
        ("tcp://[::]:5557", False),
        ("tcp://[fd00::1]:5557", False),
        ("ipc:///run/kv", False),
        ("tcp://10.0.0.1:44309", False),  # what has become of tcp://*:0
        ("tcp://kvlb:5557", True),
        ("tcp://kvlb:44309", True),
        ("tcp://10.0.0.1:5557", True),
    ],
)
def test_a_publisher_without_a_wildcard_connects(endpoint: str, expected: bool) -> None:
    assert facts.dials(endpoint) is expected


# What becomes of it


def test_an_engine_that_tells_everything_needs_no_settings() -> None:
    found = one(settings(), TOLD)
    assert found.replica.id == "10.0.0.1:8000"
    assert found.replica.recipe == Recipe.for_version("0.32.0", algorithm="sha256", block_size=16)
    assert (found.replica.models, found.replica.max_model_len, found.replica.num_gpu_blocks) == (("m",), 4096, 4096)
    assert found.source == TOLD.sources[0]
    assert found.warnings == ()


def test_settings_overrule_what_the_engine_tells() -> None:
    found = one(
        settings(
            version="0.18.0", block_size=32, hash_algorithm="sha256_cbor", hash_seed="0", events="tcp://h:1", topic="t"
        ),
        TOLD,
    )
    expected = Recipe.for_version("0.18.0", algorithm="sha256_cbor", block_size=32, seed="0")
    assert found.replica.recipe == expected
    told = TOLD.sources[0]
    assert found.source == msgspec.structs.replace(told, events="tcp://h:1", topic="t", is_set=True)


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        ({"events": "tcp://h:1"}, "events", "tcp://h:1"),
        ({"replay": "tcp://h:1"}, "replay", "tcp://h:1"),
        ({"topic": "kv@"}, "topic", "kv@"),
        ({"topic": ""}, "topic", ""),
    ],
)
def test_a_setting_of_the_events_overrules_its_own_field(changes: dict[str, Any], field: str, value: str) -> None:
    source = msgspec.structs.replace(TOLD.sources[0], topic="told", told_topic="told", buffer_steps=7)
    found = one(settings(**changes), msgspec.structs.replace(TOLD, sources=(source,))).source
    expected: dict[str, Any] = {field: value, "is_set": "events" in changes}
    assert found == msgspec.structs.replace(source, **expected)


def test_an_old_engine_is_usable_with_settings_alone() -> None:
    found = one(
        settings(version="0.18.0", block_size=16, hash_seed="0", events="tcp://h:1", replay="tcp://h:9"), NOTHING
    )
    assert found.replica.recipe is not None
    assert found.source == EventSource(0, "tcp://h:1", "tcp://h:9", "", is_set=True)
    assert found.warnings == ()


@pytest.mark.parametrize(
    ("changes", "told", "warning"),
    [
        ({}, {"sources": ()}, "no KV event source is known"),
        ({}, {"version": None}, "does not tell its version"),
        ({}, {"cache": ()}, "does not tell its block_size"),
        ({"events": "tcp://h:1"}, {"sources": ()}, 'before vLLM 0.31, name it here (replay = "tcp://...")'),
        ({}, {"cache": (CacheConfig(0, 16, "sha256", 9, False),)}, "prefix caching is off"),
        ({}, {"version": None}, "learned from its events"),
        ({"version": "0.18.0"}, {}, "set PYTHONHASHSEED on the engines"),
        ({"version": "0.18.0"}, {}, "cannot be computed before its first events"),
        ({"hash_algorithm": "md5"}, {}, "'md5' is unknown"),
        ({"hash_algorithm": "md5"}, {}, "are learned from its events"),
        ({"version": "0.9.1"}, {}, "0.11 or later is needed"),
    ],
)
def test_what_is_missing_is_said_with_its_remedy(changes: dict[str, Any], told: dict[str, Any], warning: str) -> None:
    found = one(settings(**changes), msgspec.structs.replace(TOLD, **told))
    assert any(warning in each for each in found.warnings)


def test_a_recipe_that_nobody_knows_is_none_and_no_guess() -> None:
    assert one(settings(), msgspec.structs.replace(TOLD, version=None)).replica.recipe is None


def test_what_is_known_of_a_recipe_is_kept_when_its_root_is_not() -> None:
    """The root may be found by trying; in which form extras are hashed cannot."""
    found = one(settings(version="0.22.0"), TOLD).replica.recipe
    assert found == Recipe.for_version("0.22.0", algorithm="sha256", block_size=16)
    assert not found.has_known_root


def test_each_rank_is_a_replica() -> None:
    ranks = facts.describe(settings(data_parallel_size=3, events="tcp://h:5557", replay="tcp://h:5657"), TOLD)
    assert [each.replica.id for each in ranks] == [f"10.0.0.1:8000#{rank}" for rank in range(3)]
    assert [(each.replica.rank, each.replica.ranks) for each in ranks] == [(0, 3), (1, 3), (2, 3)]
    assert [each.source.events for each in ranks if each.source] == [f"tcp://h:{5557 + rank}" for rank in range(3)]
    assert [each.source.replay for each in ranks if each.source] == [f"tcp://h:{5657 + rank}" for rank in range(3)]


def test_ranks_are_counted_from_what_the_engine_tells() -> None:
    told = msgspec.structs.replace(
        TOLD, cache=tuple(CacheConfig(rank, 16, "sha256", 100 + rank, True) for rank in range(2))
    )
    assert [each.replica.num_gpu_blocks for each in facts.describe(settings(), told)] == [100, 101]


def test_adapters_have_their_path() -> None:
    told = msgspec.structs.replace(TOLD, models=(CARD, ModelCard("sql", "/adapters/sql", "m")))
    found = one(settings(), told).replica
    assert (found.models, found.adapters) == (("m", "sql"), (Lora("sql", "/adapters/sql"),))


def test_an_ipc_address_is_the_same_for_every_rank() -> None:
    assert facts.with_rank("ipc:///run/kv", 3) == "ipc:///run/kv"


def test_listings_merge_by_name_and_keep_every_field() -> None:
    merged = facts.merge_listings(
        [
            [{"id": "m", "max_model_len": 4096, "permission": [1]}, {"id": "a", "parent": "m", "max_model_len": None}],
            [{"id": "b", "parent": None}, {"id": "m", "max_model_len": 2048}, {"id": "a", "parent": "m", "root": "x"}],
        ]
    )
    assert merged == [
        {"id": "m", "max_model_len": 2048, "permission": [1]},
        {"id": "b", "parent": None},
        {"id": "a", "parent": "m", "max_model_len": None},
    ]


def test_a_rank_that_is_alone_is_one_replica_and_needs_no_header() -> None:
    """Behind an external load balancer each pod tells of its own rank only, numbered over all pods."""
    cache = CacheConfig(rank=3, block_size=16, algorithm="sha256", num_gpu_blocks=10, has_prefix_caching=True)
    source = EventSource(3, "tcp://h:5560", None, "")
    told = EngineFacts(models=(ModelCard("m"),), version="0.32.0", cache=(cache,), sources=(source,))
    for settings in (ReplicaSettings(url="http://h:1"), ReplicaSettings(url="http://h:1", data_parallel_size=1)):
        (only,) = facts.describe(settings, told)
        assert (only.replica.id, only.replica.rank, only.replica.ranks, only.source) == ("h:1", 3, 1, source)
        assert only.replica.recipe is not None


@pytest.mark.parametrize(
    ("ranks", "is_told", "said"),
    [
        ([0], True, [(0,)]),
        ([3], True, [(3,)]),  # behind an external load balancer
        ([0, 1], True, [(0,), (1,)]),
        ([0], False, [None]),  # it may be such a one, of a release that does not tell
        ([0, 1, 2], False, [(0,), (1, 0), (2, 0)]),  # of engines that tell nothing, some always say 0
    ],
)
def test_what_rank_its_batches_may_name(ranks: list[int], is_told: bool, said: list[tuple[int, ...] | None]) -> None:
    sources = tuple(EventSource(rank, f"tcp://h:{5557 + rank}", None, "") for rank in ranks) if is_told else ()
    which = ReplicaSettings(
        url="http://h:1", events="tcp://h:7000", data_parallel_size=None if is_told else len(ranks), replay=None
    )
    found = facts.describe(which, EngineFacts(models=(ModelCard("m"),), sources=sources))
    assert [each.said_ranks for each in found] == said


def test_ranks_that_no_engine_has_are_not_believed() -> None:
    source = EventSource(3_000_000, "tcp://h:5560", None, "")
    assert (
        len(facts.describe(ReplicaSettings(url="http://h:1"), EngineFacts(models=(ModelCard("m"),), sources=(source,))))
        == 1
    )


def test_without_prefix_caching_nothing_is_expected_to_be_cached() -> None:
    cache = CacheConfig(rank=0, block_size=16, algorithm="sha256", num_gpu_blocks=10, has_prefix_caching=False)
    source = EventSource(0, "tcp://h:5560", None, "")
    told = EngineFacts(models=(ModelCard("m"),), version="0.32.0", cache=(cache,), sources=(source,))
    (only,) = facts.describe(ReplicaSettings(url="http://h:1"), told)
    assert (only.replica.recipe, only.source, only.replica.has_events) == (None, None, False)
    assert "--enable-prefix-caching" in only.warnings[0]


def test_sources_with_fields_of_other_types_are_read_as_far_as_they_can() -> None:
    body = (
        b'{"0":{"enable_kv_cache_events":true,"endpoint":"tcp://*:5557","topic":5,"replay_endpoint":7},"9x":{},"1":{}}'
    )
    assert facts.read_event_sources(body, "h") == (EventSource(0, "tcp://h:5557", None, "", told_topic=""),)


DIALLING = msgspec.structs.replace(
    TOLD, sources=(EventSource(0, "tcp://kvlb:5557", "tcp://10.0.0.1:5657", "t", is_dialling=True),)
)


def test_a_publisher_that_connects_is_told_with_both_remedies() -> None:
    found = one(settings(), DIALLING)
    (warning,) = found.warnings
    assert "connects to tcp://kvlb:5557 instead of listening" in warning
    assert '"tcp://*:PORT"' in warning
    assert 'events_bind = "tcp://*:PORT"' in warning
    assert found.source is not None
    assert not found.source.is_dialling, "it is tried all the same: nothing else could be said of it"


@pytest.mark.parametrize("told", [TOLD, DIALLING], ids=["listening", "connecting"])
def test_kvlb_listens_where_the_settings_say(told: EngineFacts) -> None:
    found = one(settings(events_bind="tcp://*:6000"), told)
    source = told.sources[0]
    assert found.source == msgspec.structs.replace(
        source, events="tcp://*:6000", is_dialling=True, senders=("10.0.0.1",), is_set=True
    )
    assert found.warnings == ()


@pytest.mark.parametrize(
    ("url", "events_from", "senders"),
    [
        (URL, ("10.0.0.0/8",), ("10.0.0.0/8",)),
        ("http://localhost:8000", None, facts.LOOPBACK),
        ("http://127.0.0.1:8000", None, facts.LOOPBACK),
        ("https://[fd00::1]:8000", None, ("fd00::1",)),
        ("http://engine-0.svc:8000", None, None),
    ],
)
def test_who_may_send_its_events_is_who_is_at_its_address(
    url: str, events_from: tuple[str, ...] | None, senders: tuple[str, ...] | None
) -> None:
    which = ReplicaSettings(url=url, events_bind="tcp://*:6000", events_from=events_from)
    found = one(which, TOLD)
    assert found.source is not None
    assert found.source.senders == senders
    assert any("events_from" in warning for warning in found.warnings) is (senders is None)


def test_each_rank_that_connects_has_its_own_port() -> None:
    found = facts.describe(
        settings(events_bind="tcp://*:6000", replay="tcp://e:7000", data_parallel_size=2), EngineFacts()
    )
    assert [each.source and (each.source.events, each.source.replay) for each in found] == [
        ("tcp://*:6000", "tcp://e:7000"),
        ("tcp://*:6001", "tcp://e:7001"),
    ]


def test_the_settings_know_better_which_connectors_there_are_and_of_which_release() -> None:
    told = msgspec.structs.replace(TOLD, connectors=("OffloadingConnector",))
    found = one(settings(), told).replica
    assert (found.connectors, found.release) == (("OffloadingConnector",), (0, 32))
    found = one(settings(kv_connectors=(), version="0.29.1"), told).replica
    assert (found.connectors, found.release) == ((), (0, 29))
    assert one(settings(), NOTHING).replica.release is None
