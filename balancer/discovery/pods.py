"""Which endpoints the Pods and EndpointSlices of a namespace stand for.

Knows the labels and annotations with which Pods say how they are to be used. Never asks for them, and keeps nothing: the same
objects are the same endpoints, in whatever order they were told. An endpoint counts when everything that is told of it says
so; one of which something cannot be read costs the others nothing.
"""

import difflib
import ipaddress
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from balancer.addresses import DEFAULT_PORTS, place, shown
from balancer.disaggregation.roles import Role
from balancer.discovery.base import with_host
from balancer.discovery.kinds import Pod, Slice
from balancer.errors import ConfigError
from balancer.settings import ReplicaSettings, check_endpoint, check_replicas
from balancer.words import printable

ROLE: Final = "kvlb.io/role"
RANKS: Final = "kvlb.io/data-parallel-size"
PORT: Final = "kvlb.io/port"
IGNORE: Final = "kvlb.io/ignore"
EVENTS: Final = "kvlb.io/events"
REPLAY: Final = "kvlb.io/replay"
"""The last two are annotations only: labels take no colon."""

MAX_WORDS: Final = 500
"""Letters of one problem; an annotation may have a quarter of a million."""

PREFIX: Final = "kvlb.io/"
KNOWN: Final = (ROLE, RANKS, PORT, IGNORE, EVENTS, REPLAY)

_FAMILIES: Final = ("IPv4", "IPv6", "FQDN")


class Where(msgspec.Struct, frozen=True):
    """What the settings say of all endpoints."""

    port: int | str
    scheme: str = "http"
    replica: dict[str, Any] = {}
    """Further settings of each, as in ``[[replicas]]``; ``{host}`` stands for its address."""


class Reckoned(msgspec.Struct, frozen=True):
    """The endpoints, by URL.

    ``lives`` has the uid of the Pod behind each URL, ``problems`` what could not be used and why, by name. ``unused`` names
    Pods that are not to be used now, with why.
    """

    replicas: tuple[ReplicaSettings, ...]
    lives: dict[str, str]
    problems: tuple[str, ...]
    unused: tuple[str, ...] = ()


class _Place(msgspec.Struct, frozen=True):
    """An address at which an engine may listen."""

    host: str
    family: str
    ports: tuple[tuple[str, int], ...]
    """Those that an EndpointSlice names."""


class _Endpoint(msgspec.Struct, frozen=True):
    """One that was made of a Pod, or of an address without one; ``name`` is for people."""

    name: str
    replica: ReplicaSettings
    uid: str


class _Unusable(Exception):
    """This Pod cannot be used as it is."""


def reckon(pods: Iterable[Pod], slices: Iterable[Slice] | None, where: Where) -> Reckoned:
    """The endpoints of these Pods.

    With ``slices`` (of one Service) only those Pods count that it names, and its addresses that belong to no Pod do, too.
    """
    pods = sorted(pods, key=_age, reverse=True)
    slices = None if slices is None else list(slices)
    problems: list[str] = []
    made: dict[tuple[str, int], _Endpoint] = {}
    for pod, at in _places(pods, slices):
        name = printable(f"pod {pod.metadata.name}" if pod is not None else f"address {at.host}")
        try:
            replica = _replica(pod, at, where, name, problems)
        except _Unusable as error:
            problems.append(f"{name}: {error}; it is left out")
            continue
        if replica is None:
            continue
        problems += (f"{name}: {told}; it is used without" for told in _unknown(pod))
        taken = made.setdefault(place(replica.url), _Endpoint(name, replica, "" if pod is None else pod.metadata.uid))
        if taken.name != name:
            problems.append(f"{name}: {replica.url} is that of {taken.name}, too, which is newer; it is left out")
    usable = _with_streams_of_their_own(list(made.values()), problems)
    return Reckoned(
        tuple(each.replica for each in usable),
        {each.replica.url: each.uid for each in usable if each.uid},
        tuple(sorted(_shorten(each) for each in problems)),
        tuple(sorted(_unused(pods, slices))),
    )


def _unused(pods: Sequence[Pod], slices: Sequence[Slice] | None) -> Iterator[str]:
    """Pods that could be endpoints, and are not now; of a Service those that it names."""
    named = None if slices is None else _targets(slices)
    for pod in pods:
        is_good = None if named is None else named.get(pod.metadata.uid, named.get(pod.metadata.name))
        if (named is not None and is_good is None) or pod.word(IGNORE) == "true":
            continue
        why = pod.unusable or ("not ready in its Service" if is_good is False else None)
        if why is not None:
            yield f"{printable(pod.metadata.name)} ({printable(why)})"


def _targets(slices: Iterable[Slice]) -> dict[str, bool]:
    """Uids and names of Pods that a Service names, and whether by any address that can be used."""
    named: dict[str, bool] = {}
    for each in slices:
        for endpoint in each.endpoints or ():
            target = endpoint.target_ref
            if target is not None and target.kind == "Pod":
                whom = target.uid or target.name
                named[whom] = named.get(whom, False) or (endpoint.is_usable and bool(endpoint.addresses))
    return named


def _shorten(problem: str) -> str:
    """The beginning and the end of what is too long for people: what it is, and what becomes of it."""
    half = MAX_WORDS // 2
    return problem if len(problem) <= MAX_WORDS else f"{problem[:half]} ... {problem[-half:]}"


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
            at, target = _Place(endpoint.addresses[0], each.address_type, ports), endpoint.target_ref
            if target is not None and target.kind == "Pod":
                of.setdefault(target.uid or target.name, []).append(at)
            else:
                others.append(at)
    found: list[tuple[Pod | None, _Place]] = []
    for pod in usable:
        told = of.get(pod.metadata.uid) or of.get(pod.metadata.name) or []
        own = [at for at in told if at.host == pod.address]
        if told:
            found.append((pod, min(own or told, key=_preference)))
    return found + [(None, at) for at in _of_one_family(others)]


def _preference(at: _Place) -> tuple[int, str, tuple[tuple[str, int], ...]]:
    family = _FAMILIES.index(at.family) if at.family in _FAMILIES else len(_FAMILIES)
    return family, at.host, at.ports


def _of_one_family(places: Sequence[_Place]) -> list[_Place]:
    """Each address once; those of a second family are other ways to the same engines."""
    ordered = sorted(places, key=_preference)
    once = {at.host: at for at in reversed(ordered) if at.family == ordered[0].family}
    return sorted(once.values(), key=_preference)


def _replica(pod: Pod | None, at: _Place, where: Where, name: str, problems: list[str]) -> ReplicaSettings | None:
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
    host = _host(at)
    number = _port(pod, at, port)
    bracketed = shown(host, number).rpartition(":")[0]
    for setting, value, problem in _overrules(pod, bracketed):
        if problem is None:
            told[setting] = value
        else:
            problems.append(f"{name}: {problem}; it is used without")
    address = bracketed if number == DEFAULT_PORTS[where.scheme] else f"{bracketed}:{number}"
    entry = {**with_host(where.replica, bracketed), **told, "url": f"{where.scheme}://{address}"}
    replica = msgspec.convert(entry, ReplicaSettings)
    try:
        check_replicas((replica,))
    except ConfigError as error:
        raise _Unusable(re.sub(r"replicas\[\d+\]\.", "", str(error), count=1)) from error
    return replica


def _unknown(pod: Pod | None) -> Iterator[str]:
    """Its annotations that are meant for kvlb, and that say nothing to it. Labels may be anybody's, to select by."""
    for each in sorted((pod.metadata.annotations or {}) if pod is not None else ()):
        if each.startswith(PREFIX) and each not in KNOWN:
            near = difflib.get_close_matches(
                each.removeprefix(PREFIX), [name.removeprefix(PREFIX) for name in KNOWN], 1
            )
            remedy = f"did you mean {PREFIX}{near[0]}?" if near else f"there are: {', '.join(KNOWN)}"
            yield f"{each[:100]!a}: unknown annotation; {remedy}"


def _is_ignored(pod: Pod) -> bool:
    word = pod.word(IGNORE)
    if word not in {None, "true", "false"}:
        raise _Unusable(f'{IGNORE}: {word!a} is neither "true" nor "false"')
    return word == "true"


def _host(at: _Place) -> str:
    if at.family == "FQDN":
        return at.host.lower()
    try:
        return str(ipaddress.ip_address(at.host))
    except ValueError:
        raise _Unusable(f"{at.host!a} is no IP address") from None


def _port(pod: Pod | None, at: _Place, port: int | str) -> int:
    """The number; a name is looked for in the EndpointSlice, then among the container's ports."""
    text = str(port)
    if text.isascii() and text.isdecimal() and len(text) < 6:
        number = int(text)
    else:
        named = next((each for name, each in at.ports if name == text), None)
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


def _with_streams_of_their_own(made: Sequence[_Endpoint], problems: list[str]) -> list[_Endpoint]:
    """Those whose events can be told from those of all others, by URL; of two that cannot, who was there first stays."""
    whose: dict[tuple[str, str | None], str] = {}
    usable = []
    for each in reversed(made):
        replica = each.replica
        streams = [(address, replica.topic) for address in (replica.events, replica.replay) if address is not None]
        taken = next((stream for stream in streams if stream in whose), None)
        if taken is not None:
            problems.append(
                f"{each.name}: its events are at '{taken[0]}', where those of {whose[taken]} are; nothing in an event says "
                "whose it is: give each Pod an address of its own ({host} stands for the Pod's); it is left out"
            )
            continue
        whose.update(dict.fromkeys(streams, each.name))
        usable.append(each)
    return sorted(usable, key=lambda each: each.replica.url)
