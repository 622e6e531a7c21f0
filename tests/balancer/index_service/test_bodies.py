"""``balancer/index_service/bodies.py``: what peers' clients send is read, and what cannot be used is refused by name."""

import json
from typing import Any

import pytest

from balancer.errors import BadRequest
from balancer.index_service import bodies
from balancer.index_service.bodies import Registration, Scope, Unregistration
from balancer.json_bodies import MAX_LIST_BYTES
from hashing.recipes import Recipe

REGISTER = {"instance_id": 7, "endpoint": "tcp://10.0.0.1:5557", "model_name": "m", "block_size": 16}


def registered(**changes: Any) -> Registration:
    return bodies.registration(json.dumps({**REGISTER, **changes}).encode())[0]


def test_a_registration_is_read_with_what_it_leaves_out() -> None:
    assert registered() == Registration(Scope("m"), 7, 0, "tcp://10.0.0.1:5557", block_size=16)
    full = registered(
        replay_endpoint="tcp://10.0.0.1:5558", dp_rank=3, tenant_id="t", topic="kv", additional="is not looked at"
    )
    assert full == Registration(
        Scope("m", "t"), 7, 3, "tcp://10.0.0.1:5557", "tcp://10.0.0.1:5558", "kv", block_size=16
    )


def test_the_words_of_dynamo_and_of_the_rfc_are_understood() -> None:
    assert registered(routing_group="g").scope == Scope("m", "g")
    assert registered(tenant_id=99).scope == Scope("m", "99")
    assert registered(model_name=None, model="n").scope == Scope("n")
    assert registered(tenant_id="", routing_group=None).scope == Scope("m", "default")
    assert registered(block_size=0).block_size is None
    assert registered(instance_id="pod-1").instance == "pod-1"


def test_what_is_not_looked_at_is_told() -> None:
    body = {**REGISTER, "block_sise": 16, "a\nb": 1, "hash_seed": "0"}
    assert bodies.registration(json.dumps(body).encode())[1] == (
        "block_sise: unknown, and not looked at; see docs/index-service.md",
        "'a\\nb': unknown, and not looked at; see docs/index-service.md",
        "hash_seed: not used without vllm_version",
    )
    warnings = ("salt: unknown, and not looked at; see docs/index-service.md",)
    assert bodies.token_query(b'{"model":"m","token_ids":[1],"salt":"x"}').warnings == warnings
    assert bodies.hash_query(b'{"model":"m","salt":"x","block_hashes":[[1],2]}').warnings == warnings
    assert not bodies.token_query(b'{"model":"m","token_ids":[1],"cache_salt":"x"}').warnings


def test_how_an_engine_hashes_can_be_declared() -> None:
    recipe = registered(vllm_version="0.32.0", hash_algorithm="sha256_cbor", hash_seed="0").recipe
    assert recipe == Recipe.for_version("0.32.0", algorithm="sha256_cbor", block_size=16, seed="0")


@pytest.mark.parametrize(
    ("changes", "param", "message"),
    [
        ({"endpoint": "nonsense"}, "endpoint", "endpoint: 'nonsense' cannot be connected to; give the engine's own"),
        ({"replay_endpoint": "tcp://*:1"}, "replay_endpoint", "replay_endpoint: 'tcp://*:1' cannot be connected to"),
        ({"endpoint": 5}, "endpoint", "endpoint: expected a text, got a number; see docs/index-service.md"),
        ({"model_name": ""}, "model_name", "model_name: missing; name the model that the engines serve"),
        ({"model_name": "a\nb"}, "model_name", "model_name: too long or not printable"),
        ({"model_name": "m" * 2000}, "model_name", "model_name: too long or not printable"),
        ({"instance_id": ""}, "instance_id", "instance_id: empty; give the number or name of the engine"),
        ({"instance_id": None}, "instance_id", "instance_id: expected a number or a text, got null"),
        ({"dp_rank": -1}, "dp_rank", "dp_rank: -1 is not a rank; give 0 to 1023"),
        ({"dp_rank": 1024}, "dp_rank", "dp_rank: 1024 is not a rank; give 0 to 1023"),
        ({"block_size": -16}, "block_size", "block_size: -16 cannot be used; give the engine's tokens per block"),
        ({"tenant_id": "a", "routing_group": "b"}, "routing_group", "routing_group: it is another word for tenant_id"),
        ({"hash_algorithm": "md5"}, "hash_algorithm", "hash_algorithm: 'md5' is unknown; use one of sha256, "),
        ({"vllm_version": "new"}, "vllm_version", "vllm_version: version: 'new' is not a vLLM version"),
        (
            {"vllm_version": "0.32.0", "block_size": 0},
            "block_size",
            "block_size: missing; with vllm_version the engine's",
        ),
        (
            {"vllm_version": "0.32.0", "hash_algorithm": "md5"},
            "hash_algorithm",
            "hash_algorithm: 'md5' is unknown; use one of sha256",
        ),
    ],
)
def test_what_cannot_be_registered_is_refused_by_name(changes: dict[str, Any], param: str, message: str) -> None:
    with pytest.raises(BadRequest) as caught:
        registered(**changes)
    assert caught.value.param == param
    assert caught.value.message.startswith(message)


@pytest.mark.parametrize("field", ["instance_id", "endpoint"])
def test_what_is_missing_is_named(field: str) -> None:
    body = {name: value for name, value in REGISTER.items() if name != field}
    with pytest.raises(BadRequest, match=f"^{field}: missing; docs/index-service.md says what it is$"):
        bodies.registration(json.dumps(body).encode())


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "the body is not JSON: "),
        (b"{", "the body is not JSON: "),
        (b"\xff", "the body is not JSON: "),
        (b"[" * 100_000, "the body"),
        (b"[]", "the body: expected an object, got a list; it has to be a JSON object"),
    ],
)
def test_what_is_no_json_object_is_refused(body: bytes, message: str) -> None:
    for read in (bodies.registration, bodies.unregistration, bodies.token_query, bodies.hash_query):
        with pytest.raises(BadRequest) as caught:
            read(body)
        assert caught.value.message.startswith(message)


def test_an_unregistration_names_one_rank_or_all() -> None:
    body = {"instance_id": 7, "model_name": "m"}
    assert bodies.unregistration(json.dumps(body).encode()) == (Unregistration(Scope("m"), 7, None), ())
    wanted, warnings = bodies.unregistration(json.dumps({**body, "dp_rank": 2, "rank": 1}).encode())
    assert (wanted.rank, warnings) == (2, ("rank: unknown, and not looked at; see docs/index-service.md",))


def test_a_query_has_its_adapter_and_its_salt() -> None:
    query = bodies.token_query(b'{"model_name":"m","token_ids":[1,2],"lora_name":"sql","cache_salt":334455}')
    assert (query.scope, query.text, query.lora, query.salt) == (Scope("m"), b"[1,2]", "sql", "334455")
    plain = bodies.token_query(b'{"model":"m","token_ids":[],"lora_name":"","cache_salt":""}')
    assert (plain.text, plain.lora, plain.salt) == (b"[]", None, None)
    hashed = bodies.hash_query(b'{"model_name":"m","block_hashes":[-1,2]}')
    assert hashed.text == b"[-1,2]"


@pytest.mark.parametrize("value", ["1", "null", '"1,2"', "{}"])
def test_a_prompt_that_is_no_list_is_refused(value: str) -> None:
    with pytest.raises(BadRequest, match=r"^token_ids: give a list of integers; see docs/index-service\.md$"):
        bodies.token_query(b'{"model_name":"m","token_ids":%s}' % value.encode())


@pytest.mark.parametrize(("read", "field"), [(bodies.token_query, "token_ids"), (bodies.hash_query, "block_hashes")])
def test_a_list_that_would_keep_everybody_waiting_is_refused(read: Any, field: str) -> None:
    body = b'{"model_name":"m","%b":[%b1]}' % (field.encode(), b"1," * (MAX_LIST_BYTES // 2))
    with pytest.raises(BadRequest, match=f"{field}: 8,388,611 bytes; at most 8,388,608 are looked at"):
        read(body)


def test_a_prompt_that_is_missing_is_named_with_what_it_is() -> None:
    with pytest.raises(
        BadRequest, match=r"^block_hashes: missing; give a list of integers; see docs/index-service\.md$"
    ):
        bodies.hash_query(b'{"model_name":"m"}')
