"""Finds out for ``kvlb doctor`` how replicas with roles, and those that share a store, exchange their caches.

Knows how to ask: engines for what they are, one of NIXL for a prefill of one token, Mooncake's bootstrap server for the
addresses behind it, ports for a connection. Asks nothing of fleets in which no cache goes from one to another. Judges nothing:
that is for ``balancer.checks.ends``.
"""

import asyncio
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
import msgspec

from balancer.checks.ends import is_loopback, is_unspecified, machine
from balancer.checks.facts import Address, Cache, End, Facts
from balancer.disaggregation import bodies, plan
from balancer.disaggregation.plan import Pair, Side, fields_of
from balancer.engine_info import NOTHING_TOLD, PATH, EngineInfo, read_engine_info
from balancer.header_names import RANK
from balancer.http.reasons import reason
from balancer.upstream import whole

INFO_SECONDS: Final = 20.0
"""vLLM 0.32 runs several programs before it answers for the first time."""

PROBE_SECONDS: Final = 10.0

CONNECT_SECONDS: Final = 2.0

NIXL: Final = ("nixl", "nixl_push")

FAILURES: Final = (aiohttp.ClientError, OSError, TimeoutError, UnicodeError)


async def with_ends(session: aiohttp.ClientSession, facts: Facts, headers: Mapping[str, str], *, probe: bool) -> Facts:
    """The same, with what the engines that exchange their caches tell of it; ``probe`` allows a tiny request to some."""
    lost = {each.url for each in facts.endpoints if each.problem is not None}
    named = {name for store in facts.stores for name in store.replicas}
    is_apart = any(each.role != "both" for each in facts.caches)
    asked = [each for each in facts.caches if each.endpoint not in lost and (is_apart or each.replica in named)]
    infos = await _infos(session, {each.endpoint for each in asked}, headers)
    doctor = _Doctor(session, facts, headers, probe=probe and is_apart)
    ends = await asyncio.gather(*(doctor.end(each, infos[each.endpoint]) for each in asked))
    told = {each.replica: (end, infos[each.endpoint].cache_dtype) for each, end in zip(asked, ends, strict=True)}
    return msgspec.structs.replace(
        facts,
        caches=tuple(
            msgspec.structs.replace(
                each, end=told[each.replica][0], cache_dtype=each.cache_dtype or told[each.replica][1]
            )
            if each.replica in told
            else each
            for each in facts.caches
        ),
    )


async def _infos(
    session: aiohttp.ClientSession, endpoints: set[str], headers: Mapping[str, str]
) -> dict[str, EngineInfo]:
    async def ask(url: str) -> EngineInfo:
        with suppress(*FAILURES):
            async with asyncio.timeout(INFO_SECONDS), session.get(url + PATH, headers=headers) as response:
                return read_engine_info(await whole(response)) if response.status == 200 else NOTHING_TOLD
        return NOTHING_TOLD

    urls = sorted(endpoints)
    return dict(zip(urls, await asyncio.gather(*map(ask, urls)), strict=True))


class _Doctor:
    """Asks one replica after the other what it tells of its own end."""

    def __init__(
        self, session: aiohttp.ClientSession, facts: Facts, headers: Mapping[str, str], *, probe: bool
    ) -> None:
        self._session = session
        self._headers = headers
        self._facts = facts
        self._names = facts.disaggregation
        self._probe = probe

    async def end(self, cache: Cache, info: EngineInfo) -> End:
        addresses: list[tuple[str, int]] = []
        is_fetchable: bool | None = None
        if cache.role != "decode" and any(name in NIXL for name in self._names):
            if info.channel is not None and any("Nixl" in each for each in info.connectors or ()):
                addresses.append((info.channel[0], info.channel[1] + cache.rank))
            if self._probe and cache.models:
                is_fetchable, told = await self._fetchable(cache)
                addresses = addresses if told is None else [told]
        if cache.role != "decode" and "mooncake" in self._names and cache.bootstrap is not None:
            addresses += await self._behind(cache.bootstrap)
        if cache.address is not None and (given := first_address(cache.address)) is not None:
            addresses.append(given)
        tried = await asyncio.gather(*(_tried(cache, host, port) for host, port in dict.fromkeys(addresses)))
        return End(
            model=info.model,
            dtype=info.dtype,
            connectors=info.connectors,
            kv_role=info.kv_role,
            addresses=tuple(tried),
            is_fetchable=is_fetchable,
        )

    async def _fetchable(self, cache: Cache) -> tuple[bool | None, tuple[str, int] | None]:
        """Whether the answer to a prefill says how its blocks are fetched, and from where; None where there was no answer.

        Nobody fetches them: the engine is told so by way of a decode replica, or frees them when their lease ends.
        """
        connector = plan.make(next(name for name in self._names if name in NIXL))
        decode = next((each for each in self._facts.caches if each.role == "decode"), None)
        pair = Pair(_side(cache), _side(cache if decode is None else decode), 0)
        leg = connector.prefill(pair)
        length = 2 * (cache.block_size or 64) + 1
        body = {"model": cache.models[0], "prompt": " ".join(["kvlb"] * length), "max_tokens": 1, "stream": False}
        answer = await self._post(cache, msgspec.json.encode({**body, plan.PARAMS: leg.params}), leg.request_id)
        answered = None if answer is None else bodies.read_answered(answer)
        if answered is None:
            return None, None
        second = connector.decode(pair, answered)
        if second is None:
            return False, None
        if decode is not None and connector.frees_rejected:
            await self._post(decode, bodies.releasing_body(second), second.request_id)
        told = fields_of(answered.params)
        host, port = (msgspec.json.decode(told[name]) for name in ("remote_host", "remote_port"))
        return True, (host, port) if isinstance(host, str) and type(port) is int else None

    async def _post(self, cache: Cache, body: bytes, request_id: str | None) -> bytes | None:
        headers = {**self._headers, **({RANK.decode(): str(cache.rank)} if cache.ranks > 1 else {})}
        if request_id is not None:
            headers["X-Request-Id"] = request_id
        with suppress(*FAILURES):
            async with (
                asyncio.timeout(PROBE_SECONDS),
                self._session.post(f"{cache.endpoint}/v1/completions", data=body, headers=headers) as response,
            ):
                return await whole(response) if response.status == 200 else None
        return None

    async def _behind(self, bootstrap: str) -> list[tuple[str, int]]:
        """Mooncake's bootstrap server, and the workers that it names to others."""
        parts = urlsplit(bootstrap)
        found = [(parts.hostname or "", parts.port or 80)]
        with suppress(*FAILURES, msgspec.MsgspecError):
            async with (
                asyncio.timeout(CONNECT_SECONDS),
                self._session.get(f"{bootstrap.rstrip('/')}/query") as response,
            ):
                told = msgspec.json.decode(await whole(response), type=dict[str, dict[str, Any]])
            found += [at for engine in told.values() for at in _named(engine.get("worker_addr"))]
        return found


def _side(cache: Cache) -> Side:
    return Side(cache.replica, cache.rank, cache.ranks)


def _named(value: Any) -> list[tuple[str, int]]:
    """All addresses somewhere in this."""
    if isinstance(value, dict):
        return [each for inner in value.values() for each in _named(inner)]
    at = first_address(value.rpartition("//")[2]) if isinstance(value, str) else None
    return [] if at is None else [at]


def first_address(address: str) -> tuple[str, int] | None:
    """The first host and port of ``transfer.address``: IP:PORT, host:IP,handshake:PORT,... or HOST:PORT/...:PORT/..."""
    parts = re.fullmatch(r"host:(?P<host>[^,]+),handshake:(?P<port>\d{1,5})(,.*)?", address.replace(" ", ""))
    parts = parts or re.fullmatch(r"(?P<host>\[[^\]]*\]|[^:,/]*):(?P<port>\d{1,5})([/:].*)?", address)
    if parts is None or not 0 < int(parts["port"]) < 65536:
        return None
    return parts["host"].strip("[]"), int(parts["port"])


async def _tried(cache: Cache, host: str, port: int) -> Address:
    """What a plain connection meets there; of another machine's own addresses nobody here can say anything."""
    if is_unspecified(host) or (is_loopback(host) and machine(cache.endpoint) != "127.0.0.1"):
        return Address(host, port)
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(host.strip("[]"), port)
    except TimeoutError:
        return Address(host, port, "no answer at all, as behind a firewall")
    except (OSError, UnicodeError, ValueError, OverflowError) as error:
        return Address(host, port, reason(error))
    writer.close()
    return Address(host, port)
