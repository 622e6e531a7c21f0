"""What an engine is set up with, what it is asked for, and what it answers: values that everybody reads.

Knows fields and their bounds. Never knows what is done with them (``simulations.engine``).
"""

from typing import Literal, TypeAlias

import msgspec

from hashing.recipes import Recipe
from indexer.events import KVEvent
from simulations.latency import Workload
from simulations.sequences import Prompt

FinishReason: TypeAlias = Literal["stop", "length"]


class EngineConfig(msgspec.Struct, frozen=True):
    """How one replica is set up. The defaults are those of ``vllm serve`` on an accelerator with less than 70 GB.

    Attributes:
        recipe: how it hashes; also gives the block size.
        num_gpu_blocks: physical blocks, the null block included.
        max_num_batched_tokens: tokens that one step may compute.
        max_num_seqs: requests that may run at once.
        max_model_len: longest sequence, prompt and output together, in tokens.
        async_scheduling: a step is scheduled while the one before it is computed (see the head of the file).
        reserve_full_prompt: admit a request only when its whole prompt fits, not just its first chunk
            (``scheduler_reserve_full_isl``).
        has_prefix_caching: look for cached blocks, keep them and announce them.
        announce_tokens: put token ids and extra keys into the events; without them the events keep their order and hashes.
    """

    recipe: Recipe
    num_gpu_blocks: int
    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 256
    max_model_len: int = 8192
    async_scheduling: bool = False
    reserve_full_prompt: bool = True
    has_prefix_caching: bool = True
    announce_tokens: bool = True

    def __post_init__(self) -> None:
        for name in ("max_num_batched_tokens", "max_num_seqs", "max_model_len"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        # vLLM refuses to start otherwise: one request could wait for ever.
        needed = -(-self.max_model_len // self.recipe.block_size) + 1
        if self.num_gpu_blocks < needed:
            raise ValueError(
                f"num_gpu_blocks must be at least {needed} to hold one sequence of max_model_len "
                f"{self.max_model_len} and the null block, got {self.num_gpu_blocks}"
            )


class EngineRequest(msgspec.Struct, frozen=True):
    """What a replica is asked to do.

    Attributes:
        id: unique over the life of the engine (vLLM appends a random suffix to make it so).
        prompt: tokens or keys.
        max_tokens: tokens to generate at most.
        skip_cache: compute the whole prompt although it may be cached; vLLM does so for ``prompt_logprobs``.
        stop_token_ids: tokens that end the request when they are sampled.
        loaded_tokens: so many of the prompt's first tokens need not be computed: a connector has brought them.
        remote_tokens: so many of the prompt's first tokens another engine has computed; a connector brings what is not hit.
        max_load_tokens: tokens behind its own hit that the engine's connector may load at most; None for all that it finds.
        keeps_blocks: when it has ended, its blocks are held until ``let_go`` is called for it.
    """

    id: str
    prompt: Prompt
    max_tokens: int
    skip_cache: bool = False
    stop_token_ids: tuple[int, ...] = ()
    loaded_tokens: int = 0
    remote_tokens: int = 0
    max_load_tokens: int | None = None
    keeps_blocks: bool = False


class ScheduledStep(msgspec.Struct, frozen=True):
    """One step: what is computed for whom.

    Attributes:
        num_scheduled_tokens: request id to number of tokens, in the order in which they were scheduled.
        sampled: ids of the requests that get a token: all but those whose prompt is not finished by this step.
        preempted: ids of the requests that lost their blocks and wait again, first loser first.
        workload: the same in figures, for a latency model.
        loads: request id to the tokens that its connector begins to load with this step; ``Engine.loaded`` is called for each
            when they are there.
    """

    num_scheduled_tokens: dict[str, int]
    sampled: frozenset[str]
    preempted: tuple[str, ...]
    workload: Workload
    loads: dict[str, int] = {}

    @property
    def is_empty(self) -> bool:
        return not self.num_scheduled_tokens


class StepResult(msgspec.Struct, frozen=True):
    """What a completed step brought.

    Attributes:
        events: everything that happened to the cache until now, as one batch; empty means that nothing is published.
        tokens: request id to its new token.
        cached_tokens: for requests with their first token in ``tokens``, how many tokens of the prompt came from the cache:
            what the API reports as ``usage.prompt_tokens_details.cached_tokens``.
        finished: request id to reason, for those that ended with this step.
    """

    events: list[KVEvent]
    tokens: dict[str, int]
    cached_tokens: dict[str, int]
    finished: dict[str, FinishReason]
