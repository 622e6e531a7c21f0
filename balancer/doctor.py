"""Finds out what ``kvlb doctor`` judges: of a running gateway, or of a fleet before there is one.

Knows how to ask: a gateway for its facts, engines for the tokens of a sample and for one tiny answer, ports for a connection. A
fleet is looked at with the gateway's own service, which subscribes and replays as it would later, but routes nothing and keeps
nothing. Judges nothing: that is for ``balancer.checks``.
"""

import asyncio
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from importlib.metadata import version
from typing import Final

import aiohttp
import msgspec

from balancer import openai
from balancer.checks.facts import Cache, Endpoint, Facts, Sample, Source, Stream
from balancer.ends import with_ends
from balancer.header_names import RANK
from balancer.health import UNASKED
from balancer.http.reasons import reason
from balancer.service import RouterService
from balancer.settings import Settings, TokenizerSettings
from balancer.survey import survey
from balancer.timeouts import TimeoutSettings
from balancer.tokens import Tokenizer
from balancer.upstream import open_session, whole

TRACES: Final = frozenset({"log", "snapshot", "tracing"})
"""Sections of the settings by which a service would leave something behind, or begin with what it was left."""

POLL_SECONDS: Final = 0.1

PATIENCE_SECONDS: Final = 1.0
"""What is waited for without a word."""

PROBE_SECONDS: Final = 10.0
"""For one tiny answer: a cold engine compiles something at its first request."""

EVENT_SECONDS: Final = 2.0
"""How long the events of a probe may take: a scheduler step and the way here."""

CONNECT_SECONDS: Final = 2.0

TEXT: Final = "Grüße aus 北京, naïve café №7 🙂\n\tdef f(x):  return x ** 2  # it's 1,234.5 €"
"""What tokenizers tell each other apart by: accents, scripts, an emoji, white space, digits, an apostrophe."""

SAMPLES: Final[dict[str, tuple[str, dict[str, object]]]] = {
    "text": ("/v1/completions", {"prompt": TEXT, "max_tokens": 1}),
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 1}),
}

AskFacts = Callable[[], Awaitable[Facts]]


@asynccontextmanager
async def looking_at(settings: Settings, seconds: float, tell: Callable[[str], None]) -> AsyncIterator[AskFacts]:
    """A fleet that no gateway serves yet, as a way to ask for its facts; it has had ``seconds`` to connect and to replay.

    ``tell`` is called with a line when that takes long enough to be wondered at.
    """
    sections = {name: getattr(settings, name) for name in Settings.__struct_fields__ if name not in TRACES}
    sections["siblings"] = msgspec.structs.replace(settings.siblings, prewarm=False)
    service = RouterService(Settings(**sections))
    await service.start()
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await service.follower.has_told.wait()

        async def facts() -> Facts:
            return survey(service, settings.snapshot)

        patience = min(PATIENCE_SECONDS, seconds)
        found = await _until(facts, _is_settled, patience)
        if patience < seconds and not _is_settled(found):
            tell(f"waiting up to {seconds:g} s for {', '.join(_awaited(found))}")
            await _until(facts, _is_settled, seconds - patience)
        yield facts
    finally:
        await service.stop()


async def _until(ask: AskFacts, is_enough: Callable[[Facts], bool], seconds: float) -> Facts:
    """The first facts that are enough, or the last ones within so many seconds."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while True:
        facts = await ask()
        if is_enough(facts) or loop.time() >= until:
            return facts
        await asyncio.sleep(POLL_SECONDS)


def _is_settled(facts: Facts) -> bool:
    """Whether nothing is to be expected any more from waiting."""
    return not _awaited(facts)


def _awaited(facts: Facts) -> list[str]:
    """The addresses from which something is still to be expected."""
    silent = [each.url for each in facts.endpoints if each.problem == UNASKED]
    silent += [each.address for each in facts.siblings if each.age is None and not each.problem and not each.is_self]
    if facts.siblings_host is not None and not facts.siblings and facts.siblings_problem is None:
        silent.append(facts.siblings_host)
    return silent + [
        each.source.events if each.stream is None or not each.stream.is_connected else str(each.source.replay)
        for each in facts.caches
        if each.source is not None and not _stands(each.source, each.stream)
    ]


def _stands(source: Source, stream: Stream | None) -> bool:
    if stream is None or not stream.is_connected:
        return False
    return stream.is_complete or bool(stream.problem) or source.replay is None or stream.replays_unanswered > 0


async def diagnose(ask: AskFacts, *, api_key: str | None, probe: bool, ports: bool) -> Facts:
    """The facts with what can be tried from here; ``probe`` allows two tiny requests to each replica.

    ``ports`` says that the index is kept here: only then is it of use whether ports can be reached from here.
    """
    facts = await ask()
    session = open_session(TimeoutSettings())
    try:
        if probe:
            reports = await _probe(session, facts, api_key)
            before = {each.replica: each.stream.batches for each in facts.caches if each.stream is not None}
            facts = await _until(
                ask, lambda now: _have_shown_their_keys(now) and not _unheard(now, before, reports), EVENT_SECONDS
            )
            facts = _with_reports(facts, reports, _unheard(facts, before, reports))
        samples = await _samples(session, facts, api_key)
        facts = await with_ends(session, facts, _headers(api_key), probe=probe)
    finally:
        await session.close()
    if ports:
        facts = msgspec.structs.replace(facts, caches=await _with_ports(facts.caches))
    return msgspec.structs.replace(facts, samples=samples, doctor=version("kvlb"))


# Tiny requests


async def _probe(session: aiohttp.ClientSession, facts: Facts, api_key: str | None) -> dict[str, bool]:
    """Whether each replica that answers said how much it had cached of a prompt that it was sent twice."""
    lost = {each.url for each in facts.endpoints if each.problem is not None}
    caches = [each for each in facts.caches if each.endpoint not in lost and each.models]
    answers = await asyncio.gather(*(_probe_one(session, each, api_key) for each in caches))
    return {each.replica: told for each, told in zip(caches, answers, strict=True) if told is not None}


async def _probe_one(session: aiohttp.ClientSession, cache: Cache, api_key: str | None) -> bool | None:
    length = 2 * (cache.block_size or 64) + 1
    words = [random.choice(("alpha", "beta", "gamma", "delta")) for _ in range(length)]  # a token each, or more
    body = {"model": cache.models[0], "prompt": " ".join(words), "max_tokens": 1, "temperature": 0}
    headers = _headers(api_key) | ({RANK.decode(): str(cache.rank)} if cache.ranks > 1 else {})
    told: bool | None = None
    for _ in range(2):
        try:
            async with (
                asyncio.timeout(PROBE_SECONDS),
                session.post(
                    f"{cache.endpoint}/v1/completions", data=msgspec.json.encode(body), headers=headers
                ) as response,
            ):
                answer = await whole(response)
        except (aiohttp.ClientError, OSError, TimeoutError):
            return None
        if response.status != 200:
            return None
        told = openai.read_answer(answer).cached_tokens is not None
    return told


def _have_shown_their_keys(facts: Facts) -> bool:
    """Whether every stream that stands has had an event with tokens in it."""
    return not any(
        each.stream is not None and each.stream.is_connected and each.keys == "unproven" for each in facts.caches
    )


def _unheard(facts: Facts, before: dict[str, int], answered: Container[str]) -> set[str]:
    """Replicas that have answered a probe, and are connected, and have had no event since that many batches."""
    return {
        each.replica
        for each in facts.caches
        if each.replica in answered
        and each.stream is not None
        and each.stream.is_connected
        and each.stream.batches <= before.get(each.replica, 0)
    }


def _with_reports(facts: Facts, told: dict[str, bool], unheard: set[str]) -> Facts:
    caches = tuple(
        msgspec.structs.replace(
            each,
            reports=each.reports + told[each.replica],
            silences=each.silences + (not told[each.replica]),
            is_unheard=each.replica in unheard,
        )
        if each.replica in told
        else each
        for each in facts.caches
    )
    return msgspec.structs.replace(facts, caches=caches)


# Samples


async def _samples(session: aiohttp.ClientSession, facts: Facts, api_key: str | None) -> tuple[Sample, ...]:
    tokenizer = Tokenizer(session, TokenizerSettings())
    answering = [each for each in facts.endpoints if each.problem is None and each.models]
    found = await asyncio.gather(
        *(_sample(tokenizer, each, name, api_key) for each in answering for name in SAMPLES), return_exceptions=True
    )
    return tuple(sample for samples in found if not isinstance(samples, BaseException) for sample in samples)


async def _sample(tokenizer: Tokenizer, endpoint: Endpoint, name: str, api_key: str | None) -> list[Sample]:
    path, fields = SAMPLES[name]
    body = msgspec.json.encode({"model": endpoint.models[0], **fields})
    inbound = openai.read(path, "application/json", body)

    def sample(way: str, tokens: Sequence[int] = (), error: str | None = None) -> Sample:
        return Sample(
            endpoint=endpoint.url, model=endpoint.models[0], sample=name, way=way, tokens=tuple(tokens), error=error
        )

    try:
        async with asyncio.timeout(PROBE_SECONDS):
            ways = await tokenizer.both_ways(endpoint.url, path, inbound, body, _headers(api_key))
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        return [sample("", error=f"cannot be reached from here: {reason(error)}")]
    except msgspec.MsgspecError as error:
        return [sample("", error=f"an answer cannot be read: {error}")]
    if not ways:
        return [sample("", error="neither its render path nor /tokenize answers")]
    return [sample(way, prompts[0].tokens) for way, prompts in ways.items()]


def _headers(api_key: str | None) -> dict[str, str]:
    return {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {api_key}"} if api_key else {})


# Ports


async def _with_ports(caches: Iterable[Cache]) -> tuple[Cache, ...]:
    """The same, with the reason why a port cannot be reached where a subscription does not stand."""
    return tuple(await asyncio.gather(*(_with_port(each) for each in caches)))


async def _with_port(cache: Cache) -> Cache:
    if cache.stream is None or cache.stream.is_connected or cache.source is None or cache.stream.problem:
        return cache
    problem = "nobody connects to it" if cache.source.is_dialling else await _connect(cache.source.events)
    return msgspec.structs.replace(cache, stream=msgspec.structs.replace(cache.stream, problem=problem))


async def _connect(address: str) -> str:
    """What a plain connection to this ZMQ address meets."""
    found = re.fullmatch(r"tcp://\[?([^\]]+)\]?:(\d+)", address)
    if found is None:
        return "nobody answers"
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(found[1], int(found[2]))
    except TimeoutError:
        return "no answer at all, as behind a firewall"
    except (OSError, UnicodeError) as error:
        return reason(error)
    writer.close()
    return "somebody listens, and is no publisher of events (no ZMQ handshake)"
