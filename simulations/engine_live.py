"""What an engine keeps of a request from its arrival to its end, and of a step while it is put together.

Knows tokens, blocks and counts. Never knows in which order anything is done (``simulations.engine``).
"""

from collections.abc import Sequence
from typing import NamedTuple

from hashing.recipes import Recipe
from simulations.engine_values import EngineRequest


class Live:
    """A request from ``add`` to its end; mutable."""

    __slots__ = (
        "blocks",
        "cached_tokens",
        "coming",
        "drops_stale",
        "id",
        "is_loading",
        "is_running",
        "is_unreported",
        "limit",
        "num_cached_blocks",
        "num_computed",
        "num_in_flight",
        "num_placeholders",
        "num_stale",
        "request",
        "sequence",
        "was_preempted",
    )

    def __init__(self, request: EngineRequest, recipe: Recipe, max_model_len: int) -> None:
        self.id = request.id
        self.request = request
        self.sequence = request.prompt.start(recipe, request.id)
        self.limit = min(self.sequence.num_tokens + request.max_tokens, max_model_len)
        self.blocks: list[int] = []
        self.num_cached_blocks = 0  # how many of `blocks` hold their key
        self.num_computed = 0  # tokens whose keys and values exist once all steps in flight are done
        self.num_in_flight = 0  # tokens of scheduled, not yet completed steps
        self.num_placeholders = 0  # async: tokens that are being sampled by steps in flight
        self.num_stale = 0  # in flight when the request was preempted
        self.drops_stale = False
        self.is_running = False
        self.was_preempted = False
        self.cached_tokens = 0
        self.is_loading = False  # something is on its way into its blocks
        self.coming: Sequence[int] = ()  # keys of those that others wait for, too
        self.is_unreported = True

    @property
    def num_missing(self) -> int:
        """Tokens that are known, or will be when the steps in flight are done, and not yet scheduled."""
        return self.sequence.num_tokens + self.num_placeholders - self.num_computed


class Blocked(NamedTuple):
    """Who does not fit, as long as ``returns`` stays (``BlockPool.num_returns``) and nobody holds the key behind its hit.

    Blocks that are taken by others make no room for it, and what is evicted makes its hit no longer.
    """

    live: Live
    returns: int
    lacking: int | None


class Draft:
    """A step while it is being put together; mutable."""

    __slots__ = ("budget", "loads", "preempted", "scheduled")

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.scheduled: dict[str, int] = {}
        self.loads: dict[str, int] = {}
        self.preempted: list[str] = []

    def add(self, request_id: str, num_tokens: int) -> None:
        self.scheduled[request_id] = num_tokens
        self.budget -= num_tokens
