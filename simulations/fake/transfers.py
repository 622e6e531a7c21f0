"""How fake engines give each other what they have computed, as engines with a KV connector do.

Knows what each connector of vLLM 0.32 reads of a request and answers, and what it does with parameters that are wrong: NIXL
computes the prompt itself if one is missing, fails if it cannot reach the other engine, and takes whatever lies there if it
comes too late. Such an answer differs from the right one. Engines find each other in this process alone; blocks are kept by
the engine that computed them until they are fetched, or their lease is over.
"""

import asyncio
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, TypeAlias

import msgspec

from simulations.fake.asks import Ask, Refused

ConnectorName: TypeAlias = Literal["", "nixl", "nixl_push", "mooncake", "shared", "p2p_nccl", "offloading"]

LOAD_FAILED: Final = "Internal server error"

_ENGINES: Final[dict[str, "Transfers"]] = {}
"""Those that live, by their ids."""

_STORES: Final[dict[str, set[tuple[int, ...]]]] = {}
"""By name: prompts whose blocks are in a shared store."""


class Loading(msgspec.Struct, frozen=True):
    """What a request finds elsewhere: so many ``tokens`` of its prompt, which are those of another one if not ``is_right``.

    ``keeps``: when the request has ended, its blocks stay for somebody else.
    """

    tokens: int = 0
    is_right: bool = True
    keeps: bool = False


NOTHING: Final = Loading()


class Kept(msgspec.Struct):
    """A computed prompt that is kept for somebody else; ``until`` is on the monotonic clock."""

    prompt: tuple[int, ...]
    samples: tuple[tuple[int, str], ...]
    """Rank and id of the engine requests whose blocks they are."""
    until: float


class Transfers:
    """The part of one engine process that speaks to others; mutable."""

    def __init__(
        self,
        connector: ConnectorName,
        store: str,
        lease_seconds: float,
        block_size: int,
        patience: float,
        free: Callable[[Kept], None],
        held: Callable[[Sequence[int]], int] = lambda prompt: 0,
        release: tuple[int, int] = (0, 32),
    ) -> None:
        """``patience`` is how many seconds a request waits for blocks that another engine is to send.

        ``free`` is told of blocks that nobody needs any more; ``held`` says how many tokens of a prompt lie in the engine's own
        cache. What can be said of loads depends on the ``release``.
        """
        self._free = free
        self._held = held
        self._release = release
        self.connector = connector
        self.engine_id = uuid.uuid4().hex
        self.port = 5600 + len(_ENGINES)
        self.kept: dict[str, Kept] = {}
        self.num_fetched_tokens = 0
        self.num_expired = 0
        self.places: dict[str, float] = {}
        """Until when it has blocks for what is to come, although who has asked for it has gone (vLLM 0.32, Mooncake)."""
        self._store = store
        self._lease_seconds = lease_seconds
        self._block_size = block_size
        self._patience = patience
        self._news = asyncio.Event()
        if connector:
            _ENGINES[self.engine_id] = self

    def close(self) -> None:
        """The process has ended: nobody finds it any more."""
        _ENGINES.pop(self.engine_id, None)

    # -- before a request is computed ----------------------------------------------------------------------------------

    async def begin(self, ask: Ask, name: str) -> Loading:
        """What it finds elsewhere; waits for it where the other engine sends by itself.

        Raises:
            Refused: it could not be fetched.
        """
        params = ask.transfer or {}
        match self.connector:
            case "nixl" | "nixl_push" | "mooncake":
                if params.get("do_remote_decode"):
                    if self.connector == "mooncake" and not params.get("transfer_id"):
                        return NOTHING
                    return Loading(keeps=True)
                if params.get("do_remote_prefill"):
                    return await self._fetch(ask, params, name)
            case "shared":
                return self._look_up(ask.prompts[0])
            case "offloading":
                return self._load(ask.prompts[0], params)
            case "p2p_nccl":
                return await self._by_name(ask, name)
        return NOTHING

    async def _fetch(self, ask: Ask, params: dict[str, Any], name: str) -> Loading:
        if self.connector == "nixl":
            needed = ("remote_block_ids", "remote_engine_id", "remote_request_id", "remote_host", "remote_port")
            if any(params.get(each) is None for each in needed):
                return NOTHING  # it warns, and computes the prompt
            other = self._other(params)
            if params["remote_port"] != other.port:
                raise _failed()
            return other.give(str(params["remote_request_id"]), ask, self)
        if self.connector == "nixl_push":
            if any(params.get(each) is None for each in ("remote_engine_id", "remote_host", "remote_port", "tp_size")):
                raise _failed()
            other = self._other(params)
            return await other.give_when_there(_base(name), ask, self, self._patience)
        if any(params.get(each) is None for each in ("remote_engine_id", "remote_bootstrap_addr", "transfer_id")):
            return NOTHING
        other = self._other(params)
        return await other.give_when_there(str(params["transfer_id"]), ask, self, self._patience)

    def _other(self, params: dict[str, Any]) -> "Transfers":
        other = _ENGINES.get(str(params["remote_engine_id"]))
        if other is None:
            raise _failed()
        return other

    async def _by_name(self, ask: Ask, name: str) -> Loading:
        _, mark, rest = name.partition("___prefill_addr_")
        if not mark or "___decode_addr_" not in rest:
            raise _failed()  # the real one ends with an assertion
        if ask.max_tokens == 1:
            return Loading(keeps=True)
        sender = next((each for each in _ENGINES.values() if _base(name) in each.kept), None)
        return NOTHING if sender is None else sender.give(_base(name), ask, self)

    def _look_up(self, prompt: Sequence[int]) -> Loading:
        aligned = self._aligned(prompt)
        found = bool(aligned) and aligned in _STORES.get(self._store, ())
        if found:
            self.num_fetched_tokens += len(aligned)
        return Loading(len(aligned) if found else 0)

    def _load(self, prompt: Sequence[int], params: dict[str, Any]) -> Loading:
        """The blocks behind the engine's own, as far as they lie there, and as the request lets it.

        As ``OffloadingConnectorScheduler`` of vLLM 0.32 with one remote tier: its ``_create_req_context``,
        ``TierFilter.allows`` and ``_lookup_complete_chunks``.
        """
        kept, size = _STORES.get(self._store, ()), self._block_size
        held = self._held(prompt)
        most = len(prompt) // size * size
        tiers, limit = params.get("kv_load_tiers"), params.get("max_load_tokens")
        if tiers is not None and self._release >= (0, 28):
            places = {(each.get("medium"), each.get("locality", "REMOTE")) for each in tiers}
            most = most if ("STORAGE", "REMOTE") in places else 0
        if type(limit) is int and limit >= 0 and self._release >= (0, 31):
            most = min(most, (held + limit) // size * size)
        end = held
        while end + size <= most and tuple(prompt[: end + size]) in kept:
            end += size
        if end == held:
            return NOTHING
        self.num_fetched_tokens += end - held
        return Loading(end)

    def _aligned(self, prompt: Sequence[int]) -> tuple[int, ...]:
        return tuple(prompt[: (len(prompt) - 1) // self._block_size * self._block_size])

    # -- after it has been computed ------------------------------------------------------------------------------------

    def ended(
        self, ask: Ask, name: str, samples: Sequence[tuple[int, str]], reason: str | None, loading: Loading
    ) -> dict[str, Any] | None:
        """The request has been answered; its transfer parameters."""
        if self.connector == "shared":
            _STORES.setdefault(self._store, set()).update(self._aligned(prompt) for prompt in ask.prompts)
            return None
        if self.connector == "offloading":
            stored = _STORES.setdefault(self._store, set())
            for prompt in ask.prompts:
                ends = range(self._block_size, len(prompt) + 1, self._block_size)
                stored.update(tuple(prompt[:end]) for end in ends)
            return None
        if not loading.keeps:
            return None
        kept = Kept(tuple(ask.prompts[0]), tuple(samples), time.monotonic() + self._lease_seconds)
        if reason != "length" and (self.connector == "mooncake" or reason != "stop"):
            self._free(kept)
            return None
        params = ask.transfer or {}
        key = str(params["transfer_id"]) if self.connector == "mooncake" else samples[0][1]
        if self.connector in {"nixl_push", "p2p_nccl"}:
            key = _base(name)
        self.kept[key] = kept
        self._news.set()
        for other in _ENGINES.values():
            if key in other.places:  # nobody is there any more, but it can be sent
                del other.places[key]
                self._free(self.kept.pop(key))
        if self.connector in {"mooncake", "p2p_nccl"}:
            return None
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [[*range(1, 1 - -len(kept.prompt) // self._block_size)]],
            "remote_engine_id": self.engine_id,
            "remote_request_id": samples[0][1],
            "remote_host": "127.0.0.1",
            "remote_port": self.port,
            "tp_size": 1,
            "dcp_size": 1,
            "pp_size": 1,
            "remote_num_tokens": len(kept.prompt),
            "remote_blocks_expiry_time": None,
            "transfer_mode": "push" if self.connector == "nixl_push" else "pull",
            "remote_prefill_cached_tokens": 0,
        }

    def rejected(self, ask: Ask, name: str) -> None:
        """A decode leg was refused before it was computed: the other engine hears of it."""
        params = ask.transfer or {}
        other = _ENGINES.get(str(params.get("remote_engine_id")))
        if self.connector.startswith("nixl") and params.get("do_remote_prefill") and other is not None:
            kept = other.kept.pop(str(params.get("remote_request_id")), None) or other.kept.pop(_base(name), None)
            if kept is not None:
                other._free(kept)

    # -- giving --------------------------------------------------------------------------------------------------------

    def give(self, key: str, ask: Ask, taker: "Transfers") -> Loading:
        """What is kept under this key; what is there no more is given as well, and is something else."""
        self.expire()
        kept = self.kept.pop(key, None)
        prompt = tuple(ask.prompts[0])
        if kept is not None:
            self._free(kept)
            taker.num_fetched_tokens += len(prompt)
        is_one = len(ask.prompts) * ask.n == 1
        return Loading(len(prompt), is_right=kept is not None and kept.prompt == prompt and is_one)

    async def give_when_there(self, key: str, ask: Ask, taker: "Transfers", patience: float) -> Loading:
        """The same, as soon as it has been computed.

        Raises:
            Refused: that has not happened in time.
        """
        until = time.monotonic() + patience
        while key not in self.kept:
            self._news.clear()
            try:
                async with asyncio.timeout(until - time.monotonic()):
                    await self._news.wait()
            except TimeoutError:
                raise _failed() from None
            except asyncio.CancelledError:
                taker.places[key] = until
                raise
        return self.give(key, ask, taker)

    def expire(self) -> None:
        """Give up what nobody has fetched in time."""
        now = time.monotonic()
        self.places = {key: until for key, until in self.places.items() if until > now}
        for key, kept in list(self.kept.items()):
            if kept.until <= now:
                del self.kept[key]
                self._free(kept)
                self.num_expired += 1


def _failed() -> Refused:
    return Refused(LOAD_FAILED, status=500, kind="InternalServerError")


def _base(name: str) -> str:
    """An engine request's name without what differs between the legs: the number of its prompt."""
    return name.removesuffix("-0")
