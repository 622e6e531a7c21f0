"""``discovery/pods.py``: which Pods and addresses are endpoints, and what they say of themselves."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.disaggregation.roles import Role
from balancer.discovery.base import read_replicas
from balancer.discovery.kinds import Pod, Slice
from balancer.discovery.pods import Reckoned, Where, reckon
from balancer.settings import ReplicaSettings, check_replicas
from tests.support.api_server import endpoint_slice, pod, target

Json = dict[str, Any]

ONE, TWO, THREE = "10.0.0.1", "10.0.0.2", "10.0.0.3"


def pods_of(*made: Json) -> list[Pod]:
    """As they come from the wire; the uid of each is its name's, unless it says another."""
    for each in made:
        each["metadata"].setdefault("uid", f"uid-{each['metadata']['name']}")
    return [msgspec.json.decode(json.dumps(each), type=Pod) for each in made]


def slices_of(*made: Json) -> list[Slice]:
    return [msgspec.json.decode(json.dumps(each), type=Slice) for each in made]


def by_selector(*made: Json, port: int | str = 8000, **where: Any) -> Reckoned:
    return reckon(pods_of(*made), None, Where(port, **where))


def urls(made: Reckoned) -> list[str]:
    return [each.url for each in made.replicas]


def told(**changes: Any) -> Json:
    return pod("a", ONE, **changes)


# Which Pods


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (told(phase="Pending"), "Pending"),
        (told(phase="Succeeded"), "Succeeded"),
        (told(phase="Failed"), "Failed"),
        (told(phase="Unknown"), "Unknown"),
        (told(ready=False), "not Ready"),
        (told(ready=None), "not Ready"),
        (told(deletionTimestamp="2026-01-01T00:00:00Z"), "terminating"),
        (pod("a", ""), "no address"),
    ],
    ids=["pending", "succeeded", "failed", "unknown", "not ready", "no condition", "terminating", "no address"],
)
def test_who_cannot_serve_is_no_endpoint_and_no_problem(made: Json, why: str) -> None:
    assert by_selector(made) == Reckoned((), {}, (), (f"a ({why})",))


def test_who_is_not_used_is_named_unless_it_is_no_endpoint_of_ours() -> None:
    ignored = pod("b", TWO, ready=False, annotations={"kvlb.io/ignore": "true"})
    assert by_selector(ignored).unused == ()
    a, b = pod("a", ONE), pod("b", TWO)
    pods = pods_of(a, b, pod("stranger", THREE, ready=False))
    made = reckon(pods, slices_of(endpoint_slice("s", target(a), target(b, ready=False))), Where(8000))
    assert (urls(made), made.unused) == (["http://10.0.0.1:8000"], ("b (not ready in its Service)",))


@pytest.mark.parametrize(
    ("name", "remedy"),
    [("kvlb.io/rolle", "did you mean kvlb.io/role?"), ("kvlb.io/xyz", "there are: kvlb.io/role, ")],
)
def test_an_annotation_that_is_meant_for_kvlb_and_not_known_is_a_problem(name: str, remedy: str) -> None:
    made = by_selector(told(annotations={name: "decode", "other.io/rolle": "x"}, labels={"kvlb.io/pool": "p"}))
    assert urls(made) == ["http://10.0.0.1:8000"]
    (problem,) = made.problems
    assert problem.startswith(f"pod a: '{name}': unknown annotation; {remedy}")


def test_who_runs_and_is_ready_is_one() -> None:
    made = by_selector(told())
    assert (urls(made), made.lives, made.problems) == (["http://10.0.0.1:8000"], {"http://10.0.0.1:8000": "uid-a"}, ())


def test_what_the_api_leaves_out_is_missing_and_no_error() -> None:
    bare = json.dumps({"metadata": {"name": "a", "uid": "u"}, "status": {}})
    assert reckon([msgspec.json.decode(bare, type=Pod)], None, Where(1)) == Reckoned((), {}, (), ("a (no phase)",))
    empty = json.dumps({"metadata": {"name": "s"}, "addressType": "IPv4", "endpoints": None, "ports": None})
    assert reckon([], [msgspec.json.decode(empty, type=Slice)], Where(1)) == Reckoned((), {}, ())


def test_an_ipv6_address_is_written_with_brackets() -> None:
    made = by_selector(
        pod("a", "fd00:0:0::1", annotations={"kvlb.io/events": "tcp://{host}:5557"}),
        replica={
            "replay": "tcp://{host}:6000",
            "transfer": {"bootstrap": "http://{host}:8998"},
            "kv_connectors": ["OffloadingConnector"],
        },
        scheme="https",
    )
    (found,) = made.replicas
    assert (found.url, found.events, found.replay) == (
        "https://[fd00::1]:8000",
        "tcp://[fd00::1]:5557",
        "tcp://[fd00::1]:6000",
    )
    assert (found.transfer.bootstrap, found.kv_connectors) == ("http://[fd00::1]:8998", ("OffloadingConnector",))


def test_a_pod_with_two_addresses_is_one_endpoint() -> None:
    assert urls(by_selector(pod("a", ONE, ips=("fd00::1",)))) == ["http://10.0.0.1:8000"]


def test_pods_of_the_hosts_network_differ_by_their_ports() -> None:
    made = by_selector(pod("a", ONE, ports={"http": 8001}), pod("b", ONE, ports={"http": 8002}), port="http")
    assert urls(made) == ["http://10.0.0.1:8001", "http://10.0.0.1:8002"]
    assert made.lives == {"http://10.0.0.1:8001": "uid-a", "http://10.0.0.1:8002": "uid-b"}


@pytest.mark.parametrize(
    "old",
    [{"phase": "Failed"}, {"ready": False}, {"deletionTimestamp": "2026-01-01T00:00:09Z"}, {"phase": "Succeeded"}],
)
def test_who_has_ended_does_not_keep_its_address_from_another(old: Json) -> None:
    made = by_selector(pod("old", ONE, **old), pod("new", ONE))
    assert (made.lives, made.problems) == ({"http://10.0.0.1:8000": "uid-new"}, ())


def test_of_two_that_claim_one_address_the_newer_has_it() -> None:
    old = pod("old", ONE, creationTimestamp="2026-01-01T00:00:09Z")
    new = pod("new", ONE, creationTimestamp="2026-01-01T00:01:00Z")
    made = by_selector(new, old)
    assert made.lives == {"http://10.0.0.1:8000": "uid-new"}
    assert made.problems == ("pod old: http://10.0.0.1:8000 is that of pod new, too, which is newer; it is left out",)


# Ports


@pytest.mark.parametrize(
    ("port", "changes", "found"),
    [
        (8001, {}, 8001),
        ("8001", {}, 8001),
        ("http", {"ports": {"metrics": 9, "http": 8002}}, 8002),
        ("http", {"annotations": {"kvlb.io/port": "8003"}}, 8003),
        ("http", {"labels": {"kvlb.io/port": "8003"}}, 8003),
        (8001, {"annotations": {"kvlb.io/port": "api"}, "ports": {"api": 8004}}, 8004),
        (8001, {"annotations": {"kvlb.io/port": " "}}, 8001),
        (443, {}, 443),
    ],
)
def test_the_port_is_a_number_or_a_name(port: int | str, changes: Json, found: int) -> None:
    assert urls(by_selector(told(**changes), port=port)) == [f"http://10.0.0.1:{found}"]


def test_a_port_of_a_sidecar_has_a_name_as_any_other() -> None:
    made = told()
    made["spec"]["initContainers"] = [{"name": "proxy", "restartPolicy": "Always", "ports": []}]
    made["spec"]["initContainers"][0]["ports"] = [{"name": "http", "containerPort": 8005}]
    assert urls(by_selector(made, port="http")) == ["http://10.0.0.1:8005"]


@pytest.mark.parametrize(("scheme", "port"), [("http", 80), ("https", 443)])
def test_a_schemes_own_port_is_not_written(scheme: str, port: int) -> None:
    assert urls(by_selector(told(), pod("b", "fd00::1"), port=port, scheme=scheme)) == [
        f"{scheme}://10.0.0.1",
        f"{scheme}://[fd00::1]",
    ]


# What Pods say


def test_labels_and_annotations_say_what_settings_would() -> None:
    made = by_selector(
        told(
            labels={"kvlb.io/role": "decode", "kvlb.io/data-parallel-size": "4"},
            annotations={
                "kvlb.io/role": "prefill",
                "kvlb.io/events": "tcp://{host}:5557",
                "kvlb.io/replay": "tcp://10.9.9.9:6000",
            },
        ),
        replica={"hash_seed": "0", "data_parallel_size": 2, "role": "both"},
    )
    (found,) = made.replicas
    assert (found.role, found.data_parallel_size, found.hash_seed) == (Role.PREFILL, 4, "0"), "annotations come first"
    assert (found.events, found.replay) == ("tcp://10.0.0.1:5557", "tcp://10.9.9.9:6000")
    assert made.problems == ()


@pytest.mark.parametrize("word", ["true", "false"])
@pytest.mark.parametrize("where", ["labels", "annotations"])
def test_a_pod_can_ask_to_be_ignored(word: str, where: str) -> None:
    made = by_selector(told(**{where: {"kvlb.io/ignore": word}}))
    assert (len(made.replicas), made.problems) == (0 if word == "true" else 1, ())


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"labels": {"kvlb.io/role": "prefil"}}, "kvlb.io/role: 'prefil' is no role; use one of prefill, decode, both"),
        ({"labels": {"kvlb.io/role": ""}}, "kvlb.io/role: '' is no role"),
        ({"labels": {"kvlb.io/ignore": "yes"}}, "kvlb.io/ignore: 'yes' is neither"),
        ({"labels": {"kvlb.io/port": "grpc"}}, "it has no port named 'grpc'"),
        ({"labels": {"kvlb.io/port": "0"}}, "0 is no port"),
        ({"annotations": {"kvlb.io/port": "99999"}}, "99999 is no port"),
        ({"annotations": {"kvlb.io/port": "8000\n"}, "ip": "10.0.0.300"}, "'10.0.0.300' is no IP address"),
    ],
)
def test_who_says_what_cannot_be_meant_is_left_out_and_the_others_are_not(changes: Json, problem: str) -> None:
    """A request in the wrong place is worse than one replica less."""
    ip = changes.pop("ip", ONE)
    made = by_selector(pod("a", ip, **changes), pod("b", TWO))
    assert urls(made) == ["http://10.0.0.2:8000"]
    (told,) = made.problems
    assert told.startswith(f"pod a: {problem}")
    assert told.endswith("; it is left out")


def test_a_problem_is_short_however_long_the_word() -> None:
    (told,) = by_selector(pod("a", ONE, annotations={"kvlb.io/port": "x" * 200_000})).problems
    assert len(told) < 600
    assert told.startswith("pod a: it has no port named 'xxx")
    assert told.endswith("; it is left out")


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("kvlb.io/data-parallel-size", "four", "kvlb.io/data-parallel-size: 'four' is not 1 to 1024"),
        ("kvlb.io/data-parallel-size", "0", "kvlb.io/data-parallel-size: '0' is not 1 to 1024"),
        ("kvlb.io/data-parallel-size", "٤", "kvlb.io/data-parallel-size: '\\u0664' is not 1 to 1024"),
        ("kvlb.io/events", "{host}:5557", "kvlb.io/events: '10.0.0.1:5557' cannot be connected to"),
        ("kvlb.io/replay", "tcp://*:5557", "kvlb.io/replay: 'tcp://*:5557' cannot be connected to"),
    ],
)
def test_what_engines_tell_by_themselves_is_taken_from_them_where_the_pod_says_it_wrong(
    name: str, value: str, problem: str
) -> None:
    made = by_selector(told(annotations={name: value}))
    (found,) = made.replicas
    assert (found.data_parallel_size, found.events, found.replay) == (None, None, None)
    (told_,) = made.problems
    assert told_.startswith(f"pod a: {problem}")
    assert told_.endswith("; it is used without")


def test_two_pods_with_one_stream_of_events_cost_the_others_nothing() -> None:
    many = [pod(f"p{n:02}", f"10.0.1.{n}", creationTimestamp=f"2026-01-01T00:00:{n:02}Z") for n in range(50)]
    for n in (20, 30, 40):
        many[n]["metadata"]["annotations"] = {"kvlb.io/events": "tcp://10.0.1.20:5557"}
    made = by_selector(*many)
    assert len(made.replicas) == 48
    assert [problem.partition(":")[0] for problem in made.problems] == ["pod p30", "pod p40"]
    assert "its events are at 'tcp://10.0.1.20:5557', where those of pod p20 are" in made.problems[0]
    assert "http://10.0.1.20:8000" in urls(made), "who was there first stays"
    check_replicas(made.replicas)


def test_ports_of_events_and_replays_that_overlap_are_one_pods_problem() -> None:
    both = {"kvlb.io/events": "tcp://{host}:5557", "kvlb.io/replay": "tcp://{host}:5558"}
    made = by_selector(told(annotations={**both, "kvlb.io/data-parallel-size": "2"}), pod("b", TWO))
    assert urls(made) == ["http://10.0.0.2:8000"]
    assert "replay: with 2 ranks, its ports overlap those of events" in made.problems[0]


# Services


def by_service(pods: list[Json], *slices: Json, port: int | str = 8000) -> Reckoned:
    return reckon(pods_of(*pods), slices_of(*slices), Where(port))


@pytest.mark.parametrize(
    ("conditions", "counts"),
    [
        ({}, True),
        ({"ready": None}, True),
        ({"ready": True}, True),
        ({"ready": True, "serving": True, "terminating": False}, True),
        ({"ready": False}, False),
        ({"ready": False, "serving": True, "terminating": True}, False),
        ({"ready": True, "serving": False}, False),  # as with publishNotReadyAddresses
        ({"ready": True, "serving": True, "terminating": True}, False),
    ],
)
def test_conditions_are_read_as_the_api_means_them(conditions: Json, counts: bool) -> None:
    a = pod("a", ONE)
    pods_of(a)
    made = by_service([a], endpoint_slice("s", target(a, **conditions)))
    assert urls(made) == (["http://10.0.0.1:8000"] if counts else [])
    alone = by_service([], endpoint_slice("s", {"addresses": [ONE], "conditions": conditions}))
    assert urls(alone) == urls(made)


def test_no_conditions_at_all_are_good_ones() -> None:
    assert urls(by_service([], endpoint_slice("s", {"addresses": [ONE]}))) == ["http://10.0.0.1:8000"]
    assert urls(by_service([], endpoint_slice("s", {"addresses": [ONE], "conditions": None}))) != []


@pytest.mark.parametrize(
    "changes", [{"deletionTimestamp": "2026-01-01T00:00:00Z"}, {"ready": False}, {"phase": "Failed"}]
)
def test_a_pod_that_has_left_is_gone_although_its_slice_does_not_know_yet(changes: Json) -> None:
    a = told(**changes)
    pods_of(a)
    assert urls(by_service([a], endpoint_slice("s", target(a, ready=True)))) == []


def test_a_pod_that_is_not_known_is_none() -> None:
    """Its slice is a ghost, the Pod has not been told of yet, or it is not of the selector."""
    a = pod("a", ONE)
    pods_of(a)
    assert urls(by_service([], endpoint_slice("s", target(a)))) == []
    assert urls(by_service([a])) == [], "nor is one that no slice names"


def test_a_pod_of_the_same_name_is_another_pod() -> None:
    """As those of a StatefulSet are: the slice is still about the one before."""
    old = pod("a-0", ONE, uid="uid-old")
    new = pod("a-0", TWO, uid="uid-new")
    assert urls(by_service([new], endpoint_slice("s", target(old)))) == []
    assert urls(by_service([new], endpoint_slice("s", target(new)))) == ["http://10.0.0.2:8000"]


def test_an_address_in_several_slices_is_one_endpoint() -> None:
    a, b = pod("a", ONE), pod("b", TWO)
    pods_of(a, b)
    made = by_service(
        [a, b],
        endpoint_slice("s1", target(a), target(b, ready=False)),
        endpoint_slice("s2", target(a), target(b)),
        endpoint_slice("s3", {"addresses": [THREE]}),
        endpoint_slice("s4", {"addresses": [THREE]}),
    )
    assert urls(made) == ["http://10.0.0.1:8000", "http://10.0.0.2:8000", "http://10.0.0.3:8000"]
    assert made.problems == ()
    assert made.lives == {"http://10.0.0.1:8000": "uid-a", "http://10.0.0.2:8000": "uid-b"}


@pytest.mark.parametrize(("primary", "url"), [(ONE, "http://10.0.0.1:8000"), ("fd00::1", "http://[fd00::1]:8000")])
def test_a_service_of_two_families_has_each_pod_once(primary: str, url: str) -> None:
    a = pod("a", primary)
    pods_of(a)
    four = endpoint_slice("four", target(a, ONE))
    six = endpoint_slice("six", target(a, "fd00::1"), family="IPv6")
    assert urls(by_service([a], six, four)) == urls(by_service([a], four, six)) == [url]


def test_addresses_without_pods_count_in_one_family_only() -> None:
    four = endpoint_slice("four", {"addresses": [ONE]}, {"addresses": []}, {"addresses": [""]})
    six = endpoint_slice("six", {"addresses": ["fd00::1"]}, family="IPv6")
    name = endpoint_slice("name", {"addresses": ["gpu-0.example.com"]}, family="FQDN")
    assert urls(by_service([], name, six, four)) == ["http://10.0.0.1:8000"]
    assert urls(by_service([], six, name)) == ["http://[fd00::1]:8000"]
    assert urls(by_service([], name)) == ["http://gpu-0.example.com:8000"]
    odd = by_service([], endpoint_slice("name", {"addresses": ["user@host/path\n"]}, family="FQDN"))
    assert odd.replicas == ()
    assert odd.problems[0].startswith("address user@host/path\\n: url: ")


def test_a_port_of_the_service_may_be_another_number_for_each_slice() -> None:
    a, b = pod("a", ONE), pod("b", TWO, ports={"http": 8002})
    pods_of(a, b)
    made = by_service(
        [a, b],
        endpoint_slice("s1", target(a), ports={"metrics": 9, "http": 8001}),
        endpoint_slice("s2", target(b)),  # a headless Service may name no port
        port="http",
    )
    assert urls(made) == ["http://10.0.0.1:8001", "http://10.0.0.2:8002"]
    nameless = by_service([], endpoint_slice("s", {"addresses": [ONE]}), port="http")
    assert nameless.replicas == ()
    assert nameless.problems[0].startswith("address 10.0.0.1: it has no port named 'http'")


# Any state


WORDS = st.sampled_from(["", "true", "false", "prefill", "decode", "x", "7", "tcp://{host}:5557", "tcp://10.0.0.1:1"])
NAMES = [f"kvlb.io/{each}" for each in ("role", "data-parallel-size", "port", "ignore", "events", "replay")]
TIMES = st.none() | st.sampled_from(["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"])
IPS = st.sampled_from(["", ONE, TWO, "fd00::1", "nonsense"])


@st.composite
def _pods(draw: st.DrawFn) -> list[Json]:
    return [
        pod(
            f"p{n}",
            draw(IPS),
            ready=draw(st.sampled_from([True, True, False, None])),
            phase=draw(st.sampled_from(["Running", "Running", "Pending", "Failed"])),
            ports=draw(st.sampled_from([{}, {"x": 8002}])),
            labels=draw(st.dictionaries(st.sampled_from(NAMES), WORDS, max_size=2)),
            annotations=draw(st.dictionaries(st.sampled_from(NAMES), WORDS, max_size=3)),
            creationTimestamp=draw(TIMES),
            deletionTimestamp=draw(st.none() | TIMES),
            uid=f"uid-{n}",
        )
        for n in range(draw(st.integers(0, 6)))
    ]


@st.composite
def _states(draw: st.DrawFn) -> tuple[list[Json], list[Json] | None]:
    pods = draw(_pods())
    if draw(st.booleans()):
        return pods, None
    flags = st.none() | st.booleans()
    slices = []
    for n in range(draw(st.integers(0, 3))):
        among = draw(st.lists(st.sampled_from(pods), max_size=4)) if pods else []
        endpoints = [
            target(each, draw(IPS), ready=draw(flags), serving=draw(flags), terminating=draw(flags)) for each in among
        ]
        endpoints += [{"addresses": [address]} for address in draw(st.lists(IPS, max_size=2))]
        family = draw(st.sampled_from(["IPv4", "IPv6"]))
        slices.append(
            endpoint_slice(f"s{n}", *endpoints, ports=draw(st.sampled_from([{}, {"x": 8003}])), family=family)
        )
    return pods, slices


@given(_states(), st.sampled_from([80, 8000, "x"]), st.randoms(use_true_random=False))
def test_whatever_there_is_makes_a_list_that_can_be_used_and_is_the_same_in_any_order(
    state: tuple[list[Json], list[Json] | None], port: int | str, dice: Any
) -> None:
    pods, slices = pods_of(*state[0]), None if state[1] is None else slices_of(*state[1])
    made = reckon(pods, slices, Where(port))
    assert read_replicas([{"url": each} for each in urls(made)]) == tuple(
        ReplicaSettings(url=each) for each in urls(made)
    )
    check_replicas(made.replicas)
    usable = {each.metadata.uid for each in pods if each.is_usable}
    assert set(made.lives.values()) <= usable
    assert set(made.lives) <= set(urls(made))
    assert len(set(made.lives.values())) == len(made.lives), "a Pod is one endpoint"
    dice.shuffle(pods)
    if slices is not None:
        dice.shuffle(slices)
    assert reckon(pods, slices, Where(port)) == made
    assert reckon(pods, None if slices is None else [*slices, *slices], Where(port)) == made
