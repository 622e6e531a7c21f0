"""Checks of the fleet as a whole, of its traffic and of kvlb itself.

Knows what replicas of one model should have in common, and what an index needs. Pure functions of the facts.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from balancer.addresses import place
from balancer.checks.facts import Cache, Facts, Sample
from balancer.checks.finding import Finding, broken, degraded, ok, skipped
from balancer.words import counted

ENOUGH_REQUESTS: Final = 20
"""Requests before anything is said of traffic."""

BY_TOKENIZE: Final = {"chat": ", by /tokenize; --enable-scale-out (vLLM 0.30) would make chats exact"}
"""What is to be said of samples that no render path was asked for."""

MANY: Final = 0.5
"""Share of requests with salts, and of different ones among these, at which little can be shared."""


def alike(facts: Facts) -> Iterator[Finding]:
    """Replicas of one model have the same block size and algorithm; differences are allowed, and told."""
    for model, caches in _by_model(facts).items():
        kinds = sorted({f"{each.algorithm or '?'} in blocks of {each.block_size or '?'}" for each in caches})
        if len(kinds) > 1:
            yield ok(model, f"its replicas differ, and are compared in tokens: {'; '.join(kinds)}")
        else:
            yield ok(model, f"all its replicas hash alike: {kinds[0]}")


def ranks(facts: Facts) -> Iterator[Finding]:
    """Data-parallel ranks have ports of their own: base + rank, for events and for replays."""
    taken: dict[str, list[Cache]] = defaultdict(list)
    for each in facts.caches:
        if each.source is not None:
            for address in {each.source.events, each.source.replay} - {None}:
                taken[str(address)].append(each)
            if each.source.events == each.source.replay:
                yield broken(
                    each.replica, f"events and replay have one address, {each.source.events}", "give them two ports"
                )
    shared = {address: caches for address, caches in taken.items() if len(caches) > 1}
    for address, caches in shared.items():
        names = " and ".join(each.replica for each in caches[:2])
        yield broken(
            caches[0].replica,
            f"{names} have one address for their events or replays, {address}",
            "choose ports for events and replays at least as far apart as there are ranks, on each machine",
        )
    several = [each for each in facts.caches if each.ranks > 1]
    if several and not shared:
        yield from (ok(each.replica, "its ports are its own") for each in several)


def addresses(facts: Facts) -> Iterator[Finding]:
    """No engine is named twice."""
    seen: dict[tuple[str, int], str] = {}
    twice = False
    for each in facts.endpoints:
        key = place(each.url)
        if key in seen:
            twice = True
            yield degraded(
                each.url, f"is the same address as {seen[key]}", "name each engine once, or its load counts half"
            )
        seen.setdefault(key, each.url)
    if facts.endpoints and not twice:
        yield ok("fleet", "each address is named once")


def tokenizer(facts: Facts) -> Iterator[Finding]:
    """Replicas of one model make the same tokens of the same text, and both ways of asking agree."""
    groups: dict[tuple[str, str], list[Sample]] = defaultdict(list)
    for each in facts.samples:
        groups[each.model, each.sample].append(each)
    if not groups:
        yield skipped("fleet", "no engine could be asked for the tokens of a sample")
    for (model, sample), samples in groups.items():
        told = [each for each in samples if each.error is None]
        if not told:
            yield degraded(
                model,
                f"nobody tokenises a sample ({sample}): {samples[0].error}",
                "texts go by load until one does; start vLLM with its tokenizer, and with --enable-scale-out from 0.30 on",
            )
            continue
        first = told[0]
        other = next((each for each in told if each.tokens != first.tokens), None)
        if other is None:
            by = "" if any(each.way == "render" for each in told) else BY_TOKENIZE.get(sample, "")
            yield ok(model, f"all agree on the tokens of a sample ({sample}){by}")
        else:
            yield broken(
                model,
                f"{first.endpoint} ({first.way}) and {other.endpoint} ({other.way}) make other tokens of a sample ({sample})",
                "give all its replicas the same tokenizer, chat template and --chat-template-kwargs",
            )


def salts(facts: Facts) -> Iterator[Finding]:
    """Requests can share what is cached: those with different ``cache_salt`` cannot."""
    if facts.requests < ENOUGH_REQUESTS:
        yield skipped("traffic", f"{counted(facts.requests, 'request')}: too few to say anything")
        return
    share = facts.salted / facts.requests
    if share > MANY and facts.salts > MANY * facts.salted:
        yield degraded(
            "traffic",
            f"{share:.0%} of the last {facts.requests:,} requests have a cache_salt, of which {facts.salts:,} differ: "
            "they share nothing",
            "give one salt to all who may share: a tenant, not a request",
        )
    else:
        yield ok(
            "traffic",
            f"{share:.0%} of the last {facts.requests:,} requests have a cache_salt, {facts.salts:,} different",
        )


def memory(facts: Facts) -> Iterator[Finding]:
    """The index has room for everything that the fleet can hold."""
    pools = [each.num_gpu_blocks for each in facts.caches if each.num_gpu_blocks is not None]
    if facts.max_blocks is None or not pools:
        yield skipped("index", "the size of the caches or of the index is not known")
    elif sum(pools) > facts.max_blocks:
        yield degraded(
            "index",
            f"it holds at most {facts.max_blocks:,} blocks, and the fleet {sum(pools):,}: the least recently matched go",
            f"set max_blocks of [index] to {sum(pools):,} or more",
        )
    else:
        yield ok("index", f"it has room for {facts.max_blocks:,} blocks, and the fleet holds {sum(pools):,}")


def snapshot(facts: Facts) -> Iterator[Finding]:
    """The index can be saved where the settings say, and began with what another one had."""
    begun = f"taken over from {facts.taken_over_from} ({counted(facts.taken_over_blocks, 'block')})"
    if facts.not_taken_over is not None:
        yield degraded(
            "index",
            f"it began with nothing: {facts.not_taken_over}",
            "it fills by itself; mend --sibling or snapshot.path before the next start",
        )
    if facts.snapshot is None and facts.taken_over_from is not None:
        yield ok("index", f"{begun}; it is not saved")
    elif facts.snapshot is None:
        if facts.is_gateway:
            yield skipped("index", "it is not saved, so a restarted kvlb begins with replays alone")
    elif facts.snapshot_problem is not None:
        yield broken(
            "index",
            f"it cannot be saved to {facts.snapshot}: {facts.snapshot_problem}",
            "give snapshot.path a file of its own, in a folder that kvlb can write to",
        )
    else:
        told = f"it can be saved to {facts.snapshot}"
        yield ok("index", told if facts.taken_over_from is None else f"{told}; {begun}")


def kvlb(facts: Facts) -> Iterator[Finding]:
    """The gateway and the doctor are of one version."""
    if facts.doctor is not None and facts.doctor != facts.kvlb:
        yield degraded(
            "kvlb", f"the gateway is {facts.kvlb}, this doctor {facts.doctor}", "use the gateway's own kvlb doctor"
        )
    else:
        yield ok("kvlb", f"version {facts.kvlb}")


def _by_model(facts: Facts) -> dict[str, list[Cache]]:
    found: dict[str, list[Cache]] = defaultdict(list)
    for each in facts.caches:
        if each.block_size is not None or each.algorithm is not None:
            for model in each.models[:1]:  # adapters share the cache of their base model
                found[model].append(each)
    return found
