"""``balancer/index_tables.py``: what others read of the index is what the replicas' events say."""

import json
from typing import Any

import msgspec
import pytest

from balancer import index_tables
from balancer.caches import Caches
from balancer.core import Replica
from balancer.errors import BadRequest
from balancer.index_tables import answer_query, answer_replicas, dump, read_query
from balancer.json_bodies import MAX_LIST_BYTES
from indexer.index import ReplicaId
from tests.support.routing import RANDOM, RECIPE, replica, stored, told

A, B = ReplicaId("a"), ReplicaId("b")
PROMPT = list(range(41))


def caches(*replicas: Replica) -> Caches:
    made = Caches()
    for each in replicas:
        made.put(each)
    return made


def asked(made: Caches, replicas: list[Replica], **fields: Any) -> dict[str, Any]:
    query = read_query(json.dumps(fields).encode())
    answer = answer_query(made, replicas, query, None, lambda _: None, 0.0)
    return {row["replica"]: row["matched_tokens"] for row in answer["replicas"]}


def test_what_was_let_go_is_told_by_tier() -> None:
    """The state is the GPU's; an answer for another tier has to be taken for less."""
    made, one = Caches(max_blocks=15), replica("a")
    made.put(one)
    for start in range(0, 400, 40):
        made.apply(A, [msgspec.structs.replace(stored(range(start, start + 40)), medium="CPU")])
    made.apply(A, [told(PROMPT[:21])])
    [row] = answer_query(made, [one], read_query(b'{"token_ids":[1]}'), None, lambda _: None, 0.0)["replicas"]
    assert row["knowledge"] == "exact"
    assert row["let_go"] == {"CPU": 90}


def test_a_list_that_would_keep_everybody_waiting_is_refused() -> None:
    body = b'{"model":"m","token_ids":[%b1]}' % (b"1," * (MAX_LIST_BYTES // 2))
    with pytest.raises(BadRequest, match="at most 8,388,608 are looked at"):
        read_query(body)


def test_a_prompt_is_matched_by_tokens_and_by_the_engines_own_keys() -> None:
    one, two = replica("a"), replica("b", recipe=None)
    made = caches(one, two)
    event = stored(PROMPT)
    made.apply(A, [told(PROMPT, RECIPE)])
    made.apply(B, [told(PROMPT[:21], RANDOM)])
    by_tokens = asked(made, [one, two], token_ids=PROMPT)
    assert by_tokens == {A: {"GPU": 40}, B: {"GPU": 20}}
    signed = [key - (1 << 64) if key >> 63 else key for key in event.block_hashes]
    for keys in (event.block_hashes, signed):
        assert asked(made, [one, two], block_hashes=keys) == {A: {"GPU": 40}, B: None}, (
            "learned keys are not the engine's"
        )
    assert asked(made, [one, two], token_ids=[7, 7, 7, 7]) == {A: {"GPU": 0}, B: {"GPU": 0}}
    for salt in ("abc", 7):
        assert asked(made, [one], token_ids=PROMPT, cache_salt=salt) == {A: {"GPU": 0}}
    assert asked(made, [one], token_ids=PROMPT, cache_salt="") == {A: {"GPU": 40}}


def test_what_is_expected_is_not_told() -> None:
    one = replica("a")
    made = caches(one)
    made.predicted.expect(1, made.index.gpu.bit(A), stored(PROMPT).block_hashes)
    assert asked(made, [one], token_ids=PROMPT) == {A: {"GPU": 0}}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{}", "token_ids: give either token_ids or block_hashes"),
        (b'{"token_ids":[1],"block_hashes":[1]}', "token_ids: give either token_ids or block_hashes"),
        (b'{"token_ids":{}}', "token_ids: expected a list or null, got an object; see docs/index-service.md"),
        (b"nonsense", "the body is not JSON: "),
        (b'{"token_ids":[1],"tokn":1}', "tokn: unknown field; did you mean token_ids? See docs/index-service.md"),
        (b'{"token_ids":[1],"cach_salt":1}', "cach_salt: unknown field; did you mean cache_salt? See docs/"),
        (
            b'{"token_ids":[1],"zz":1}',
            "zz: unknown field; there are: model, model_name, tenant_id, token_ids, block_hashes, ",
        ),
        (b'{"token_ids":[1],"a`\\nb - at `$.x":1}', "'a`\\nb - at `$.x': unknown field; there are: "),
        (b'{"token_ids":[1],"%b":1}' % (b"x" * 5_000), "'" + "x" * 40 + "': unknown field; there are: "),
    ],
)
def test_a_query_that_cannot_be_used_is_refused_by_name(body: bytes, message: str) -> None:
    with pytest.raises(BadRequest) as caught:
        read_query(body)
    assert caught.value.message.startswith(message)


def test_replicas_are_told_with_how_much_is_known_of_them() -> None:
    one, two = replica("a"), replica("b", recipe=None)
    made = caches(one, two)
    made.apply(A, [told(PROMPT, RECIPE)] * 2)
    first, second = answer_replicas(made, [one, two], {}, 5.0)["replicas"]
    assert (first["replica"], first["knowledge"], first["block_size"], first["keys"]) == ("a", "exact", 4, "engine")
    assert first["tiers"] == {"GPU": {"blocks": 10, "copies": 20}}
    assert (second["knowledge"], second["block_size"], second["keys"]) == ("partial", None, None)


def test_a_dump_has_every_block_of_every_replica_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_tables, "KEYS_AT_ONCE", 3)
    one, two, gone = replica("a"), replica("b"), replica("c")
    made = caches(one, two, gone)
    event = stored(PROMPT)
    for name, count in ((A, 10), (B, 4)):
        made.index.gpu.store(name, 0, event.block_hashes[:count])
    made.index.gpu.store(gone.id, 0, [1, *event.block_hashes])
    lines = [json.loads(line) for line in dump(made, [one, two], 0.0)]
    assert (lines[0]["format"], lines[-1]) == ("kvlb index dump 1", {"end": True, "keys": 10})
    assert [row["replica"] for row in lines[0]["replicas"]] == [A, B]
    held: dict[str, list[int]] = {A: [], B: []}
    for line in lines[1:-1]:
        assert (line["tier"], line["group"]) == ("GPU", 0)
        for name in line["replicas"]:
            held[name] += line["keys"]
    assert held == {A: event.block_hashes, B: event.block_hashes[:4]}


def test_a_dump_goes_on_while_the_index_changes() -> None:
    one = replica("a")
    made = caches(one)
    made.index.gpu.store(A, 0, range(10_000))
    lines = dump(made, [one], 0.0)
    next(lines), next(lines)
    made.index.gpu.store(A, 0, range(10_000, 20_000))
    made.index.gpu.clear(A)
    assert json.loads(list(lines)[-1]) == {"end": True, "keys": 10_000}
