"""The values that routing is about.

Knows what a replica, a request, a candidate and a decision are. Never knows how any of them was found out or is carried
out. Everything here is frozen; times are seconds on whatever clock the caller uses, lengths are tokens.
"""

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final, Protocol

import msgspec

from balancer.disaggregation.estimate import Estimate
from balancer.disaggregation.roles import NO_TRANSFER, Part, Role, Transfer
from balancer.economics.mix import Mix
from balancer.media import NO_MEDIA, Media
from balancer.speeds import PREFILL_SPEED
from balancer.stages import UNTIMED, Stages
from hashing.extras import Lora
from hashing.own import LearnedKeys
from hashing.recipes import Recipe
from indexer.index import Keys, ReplicaId


class Feed(msgspec.Struct, frozen=True, kw_only=True):
    """What keeps a replica busy until it can be sent more; what goes beyond that is held.

    A replica has enough to do with so many uncached ``tokens`` that were sent and are not computed, if that takes more than so
    many ``seconds``: an engine computes several short prompts in one step. Of at most ``small`` uncached tokens none is held.
    """

    tokens: int = 1024
    seconds: float = 0.05
    small: int = 256


DEFAULT_FEED: Final = Feed()


class Knowledge(StrEnum):
    """How much is known of a replica's cache (``balancer.knowledge`` judges)."""

    EXACT = "exact"
    LEARNED = "learned"
    PARTIAL = "partial"
    BLIND = "blind"

    @property
    def is_promise(self) -> bool:
        """Whether the engine must find what the index says."""
        return self is Knowledge.EXACT or self is Knowledge.LEARNED


class Replica(msgspec.Struct, frozen=True):
    """One KV cache that can be chosen: an endpoint and a data-parallel rank of it.

    ``recipe`` is how the engine says that it hashes, or None when it does not say enough; its events may know better.
    ``models`` are the names it serves, ``adapters`` those of them that are LoRA adapters. ``has_events`` says whether it tells
    what it caches, ``has_eagle`` whether it computes the last block of every hit anew (EAGLE and MTP draft models),
    ``has_prefix_caching`` whether it caches prefixes at all, as far as it says. ``attention_chunk`` is the chunk of chunked
    local attention, where somebody says it, in tokens.
    ``max_model_len`` is in tokens, ``num_gpu_blocks`` counts the blocks of the pool; both None when unsaid. ``root`` is where
    the engine has its base model from (a path or a name at a hub), as it says. ``role`` is what it is for where prefill and
    decode are apart, ``transfer`` how others reach its cache then. ``connectors`` are the engine's KV connectors, by vLLM's
    names for them, as far as anybody says; ``release`` is vLLM's major and minor number.
    """

    id: ReplicaId
    endpoint: str
    rank: int = 0
    ranks: int = 1
    models: tuple[str, ...] = ()
    adapters: tuple[Lora, ...] = ()
    recipe: Recipe | None = None
    has_events: bool = True
    has_eagle: bool = False
    attention_chunk: int | None = None
    has_prefix_caching: bool = True
    max_model_len: int | None = None
    num_gpu_blocks: int | None = None
    root: str | None = None
    role: Role = Role.BOTH
    transfer: Transfer = NO_TRANSFER
    connectors: tuple[str, ...] = ()
    release: tuple[int, int] | None = None

    def adapter(self, model: str) -> Lora | None:
        """The LoRA adapter of this name, or None for a base model."""
        if not self.adapters:
            return None
        return next((adapter for adapter in self.adapters if adapter.name == model), None)

    @property
    def base_models(self) -> tuple[str, ...]:
        """The names it serves that are no adapter's."""
        adapters = {adapter.name for adapter in self.adapters}
        return tuple(model for model in self.models if model not in adapters)


class PrefixHashes(Protocol):
    """A request's prompts as chains of block keys, made only for the recipes that are asked for."""

    def chains(self, recipe: Recipe | LearnedKeys, adapter: Lora | None, /) -> Sequence[Keys]:
        """One chain for each prompt, or none when they cannot be hashed this way."""
        ...


class NoHashes:
    """The hashes of a request whose tokens nobody knows."""

    def chains(self, recipe: Recipe | LearnedKeys, adapter: Lora | None, /) -> Sequence[Keys]:
        return ()


NO_HASHES = NoHashes()


class RouteRequest(msgspec.Struct, frozen=True):
    """What the router has to know of a request.

    ``prompt_lengths`` has the tokens of each prompt (one, but for completions with a list of prompts); empty when the
    tokens are unknown. ``size_hint`` is a guess of the total for that case. ``reads_cache`` is false for requests that
    compute their whole prompt whatever is cached (vLLM: ``prompt_logprobs``). ``is_comparable`` says whether the engine's
    ``cached_tokens`` will be that of this one prompt. ``request_id`` names it to people. ``stages`` is told what has been done
    for it. ``rendered_at`` is when an engine was asked for the tokens of its text, which the next one may make otherwise; None
    for tokens that the client has sent. ``session`` is a number of the conversation that it belongs to; 0 where nobody says.
    ``part`` is what of it is to be sent somewhere. ``takes_hint`` says whether an engine may be told what to load of it: not
    where the client does that itself. ``came_at`` is when it first had a replica, by the
    clock of who routes, if it is given another one now: its turn is still that of then.
    """

    model: str
    hashes: PrefixHashes = NO_HASHES
    prompt_lengths: tuple[int, ...] = ()
    size_hint: int = 0
    reads_cache: bool = True
    is_comparable: bool = True
    excluded: frozenset[ReplicaId] = frozenset()
    stages: Stages = UNTIMED
    request_id: str = ""
    rendered_at: float | None = None
    session: int = 0
    yields: float = 0.0
    tells_start: bool = True
    part: Part = Part.WHOLE
    came_at: float | None = None
    takes_hint: bool = True

    @property
    def prompt_tokens(self) -> int:
        return sum(self.prompt_lengths) if self.prompt_lengths else self.size_hint


class Prompt(msgspec.Struct, frozen=True):
    """Token ids, and where among them lies what is no text; ``rendered_at`` as in ``RouteRequest``."""

    tokens: Sequence[int]
    media: Media = NO_MEDIA
    rendered_at: float | None = None


class Load(msgspec.Struct, frozen=True, gc=False):
    """What a replica could load instead of computing it: so many further leading tokens of the prompt, from one place.

    ``source`` is the label of a tier of its own (``CPU``, ``STORAGE/LOCAL``), or ``store:`` and the name of a shared store.
    Loads from it end at multiples of ``chunk`` tokens of the prompt.
    """

    source: str
    tokens: int
    chunk: int = 1


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """All that a policy may know of one replica it could choose.

    ``cached_tokens`` of the request's ``prompt_tokens`` lie there already, as the engine itself would count them.
    ``queued_tokens`` are uncached prompt tokens of requests sent there that have not answered yet; ``in_flight`` is the
    number of requests sent there that have not ended. ``last_lease`` grows with every request sent anywhere: the lower, the
    longer ago this replica was chosen; 0 is never. ``knowledge`` says what ``cached_tokens`` rests on: for a partial or blind
    replica it is an estimate, from what is known and from what was sent there before. ``share`` is how much of a full share of
    work it may be given: less than 1 while it starts slowly, so that what it has to do weighs ``1 / share`` times as much.
    ``lean`` breaks ties: of equally good ones the one that a prompt leans to most is chosen; 0 for all where chance shall.
    ``wait`` is how many seconds it will take until the replica begins on this request, ``speed`` how many uncached prompt
    tokens it computes a second, as far as anybody knows. ``waiting`` of the ``in_flight`` requests have not answered yet;
    ``active_tokens`` are the prompts of all of them, ``room_tokens`` what its cache holds in all (0: nobody knows).
    ``has_session`` says whether the request of the same conversation before this one was sent there. Of requests that wait in
    kvlb for this replica, ``passed`` would be passed by this one, and ``wait`` is without them. ``turnover`` is how many
    seconds what lies unused in its cache stays there; without end while there is room. ``usage`` is the share of the cache that
    running requests need, as the engine says (0: it does not), and ``has_adapter`` whether the request needs no LoRA adapter,
    or one that was asked for there lately. ``skipped`` requests for its model went elsewhere since it was given one; of one
    that was far slower than expected each time it had one, the count is divided (by ``ReplicaSpeed.patience``).
    ``loadable`` are further leading tokens, behind the ``cached_tokens``, that lie in its other tiers and in the stores that it
    reads from, each source continuing where those before it end.
    ``load_tokens`` of those that are not cached are to be loaded from somewhere else, which takes ``load_seconds``
    (``balancer.economics``); nothing of the replica's time is taken by that, and the rest is computed.
    """

    replica: ReplicaId
    prompt_tokens: int
    cached_tokens: int
    queued_tokens: int
    in_flight: int
    last_lease: int = 0
    knowledge: Knowledge = Knowledge.EXACT
    share: float = 1.0
    lean: int = 0
    wait: float = 0.0
    speed: float = PREFILL_SPEED
    waiting: int = 0
    active_tokens: int = 0
    room_tokens: int = 0
    has_session: bool = False
    passed: int = 0
    turnover: float = math.inf
    usage: float = 0.0
    has_adapter: bool = True
    skipped: int = 0
    loadable: tuple[Load, ...] = ()
    load_tokens: int = 0
    load_seconds: float = 0.0

    @property
    def uncached_tokens(self) -> int:
        """Those that its GPU has not, wherever else they lie."""
        return self.prompt_tokens - self.cached_tokens

    @property
    def loadable_tokens(self) -> int:
        """All that could be loaded, from wherever."""
        return sum(each.tokens for each in self.loadable)

    @property
    def computed_tokens(self) -> int:
        """What is neither there nor loaded."""
        return self.prompt_tokens - self.cached_tokens - self.load_tokens

    def counting(self, cached_tokens: int) -> "Candidate":
        """The same with so many cached tokens; what is to be loaded ends where it did."""
        if not self.load_tokens:
            return msgspec.structs.replace(self, cached_tokens=cached_tokens)
        loads = max(0, self.cached_tokens + self.load_tokens - cached_tokens)
        seconds = self.load_seconds * min(1.0, loads / self.load_tokens)
        return msgspec.structs.replace(self, cached_tokens=cached_tokens, load_tokens=loads, load_seconds=seconds)


class Asked(msgspec.Struct, frozen=True, gc=False):
    """What a policy may know of the request itself, and of the fleet as a whole.

    ``session`` is a number of the conversation that it belongs to, 0 where nobody says. ``chain`` are the keys of its first
    prompt's blocks, of ``block_size`` tokens each; None where nobody knows its tokens. ``utilisation`` is how much of the
    fleet's time the prompts of the last minute take to compute, 0 to 1 and more. ``reuse`` is the share of prompt tokens
    of the last minutes that lay in a cache already. ``goes_on`` says whether the prompt goes on where an earlier one ended, as
    the turns of a conversation do; that is only looked for where a policy has a ``trial_after``, and a replica had none of the
    last requests, so many times as many as there are replicas.
    """

    session: int = 0
    chain: Keys | None = None
    block_size: int = 1
    utilisation: float = 0.0
    reuse: float = 0.0
    goes_on: bool = False

    def beginning(self, tokens: int) -> int:
        """The key of the first ``tokens`` tokens in full blocks, one at least, or of all full blocks there are; 0 of none."""
        if self.chain is None:
            return 0
        blocks = max(1, tokens // self.block_size)
        keys = self.chain.keys(blocks)
        return keys[min(blocks, len(keys)) - 1] if keys else 0


NOTHING_ASKED = Asked()


class Paper(msgspec.Struct, frozen=True):
    """What a policy would have chosen that decides on paper alone (``balancer.shadow``).

    Tokens are counted as those of a ``Decision``; ``wait`` and ``acting_wait`` are the seconds until its replica, and the one
    that was chosen, begin on the request. With a ``failure`` there is no choice, and ``replica`` is empty.
    """

    policy: str
    replica: ReplicaId
    cached_tokens: int
    uncached_tokens: int
    wait: float
    acting_wait: float
    failure: str = ""


class Decision(msgspec.Struct, frozen=True):
    """Where a request goes. It is a lease: ``Router.release`` must be told its number exactly once.

    ``knows_tokens`` says whether ``prompt_tokens`` is a count or a guess. ``is_predicted`` says whether ``cached_tokens`` can
    be held against the engine's own figure as a promise: it is comparable, and the replica's cache is known. It
    ``is_comparable`` when the tokens are known and there is one prompt (for several, vLLM 0.32 reports the figure of one of
    them). ``held_tokens`` of the ``cached_tokens`` were named by events when it was made; the rest was expected. ``asked`` and
    ``candidates`` are what the policy saw, ``shadow`` is what another one would have chosen, where one is asked. ``loadable``
    is the chosen candidate's, ``mix`` what of it is to be loaded, as far as anybody knows what that costs, and ``hint`` what
    the engine is told so that it does that (``balancer.economics.hints``); nothing where it does so by itself. With
    ``is_split`` the replica is to answer, and another one to compute the prompt: what it then finds is no prediction of ours.
    ``estimate`` is what both ways cost, where that is known.
    """

    lease: int
    replica: Replica
    prompt_tokens: int
    cached_tokens: int
    is_predicted: bool
    knows_tokens: bool
    policy: str
    candidates: tuple[Candidate, ...]
    model: str = ""
    is_comparable: bool = False
    held_tokens: int = 0
    request_id: str = ""
    asked: Asked = NOTHING_ASKED
    shadow: Paper | None = None
    loadable: tuple[Load, ...] = ()
    is_split: bool = False
    estimate: Estimate | None = None
    mix: Mix | None = None
    hint: dict[str, Any] = {}

    @property
    def loads(self) -> tuple[Load, ...]:
        """What the engine is expected to load: all it finds, unless it is told otherwise."""
        if not self.hint or self.mix is None:
            return self.loadable
        cached = self.cached_tokens
        return tuple(
            Load(each.source, each.end - max(each.start, cached)) for each in self.mix.loads if each.end > cached
        )

    @property
    def expected_tokens(self) -> int:
        """What the engine is expected to report as cached: vLLM counts what it loads, but for what NIXL brings."""
        return self.cached_tokens + sum(each.tokens for each in self.loads)

    @property
    def loadable_until(self) -> int:
        """Where that would end if it loaded all it finds, whatever it is told."""
        return self.cached_tokens + sum(each.tokens for each in self.loadable)

    @property
    def computed_tokens(self) -> int:
        """How much of the prompt the replica has to compute."""
        return 0 if self.is_split else self.prompt_tokens - self.cached_tokens


class Outcome(StrEnum):
    """How a lease ended."""

    OK = "ok"
    ERROR = "error"  # the replica answered with an error of its own
    CANCELLED = "cancelled"  # the client went away
    UNREACHABLE = "unreachable"  # no byte of an answer came


class Fault(StrEnum):
    """What a replica did instead of answering."""

    CONNECT = "connect"  # nobody took the connection
    RESET = "reset"  # the connection ended before the head of an answer
    ABORT = "abort"  # ended with nothing computed: the engine drains or is paused, or has died (balancer.opening)
    STATUS = "status"  # an error of its own
    NO_ANSWER = "no_answer"  # nothing within the time for the first byte
    HUNG = "hung"  # it was found to stand still, and the request was taken away before the client had a byte
    BROKE_OFF = "broke_off"  # the answer ended in its middle
    STALLED = "stalled"  # nothing for too long in the middle of an answer

    @property
    def is_of_endpoint(self) -> bool:
        """Whether all ranks behind the endpoint have it."""
        return self in {Fault.CONNECT, Fault.RESET, Fault.ABORT}

    @property
    def is_before_answer(self) -> bool:
        """Whether the client can have had no byte yet."""
        return self not in {Fault.BROKE_OFF, Fault.STALLED}


class Failure(msgspec.Struct, frozen=True):
    """How one attempt at a replica failed.

    ``status`` and ``retry_after`` (seconds) are those of an answer with an error; None where there was none.
    """

    fault: Fault
    status: int | None = None
    retry_after: float | None = None


class Truth(msgspec.Struct, frozen=True):
    """What the engine said afterwards of one request (``usage`` of its answer); None where it said nothing.

    ``status`` is the HTTP status of its answer. ``cached_tokens`` needs ``--enable-prompt-tokens-details`` on the engine
    (vLLM 0.32).
    """

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    finish_reason: str | None = None
    status: int | None = None
