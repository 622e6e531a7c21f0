"""Which endpoints the Pods and EndpointSlices of a namespace stand for.

Knows the objects of Kubernetes (core/v1, discovery.k8s.io/v1) as far as they say who can be sent requests, and the labels
and annotations with which Pods say more. Never asks for them, and keeps nothing: the same objects are the same endpoints, in
whatever order they were told. An endpoint counts when everything that is told of it says so; one of which something
cannot be read costs the others nothing.
"""

import ipaddress
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from balancer.addresses import shown
from balancer.disaggregation.roles import Role
from balancer.discovery.base import read_replicas, with_host
from balancer.discovery.objects import Object
from balancer.errors import ConfigError
from balancer.settings import ReplicaSettings, check_endpoint, check_replicas

SERVICE_LABEL: Final = "kubernetes.io/service-name"
"""What an EndpointSlice names its Service with."""

ROLE: Final = "kvlb.io/role"
RANKS: Final = "kvlb.io/data-parallel-size"
PORT: Final = "kvlb.io/port"
IGNORE: Final = "kvlb.io/ignore"
EVENTS: Final = "kvlb.io/events"
REPLAY: Final = "kvlb.io/replay"
"""The last two are annotations only: labels take no colon."""

_FAMILIES: Final = ("IPv4", "IPv6", "FQDN")


class _Port(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    container_port: int = 0


class _Container(msgspec.Struct, frozen=True):
    ports: list[_Port] | None = None


class _PodSpec(msgspec.Struct, frozen=True, rename="camel"):
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None  # sidecars are among them


class _Condition(msgspec.Struct, frozen=True):
    type: str = ""
    status: str = ""


class _PodIp(msgspec.Struct, frozen=True):
    ip: str = ""


class _PodStatus(msgspec.Struct, frozen=True):
    phase: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")
    pod_ips: list[_PodIp] | None = msgspec.field(default=None, name="podIPs")
    conditions: list[_Condition] | None = None


class Pod(Object, frozen=True, kw_only=True):
    """A Pod, as far as it says whether and where requests can be sent to it."""

    spec: _PodSpec = _PodSpec()
    status: _PodStatus = _PodStatus()

    @property
    def is_usable(self) -> bool:
        """Whether it runs, is ready, and nobody has asked for its end."""
        is_ready = any(each.type == "Ready" and each.status == "True" for each in self.status.conditions or ())
        return is_ready and self.status.phase == "Running" and self.metadata.deletion_timestamp is None

    @property
    def address(self) -> str:
        """Its first one: that of the cluster's own family where it has two; empty before it has any."""
        return self.status.pod_ip or next((each.ip for each in self.status.pod_ips or () if each.ip), "")

    def word(self, name: str) -> str | None:
        """What it says by an annotation or, without that, by a label."""
        for told in (self.metadata.annotations, self.metadata.labels):
            if told is not None and name in told:
                return told[name].strip()
        return None

    def port(self, name: str) -> int | None:
        """The port that one of its containers has under this name."""
        containers = (*(self.spec.containers or ()), *(self.spec.init_containers or ()))
        named = (port for each in containers for port in each.ports or () if port.name == name)
        return next((port.container_port for port in named), None)


class _Conditions(msgspec.Struct, frozen=True):
    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class _Target(msgspec.Struct, frozen=True):
    kind: str = ""
    name: str = ""
    uid: str = ""


class _SliceEndpoint(msgspec.Struct, frozen=True, rename="camel"):
    addresses: list[str] | None = None
    conditions: _Conditions | None = None
    target_ref: _Target | None = None

    @property
    def is_usable(self) -> bool:
        """As the API reads its conditions: one that is not told is good.

        ``serving`` tells of readiness also where the Service publishes addresses that are not ready.
        """
        told = self.conditions or _Conditions()
        return told.ready is not False and told.serving is not False and told.terminating is not True


class _SlicePort(msgspec.Struct, frozen=True):
    name: str | None = None
    port: int | None = None


class Slice(Object, frozen=True, kw_only=True, rename="camel"):
    """An EndpointSlice: some of the addresses of a Service, of one family. An address may be in several for a while."""

    address_type: str = "IPv4"
    endpoints: list[_SliceEndpoint] | None = None
    ports: list[_SlicePort] | None = None


class Where(msgspec.Struct, frozen=True):
    """What the settings say of all endpoints."""

    port: int | str
    scheme: str = "http"
    replica: dict[str, Any] = {}
    """Further settings of each, as in ``[[replicas]]``; ``{host}`` stands for its address."""


class Reckoned(msgspec.Struct, frozen=True):
    """The endpoints, by URL.

    ``lives`` has the uid of the Pod behind each URL, ``problems`` what could not be used and why, by name.
    """

    replicas: tuple[ReplicaSettings, ...]
    lives: dict[str, str]
    problems: tuple[str, ...]


class _Place(msgspec.Struct, frozen=True):
    """An address at which an engine may listen."""

    host: str
    family: str
    ports: tuple[tuple[str, int], ...]
    """Those that an EndpointSlice names."""


class _Unusable(Exception):
    """This Pod cannot be used as it is."""


def reckon(pods: Iterable[Pod], slices: Iterable[Slice] | None, where: Where) -> Reckoned:
    """The endpoints of these Pods.

    With ``slices`` (of one Service) only those Pods count that it names, and its addresses that belong to no Pod do, too.
    """
    pods = sorted(pods, key=_age, reverse=True)
    problems: list[str] = []
    made: dict[str, tuple[ReplicaSettings, Pod | None, str]] = {}
    for pod, place in _places(pods, slices):
        name = f"pod {pod.metadata.name}" if pod is not None else f"address {place.host}"
        try:
            replica = _replica(pod, place, where, name, problems)
        except _Unusable as error:
            problems.append(f"{name}: {error}; it is left out")
            continue
        if replica is None:
            continue
        taken = made.setdefault(replica.url, (replica, pod, name))
        if taken[1] is not pod:
            problems.append(f"{name}: {replica.url} is that of {taken[2]}, too, which is newer; it is left out")
    usable, refused = _sieve([replica for replica, _, _ in reversed(made.values())])  # whoever was there first stays
    problems += [f"{made[url][2]}: {why}; it is left out" for url, why in refused.items()]
    lives = {each.url: pod.metadata.uid for each in usable if (pod := made[each.url][1]) is not None}
    return Reckoned(tuple(sorted(usable, key=lambda each: each.url)), lives, tuple(sorted(problems)))


def _age(pod: Pod) -> tuple[str, str]:
    return pod.metadata.creation_timestamp or "", pod.metadata.uid


def _places(pods: Sequence[Pod], slices: Iterable[Slice] | None) -> list[tuple[Pod | None, _Place]]:
    """Where Pods can be reached, the newest one first, and then addresses that belong to none; one place for each."""
    usable = [pod for pod in pods if pod.is_usable and pod.address]
    if slices is None:
        return [(pod, _Place(pod.address, "", ())) for pod in usable]
    of: dict[str, list[_Place]] = {}
    others: list[_Place] = []
    for each in slices:
        ports = tuple(sorted((port.name or "", port.port) for port in each.ports or () if port.port is not None))
        for endpoint in each.endpoints or ():
            if not endpoint.is_usable or not endpoint.addresses or not endpoint.addresses[0]:
                continue
            place, target = _Place(endpoint.addresses[0], each.address_type, ports), endpoint.target_ref
            if target is not None and target.kind == "Pod":
                of.setdefault(target.uid or target.name, []).append(place)
            else:
                others.append(place)
    found: list[tuple[Pod | None, _Place]] = []
    for pod in usable:
        places = of.get(pod.metadata.uid) or of.get(pod.metadata.name)
        if places:
            found.append((pod, min(places, key=lambda place: (place.host != pod.address, *_preference(place)))))
    return found + [(None, place) for place in _of_one_family(others)]


def _preference(place: _Place) -> tuple[int, str, tuple[tuple[str, int], ...]]:
    family = _FAMILIES.index(place.family) if place.family in _FAMILIES else len(_FAMILIES)
    return family, place.host, place.ports


def _of_one_family(places: Sequence[_Place]) -> list[_Place]:
    """Each address once; those of a second family are other ways to the same engines."""
    ordered = sorted(places, key=_preference)
    once = {place.host: place for place in reversed(ordered) if place.family == ordered[0].family}
    return sorted(once.values(), key=_preference)


def _replica(pod: Pod | None, place: _Place, where: Where, name: str, problems: list[str]) -> ReplicaSettings | None:
    """The endpoint; None for a Pod that asks to be ignored. What it is used without is added to ``problems``."""
    told: dict[str, Any] = {}
    port: int | str = where.port
    if pod is not None:
        if _is_ignored(pod):
            return None
        port = pod.word(PORT) or port
        if (role := pod.word(ROLE)) is not None:
            if role not in list(Role):
                raise _Unusable(f"{ROLE}: {role!a} is no role; use one of {', '.join(Role)}")
            told["role"] = role
    address = shown(_host(place), _port(pod, place, port))
    host = address.rpartition(":")[0]
    for setting, value, problem in _overrules(pod, host):
        if problem is None:
            told[setting] = value
        else:
            problems.append(f"{name}: {problem}; it is used without")
    try:
        (replica,) = read_replicas([{**with_host(where.replica, host), **told, "url": f"{where.scheme}://{address}"}])
    except ConfigError as error:
        raise _Unusable(_without_place(error)) from error
    return replica


def _is_ignored(pod: Pod) -> bool:
    word = pod.word(IGNORE)
    if word not in {None, "true", "false"}:
        raise _Unusable(f'{IGNORE}: {word!a} is neither "true" nor "false"')
    return word == "true"


def _host(place: _Place) -> str:
    if place.family == "FQDN":
        return place.host
    try:
        return str(ipaddress.ip_address(place.host))
    except ValueError:
        raise _Unusable(f"{place.host!a} is no IP address") from None


def _port(pod: Pod | None, place: _Place, port: int | str) -> int:
    """The number; a name is looked for in the EndpointSlice, then among the container's ports."""
    text = str(port)
    if text.isascii() and text.isdecimal() and len(text) < 6:
        number = int(text)
    else:
        named = next((each for name, each in place.ports if name == text), None)
        if named is None and pod is not None:
            named = pod.port(text)
        if named is None:
            raise _Unusable(
                f"it has no port named {text!a}; name one in its containers, or give {PORT} or discovery.port a number"
            )
        number = named
    if not 0 < number < 65536:
        raise _Unusable(f"{number} is no port; {PORT} and discovery.port take 1 to 65535, or a name")
    return number


def _overrules(pod: Pod | None, host: str) -> list[tuple[str, object, str | None]]:
    """(setting, value, why it cannot be used) of what an engine tells by itself, unless its Pod knows better."""
    made: list[tuple[str, object, str | None]] = []
    if pod is None:
        return made
    if (ranks := pod.word(RANKS)) is not None:
        is_good = re.fullmatch("[0-9]{1,4}", ranks) is not None and 1 <= int(ranks) <= 1024
        made.append(
            (
                "data_parallel_size",
                int(ranks) if is_good else 0,
                None if is_good else f"{RANKS}: {ranks!a} is not 1 to 1024",
            )
        )
    for name, setting in ((EVENTS, "events"), (REPLAY, "replay")):
        endpoint = (pod.metadata.annotations or {}).get(name)
        if endpoint is None:
            continue
        endpoint, problem = endpoint.strip().replace("{host}", host), None
        try:
            check_endpoint(name, endpoint)
        except ConfigError as error:
            problem = str(error)
        made.append((setting, endpoint, problem))
    return made


def _sieve(replicas: Sequence[ReplicaSettings]) -> tuple[list[ReplicaSettings], dict[str, str]]:
    """Those that can be used together, and why the others cannot; one that cannot costs none before it its place."""
    refused: dict[str, str] = {}

    def sieve(kept: tuple[ReplicaSettings, ...], more: tuple[ReplicaSettings, ...]) -> tuple[ReplicaSettings, ...]:
        try:
            check_replicas(kept + more)
            return kept + more
        except ConfigError as error:
            if len(more) == 1:
                refused[more[0].url] = _without_place(error)
                return kept
            half = len(more) // 2
            return sieve(sieve(kept, more[:half]), more[half:])

    return list(sieve((), tuple(replicas))), refused


def _without_place(error: ConfigError) -> str:
    """What the settings would be told, without the number of the table."""
    return re.sub(r"replicas\[\d+\]\.", "", str(error), count=1)
