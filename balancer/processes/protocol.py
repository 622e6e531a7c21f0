"""What gateways and the brain tell each other.

Knows the messages and their bytes. Never knows sockets or what follows from a message. Both sides are of one version, started
by one supervisor. Every message is an array that begins with the number of its kind. A gateway numbers its calls; the call by
which a request was routed is the name of its lease from then on, whichever brain it is told to. Times are seconds of the
system's monotonic clock, which all processes of a machine have in common.
"""

from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from balancer.admission import Urgency
from balancer.core import Failure, Fault, Outcome, Replica, Truth
from balancer.disaggregation.roles import Part
from balancer.errors import RateLimited, RequestError
from balancer.limits import Rates
from balancer.processes.frames import ProtocolError, framed
from balancer.request_counts import Counted
from balancer.retries import Verdict
from balancer.timings import Timed
from hashing.example import ExampleKeys
from hashing.extras import Lora
from hashing.own import LearnedKeys
from hashing.recipes import Recipe
from indexer.index import ReplicaId

# From a gateway


class Hello(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """The first message of a gateway."""

    version: str
    pid: int
    number: int
    """Its place among the gateways; whoever replaces it has the same."""


class Chains(msgspec.Struct, frozen=True, array_like=True):
    """A request's prompts as one kind of replica hashes them: ``keys`` of each as unsigned 64-bit integers (``packed``)."""

    recipe: int
    """Its number in the ``FleetView`` that the gateway was told last."""
    adapter: Lora | None
    keys: list[bytes]


class Route(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """``Brain.route``: a ``RouteRequest``, its ``Origin`` and its ``Claim``. ``Routed`` or ``Refused`` answers."""

    call: int
    model: str
    prompt_lengths: tuple[int, ...]
    size_hint: int
    reads_cache: bool
    is_comparable: bool
    rendered_at: float | None
    excluded: tuple[ReplicaId, ...]
    request_id: str
    path: str
    salt: str | None
    tenant: str
    urgency: Urgency
    deadline: float
    chains: list[Chains]
    tells_start: bool = True
    session: int = 0
    part: Part = Part.WHOLE
    takes_hint: bool = True


class Cancel(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Nobody waits for the answer of this call any more; if it has a lease, that is released as cancelled."""

    call: int


class Started(msgspec.Struct, frozen=True, array_like=True, tag=3):
    call: int


class Release(msgspec.Struct, frozen=True, array_like=True, tag=4):
    call: int
    outcome: Outcome
    truth: Truth | None
    failure: Failure | None


class Adopt(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """A request is under way that this brain has not routed."""

    call: int
    replica: ReplicaId
    queued_tokens: int


class Enter(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """``Brain.enter``. ``Done`` or ``Refused`` answers; the call is the name of the permit from then on."""

    call: int
    name: str
    tenant: str
    rates: Rates
    now: float


class Spend(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """``Done`` or ``Refused`` answers."""

    call: int
    permit: int
    tokens: int
    now: float


class Charge(msgspec.Struct, frozen=True, array_like=True, tag=8):
    permit: int
    tokens: int


class Leave(msgspec.Struct, frozen=True, array_like=True, tag=9):
    permit: int


class Suspect(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """A request found nobody at the endpoint, or (``has_answered``) its answer broke off."""

    endpoint: str
    has_answered: bool


class Report(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """What was counted since the last report, and how many bytes have come of answers under way, by lease."""

    counted: Counted
    timed: Timed
    retries: dict[tuple[Fault, Verdict], int]
    tokenizations: dict[str, int]
    traced: dict[str, int]
    lost_lines: int
    arrived: dict[int, int]


class Hold(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """A permit that another brain has given, or the gateway itself without one: it counts, whatever the limits say."""

    permit: int
    name: str
    tenant: str
    rates: Rates
    now: float


# From the brain


class Routed(msgspec.Struct, frozen=True, array_like=True, tag=32):
    """A ``Decision``, without what the gateway knows; and the nanoseconds that went into it."""

    call: int
    replica: ReplicaId
    cached_tokens: int
    held_tokens: int
    is_predicted: bool
    is_comparable: bool
    queue: int
    match: int
    choose: int
    policy: str = ""
    is_split: bool = False
    hint: dict[str, Any] = {}


class Refused(msgspec.Struct, frozen=True, array_like=True, tag=33):
    """A ``RequestError``; ``kind`` is the name of its class."""

    call: int
    kind: str
    message: str
    param: str | None
    retry_after: int | None
    limit: str


class Done(msgspec.Struct, frozen=True, array_like=True, tag=34):
    call: int


class Known(msgspec.Struct, frozen=True, array_like=True):
    """One replica, and how a prompt is hashed to be found among its blocks; None where nothing ever is."""

    replica: Replica
    recipe: int | None
    is_available: bool
    rests_until: float


class FleetView(msgspec.Struct, frozen=True, array_like=True, tag=35):
    """All that a gateway knows of the fleet. A number stands for the same recipe as long as a brain lives."""

    replicas: list[Known]
    recipes: dict[int, Recipe]
    learned: dict[int, LearnedKeys]
    lives: dict[str, int]
    """By endpoint: how often it has told what it is. What was remembered of its tokenizer holds for one of these times."""
    is_refilled: bool
    """Whether the brain knows all that there is to know after a start."""
    also: list[int] = []
    """Recipes that every prompt is hashed with besides, to be found in stores."""
    examples: dict[int, ExampleKeys] = {}


class Loads(msgspec.Struct, frozen=True, array_like=True, tag=36):
    """That the brain is there, and the requests under way at each replica of the last ``FleetView``, in its order."""

    in_flight: list[int]


class Abandon(msgspec.Struct, frozen=True, array_like=True, tag=37):
    """The replica of this lease stands still: the gateway takes the request away from it if it can."""

    call: int


FromGateway: TypeAlias = (
    Hello | Route | Cancel | Started | Release | Adopt | Enter | Spend | Charge | Leave | Suspect | Report | Hold
)
FromBrain: TypeAlias = Routed | Refused | Done | FleetView | Loads | Abandon

_encoder: Final = msgspec.msgpack.Encoder()
_from_gateway: Final = msgspec.msgpack.Decoder(FromGateway)
_from_brain: Final = msgspec.msgpack.Decoder(FromBrain)


def encode(message: FromGateway | FromBrain) -> bytes:
    """The message as it is sent.

    Raises:
        ProtocolError: it is too long, or has half a character in it.
    """
    try:
        return framed(_encoder.encode(message))
    except UnicodeEncodeError as error:
        raise ProtocolError(f"cannot be told: {error}") from error


def from_gateway(data: bytes) -> FromGateway:
    """Raises: ProtocolError: it is no message of a gateway."""
    message: FromGateway = _decoded(_from_gateway, data)
    return message


def from_brain(data: bytes) -> FromBrain:
    """Raises: ProtocolError: it is no message of a brain."""
    message: FromBrain = _decoded(_from_brain, data)
    return message


def _decoded(decoder: Any, data: bytes) -> Any:
    try:
        return decoder.decode(data)
    except (
        msgspec.MsgspecError,
        ValueError,
        RecursionError,
        OverflowError,
    ) as error:  # a recipe's own check is a ValueError
        raise ProtocolError(f"no message: {error}") from error


KEY_BYTES: Final = 8


def packed(keys: Sequence[int]) -> bytes:
    """Keys of blocks, eight bytes each in the machine's own order."""
    return array("Q", keys).tobytes()


def unpacked(keys: bytes) -> list[int]:
    """The keys again."""
    made = array("Q")
    made.frombytes(keys)
    return made.tolist()


def refusal(call: int, error: RequestError) -> Refused:
    """The error as it is told."""
    limit = error.limit if isinstance(error, RateLimited) else ""
    return Refused(call, type(error).__name__, error.message, error.param, error.retry_after, limit)


def error_of(refused: Refused) -> RequestError:
    """The error that was told."""
    if refused.kind == RateLimited.__name__:
        return RateLimited(refused.message, limit=refused.limit, param=refused.param, retry_after=refused.retry_after)
    kind = _KINDS.get(refused.kind, RequestError)
    return kind(refused.message, param=refused.param, retry_after=refused.retry_after)


_KINDS: Final[Mapping[str, type[RequestError]]] = {kind.__name__: kind for kind in RequestError.__subclasses__()}
