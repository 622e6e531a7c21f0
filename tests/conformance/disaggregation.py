"""What every disaggregation connector must do: a suite for its author, run here over those of kvlb itself.

Name the ``test_*`` of here in a test file of your own, beside a fixture ``connector``.
"""

import json
from typing import Any

import msgspec
import pytest

from balancer.disaggregation.bodies import decode_body, prefill_body
from balancer.disaggregation.plan import Answered, Connector, Leg, Pair, Side
from balancer.disaggregation.roles import Transfer
from balancer.strip import members

PLACE = "host:10.0.0.1,handshake:1,notify:2"
P = Side("p", 0, 2, Transfer(bootstrap="http://10.0.0.1:1", address=PLACE), "engine")
D = Side("d", 1, 2, Transfer(address=PLACE))
PAIR = Pair(P, D, 7)
BARE = Pair(Side("p"), Side("d"), 7)
BODY = b'{"model":"m","messages":[],"max_tokens":9}'
ANSWERS = (None, b"null", b"{}", b"[]", b"3", b'{"do_remote_prefill":null}', b'{"remote_engine_id":"e"}')


def answered(params: bytes | None) -> Answered:
    return Answered(None if params is None else msgspec.Raw(params))


def carried(leg: Leg) -> Any:
    return json.loads(decode_body(BODY, members(BODY), leg)).get("kv_transfer_params")


def test_the_same_pair_is_told_the_same(connector: Connector) -> None:
    """What was computed may go to another decode replica only if its own leg would have been the same."""
    assert connector.prefill(PAIR) == connector.prefill(PAIR)
    assert connector.decode(PAIR, answered(None)) == connector.decode(PAIR, answered(None))


def test_both_legs_can_be_written(connector: Connector) -> None:
    first = connector.prefill(PAIR)
    json.loads(prefill_body("/v1/chat/completions", members(BODY), first))
    second = connector.decode(PAIR, None if connector.is_concurrent else answered(b'{"remote_engine_id":"e"}'))
    if second is not None:
        carried(second)


@pytest.mark.parametrize("params", ANSWERS)
@pytest.mark.parametrize("pair", [PAIR, BARE], ids=["addressed", "bare"])
def test_an_answer_that_is_of_no_use_is_no_mistake(connector: Connector, params: bytes | None, pair: Pair) -> None:
    connector.prefill(pair)
    leg = connector.decode(pair, answered(params))
    assert leg is None or isinstance(leg, Leg)


def test_each_attempt_has_ids_of_its_own(connector: Connector) -> None:
    other = msgspec.structs.replace(PAIR, number=8)
    for one, two in (
        (connector.prefill(PAIR), connector.prefill(other)),
        (connector.decode(PAIR, Answered()), connector.decode(other, Answered())),
    ):
        if one is not None and two is not None and one.request_id is not None:
            assert one.request_id != two.request_id


def test_a_leg_without_an_answer_is_planned_only_where_both_go_at_once(connector: Connector) -> None:
    if connector.is_concurrent:
        assert connector.decode(PAIR, None) is not None
        assert connector.decode(PAIR, None) == connector.decode(PAIR, Answered())
