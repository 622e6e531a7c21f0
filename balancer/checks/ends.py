"""Checks of fleets in which prefill and decode are apart, and of shared stores: do those agree that exchange their caches?

Knows what vLLM's connectors (0.32) need of both engines, and which setting mends what. Pure functions of the facts; what no
engine has told is said to be so, and never taken for right or wrong.
"""

import ipaddress
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from balancer.addresses import place
from balancer.checks.facts import Address, Cache, Facts, SharedStore
from balancer.checks.finding import Finding, Verdict, broken, degraded, ok, skipped
from balancer.words import counted

CLASSES: Final[Mapping[str, frozenset[str]]] = {
    "nixl": frozenset({"NixlConnector", "NixlPullConnector"}),
    "nixl_push": frozenset({"NixlPushConnector"}),
    "mooncake": frozenset({"MooncakeConnector"}),
    "shared": frozenset(
        {
            "ExampleConnector",
            "SharedStorageConnector",
            "OffloadingConnector",
            "MooncakeStoreConnector",
            "LMCacheConnectorV1",
        }
    ),
    "lmcache_mp": frozenset({"LMCacheMPConnector"}),
    "lmcache": frozenset({"LMCacheConnectorV1"}),
    "moriio": frozenset({"MoRIIOConnector"}),
    "p2p_nccl": frozenset({"P2pNcclConnector"}),
    "multi": frozenset({"MultiConnector"}),
}
"""By kvlb's name of a connector, the engines' classes that it is for; of one's own connectors nothing is known."""

NIXL: Final = frozenset({"nixl", "nixl_push"})
BY_METRICS: Final = frozenset({"NixlConnector"})
"""Metrics name both of NIXL's connectors alike."""
BY_STORE: Final = frozenset({"shared", "lmcache_mp"})
"""Through something that both engines know: nobody has to reach anybody."""

WANTED: Final[Mapping[str, frozenset[str]]] = {
    "nixl": frozenset({"prefill"}),
    "nixl_push": frozenset({"prefill"}),
    "mooncake": frozenset({"prefill"}),
    "lmcache": frozenset({"decode"}),
    "moriio": frozenset({"prefill", "decode"}),
    "p2p_nccl": frozenset({"prefill", "decode"}),
}
"""Whose addresses have to be known, by connector."""

NOT_TOLD: Final = "start vLLM with VLLM_SERVER_DEV_MODE=1, which is not for production, to have it told"

Ask = Callable[[Cache], str | None]


def roles(facts: Facts) -> Iterator[Finding]:
    """Each model that is answered by decode replicas has others that compute its prompts, and none computes for nobody."""
    for model, caches in _apart(facts).items():
        count = {role: sum(each.role == role for each in caches) for role in ("prefill", "decode", "both")}
        if not count["decode"]:
            told = f"{counted(count['prefill'], 'replica')} would compute prompts, and no decode replica is there to get them"
            yield broken(model, told, 'give --decode URL, or role = "decode" of [[replicas]], for the same model')
        elif count["prefill"] + count["both"] == 0:
            told = "no prefill replica serves it: those that answer compute its prompts themselves"
            yield degraded(model, told, 'give --prefill URL, or role = "prefill" of [[replicas]], for the same model')
        else:
            yield ok(model, ", ".join(f"{number} {role}" for role, number in count.items() if number))


def ends(facts: Facts) -> Iterator[Finding]:
    """Replicas between which prompts travel agree in all that decides what the bytes mean, and what they are called."""
    names = frozenset(facts.disaggregation)
    for model, caches in _pairs(facts).items():
        untold, asked, is_alike = [], _asked(names), True
        for what, ask, verdict, remedy in asked:
            told = _by_answer(caches, ask)
            if len(told) > 1:
                is_alike = False
                yield Finding(verdict, model, f"they differ in {what}: {_listed(told)}", remedy)
            elif sum(map(len, told.values())) < len(caches):
                untold.append(what)
        if untold:
            remedy = NOT_TOLD if {"model", "dtype"} & set(untold) else ""
            yield skipped(model, f"not told by all that exchange its cache: {', '.join(untold)}", remedy)
        if is_alike and len(untold) < len(asked):
            yield ok(model, "its replicas agree, as far as they tell")


def connector(facts: Facts) -> Iterator[Finding]:
    """Each engine has the connector of the settings, in a role that fits its own."""
    names = frozenset(facts.disaggregation)
    wanted = frozenset[str]().union(*(CLASSES.get(name, frozenset()) for name in names))
    in_metrics = wanted | BY_METRICS if names & NIXL else wanted
    for each in _exchanging(facts):
        told = each.end.connectors
        if each.end.is_fetchable is False:
            yield broken(
                each.replica,
                "it has answered a prefill without what it takes to fetch the blocks",
                "give both engines the connector of disaggregation.name by --kv-transfer-config",
            )
        elif told == ():
            yield broken(
                each.replica,
                "it has no KV connector",
                f"start vLLM with --kv-transfer-config for {facts.disaggregation[0]}",
            )
        elif told is None and each.end.is_fetchable:
            yield ok(each.replica, "it has answered a prefill with what it takes to fetch the blocks")
        elif told is None and (named := in_metrics & set(each.connectors)):
            yield ok(
                each.replica, f"{' and '.join(sorted(named))}, by its metrics or the settings; its role is not told"
            )
        elif told is None:
            probe = "; --probe asks for it" if names & NIXL and each.role != "decode" else ""
            yield skipped(each.replica, "not told: its connector and that one's role", NOT_TOLD + probe)
        elif wanted and not wanted & set(told):
            yield broken(
                each.replica,
                f"its connector is {' with '.join(told)}, and disaggregation.name is {facts.disaggregation[0]}",
                "set disaggregation.name (--kv-connector) to the engines' own, or start them with that one",
            )
        elif not _fits(each):
            yield broken(
                each.replica,
                f"it is for {each.role}, and its connector is a {each.end.kv_role}",
                'set "kv_role" of --kv-transfer-config: kv_producer for prefill, kv_consumer for decode, or kv_both',
            )
        else:
            yield ok(each.replica, f"{' with '.join(told)}, {each.end.kv_role or 'its role is not told'}")


def channel(facts: Facts) -> Iterator[Finding]:
    """Other engines can reach what a replica tells them to connect to."""
    names = frozenset(facts.disaggregation)
    wanting = frozenset[str]().union(*(WANTED.get(name, frozenset()) for name in names))
    if not wanting:
        return
    pairs = _pairs(facts)
    for each in _exchanging(facts):
        if each.role not in wanting and not (each.role == "both" and "prefill" in wanting):
            continue
        if not each.end.addresses:
            yield _unknown(each, names)
            continue
        others = [other for model in each.models[:1] for other in pairs.get(model, ()) if other.role != each.role]
        worst = max(
            (_judged(each, address, others) for address in each.end.addresses), key=lambda found: found.verdict.rank
        )
        yield worst


def stores(facts: Facts) -> Iterator[Finding]:
    """Replicas that are attached to a store name blocks alike, and keep the same in them."""
    by_name = {each.replica: each for each in _answering(facts)}
    for store in facts.stores:
        attached = [by_name[name] for name in store.replicas if name in by_name]
        if not store.replicas:
            told = "no replica reads from it"
            yield degraded(store.name, told, "mend replicas of [[stores]]: URLs as those of [[replicas]]")
            continue
        found = list(_differences(store, attached))
        yield from found
        if not found and attached:
            told = "those that read from it agree, as far as they tell"
            yield ok(store.name, told if len(attached) > 1 else "one replica reads from it")


def _differences(store: SharedStore, attached: Sequence[Cache]) -> Iterator[Finding]:
    for each in attached:
        if store.block_size is not None and each.block_size is not None and each.block_size != store.block_size:
            yield broken(
                store.name,
                f"its block_size is {store.block_size}, and {each.replica} has {each.block_size}: nothing is found there",
                "set block_size of [[stores]] to the engines' own",
            )
        if each.keys == "learned" and not store.has_own_names:
            yield degraded(
                store.name,
                f"nobody knows how {each.replica} names blocks, so what others have put there is not looked for",
                "see recipe",
            )
    grouped: dict[str, list[Cache]] = defaultdict(list)
    for each in attached:
        for model in each.models[:1]:
            grouped[model].append(each)
    for model, caches in grouped.items():
        for what, ask, remedy in (
            ("KV-cache dtype", lambda each: each.cache_dtype, "--kv-cache-dtype"),
            ("dtype", lambda each: each.end.dtype, "--dtype"),
            *((name, ask, remedy) for name, ask, remedy in _NAMING if not store.has_own_names),
        ):
            told = _by_answer(caches, ask)
            if len(told) > 1:
                yield degraded(
                    store.name,
                    f"replicas of {model} differ in {what}: {_listed(told)}; they do not find what the others have put there",
                    f"start them alike ({remedy}), or give each kind a store of its own",
                )


_NAMING: Final[tuple[tuple[str, Ask, str], ...]] = (
    ("block size", lambda each: str(each.block_size) if each.block_size is not None else None, "--block-size"),
    ("hash algorithm", lambda each: each.algorithm, "--prefix-caching-hash-algo"),
    ("root of their hashes", lambda each: each.hash_root, "PYTHONHASHSEED, and one version of vLLM"),
)


def _asked(names: frozenset[str]) -> list[tuple[str, Ask, Verdict, str]]:
    """What is compared, how bad a difference is with these connectors, and what mends it."""
    strict = Verdict.BROKEN if names & NIXL else Verdict.DEGRADED
    by_store = bool(names & BY_STORE)
    asked: list[tuple[str, Ask, Verdict, str]] = [
        (
            "model",
            lambda each: each.end.model or each.root,
            strict,
            "start all of them with the same --model; NIXL compares its very name or path",
        ),
        ("dtype", lambda each: each.end.dtype, Verdict.BROKEN, "start all of them with the same --dtype"),
        (
            "KV-cache dtype",
            lambda each: each.cache_dtype,
            Verdict.BROKEN,
            "start all of them with the same --kv-cache-dtype",
        ),
        (
            "block size",
            _NAMING[0][1],
            Verdict.BROKEN if by_store else Verdict.DEGRADED,
            "start all of them with the same --block-size",
        ),
        ("version of vLLM", lambda each: each.version, strict, "run one version of vLLM on both sides"),
    ]
    if by_store:
        asked += [(name, ask, Verdict.DEGRADED, f"start all of them alike ({by})") for name, ask, by in _NAMING[1:]]
    return asked


def _fits(each: Cache) -> bool:
    """Whether its connector does what the replica is for; None of its role is taken for right."""
    unfit = {"prefill": {"kv_consumer"}, "decode": {"kv_producer"}, "both": {"kv_consumer"}}
    return each.end.kv_role not in unfit[each.role]


def _unknown(each: Cache, names: frozenset[str]) -> Finding:
    if names & {"mooncake"} and each.bootstrap is None:
        return broken(
            each.replica,
            "where its bootstrap server is, is not set",
            "give transfer.bootstrap of [[replicas]], or the port after --prefill URL",
        )
    if names & {"moriio", "p2p_nccl", "lmcache"} and each.address is None:
        return broken(each.replica, "where others reach its cache is not set", "give transfer.address of [[replicas]]")
    if names & {"moriio", "p2p_nccl", "lmcache"}:
        return broken(
            each.replica,
            f"transfer.address cannot be read: '{each.address}'",
            "write it as docs/disaggregation.md says for this connector",
        )
    probe = "use --probe, which asks for it" if names & NIXL else ""
    return skipped(each.replica, "not told: where others reach its cache", probe)


def _judged(each: Cache, address: Address, others: Sequence[Cache]) -> Finding:
    shown = f"{address.host}:{address.port}"
    setting = "VLLM_NIXL_SIDE_CHANNEL_HOST, or the host of its transfer settings,"
    if is_unspecified(address.host):
        remedy = f"set {setting} to an address of its machine"
        return broken(each.replica, f"it tells others to connect to {shown}, which is no address", remedy)
    far = [other.replica for other in others if machine(other.endpoint) != machine(each.endpoint)]
    if is_loopback(address.host) and far:
        return broken(
            each.replica,
            f"it tells others to connect to {shown}, which for {', '.join(far)} is their own machine",
            f"set {setting} to an address that the other machines can reach",
        )
    if address.problem is not None:
        return degraded(
            each.replica,
            f"{shown}, where others reach its cache, cannot be reached from here: {address.problem}",
            "open the port between the machines, or mend the address; from here it need not be reachable",
        )
    return ok(each.replica, f"others reach its cache at {shown}")


def is_unspecified(host: str) -> bool:
    """Whether this is an address to listen at, and none to connect to."""
    if host in {"", "*"}:
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """Whether this is each machine's name for itself."""
    if host.rstrip(".").lower() == "localhost":
        return True
    try:
        ip = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return (getattr(ip, "ipv4_mapped", None) or ip).is_loopback


def machine(url: str) -> str:
    """The host of an endpoint; whatever is at this machine's own addresses is one."""
    host = place(url)[0]
    return "127.0.0.1" if is_loopback(host) else host


def _answering(facts: Facts) -> list[Cache]:
    lost = {each.url for each in facts.endpoints if each.problem is not None}
    return [each for each in facts.caches if each.endpoint not in lost]


def _apart(facts: Facts) -> dict[str, list[Cache]]:
    """By model, the replicas of those models that have any with a role."""
    grouped: dict[str, list[Cache]] = defaultdict(list)
    for each in _answering(facts):
        for model in each.models[:1]:  # adapters share the cache of their base model
            grouped[model].append(each)
    return {model: caches for model, caches in grouped.items() if any(each.role != "both" for each in caches)}


def _pairs(facts: Facts) -> dict[str, list[Cache]]:
    """By model, those between which prompts travel: none, where one side is missing."""
    return {
        model: caches
        for model, caches in _apart(facts).items()
        if any(each.role == "decode" for each in caches) and any(each.role != "decode" for each in caches)
    }


def _exchanging(facts: Facts) -> Iterator[Cache]:
    for caches in _pairs(facts).values():
        yield from caches


def _by_answer(caches: Iterable[Cache], ask: Ask) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for each in caches:
        answer = ask(each)
        if answer is not None:
            found[answer].append(each.replica)
    return found


def _listed(told: Mapping[str, Sequence[str]]) -> str:
    return "; ".join(f"{answer} ({', '.join(names)})" for answer, names in sorted(told.items()))
