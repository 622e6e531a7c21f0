"""What the two legs of one request have to carry, and how a connector that says so is found by its name.

Knows the two replicas, as values, and the words that engines use for a transfer (vLLM 0.11 - 0.32). Never sends anything and
never makes up an id: chance comes in with the ``Pair``. A connector is one frozen Struct in one file of ``legs``: its fields
are its settings.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, Protocol, TypeVar

import msgspec

from balancer.disaggregation.roles import NO_TRANSFER, Transfer
from balancer.registry import Registry

PARAMS: Final = "kv_transfer_params"
"""The field of a body, and of a prefill's answer, in which engines are told of a transfer."""

NULL: Final = msgspec.Raw(b"null")


class Side(msgspec.Struct, frozen=True):
    """One of the two replicas; ``engine_id`` is what its bootstrap server calls it, where the connector has one."""

    name: str
    rank: int = 0
    ranks: int = 1
    transfer: Transfer = NO_TRANSFER
    engine_id: str | None = None


class Pair(msgspec.Struct, frozen=True):
    """Who computes the prompt, and who answers; ``number`` is new for each attempt, 128 bits of chance."""

    prefill: Side
    decode: Side
    number: int

    @property
    def transfer_id(self) -> str:
        """What names the transfer where an id is to be made up."""
        return f"kvlb-{self.number:032x}"


class Answered(msgspec.Struct, frozen=True):
    """What a prefill leg has answered. ``params`` are its transfer parameters as they came, None where there are none.

    ``prompt_token_ids`` are there if they were asked for; tokens are None where the engine does not count them.
    """

    params: msgspec.Raw | None = None
    prompt_token_ids: msgspec.Raw | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None


class Leg(msgspec.Struct, frozen=True):
    """What one leg carries beside what the client said.

    ``params`` become ``kv_transfer_params``. ``request_id`` goes before the client's, in the header. ``ends_by_length``: the
    one token must not be an end of the answer by itself. ``returns_tokens``: the answer has to name the prompt's tokens.
    """

    params: dict[str, Any] | msgspec.Raw | None = None
    request_id: str | None = None
    ends_by_length: bool = False
    returns_tokens: bool = False


class Connector(Protocol):
    """One way in which a prompt's cache gets from one engine to another. A pure function of its arguments."""

    @property
    def is_concurrent(self) -> bool:
        """Whether both legs are sent at once: then ``decode`` is asked before there is an answer."""
        ...

    @property
    def shares(self) -> bool:
        """Whether what was computed can be fetched more than once: several prompts or samples in a request need that."""
        ...

    @property
    def tells_loaded(self) -> bool:
        """Whether ``cached_tokens`` of the decode leg's answer counts what was fetched."""
        ...

    @property
    def chunk_tokens(self) -> int:
        """How many tokens it keeps together: of the end of a prompt that fills no whole chunk nothing can be fetched."""
        ...

    @property
    def has_bootstrap(self) -> bool:
        """Whether the prefill's engine id has to be asked for before (``Side.engine_id``)."""
        ...

    @property
    def frees_rejected(self) -> bool:
        """Whether a decode leg that its engine refuses tells the prefill to let its blocks go."""
        ...

    def prefill(self, pair: Pair, /) -> Leg: ...

    def decode(self, pair: Pair, answered: Answered | None, /) -> Leg | None:
        """None where what the prefill has answered is of no use: then the decode replica has to compute the prompt.

        ``answered`` is None where both legs are sent at once.
        """
        ...


C = TypeVar("C", bound=type)

CONNECTORS: Final = Registry[Connector](
    "disaggregation connector", package="balancer.disaggregation.legs", group="kvlb.disaggregation", method="prefill"
)


def connector(name: str) -> Callable[[C], C]:
    """Class decorator: makes the connector known under ``name`` (``[disaggregation] name = ...``)."""
    return CONNECTORS.register(name)


def make(name: str, settings: dict[str, Any] | None = None) -> Connector:
    """The connector called ``name``; ``package.module:Class`` names one that is not registered.

    Raises:
        ConfigError: there is none, or a setting is not one of its fields or not of its type.
    """
    return CONNECTORS.make(name, settings or {}, "disaggregation")


class Plain:
    """What holds of a connector that does not say otherwise."""

    is_concurrent: ClassVar[bool] = False
    shares: ClassVar[bool] = False
    tells_loaded: ClassVar[bool] = False
    has_bootstrap: ClassVar[bool] = False
    frees_rejected: ClassVar[bool] = False

    @property
    def chunk_tokens(self) -> int:
        """No more than the engines do."""
        return 1


def wants_remote_decode(**more: Any) -> dict[str, Any]:
    """The parameters of a prefill leg whose blocks somebody else will fetch (vLLM 0.11 - 0.32)."""
    return {"do_remote_decode": True, "do_remote_prefill": False, **more}


def wants_remote_prefill(**more: Any) -> dict[str, Any]:
    """The parameters of a decode leg whose prompt somebody else computes (vLLM 0.11 - 0.32)."""
    return {"do_remote_decode": False, "do_remote_prefill": True, **more}


def fields_of(params: msgspec.Raw | None) -> dict[str, msgspec.Raw]:
    """The fields of transfer parameters; none of what is no object."""
    if params is None:
        return {}
    try:
        return msgspec.json.decode(params, type=dict[str, msgspec.Raw])
    except msgspec.MsgspecError:
        return {}


def lacks(told: Mapping[str, msgspec.Raw], *names: str) -> bool:
    """Whether one of these fields is not there, or null."""
    return any(told.get(name, NULL) == NULL for name in names)


def with_hint(leg: Leg, hint: Mapping[str, Any]) -> Leg:
    """The leg that besides tells its engine what to load of the prompt; what the transfer says goes first."""
    if not hint:
        return leg
    params = fields_of(leg.params) if isinstance(leg.params, msgspec.Raw) else leg.params or {}
    return msgspec.structs.replace(leg, params={**hint, **params})


def with_tokens(leg: Leg, answered: Answered) -> Leg:
    """The decode leg with the prompt's tokens, as the prefill engine has made them (chat, vLLM >= 0.28): not made twice."""
    if answered.prompt_token_ids is None:
        return leg
    params = fields_of(leg.params) if isinstance(leg.params, msgspec.Raw) else leg.params or {}
    return msgspec.structs.replace(leg, params={**params, "prompt_token_ids": answered.prompt_token_ids})
