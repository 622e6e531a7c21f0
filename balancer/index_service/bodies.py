"""Bodies of the index service's paths -> what they ask for.

Knows the shapes that clients of NVIDIA Dynamo's standalone indexer (1.0 - 1.6) and of Mooncake's indexer RFC (#1403) send, and
the fields that kvlb adds. Never knows who is registered. A field that is not known here is passed over with a warning; one that
is known and cannot be used is refused with its name and what would be right.
"""

from typing import Any, Final, get_args

import msgspec

from balancer.errors import BadRequest, ConfigError
from balancer.json_bodies import as_text, check_list, cut_list, decode, shown
from balancer.settings import check_endpoint
from hashing.errors import RecipeError
from hashing.recipes import Algorithm, Recipe

DEFAULT_TENANT: Final = "default"

MAX_NAME: Final = 1024
"""Longest name of a model, a tenant or an instance."""

MAX_RANK: Final = 1023
"""Highest data-parallel rank that is filed."""

MAX_BLOCK_SIZE: Final = 1 << 20

DOCUMENT: Final = "docs/index-service.md"


class _Scoped(msgspec.Struct, kw_only=True):
    """What every body may name: whose caches are meant."""

    model_name: str | None = None
    model: str | None = None
    """The RFC's word for it."""
    tenant_id: str | int | None = None
    routing_group: str | None = None
    """Dynamo's newer word for the tenant."""

    def scope(self) -> "Scope":
        """Raises ``BadRequest``: no model, or two tenants."""
        model = self.model_name or self.model
        if not model:
            raise BadRequest("model_name: missing; name the model that the engines serve", param="model_name")
        tenants = {str(each) for each in (self.tenant_id, self.routing_group) if each not in {None, ""}}
        if len(tenants) > 1:
            raise BadRequest(
                "routing_group: it is another word for tenant_id, which says otherwise; give one of them",
                param="routing_group",
            )
        tenant = tenants.pop() if tenants else DEFAULT_TENANT
        _check_name("model_name", model)
        _check_name("tenant_id", tenant)
        return Scope(model, tenant)


class Scope(msgspec.Struct, frozen=True):
    """Caches of one model and tenant never answer for those of another."""

    model: str
    tenant: str = DEFAULT_TENANT


class _Registration(_Scoped, kw_only=True):
    instance_id: int | str
    endpoint: str
    replay_endpoint: str | None = None
    dp_rank: int | None = None
    block_size: int | None = None
    topic: str | None = None
    vllm_version: str | None = None
    hash_algorithm: str | None = None
    hash_seed: str | None = None


class _Unregistration(_Scoped, kw_only=True):
    instance_id: int | str
    dp_rank: int | None = None


class _TokenQuery(_Scoped, kw_only=True):
    token_ids: msgspec.Raw = msgspec.Raw(b"")
    lora_name: str | None = None
    cache_salt: str | int | None = None


class _HashQuery(_Scoped, kw_only=True):
    block_hashes: msgspec.Raw = msgspec.Raw(b"")
    lora_name: str | None = None
    cache_salt: str | int | None = None


class Registration(msgspec.Struct, frozen=True):
    """One publisher to follow. ``block_size`` is what the client believes; None when it does not say.

    ``recipe`` is None unless the client says how the engine hashes: then keys are learned from its events.
    """

    scope: Scope
    instance: int | str
    rank: int
    endpoint: str
    replay: str | None = None
    topic: str = ""
    block_size: int | None = None
    recipe: Recipe | None = None


class Unregistration(msgspec.Struct, frozen=True):
    """``rank`` is None when all ranks of the instance are meant."""

    scope: Scope
    instance: int | str
    rank: int | None


class Query(msgspec.Struct, frozen=True):
    """A prompt, as the JSON text of its token ids or of its blocks' hashes: a list, whose items nobody has looked at yet."""

    scope: Scope
    text: bytes
    lora: str | None = None
    salt: str | None = None
    warnings: tuple[str, ...] = ()


_registration = msgspec.json.Decoder(_Registration)
_unregistration = msgspec.json.Decoder(_Unregistration)
_token_query = msgspec.json.Decoder(_TokenQuery)
_hash_query = msgspec.json.Decoder(_HashQuery)
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NAMES: Final[dict[type[_Scoped], set[str]]] = {
    each: {*each.__struct_fields__} for each in (_Registration, _Unregistration, _TokenQuery, _HashQuery)
}


def registration(body: bytes) -> tuple[Registration, tuple[str, ...]]:
    """``POST /register``, with a warning for each field that was passed over.

    Raises:
        BadRequest: it cannot be read, or a field cannot be used.
    """
    read = decode(_registration, body, DOCUMENT)
    for field in ("endpoint", "replay_endpoint"):
        if (endpoint := getattr(read, field)) is not None:
            try:
                check_endpoint(field, endpoint)
            except ConfigError as error:
                raise BadRequest(str(error), param=field) from error
    found = Registration(
        scope=read.scope(),
        instance=_instance(read.instance_id),
        rank=_rank(read.dp_rank) or 0,
        endpoint=read.endpoint,
        replay=read.replay_endpoint,
        topic=read.topic or "",
        block_size=_block_size(read.block_size),
        recipe=_recipe(read),
    )
    unused = ("hash_algorithm", "hash_seed") if read.vllm_version is None else ()
    ignored = tuple(f"{name}: not used without vllm_version" for name in unused if getattr(read, name) is not None)
    return found, (*_unknown(body, _Registration), *ignored)


def _unknown(body: bytes, known: type[_Scoped]) -> tuple[str, ...]:
    """Fields of the body that nobody looks at."""
    fields = _fields.decode(body)
    if fields.keys() <= _NAMES[known]:
        return ()
    return tuple(
        f"{shown(name)}: unknown, and not looked at; see {DOCUMENT}" for name in fields if name not in _NAMES[known]
    )


def unregistration(body: bytes) -> tuple[Unregistration, tuple[str, ...]]:
    """``POST /unregister``, with a warning for each field that was passed over.

    Raises:
        BadRequest: it cannot be read, or a field cannot be used.
    """
    read = decode(_unregistration, body, DOCUMENT)
    wanted = Unregistration(read.scope(), _instance(read.instance_id), _rank(read.dp_rank))
    return wanted, _unknown(body, _Unregistration)


def token_query(body: bytes) -> Query:
    """``POST /query``.

    Raises:
        BadRequest: it cannot be read.
    """
    return _query(_token_query, body, "token_ids")


def hash_query(body: bytes) -> Query:
    """``POST /query_by_hash``.

    Raises:
        BadRequest: it cannot be read.
    """
    return _query(_hash_query, body, "block_hashes")


def _query(decoder: "msgspec.json.Decoder[Any]", body: bytes, field: str) -> Query:
    cut = cut_list(body, field.encode())
    if cut is not None:
        text, rest = cut
        check_list(field, len(text))
        try:
            read = decoder.decode(rest)
            if bytes(getattr(read, field)) == b"null":
                return _asked(read, text, rest)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            pass  # read whole, it says what is wrong
    read = decode(decoder, body, DOCUMENT)
    text = bytes(getattr(read, field))
    check_list(field, len(text))
    if not text.startswith(b"["):
        missing = "" if text else "missing; "
        raise BadRequest(f"{field}: {missing}give a list of integers; see {DOCUMENT}", param=field)
    return _asked(read, text, body)


def _asked(read: Any, text: bytes, body: bytes) -> Query:
    return Query(read.scope(), text, read.lora_name or None, as_text(read.cache_salt), _unknown(body, type(read)))


def _check_name(field: str, name: str) -> None:
    if len(name) > MAX_NAME or not name.isprintable():
        raise BadRequest(f"{field}: too long or not printable; give up to {MAX_NAME} printable characters", param=field)


def _instance(given: int | str) -> int | str:
    if not str(given):
        raise BadRequest("instance_id: empty; give the number or name of the engine", param="instance_id")
    _check_name("instance_id", str(given))
    return given


def _rank(given: int | None) -> int | None:
    if given is not None and not 0 <= given <= MAX_RANK:
        raise BadRequest(f"dp_rank: {given} is not a rank; give 0 to {MAX_RANK}", param="dp_rank")
    return given


def _block_size(given: int | None) -> int | None:
    if given is not None and not 0 <= given <= MAX_BLOCK_SIZE:
        raise BadRequest(
            f"block_size: {given} cannot be used; give the engine's tokens per block, or leave it out",
            param="block_size",
        )
    return given or None


def _recipe(read: _Registration) -> Recipe | None:
    algorithm: Any = read.hash_algorithm or "sha256"
    if algorithm not in get_args(Algorithm):
        raise BadRequest(
            f"hash_algorithm: '{algorithm}' is unknown; use one of {', '.join(get_args(Algorithm))}",
            param="hash_algorithm",
        )
    if read.vllm_version is None:
        return None
    if not read.block_size:
        raise BadRequest("block_size: missing; with vllm_version the engine's own is needed", param="block_size")
    try:
        return Recipe.for_version(
            read.vllm_version, algorithm=algorithm, block_size=read.block_size, seed=read.hash_seed
        )
    except RecipeError as error:
        raise BadRequest(f"vllm_version: {error}", param="vllm_version") from error
