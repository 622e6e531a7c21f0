"""What a fleet offers to clients: models, how long a prompt they take, who turns text into tokens.

Knows a ``Fleet``. Changes nothing; chance comes in as an argument. The brain asks of its own fleet, and a gateway that is a
process of its own of the last one that it was told.
"""

from collections.abc import Callable

from balancer.errors import BadRequest, NoReplica
from balancer.fleet import Fleet


def default_model(fleet: Fleet, is_allowed: Callable[[str], bool]) -> str:
    """The model meant by a request that names none: the only base model that is allowed.

    Raises:
        BadRequest: there are several.
        NoReplica: no endpoint has answered yet.
    """
    adapters = {adapter.name for live in fleet for adapter in live.replica.adapters}
    base = [model for model in fleet.models() if model not in adapters and is_allowed(model)]
    if not base:
        raise NoReplica("no replica has answered yet, and the request names no model", retry_after=5)
    if len(base) > 1:
        raise BadRequest(f"model: missing; it must be one of: {', '.join(base)}", param="model")
    return base[0]


def max_model_len(fleet: Fleet, model: str) -> int | None:
    """The longest sequence that any replica of the model takes, in tokens; None where one does not say."""
    lengths = [live.replica.max_model_len for live in fleet.serving(model)]
    return None if None in lengths else max((each for each in lengths if each is not None), default=None)


def tokenizing_endpoint(
    fleet: Fleet, model: str, is_paused: Callable[[str], bool], draw: Callable[[], float]
) -> str | None:
    """The least busy endpoint that serves the model, of those that are not ``is_paused`` if any is not.

    ``draw`` decides among equals.
    """
    available = [live for live in fleet.serving(model) if live.is_available()]
    best = min(available, key=lambda live: (is_paused(live.replica.endpoint), live.in_flight, draw()), default=None)
    return None if best is None else best.replica.endpoint
