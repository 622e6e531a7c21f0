"""``balancer/disaggregation/legs``: what each connector's engines have to be told, field by field."""

import json
from typing import Any

import msgspec
import pytest

from balancer.disaggregation.plan import CONNECTORS, Answered, Leg, Pair, Side, make, with_tokens
from balancer.disaggregation.roles import Transfer
from balancer.errors import ConfigError

P = Side("p", 0, 1, Transfer(bootstrap="http://10.0.0.1:8998", address="10.0.0.1:14579"), "engine-p")
D = Side("d", 1, 2, Transfer(address="10.0.0.2:14579", tp_size=4))
PAIR = Pair(P, D, 0xF)
ID = "kvlb-" + "0" * 31 + "f"
NIXL = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [[1, 2]],
    "remote_engine_id": "e",
    "remote_request_id": "cmpl-x",
    "remote_host": "10.0.0.1",
    "remote_port": 5600,
    "tp_size": 1,
    "pp_size": 1,
    "in_a_later_release": {"a": 1},
}


def answered(params: Any) -> Answered:
    return Answered(None if params is None else msgspec.Raw(json.dumps(params).encode()))


def params_of(leg: Leg | None) -> dict[str, Any]:
    assert leg is not None
    made: dict[str, Any] = json.loads(msgspec.json.encode(leg.params))
    return made


def test_nixl_passes_on_what_the_prefill_said_word_for_word() -> None:
    nixl = make("nixl")
    first = nixl.prefill(PAIR)
    assert params_of(first)["do_remote_decode"] is True
    assert first.request_id is None
    told = answered(NIXL)
    second = nixl.decode(PAIR, told)
    assert second is not None
    assert second.params is told.params
    assert not nixl.is_concurrent
    assert nixl.frees_rejected


@pytest.mark.parametrize("missing", ["remote_engine_id", "remote_block_ids", "remote_host", "remote_port", None])
def test_parameters_without_which_engines_compute_the_prompt_are_no_parameters(missing: str | None) -> None:
    told = None if missing is None else {**NIXL, missing: None}
    assert make("nixl").decode(PAIR, answered(told)) is None
    assert make("nixl").decode(PAIR, answered([1])) is None


def test_nixl_push_has_one_id_on_both_legs_and_names_where_the_prefill_is() -> None:
    push = make("nixl_push")
    first, second = push.prefill(PAIR), push.decode(PAIR, answered(NIXL))
    assert second is not None
    assert first.request_id == second.request_id == ID
    assert params_of(first) == {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": ID}
    told = params_of(second)
    assert told["transfer_id"] == ID
    assert (told["remote_engine_id"], told["remote_host"], told["remote_port"]) == ("e", "10.0.0.1", 5600)
    assert (told["tp_size"], told["pp_size"]) == (1, 1)
    assert (told["do_remote_prefill"], told["do_remote_decode"]) == (True, False)
    assert "remote_block_ids" not in told
    assert push.decode(PAIR, answered(None)) is None


def test_mooncake_sends_both_legs_at_once() -> None:
    mooncake = make("mooncake")
    assert mooncake.is_concurrent
    assert mooncake.has_bootstrap
    first = mooncake.prefill(PAIR)
    assert params_of(first) == {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": ID}
    assert first.ends_by_length, "blocks of a prefill that ended by itself are dropped"
    assert params_of(mooncake.decode(PAIR, None)) == {
        "do_remote_decode": False,
        "do_remote_prefill": True,
        "transfer_id": ID,
        "remote_engine_id": "engine-p",
        "remote_bootstrap_addr": "http://10.0.0.1:8998",
    }
    unknown = Pair(msgspec.structs.replace(P, engine_id=None), D, 1)
    assert mooncake.decode(unknown, None) is None


def test_a_shared_store_needs_no_words() -> None:
    shared = make("shared")
    assert shared.prefill(PAIR) == shared.decode(PAIR, Answered()) == Leg()
    assert shared.shares
    assert shared.tells_loaded


def test_lmcache_tells_how_much_it_had_where_it_is_asked() -> None:
    assert params_of(make("lmcache_mp").decode(PAIR, Answered())) == {"num_lmcache_extra_cached_tokens": True}
    assert make("lmcache_mp").prefill(PAIR).params is None


def test_what_keeps_whole_chunks_says_so() -> None:
    assert make("lmcache_mp").chunk_tokens == 256
    assert make("lmcache_mp", {"chunk_size": 64}).chunk_tokens == make("shared", {"chunk_size": 64}).chunk_tokens == 64
    assert make("nixl").chunk_tokens == make("shared").chunk_tokens == make("moriio").chunk_tokens == 1
    assert make("multi", {"of": ["nixl", "lmcache_mp"]}).chunk_tokens == 256
    for name in ("shared", "lmcache_mp"):
        with pytest.raises(ConfigError, match="chunk_size"):
            make(name, {"chunk_size": 0})


def test_lmcache_between_two_engines_is_told_where_the_other_listens() -> None:
    pair = Pair(P, Side("d", transfer=Transfer(address="10.0.0.2:7300/7301:7400/7401")), 0xF)
    first = make("lmcache").prefill(pair)
    assert params_of(first) == {
        "ret_first_tok": True,
        "disagg_spec": {
            "req_id": ID,
            "receiver_host": "10.0.0.2",
            "receiver_init_port": [7300, 7301],
            "receiver_alloc_port": [7400, 7401],
        },
    }
    assert make("lmcache").decode(pair, answered({"first_tok": 7})) == Leg()
    assert make("lmcache").decode(pair, answered(None)) is None


def test_p2p_nccl_names_both_in_the_id() -> None:
    nccl = make("p2p_nccl")
    both = "___prefill_addr_10.0.0.1:14579___decode_addr_10.0.0.2:14579_" + "0" * 31 + "f"
    assert nccl.prefill(PAIR) == nccl.decode(PAIR, Answered()) == Leg(request_id=both)
    assert nccl.decode(Pair(Side("p"), D, 1), Answered()) is None


MORI = Transfer(address="host:10.0.0.9,handshake:6301,notify:61005", tp_size=2)
MORI_PAIR = Pair(Side("p", 3, 8, MORI), Side("d", 0, 1, MORI), 0xF)


def test_moriio_reads_what_the_prefill_said() -> None:
    moriio = make("moriio")
    assert not moriio.is_concurrent
    first = moriio.prefill(MORI_PAIR)
    assert params_of(first) == {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "transfer_id": ID,
        "remote_dp_size": 1,
        "remote_tp_size": 2,
    }
    assert first.ends_by_length
    assert first.request_id is not None
    assert first.request_id.startswith("___prefill_addr_host:10.0.0.9,handshake:6301,notify:61005___decode_addr_host:")
    assert first.request_id[-33:] == "_" + "0" * 31 + "f"
    second = moriio.decode(MORI_PAIR, answered({**NIXL, "remote_dp_rank": 5}))
    told = params_of(second)
    assert told["remote_dp_rank"] == 5, "the rank that the prefill ran on"
    assert told["transfer_id"] == ID
    assert told["remote_block_ids"] == [[1, 2]]
    assert moriio.decode(MORI_PAIR, answered({"remote_engine_id": "e"})) is None


def test_moriio_writes_to_where_both_legs_say() -> None:
    moriio = make("moriio", {"mode": "write"})
    assert moriio.is_concurrent
    where = {"remote_host": "10.0.0.9", "remote_handshake_port": "6301", "remote_notify_port": "61005"}
    assert params_of(moriio.prefill(MORI_PAIR)).items() >= where.items()
    told = params_of(moriio.decode(MORI_PAIR, None))
    assert told.items() >= where.items()
    assert (told["remote_engine_id"], told["remote_block_ids"]) == (None, None)
    assert (told["remote_dp_rank"], told["remote_dp_rank_override"], told["remote_dp_size"]) == (3, True, 8)


def test_several_connectors_say_what_each_of_them_says() -> None:
    multi = make("multi", {"of": ["nixl", "lmcache_mp"]})
    assert params_of(multi.prefill(PAIR))["do_remote_decode"] is True
    told = params_of(multi.decode(PAIR, answered(NIXL)))
    assert told == {**NIXL, "num_lmcache_extra_cached_tokens": True}
    assert params_of(multi.decode(PAIR, answered(None))) == {"num_lmcache_extra_cached_tokens": True}
    assert not multi.shares
    assert multi.frees_rejected
    assert not multi.is_concurrent


def test_several_connectors_are_named() -> None:
    with pytest.raises(ConfigError, match="of: name the connectors"):
        make("multi", {"of": []})


def test_the_decode_leg_can_carry_the_prompts_tokens() -> None:
    told = Answered(prompt_token_ids=msgspec.Raw(b"[1,2,3]"))
    assert params_of(with_tokens(Leg(msgspec.Raw(b'{"a":1}')), told)) == {"a": 1, "prompt_token_ids": [1, 2, 3]}
    assert params_of(with_tokens(Leg(), told)) == {"prompt_token_ids": [1, 2, 3]}
    assert with_tokens(Leg(), Answered()) == Leg()


def test_a_connector_that_there_is_not_is_named_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match=r"disaggregation\.name: there is no disaggregation connector 'nixle'.*nixl"):
        make("nixle")
    assert {"nixl", "nixl_push", "mooncake", "shared", "lmcache", "lmcache_mp", "moriio", "p2p_nccl", "multi"} == set(
        CONNECTORS.names()
    )
