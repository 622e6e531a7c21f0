"""What ``/index/query``, ``/index/replicas`` and ``/index/dump`` answer, in the gateway and in ``kvlb index`` alike.

Knows the index, how its keys are read and how much is known of each replica. Never knows who asks, nor who else is registered:
which replicas are meant is handed in. Figures are tokens and blocks; keys are unsigned 64-bit integers.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from balancer.caches import Caches
from balancer.core import Load, PrefixHashes, Replica, RouteRequest
from balancer.errors import BadRequest
from balancer.hashes import PromptHashes
from balancer.json_bodies import as_text, check_list, decode
from balancer.lookup import match, tiers_in_order
from balancer.matching import usable_blocks
from balancer.prefixes import GivenKeys
from hashing.extras import Lora
from hashing.memory import ChainMemory
from indexer.index import ReplicaId
from indexer.recognition import KeyState
from indexer.tiers import TierIndex

if TYPE_CHECKING:
    from indexer.sources.vllm import PublisherStatus

KEYS_AT_ONCE: Final = 4_096
"""Keys of one piece of a dump: about 100 KB, made in about a millisecond."""

FORMAT: Final = "kvlb index dump 1"

KEY_MASK: Final = (1 << 64) - 1

DOCUMENT: Final = "docs/index-service.md"


class IndexQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of ``POST /index/query``: a prompt as token ids, or as the keys that the engines' events have for its blocks."""

    model: str | None = None
    model_name: str | None = None
    """The same, as peers call it."""
    tenant_id: str | int | None = None
    token_ids: list[int] | None = None
    block_hashes: list[int] | None = None
    lora_name: str | None = None
    cache_salt: str | int | None = None


_query = msgspec.json.Decoder(IndexQuery)


def read_query(body: bytes) -> IndexQuery:
    """The body of ``POST /index/query``.

    Raises:
        BadRequest: it cannot be read, has a field that is unknown, or not exactly one kind of prompt.
    """
    check_list("token_ids or block_hashes", len(body))
    query = decode(_query, body, DOCUMENT)
    if query.model is None and query.model_name is not None:
        query = msgspec.structs.replace(query, model=query.model_name)
    if (query.token_ids is None) == (query.block_hashes is None):
        raise BadRequest("token_ids: give either token_ids or block_hashes", param="token_ids")
    return query


def answer_query(
    caches: Caches,
    replicas: Sequence[Replica],
    query: IndexQuery,
    memory: ChainMemory | None,
    adapter_of: Callable[[Replica], Lora | None],
    now: float,
) -> dict[str, Any]:
    """For each replica, how many leading tokens of the prompt it holds: with its GPU alone, then with each further tier.

    ``loadable`` are those that its engine would load, of what lies behind its GPU's own: by tier, or by store.
    """
    asked = list(replicas)
    if query.token_ids is not None:
        prefix: PrefixHashes = PromptHashes([query.token_ids], as_text(query.cache_salt), memory)
    else:
        prefix = GivenKeys([key & KEY_MASK for key in query.block_hashes or ()])
        asked = [each for each in replicas if not _is_learned(caches, each.id)]
    found = match(caches.index, caches.recognitions, asked, prefix, adapter_of)
    labels = [tier.label for tier in tiers_in_order(caches.index)]
    nothing = (0,) * len(labels)
    on_gpu = {replica: tokens.tokens[0] for replica, tokens in found.items()}
    loads = _loads(caches, asked, query, prefix, on_gpu) if caches.loader.has_any else {}
    rows = []
    for replica in replicas:
        row = _row(caches, replica, now)
        if query.token_ids is None and replica not in asked:
            row["matched_tokens"] = None  # its engine's own keys are not what it is indexed by
        else:
            tokens = found[replica.id].tokens if replica.id in found else nothing
            row["matched_tokens"] = dict(zip(labels, tokens, strict=True))
            row["loadable"] = {load.source: load.tokens for load in loads.get(replica.id, ())}
        rows.append(row)
    return {"prompt_tokens": None if query.token_ids is None else len(query.token_ids), "replicas": rows}


def _loads(
    caches: Caches,
    replicas: Sequence[Replica],
    query: IndexQuery,
    prefix: PrefixHashes,
    on_gpu: Mapping[ReplicaId, int],
) -> dict[ReplicaId, tuple[Load, ...]]:
    """What each would load. Of keys alone the prompt's length is not known: it is taken to go on behind them."""
    found: dict[ReplicaId, tuple[Load, ...]] = {}
    for replica in replicas:
        recipe = caches.recognitions[replica.id].recipe
        if recipe is None:
            continue
        length = len(query.token_ids or ()) or len(query.block_hashes or ()) * recipe.block_size + 1
        held = min(on_gpu.get(replica.id, 0), usable_blocks(length, recipe.block_size) * recipe.block_size)
        model = query.lora_name or query.model or next(iter(replica.models), "")
        request = RouteRequest(model, prefix, (length,))
        found |= caches.loader.loads(request, [replica], {replica.id: held})
    return found


def answer_replicas(
    caches: Caches, replicas: Sequence[Replica], publishers: "Mapping[ReplicaId, PublisherStatus]", now: float
) -> dict[str, Any]:
    """Every replica: what is known of its cache, what it holds in each tier, and how its event stream stands."""
    rows = []
    for replica in replicas:
        view = caches.view(replica.id, now)
        tiers = {
            tier.label: {"blocks": table.blocks(replica.id), "copies": table.copies(replica.id)}
            for tier, table in caches.index.tiers.items()
        }
        row = _row(caches, replica, now)
        row |= {
            "endpoint": replica.endpoint,
            "rank": replica.rank,
            "models": replica.models,
            "seconds_in_state": now - view.since,
            "tiers": tiers,
            "events": publishers.get(replica.id),
        }
        rows.append(row)
    return {"replicas": rows}


def _row(caches: Caches, replica: Replica, now: float) -> dict[str, Any]:
    view = caches.view(replica.id, now)
    recipe = caches.recognitions[replica.id].recipe
    let_go = {tier.label: count for tier, table in caches.index.tiers.items() if (count := table.let_go(replica.id))}
    return {
        "replica": replica.id,
        "knowledge": view.state,
        "reason": view.reason,
        "let_go": let_go,
        "block_size": None if recipe is None else recipe.block_size,
        "keys": None if recipe is None else "learned" if _is_learned(caches, replica.id) else "engine",
    }


def _is_learned(caches: Caches, replica: ReplicaId) -> bool:
    return caches.recognitions[replica].state is KeyState.LEARNED


def dump(caches: Caches, replicas: Sequence[Replica], now: float) -> Iterator[bytes]:
    """The whole index as JSON lines: a head, then runs of keys with the same holders, then an end with their number.

    Each table is copied when its turn comes and given away in pieces: about 16 bytes a block for as long as it takes.
    """
    wanted = {replica.id for replica in replicas}
    yield _line({"format": FORMAT, "replicas": [_row(caches, replica, now) for replica in replicas]})
    count = 0
    for tier, table in list(caches.index.tiers.items()):
        names = {table.bit(replica): replica for replica in wanted if table.blocks(replica)}
        among = sum(names)
        for group in list(table.groups):
            for keys, holders in _pieces(table, group):
                runs: dict[int, list[int]] = {}
                for key, held in zip(keys, holders, strict=True):
                    if held & among:
                        runs.setdefault(held & among, []).append(key)
                for held, run in runs.items():
                    count += len(run)
                    held_by = [name for bit, name in names.items() if held & bit]
                    yield _line({"tier": tier.label, "group": group, "replicas": held_by, "keys": run})
    yield _line({"end": True, "keys": count})


def _pieces(table: TierIndex, group: int) -> Iterator[tuple[list[int], list[int]]]:
    holders = table.groups.get(group)
    if holders is None:
        return
    keys, held = list(holders), list(holders.values())
    for start in range(0, len(keys), KEYS_AT_ONCE):
        yield keys[start : start + KEYS_AT_ONCE], held[start : start + KEYS_AT_ONCE]


def _line(value: object) -> bytes:
    return msgspec.json.encode(value) + b"\n"
