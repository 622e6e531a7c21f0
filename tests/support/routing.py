"""Replicas, requests and events in their smallest form, for tests of the pure core."""

from array import array
from collections.abc import Sequence

import msgspec
import pytest

from balancer.core import Candidate, Decision, Replica, RouteRequest
from balancer.hashes import PromptHashes
from balancer.router import Router
from hashing.chain import Chain
from hashing.extras import Extras, Lora
from hashing.recipes import Recipe
from indexer.events import EMPTY, BlockStored
from indexer.index import ReplicaId

RECIPE = Recipe(block_size=4)
RANDOM = msgspec.structs.replace(RECIPE, root=b"r" * 32)
"""The recipe of an engine that has drawn its root and tells nobody."""

MODEL = "m"


def replica(name: str, **changes: object) -> Replica:
    """A replica of ``MODEL`` that hashes with ``RECIPE``."""
    plain = Replica(id=ReplicaId(name), endpoint=f"http://{name}:8000", models=(MODEL,), recipe=RECIPE)
    return msgspec.structs.replace(plain, **changes)


def request(*prompts: Sequence[int], salt: str | None = None, **changes: object) -> RouteRequest:
    """A request for ``MODEL`` with these token ids."""
    plain = RouteRequest(
        model=MODEL,
        hashes=PromptHashes(prompts, salt, None),
        prompt_lengths=tuple(len(prompt) for prompt in prompts),
    )
    return msgspec.structs.replace(plain, **changes)


def stored(
    tokens: Sequence[int], *, salt: str | None = None, lora: Lora | None = None, recipe: Recipe = RECIPE
) -> BlockStored:
    """The event of a replica that has computed all full blocks of ``tokens``."""
    chain = Chain(recipe, array("I", tokens), Extras(lora=lora, salt=salt))
    return BlockStored(
        block_hashes=list(chain.keys(len(chain))),
        parent_block_hash=None,
        token_ids=EMPTY,
        block_size=recipe.block_size,
        medium="GPU",
    )


def told(
    tokens: Sequence[int], recipe: Recipe = RECIPE, *, salt: str | None = None, lora: Lora | None = None
) -> BlockStored:
    """As ``stored``, with the tokens and the extras that engines tell, by which keys are proven and learned."""
    event = stored(tokens, salt=salt, lora=lora, recipe=recipe)
    count = len(event.block_hashes)
    adapter = [lora.name] if lora else []
    extras = [[*adapter, *([salt] if salt and not at else [])] or None for at in range(count)]
    return msgspec.structs.replace(
        event,
        token_ids=_raw(list(tokens)[: count * recipe.block_size]),
        extra_keys=_raw(extras),
        lora_name=lora.name if lora else None,
    )


def _raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.msgpack.encode(value))


def candidate(
    name: str,
    *,
    prompt: int = 100,
    cached: int = 0,
    queued: int = 0,
    flight: int = 0,
    share: float = 1.0,
    **more: object,
) -> Candidate:
    plain = Candidate(
        replica=ReplicaId(name),
        prompt_tokens=prompt,
        cached_tokens=cached,
        queued_tokens=queued,
        in_flight=flight,
        share=share,
    )
    return msgspec.structs.replace(plain, **more) if more else plain


def decision(rank: int = 0, ranks: int = 1) -> Decision:
    """What was decided for a prompt of 41 tokens; for rank ``rank`` of ``ranks``."""
    chosen = Replica(id=ReplicaId("h:1"), endpoint="http://h:1", rank=rank, ranks=ranks)
    return Decision(
        lease=1,
        replica=chosen,
        prompt_tokens=41,
        cached_tokens=40,
        is_predicted=True,
        knows_tokens=True,
        policy="p",
        candidates=(),
    )


class GivenKeys:
    """A chain of these keys."""

    def __init__(self, *keys: int) -> None:
        self._keys = list(keys)

    def __len__(self) -> int:
        return len(self._keys)

    def keys(self, count: int, /) -> list[int]:
        return self._keys[:count]


def decisions_noted(monkeypatch: pytest.MonkeyPatch) -> list[Decision]:
    """All that any router decides from now on, as it comes."""
    decided: list[Decision] = []
    route = Router.route

    def noted(self: Router, request: RouteRequest, now: float, draw: float) -> Decision:
        decided.append(route(self, request, now, draw))
        return decided[-1]

    monkeypatch.setattr(Router, "route", noted)
    return decided
