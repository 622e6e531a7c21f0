"""What a request asks of an engine beyond an answer, and whether it may.

Knows the fields with which vLLM 0.32 lets a client steer engines: where a KV cache is to be fetched from
(``kv_transfer_params``, ``ec_transfer_params``), whether reused blocks are announced (``kv_cache_report_mode``), who is served
first (``priority``). They stand at the top of a body, in ``vllm_xargs`` or in ``sampling_params.extra_args``. Never changes a
body: it says what has to be taken out of one.
"""

from typing import Final, Literal, Protocol, TypeAlias

import msgspec

from balancer.errors import BadRequest, Forbidden

Rule: TypeAlias = Literal["strip", "refuse", "pass"]
PriorityRule: TypeAlias = Literal["strip", "check", "refuse", "pass"]
Place: TypeAlias = tuple[str, ...]

PRIORITY: Final = "priority"
SALT: Final = "cache_salt"
REPORT_MODE: Final = "kv_cache_report_mode"
KV_TRANSFER: Final = "kv_transfer_params"
TRANSFER: Final = (KV_TRANSFER, "ec_transfer_params")
XARGS: Final = "vllm_xargs"

NULL: Final = msgspec.Raw(b"null")
"""Stands for a field that is not there; the very object, so that a look at it costs nothing."""


class ClientSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What clients may ask of engines beyond an answer; a key that is ``trusted`` may ask for all of it."""

    transfer_params: Rule = "strip"
    """``kv_transfer_params`` and ``ec_transfer_params``: with these, an engine connects to where the client says."""
    report_mode: Rule = "strip"
    """``kv_cache_report_mode``: it makes an engine announce reused blocks as new ones, which spoils its index."""
    priority: PriorityRule = "check"
    """``priority`` and ``X-Vllm-Priority``: ``check`` refuses what is more urgent than the key's own (0 without one)."""


class Wishes(msgspec.Struct, frozen=True):
    """What is there: the places of fields that are not null, and the priority, if it is a whole number.

    ``has_salt``: there is a ``cache_salt``, of whatever type. ``has_form_arguments``: a form has ``vllm_xargs``.
    """

    places: tuple[Place, ...] = ()
    priority: int | None = None
    has_salt: bool = False
    has_form_arguments: bool = False


NO_WISHES: Final = Wishes()


class _Arguments(msgspec.Struct):
    kv_transfer_params: msgspec.Raw = NULL
    ec_transfer_params: msgspec.Raw = NULL
    kv_cache_report_mode: msgspec.Raw = NULL


_arguments = msgspec.json.Decoder(_Arguments)


class Asking(Protocol):
    """The fields at the top of a body that are looked at; null for those that are not there."""

    cache_salt: msgspec.Raw
    ec_transfer_params: msgspec.Raw
    kv_transfer_params: msgspec.Raw
    priority: msgspec.Raw
    vllm_xargs: msgspec.Raw


def of_body(fields: Asking, extra_args: msgspec.Raw) -> Wishes:
    """The wishes of a JSON body; ``extra_args`` are those of its ``sampling_params``."""
    xargs = fields.vllm_xargs
    if (
        fields.cache_salt is fields.priority is fields.kv_transfer_params is fields.ec_transfer_params is NULL
        and xargs is extra_args is NULL
    ):
        return NO_WISHES
    places: list[Place] = [(name,) for name in (*TRANSFER, PRIORITY) if getattr(fields, name) != NULL]
    for path, raw in (((XARGS,), xargs), (("sampling_params", "extra_args"), extra_args)):
        if raw != NULL:
            places += [(*path, name) for name in _arguments_in(raw)]
    has_salt = fields.cache_salt != NULL
    if not places and not has_salt:
        return NO_WISHES
    return Wishes(tuple(places), _whole(fields.priority), has_salt)


def of_form(names: "dict[str, bytes | None]") -> Wishes:
    """The wishes of a form, whose ``vllm_xargs`` is a text with JSON in it."""
    return Wishes(has_form_arguments=True) if XARGS in names else NO_WISHES


def _arguments_in(raw: msgspec.Raw) -> list[str]:
    try:
        found = _arguments.decode(raw)
    except msgspec.ValidationError:
        return []  # no object: the engine will say so
    return [name for name in (*TRANSFER, REPORT_MODE) if getattr(found, name) != NULL]


def _whole(raw: msgspec.Raw) -> int | None:
    try:
        return msgspec.json.decode(raw, type=int) if len(raw) <= 32 else None
    except msgspec.MsgspecError:
        return None


def whole(text: str) -> int | None:
    """A number in a header, as the engine reads it (Latin-1, and Python's grammar); None where it reads none."""
    try:
        return int(text)
    except ValueError:
        return None


def unwanted(wishes: Wishes, rules: ClientSettings, urgent: int) -> tuple[Place, ...]:
    """The places of fields that have to be taken out; ``urgent`` is the lowest priority that the client may ask for.

    Raises:
        Forbidden: something is there that must not be.
    """
    unwanted = []
    for place in wishes.places:
        rule = _rule(place[-1], rules)
        if rule == "strip":
            unwanted.append(place)
        elif rule == "refuse":
            raise Forbidden(f"{'.'.join(place)}: not taken from clients here; leave it out", param=place[0])
        elif rule == "check":
            check_priority(wishes.priority, urgent)
    if wishes.has_form_arguments and rules.report_mode != "pass":
        raise Forbidden(f"{XARGS}: not taken in a form here; leave it out", param=XARGS)
    return tuple(unwanted)


def check_priority(asked: int | None, urgent: int) -> None:
    """Raise ``BadRequest`` where a priority is no whole number, ``Forbidden`` where it is more urgent than it may be."""
    if asked is None:
        raise BadRequest(f"{PRIORITY}: expected a whole number", param=PRIORITY)
    if asked < urgent:
        raise Forbidden(f"{PRIORITY}: at least {urgent} is for this client; lower is served earlier", param=PRIORITY)


def _rule(name: str, rules: ClientSettings) -> PriorityRule:
    if name in TRANSFER:
        return rules.transfer_params
    return rules.report_mode if name == REPORT_MODE else rules.priority
