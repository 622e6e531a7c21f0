"""Checks of one endpoint or one replica at a time.

Knows what vLLM's releases (0.11 - 0.32) can tell and which flag mends what. Never asks anyone: each check is a pure function of
the facts, and says nothing of a subject whose fault another check has told already.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from balancer.checks.discovery import NAMED
from balancer.checks.facts import Cache, Facts, Source, Stream
from balancer.checks.finding import Finding, broken, degraded, ok, skipped
from balancer.facts import EVENTS_FLAG
from balancer.releases import release
from balancer.silence import SILENT_AFTER
from balancer.words import counted

OLDEST: Final = (0, 11)
"""The first release whose events are read (``indexer.wire``)."""

NEWEST: Final = (0, 32)
"""The last release that was tried."""

TELLS_SOURCES: Final = (0, 31)
"""The first release with ``/kv_event_sources``."""

MAX_SKEW: Final = 2.0
"""Seconds between two clocks that are worth a line; HTTP's own is a second coarse."""

FEW_STEPS: Final = 1_000
"""Batches of a replay buffer that a busy engine fills in less than a minute."""

FEW_WAITING: Final = 10_000
"""Messages that a publisher may hold back for us; a pause of the network must not overflow it."""

KEY_REMEDY: Final = "give --api-key KEY (kvlb serve: upstream.api_key)"


def endpoint(facts: Facts) -> Iterator[Finding]:
    """Every address answers as an engine that can be used."""
    if not facts.endpoints:
        is_found = facts.discovery is not None and facts.discovery.name != NAMED
        remedy = "see discovery" if is_found else "name one with --replica http://HOST:PORT, or use [discovery]"
        yield broken("fleet", "there are no endpoints", remedy)
    for each in facts.endpoints:
        if each.problem is None and each.drains:
            yield degraded(
                each.url,
                "drains: it ends what it has, and is sent nothing new",
                "POST /kvlb/replicas/ID/undrain, unless it is leaving",
            )
        elif each.problem is None:
            yield ok(each.url, "answers")
        elif each.lacks_key:
            yield broken(each.url, "asks for a key", KEY_REMEDY)
        elif each.refuses_key:
            yield broken(each.url, "the key was refused", KEY_REMEDY)
        else:
            yield broken(each.url, f"cannot be used: {each.problem}", "start vLLM there, or mend the address")


def version(facts: Facts) -> Iterator[Finding]:
    """The release is one whose events and hashes are known."""
    proven = {each.endpoint for each in facts.caches if each.keys == "proven"}
    for each in facts.endpoints:
        found = release(each.version)
        if each.problem is not None:
            continue
        if found is None:
            yield degraded(each.url, "does not tell its version", 'name it: version = "X.Y.Z" of [[replicas]]')
        elif found < OLDEST:
            yield degraded(
                each.url, f"vLLM {each.version} has no KV events that can be read", "update to vLLM 0.31 or later"
            )
        elif found > NEWEST and each.url not in proven:
            yield degraded(
                each.url, f"vLLM {each.version} is newer than what was tried (0.32)", "update kvlb if the recipe fails"
            )
        else:
            yield ok(each.url, f"vLLM {each.version}")


def caching(facts: Facts) -> Iterator[Finding]:
    """Prefix caching is on."""
    for each in _answering(facts):
        if each.has_prefix_caching is False:
            yield broken(
                each.replica, "prefix caching is off, so nothing is cached", "start vLLM with --enable-prefix-caching"
            )
        elif each.has_prefix_caching is None:
            yield skipped(each.replica, "does not tell whether prefix caching is on")
        else:
            yield ok(each.replica, "prefix caching is on")


def events(facts: Facts) -> Iterator[Finding]:
    """KV events are published, and their address is known."""
    for each in _caching(facts):
        if each.source is not None:
            yield ok(each.replica, "an event source is known")
        elif (release(each.version) or NEWEST) < TELLS_SOURCES:
            yield broken(
                each.replica,
                f"vLLM {each.version} does not tell where its KV events are, and the settings do not",
                f"start it with {EVENTS_FLAG} and set "
                'events = "tcp://HOST:5557" and replay = "tcp://HOST:5657" of [[replicas]]',
            )
        else:
            yield broken(each.replica, "KV events are off, so its cache is invisible", f"start vLLM with {EVENTS_FLAG}")


def port(facts: Facts) -> Iterator[Finding]:
    """The event port can be reached from where the index is kept, and a publisher of events answers there."""
    for each, source in _sourced(facts):
        stream = each.stream
        if stream is not None and stream.is_connected and stream.problem:
            yield broken(
                each.replica,
                stream.problem,
                'remove topic of [[replicas]], or set it to the "topic" of --kv-events-config',
            )
        elif each.without_events >= SILENT_AFTER:
            told = f"{each.without_events:,} requests were answered, and no event came from {source}"
            yield broken(each.replica, told, OTHERS_REMEDY)
        elif stream is None or not stream.is_connected:
            reason = stream.problem if stream is not None and stream.problem else "no ZMQ handshake"
            yield broken(each.replica, f"no subscription to {source}: {reason}", _port_remedy(each.source))
        elif each.is_unheard:
            yield broken(each.replica, f"the probe was answered, and no event came from {source}", OTHERS_REMEDY)
        elif stream.malformed:
            yield degraded(
                each.replica,
                f"{counted(stream.malformed, 'message')} at {source}: no batches of KV events",
                "look whether the port is vLLM's, and whether kvlb knows its version",
            )
        else:
            yield ok(each.replica, "its events are subscribed to")


OTHERS_REMEDY: Final = "look whether the topic and the port are this engine's own (rank r is at the first port + r)"


def _port_remedy(source: Source | None) -> str:
    if source is not None and source.is_dialling:
        return (
            "let the \"endpoint\" of that engine's --kv-events-config be kvlb's host and this port, and of no other's"
        )
    mend = ", or mend events of [[replicas]]" if source is not None and source.is_set else ""
    return f"open the port between kvlb and the engine, and look whether vLLM binds it to an address of its own{mend}"


def replay(facts: Facts) -> Iterator[Finding]:
    """The publisher has a replay socket, and answers there up to the end."""
    for each, stream in _connected(facts):
        if each.source is None or each.source.replay is None:
            yield degraded(
                each.replica,
                "its publisher has no replay socket, so lost events stay lost and a late start stays incomplete",
                'add "replay_endpoint": "tcp://*:5657" to --kv-events-config',
            )
        elif stream.is_complete:
            yield ok(each.replica, "nothing is missing")
        elif stream.problem:
            yield skipped(each.replica, "no event comes live (see port)")
        elif stream.replays_unanswered:
            yield degraded(
                each.replica,
                f"its replay socket {each.source.replay} has not answered {counted(stream.replays_unanswered, 'time')}",
                "open that port too; a busy engine may also need longer than 5 s",
            )
        elif stream.is_replaying:
            yield skipped(each.replica, "a replay is under way", "ask again in a few seconds")
        else:
            yield degraded(
                each.replica,
                "its replay has not brought everything",
                'make "buffer_steps" of --kv-events-config larger, or start kvlb before the engine is warm',
            )


def recipe(facts: Facts) -> Iterator[Finding]:
    """Its first event has proven that blocks are hashed here as they are hashed there."""
    for each, stream in _connected(facts):
        if each.overruled:
            for one in each.overruled:
                told = f"{one.setting} is set to {one.given}, the engine has {one.actual}"
                yield degraded(each.replica, told, f"remove {one.setting} of [[replicas]]")
        elif each.keys == "proven":
            yield ok(each.replica, "its hashes are proven by its own events")
        elif each.keys == "learned":
            yield degraded(
                each.replica,
                each.keys_reason or "its hashes are learned from its events",
                'give it a root that is known: PYTHONHASHSEED=0 for the engine and hash_seed = "0" of [[replicas]]',
            )
        elif each.keys_reason:
            yield degraded(
                each.replica,
                f"its recipe is not proven: {each.keys_reason}",
                "name version and block_size in the settings",
            )
        elif not stream.batches:
            yield skipped(each.replica, "not proven yet: no traffic", "send a request, or use --probe")
        else:
            yield skipped(
                each.replica, "not proven yet: no event has had tokens in it", "send a request, or use --probe"
            )


def seed(facts: Facts) -> Iterator[Finding]:
    """Where hashes depend on PYTHONHASHSEED, it is known."""
    for each in _caching(facts):
        if each.keys == "learned":
            yield skipped(each.replica, "its hashes are learned from its events (see recipe)")
            continue
        if each.has_known_root is False and each.keys != "proven":
            cause = "xxhash kinds hash" if (each.algorithm or "").startswith("xxhash") else "vLLM before 0.30 hashes"
            yield degraded(
                each.replica,
                f"{cause} from a root that is drawn anew for each process",
                'set PYTHONHASHSEED=0 for the engine and hash_seed = "0" of [[replicas]]',
            )
        elif each.has_known_root:
            yield ok(each.replica, "the root of its hashes is known")


def knowledge(facts: Facts) -> Iterator[Finding]:
    """What the index holds of its cache can be relied upon."""
    for each, _ in _connected(facts):
        if each.knowledge == "exact" and each.keys == "unproven":
            yield ok(each.replica, "its cache is known as exact so far; no event has proven it")
        elif each.knowledge in {"exact", "learned"}:
            yield ok(each.replica, f"its cache is known as {each.knowledge}")
        else:
            yield degraded(
                each.replica,
                f"its cache is known as {each.knowledge}: {each.reason}",
                "see the lines above for the cause",
            )


def copies(facts: Facts) -> Iterator[Finding]:
    """The index does not hold more blocks of it than it has."""
    for each in _caching(facts):
        if each.num_gpu_blocks is None or each.stream is None:
            continue
        if each.copies > each.num_gpu_blocks - 1:
            yield broken(
                each.replica,
                f"the index counts {each.copies:,} blocks, and it has {each.num_gpu_blocks:,} of which one is never cached",
                "report this: removals were lost, or a client spoils the count; restart kvlb to begin anew",
            )
        else:
            yield ok(each.replica, "the index counts no more blocks than there are")


def clock(facts: Facts) -> Iterator[Finding]:
    """Its clock goes as ours."""
    for each in facts.endpoints:
        if each.problem is not None or each.clock_skew is None:
            continue
        if abs(each.clock_skew) > MAX_SKEW:
            way = "ahead" if each.clock_skew > 0 else "behind"
            yield degraded(
                each.url, f"its clock is {abs(each.clock_skew):.0f} s {way}", "let both machines follow one time server"
            )
        else:
            yield ok(each.url, "its clock goes as ours")


def usage(facts: Facts) -> Iterator[Finding]:
    """The engine says afterwards how much it had cached: without that nobody notices a wrong index."""
    for each in _caching(facts):
        if each.reports:
            yield ok(each.replica, "it says how much it had cached")
        elif each.silences:
            yield degraded(
                each.replica,
                "it does not say how much it had cached, so predictions cannot be checked",
                "start vLLM with --enable-prompt-tokens-details",
            )
        elif each.stream is not None:
            yield skipped(
                each.replica, "no request yet that should have found something", "send one twice, or use --probe"
            )


def buffers(facts: Facts) -> Iterator[Finding]:
    """The publisher's buffers hold out a pause of the network and a restart of kvlb."""
    for each in _caching(facts):
        source = each.source
        if source is None or source.buffer_steps is None:
            continue
        small = [
            f"{name} = {value}"
            for name, value, least in (
                ("buffer_steps", source.buffer_steps, FEW_STEPS),
                ("hwm", source.hwm, FEW_WAITING),
                ("max_queue_size", source.max_queue_size, FEW_WAITING),
            )
            if value is not None and 0 < value < least
        ]
        if small:
            yield degraded(
                each.replica,
                f"small buffers: {', '.join(small)}",
                "leave vLLM's defaults (10000, 100000, 100000) in --kv-events-config",
            )
        else:
            yield ok(each.replica, "its buffers are large enough")


def _answering(facts: Facts) -> list[Cache]:
    """The replicas behind endpoints that can be used."""
    lost = {each.url for each in facts.endpoints if each.problem is not None}
    return [each for each in facts.caches if each.endpoint not in lost]


def _caching(facts: Facts) -> Iterable[Cache]:
    return (each for each in _answering(facts) if each.has_prefix_caching is not False)


def _sourced(facts: Facts) -> Iterable[tuple[Cache, str]]:
    return ((each, each.source.events) for each in _caching(facts) if each.source is not None)


def _connected(facts: Facts) -> Iterable[tuple[Cache, Stream]]:
    return ((each, each.stream) for each in _caching(facts) if each.stream is not None and each.stream.is_connected)
