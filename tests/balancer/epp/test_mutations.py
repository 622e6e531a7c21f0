"""``epp/mutations.py``: what is kvlb's own neither comes from clients nor from replicas."""

from balancer.epp.mutations import Said, of_answer, of_request
from tests.support.routing import decision

SAID = Said("id", names_request=False)


def fields(*names: str) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), b"v") for name in names]


def test_a_request_loses_what_is_not_for_clients_to_say() -> None:
    came = fields("x-own", "x-data-parallel-rank", "x-kvlb-max-wait", "x-gateway-destination-endpoint", "cookie")
    made = of_request(came, "1.2.3.4:5", decision(), SAID, None)
    assert made.set == [(b"x-gateway-destination-endpoint", b"1.2.3.4:5")]
    assert made.remove == [b"x-data-parallel-rank", b"x-kvlb-max-wait"]


def test_a_request_is_told_rank_and_prefill_replica_and_key() -> None:
    came = fields("authorization", "x-api-key", "content-encoding", "x-prefiller-host-port")
    said = Said("id", True, frozenset({b"x-api-key", b"authorization"}), b"Bearer k", [(b"traceparent", b"t")], True)
    made = of_request(came, "1.2.3.4:5", decision(1, 2), said, "5.6.7.8:9")
    assert dict(made.set) == {
        b"x-gateway-destination-endpoint": b"1.2.3.4:5",
        b"traceparent": b"t",
        b"x-data-parallel-rank": b"1",
        b"x-prefiller-host-port": b"5.6.7.8:9",
        b"authorization": b"Bearer k",
        b"x-request-id": b"id",
    }
    assert made.remove == [b"content-encoding", b"x-api-key"]


def test_an_answer_loses_what_is_kvlbs_and_gets_an_id() -> None:
    came = fields("x-own", "x-kvlb-replica", "x-gateway-destination-endpoint-served")
    told = [(b"x-kvlb-replica", b"r")]
    hidden = of_answer(came, "id", told, expose=False)
    assert (hidden.set, hidden.remove) == (
        [(b"x-request-id", b"id")],
        [b"x-gateway-destination-endpoint-served", b"x-kvlb-replica"],
    )
    shown = of_answer([*came, (b"x-request-id", b"own")], "id", told, expose=True)
    assert (shown.set, shown.remove) == (told, [b"x-gateway-destination-endpoint-served"])
