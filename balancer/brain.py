"""What the data plane needs of whoever decides.

Knows the calls and what they promise. Never knows whether the brain shares the gateway's loop (``balancer.service``) or is a
process of its own (``balancer.processes.remote``): nothing that serves a request asks which of them it has.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from balancer.admission import Claim
from balancer.core import Decision, Failure, Outcome, PrefixHashes, Prompt, Replica, RouteRequest, Truth
from balancer.decisions import Origin
from balancer.limits import Permit
from balancer.retries import Retries
from balancer.settings import Settings
from balancer.stages import Stages
from balancer.stalls import Answer
from balancer.tenants import Caller
from balancer.tokens import Tokenizer
from indexer.index import ReplicaId


class Brain(Protocol):
    """For each request ``enter`` comes first; each ``Decision`` of ``route`` is a lease, and is released exactly once.

    Times are the loop's own clock.
    """

    is_draining: bool
    """Whether this process is about to end, and is to be sent nothing new."""

    @property
    def settings(self) -> Settings: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def retries(self) -> Retries:
        """Judges what has failed, and keeps the budget."""
        ...

    @property
    def is_ready(self) -> bool:
        """Whether any replica can take a request."""
        ...

    @property
    def open_leases(self) -> int: ...

    async def enter(self, caller: Caller, now: float) -> Permit:
        """A request of this caller begins; whoever got its permit leaves with it.

        Raises:
            RateLimited: the caller has had its share.
        """
        ...

    async def spend(self, permit: Permit, tokens: int, now: float) -> None:
        """The request's prompts have so many tokens.

        Raises:
            RateLimited: that is more than may be spent now.
        """
        ...

    def route_at_once(self, request: RouteRequest, origin: Origin, claim: Claim) -> Decision | Awaitable[Decision]:
        """The same as ``route``, as far as that is decided now; else what has to be awaited for it, at once.

        Raises:
            RequestError: as ``route``.
        """
        ...

    async def route(self, request: RouteRequest, origin: Origin, claim: Claim) -> Decision:
        """Choose a replica for the request; where all are saturated, or its own has enough to do, it waits for its turn.

        Raises:
            UnknownModel: nobody serves this model.
            NoReplica: none that serves it can take a request now.
            Saturated: none has had a place for it in time, or too many wait for one.
            Contended: all of them have asked for a rest.
        """
        ...

    def can_route(self, request: RouteRequest) -> bool:
        """Whether anybody could take the request now."""
        ...

    def follow(self, decision: Decision, answer: Answer) -> None:
        """Look at this answer now and then while it is under way; it is told to leave a replica that stands still."""
        ...

    def started(self, lease: int) -> None:
        """The prompt has been computed. Told, and not waited for: it is called between two pieces of an answer."""
        ...

    def release_at_once(
        self, lease: int, outcome: Outcome, truth: Truth | None = None, failure: Failure | None = None
    ) -> None:
        """The request has ended; ``truth`` is what the engine said of it, ``failure`` what the replica did wrong."""
        ...

    def hashes(self, prompts: Sequence[Prompt], salt: str | None, stages: Stages) -> PrefixHashes:
        """The prompts' block hashes; ``stages`` is told how long making them takes."""
        ...

    def read_ids(self, body: bytes, begin: int, end: int) -> Sequence[int] | None:
        """The token ids of the JSON list between two places of a body; None unless it is one. ``hashes`` knows it again."""
        ...

    def default_model(self, is_allowed: Callable[[str], bool]) -> str:
        """The model meant by a request that names none: the only base model that is allowed.

        Raises:
            BadRequest: there are several.
            NoReplica: no endpoint has answered yet.
        """
        ...

    def max_model_len(self, model: str) -> int | None:
        """The longest sequence that any replica of the model takes, in tokens; None where one does not say."""
        ...

    def tokenizing_endpoint(self, model: str) -> str | None:
        """The least busy endpoint that serves the model, of those that answer in time if any does."""
        ...

    def behind(self, endpoint: str) -> frozenset[ReplicaId]:
        """The replicas of one endpoint, available or not."""
        ...

    def replicas(self) -> Sequence[Replica]:
        """All that there are, available or not."""
        ...

    def next_best(self, decision: Decision, request: RouteRequest) -> Sequence[Replica]:
        """Who else could take the request of this decision, the best first."""
        ...

    def adopt(self, replica: ReplicaId, queued_tokens: int, answer: Answer) -> int | None:
        """A request is under way there that was routed elsewhere; its lease, or None where there is no such replica."""
        ...

    def unreachable(self, endpoint: str) -> None:
        """A request found nobody at this endpoint."""
        ...

    def broke_off(self, endpoint: str) -> None:
        """An answer ended in its middle."""
        ...
