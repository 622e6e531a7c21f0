"""What one gateway tells another of what it has under way, and the form in which it does.

Knows the values, their bounds and their JSON (``GET /kvlb/load``). Never knows who asks, when, or what is made of it
(``balancer.siblings.book``). A replica is named by its id, which is made of its endpoint's host and port and its data-parallel
rank: so it has the same name in every gateway that was given the same URL for it. What is no report is refused with the reason.
"""

from typing import Annotated, Final

import msgspec

from balancer.errors import BalancerError

PATH: Final = "/kvlb/load"

MAX_BYTES: Final = 8 * 1024 * 1024
"""Of a report: some 50,000 replicas."""

MAX_REPLICAS: Final = 50_000
MAX_MODELS: Final = 10_000
MAX_SESSIONS: Final = 20_000

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
Requests = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
Tokens = Annotated[int, msgspec.Meta(ge=0, le=10**12)]
Ever = Annotated[int, msgspec.Meta(ge=0, le=10**18)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1e6)]


class ReportError(BalancerError):
    """What came is no report; the message says why, for people."""


class ReplicaLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What one gateway has at one replica.

    Of ``in_flight`` requests, ``waiting`` have not answered yet, which have ``queued_tokens`` to compute still;
    ``active_tokens`` are the prompts of all. ``given`` counts the requests that it ever sent there, ``written`` the tokens that
    these brought into its cache; both begin anew with the gateway.
    """

    in_flight: Requests = 0
    waiting: Requests = 0
    queued_tokens: Tokens = 0
    active_tokens: Tokens = 0
    given: Ever = 0
    written: Ever = 0


class ModelLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What one gateway gives all replicas of a model together, of the last minute.

    ``work`` is how many seconds of computing prompts it brings a second, ``busy`` how many of them computed prompts of its own,
    on average.
    """

    work: Share = 0.0
    busy: Share = 0.0


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All that one gateway tells.

    ``gateway`` is a name that it has drawn for itself when it began, ``sequence`` grows with each of its reports. ``replicas``
    are all that it knows, idle ones included: who knows others has another fleet. ``sessions`` are conversations, by number
    (``balancer.conversations``), with the replicas that it has sent their last requests to, since the ``mark`` of the report
    that was asked after.
    """

    gateway: Name
    sequence: Ever
    replicas: dict[Name, ReplicaLoad]
    models: dict[str, ModelLoad] = {}
    mark: Ever = 0
    sessions: dict[int, Name] = {}


class After(msgspec.Struct, frozen=True):
    """What the asker has had already: the ``mark`` of the last report of this ``gateway``; it means nothing to another one."""

    gateway: str = ""
    mark: int = 0


NOTHING: Final = After()

_decoder: Final = msgspec.json.Decoder(Report)


def encode(report: Report) -> bytes:
    return msgspec.json.encode(report)


def decode(body: bytes) -> Report:
    """The report in an answer.

    Raises:
        ReportError: it is none, or has what cannot be.
    """
    if len(body) > MAX_BYTES:
        raise ReportError(f"is longer than {MAX_BYTES >> 20} MiB")
    try:
        report = _decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise ReportError(f"cannot be read: {str(error)[:200]}") from error
    except (RecursionError, UnicodeError) as error:
        raise ReportError("cannot be read") from error
    if len(report.replicas) > MAX_REPLICAS:
        raise ReportError(f"names {len(report.replicas):,} replicas, more than {MAX_REPLICAS:,}")
    if len(report.models) > MAX_MODELS:
        raise ReportError(f"names {len(report.models):,} models, more than {MAX_MODELS:,}")
    if len(report.sessions) > MAX_SESSIONS:
        raise ReportError(f"names {len(report.sessions):,} conversations, more than {MAX_SESSIONS:,}")
    if not report.gateway.isprintable() or not all(name.isprintable() for name in report.replicas):
        raise ReportError("has a name with a control character in it")
    for name, load in report.replicas.items():
        if load.waiting > load.in_flight:
            raise ReportError(f"says that of {load.in_flight} requests at {name[:100]}, {load.waiting} wait")
    return report
