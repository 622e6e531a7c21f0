"""``balancer/settings.py``: every mistake names its setting by its path and says what would be right."""

from typing import Any

import msgspec
import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from balancer import settings
from balancer.errors import ConfigError
from balancer.settings import ReplicaSettings, Settings

REPLICA = {"url": "http://10.0.0.1:8000"}


def fails(tree: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as told:
        settings.convert(tree)
    message = str(told.value)
    assert "\n" not in message
    return message


def test_a_file_fills_the_tree() -> None:
    loaded = settings.load(
        """
        [server]
        port = 9000
        [policy]
        name = "cache_aware"
        queue_weight = 2.0
        [[replicas]]
        url = "http://10.0.0.1:8000"
        events = "tcp://10.0.0.1:5557"
        [[replicas]]
        url = "http://10.0.0.2:8000/"
        """
    )
    assert loaded.server.port == 9000
    assert loaded.policy.settings == {"queue_weight": 2.0}
    assert [each.url for each in loaded.replicas] == ["http://10.0.0.1:8000", "http://10.0.0.2:8000"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("http://localhost:9000", "HTTP://LOCALHOST:9000/"),
        ("http://h", "http://H:80"),
        ("https://h:443", "https://h"),
        ("http://[FE80::1]:8000", "http://[fe80::1]:8000"),
        ("http://localhost:8000", "http://127.0.0.1:8000"),
        ("http://localhost:8000", "http://[::1]:8000"),
        ("http://[::ffff:10.0.0.1]:8000", "http://10.0.0.1:8000"),
        ("http://[2001:db8:0::1]:8000", "http://[2001:db8::1]:8000"),
        ("http://h.example.:8000", "http://h.example:8000"),
        ("http://h:8000", "https://h:8000"),
    ],
)
def test_two_spellings_of_one_server_are_one_server(one: str, other: str) -> None:
    told = fails({"replicas": [{"url": "http://another:1"}, {"url": one}, {"url": other}]})
    assert told.startswith("replicas[2].url: '")
    assert "is the same engine as replicas[1], '" in told


@pytest.mark.parametrize("name", ["events", "replay"])
def test_two_engines_have_no_stream_of_events_in_common(name: str) -> None:
    one, other = {"url": "http://a:1", name: "tcp://h:5557"}, {"url": "http://b:1", name: "tcp://h:5557"}
    told = fails({"replicas": [one, other]})
    assert told.startswith(f"replicas[1].{name}: 'tcp://h:5557' is that of replicas[0] (http://a:1), too; ")
    settings.convert({"replicas": [{**one, "topic": "a"}, {**other, "topic": "b"}]})


def test_a_name_that_is_none_of_several_is_answered_with_all_of_them() -> None:
    told = fails({"retries": {"faults": ["conect"]}})
    assert told.startswith("retries.faults[0]: 'conect' is unknown; use one of connect, reset")
    told = fails({"clients": {"priority": "maybe"}})
    assert told.startswith("clients.priority: 'maybe' is unknown; use one of ")


def test_ports_that_differ_are_two_servers() -> None:
    tree = {"replicas": [{"url": url} for url in ("http://h:80", "https://h:443", "http://h:8000")]}
    assert [each.url for each in settings.convert(tree).replicas] == ["http://h", "https://h", "http://h:8000"]
    tree = {"replicas": [{"url": url} for url in ("https://h:80", "http://h:443")]}
    assert [each.url for each in settings.convert(tree).replicas] == ["https://h:80", "http://h:443"]


ENDPOINTS = (
    "tcp://10.0.0.1:5557",
    "tcp://a_b-c.d:1",
    "tcp://[fe80::1%eth0]:65535",
    "tcp://::1:1",
    "ipc:///tmp/a b",
    "ipc://@x",
)
NO_ENDPOINTS = (
    *(
        "tcp://a b:1",
        "tcp://127.0.0.1:٣٣",
        "tcp://ä:1",
        "tcp://a\n:1",
        "tcp://a:1\n",
        "tcp://*:1",
        "tcp://:0",
        "tcp://h:65536",
    ),
    *(
        "tcp://h",
        "tcp://h:",
        "tcp:///:1",
        "ipc://",
        "ipc://\0",
        "ipc://*",
        "ipc://a\nb",
        "ipc://" + "ä" * 54,
        "udp://h:1",
        "/tmp/a",
    ),
)


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_an_address_that_zmq_takes_is_taken(endpoint: str) -> None:
    settings.check_endpoint("x", endpoint)
    with zmq.Context() as context, context.socket(zmq.SUB) as socket:
        socket.connect(endpoint)


@pytest.mark.parametrize("endpoint", NO_ENDPOINTS)
def test_an_address_that_cannot_be_connected_to_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigError, match=r"^x: '.*' cannot be connected to; give the engine's own") as told:
        settings.check_endpoint("x", endpoint)
    assert str(told.value).isprintable()


def test_an_empty_file_is_the_defaults() -> None:
    assert settings.load("") == Settings()


def test_converting_does_not_change_what_it_is_given() -> None:
    tree: dict[str, Any] = {"policy": {"name": "cache_aware", "queue_weight": 2.0}}
    settings.convert(tree)
    assert tree == {"policy": {"name": "cache_aware", "queue_weight": 2.0}}


@pytest.mark.parametrize("text", ["port == 1", "x = " + "[" * 3000, "x = " + "1" * 5000])
def test_what_is_no_toml_is_said_so(text: str) -> None:
    with pytest.raises(ConfigError, match="not valid TOML"):
        settings.load(text)


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"sever": {}}, "sever: unknown setting; did you mean server?"),
        ({"server": {"prot": 1}}, "server.prot: unknown setting; did you mean port?"),
        ({"replicas": [REPLICA, {**REPLICA, "evnts": ""}]}, "evnts: unknown setting; did you mean events?"),
        ({"upstream": {"xyz": 1}}, "upstream.xyz: unknown setting; there are: api_key"),
        ({"server": {"port": "80"}}, "server.port: expected `int`, got `str`"),
        ({"replicas": [{}]}, "replicas[0]: object missing required field `url`"),
        ({"replicas": {}}, "replicas: written as one table; write [[replicas]], with two brackets"),
        ({"admission": {"weights": {"hihg": 1}}}, "admission.weights.hihg: unknown setting; did you mean high?"),
        ({"admission": {"max_in_flight": 0}}, "admission.max_in_flight: 0 cannot be used; give a number above 0"),
        ({"limits": {"tenants": {"acme": {"request": 3}}}}, "limits.tenants[...].request: unknown setting; "),
        ({"limits": {"key": {"requests_per_minute": -1}}}, "limits.key.requests_per_minute: -1.0 cannot be used; "),
        ({"server": 1}, "server: expected `object`, got `int`"),
        ({"snapshot": {"siblings": ["h:1"]}}, "snapshot.siblings[0]: 'h:1' is not an endpoint; give one like http://"),
        ({"snapshot": {"path": ""}}, "snapshot.path: '' names no file; give one like /var/lib/kvlb/index"),
        ({"snapshot": {"path": "a\0b"}}, "snapshot.path: 'a\\x00b' names no file; give one"),
        ({"snapshot": {"interval_seconds": 0.0}}, "snapshot.interval_seconds: 0.0 cannot be used; give a number above"),
        ({"policy": 1}, "policy: expected `object`, got `int`"),
        ({"policy": {"name": 1}}, "policy.name: expected `str`, got `int`"),
        (
            {"server": {"max_body_bytes": 2**63 - 1}},
            "server.max_body_bytes: 9223372036854775807 cannot be used; give at most",
        ),
    ],
)
def test_a_mistake_is_named_by_its_path(tree: dict[str, Any], message: str) -> None:
    assert message in fails(tree)


SECTIONS = {
    field.name: field.type
    for field in msgspec.structs.fields(Settings)
    if isinstance(field.type, type)
    and issubclass(field.type, msgspec.Struct)
    and field.name not in {"policy", "discovery"}
}


@given(st.sampled_from(sorted(SECTIONS)), st.text("abcdefghijklmnopqrstuvwxyz_", min_size=1, max_size=20))
def test_every_unknown_name_gives_its_path(section: str, name: str) -> None:
    if name not in SECTIONS[section].__struct_fields__:
        assert fails({section: {name: 1}}).startswith(f"{section}.{name}: unknown setting; ")


@pytest.mark.parametrize(
    "url",
    [
        "10.0.0.1:8000", "localhost", "ftp://h", "http://", "http://h:0", "http://h:x", "http://h:99999",
        "http://[::1", "http://h/v1", "http://h?a=b", "http://h#f",
    ],
)  # fmt: skip
def test_what_is_no_endpoint_is_refused_with_an_example(url: str) -> None:
    message = fails({"replicas": [{"url": url}]})
    assert message.startswith("replicas[0].url: ")
    assert "give " in message


def test_credentials_do_not_belong_into_an_address() -> None:
    message = fails({"replicas": [{"url": "http://me:secret@h:1"}]})
    assert "upstream.api_key" in message
    assert "secret" not in message


@pytest.mark.parametrize("url", ["http://h", "https://h:1", "http://[fd00::1]:8000", "http://h/"])
def test_endpoints_are_accepted(url: str) -> None:
    assert settings.convert({"replicas": [{"url": url}]}).replicas[0].url == url.rstrip("/")


@pytest.mark.parametrize("endpoint", ["tcp://*:5557", "tcp://h", "tcp://h:0", "tcp://h:65536", "h:5557", "ipc://", ""])
@pytest.mark.parametrize("name", ["events", "replay"])
def test_what_cannot_be_connected_to_is_refused(name: str, endpoint: str) -> None:
    assert fails({"replicas": [{**REPLICA, name: endpoint}]}).startswith(f"replicas[0].{name}: ")


@pytest.mark.parametrize("endpoint", ["tcp://h:5557", "tcp://[fd00::1]:5557", "ipc:///run/kv"])
def test_event_addresses_are_accepted(endpoint: str) -> None:
    settings.convert({"replicas": [{**REPLICA, "events": endpoint}]})


@pytest.mark.parametrize(
    ("replay", "is_free"), [(5561, True), (5560, False), (5557, False), (5554, False), (5553, True)]
)
def test_the_ports_of_ranks_must_not_overlap(replay: int, is_free: bool) -> None:
    replica = ReplicaSettings(url="http://h:1", events="tcp://h:5557", replay=f"tcp://h:{replay}", data_parallel_size=4)
    tree = {"replicas": [msgspec.to_builtins(replica)]}
    if is_free:
        settings.convert(tree)
    else:
        assert "at least 4 apart" in fails(tree)


def test_an_endpoint_is_named_once() -> None:
    twice = [REPLICA, {"url": REPLICA["url"] + "/"}]
    assert fails({"replicas": twice}) == (
        "replicas[1].url: 'http://10.0.0.1:8000' is the same engine as replicas[0], 'http://10.0.0.1:8000'; name it once (its "
        "data-parallel ranks are found behind the one name)"
    )


NUMBERS = [
    ("server", "max_body_bytes"),
    ("tokenizer", "timeout_seconds"),
    ("ejection", "pause_seconds"),
    ("retries", "budget_seconds"),
    ("health", "interval_seconds"),
    ("health", "timeout_seconds"),
    ("health", "failures"),
]


@pytest.mark.parametrize(("section", "name"), NUMBERS)
@pytest.mark.parametrize("value", [0, -1])
def test_numbers_that_must_be_above_zero_are(section: str, name: str, value: int) -> None:
    assert fails({section: {name: value}}) == f"{section}.{name}: {float(value) if 'seconds' in name else value} " + (
        "cannot be used; give a number above 0"
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_time_is_a_number(value: float) -> None:
    assert fails({"health": {"interval_seconds": value}}).startswith("health.interval_seconds: ")


@pytest.mark.parametrize(
    ("tree", "path"),
    [
        ({"server": {"port": 65536}}, "server.port"),
        ({"server": {"port": -1}}, "server.port"),
        ({"replicas": [{**REPLICA, "block_size": 0}]}, "replicas[0].block_size"),
        ({"replicas": [{**REPLICA, "data_parallel_size": 0}]}, "replicas[0].data_parallel_size"),
        ({"replicas": [{**REPLICA, "data_parallel_size": 1025}]}, "replicas[0].data_parallel_size"),
        ({"tokenizer": {"cache_bytes": -1}}, "tokenizer.cache_bytes"),
        ({"hashing": {"memory_bytes": -1}}, "hashing.memory_bytes"),
        ({"index": {"max_blocks": 0}}, "index.max_blocks"),
    ],
)
def test_numbers_out_of_range_are_refused(tree: dict[str, Any], path: str) -> None:
    assert fails(tree).startswith(f"{path}: ")


@pytest.mark.parametrize("endpoint", ["tcp://*:5557", "tcp://0.0.0.0:5557", "tcp://[::]:5557", "tcp://kvlb.svc:1"])
def test_addresses_to_listen_at_are_accepted(endpoint: str) -> None:
    (replica,) = settings.convert({"replicas": [{"url": "http://e:8000", "events_bind": endpoint}]}).replicas
    assert replica.events_bind == endpoint


@pytest.mark.parametrize("endpoint", ["tcp://*:0", "tcp://*", "*:5557", "tcp://*:70000", "ipc:///x", "tcp://a b:1", ""])
def test_what_cannot_be_listened_at_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigError, match=r"replicas\[0\].events_bind: '.*' cannot be listened at; give one like"):
        settings.convert({"replicas": [{"url": "http://e:8000", "events_bind": endpoint}]})


def test_an_engine_either_listens_or_connects() -> None:
    both = {"url": "http://e:8000", "events": "tcp://e:5557", "events_bind": "tcp://*:5557"}
    with pytest.raises(ConfigError, match=r"replicas\[0\].events_bind: events is given, too"):
        settings.convert({"replicas": [both]})


def test_no_two_ranks_connect_to_one_port() -> None:
    def engine(at: int, port: int, ranks: int) -> dict[str, object]:
        return {"url": f"http://e{at}:8000", "events_bind": f"tcp://*:{port}", "data_parallel_size": ranks}

    settings.convert({"replicas": [engine(0, 6000, 2), engine(1, 6002, 1)]})
    with pytest.raises(ConfigError, match=r"replicas\[1\].events_bind: port 6001 is that of replicas\[0\], too"):
        settings.convert({"replicas": [engine(0, 6000, 2), engine(1, 6001, 1)]})
