"""``gateway/headers.py``: what concerns one connection stays there, what is kvlb's is kvlb's, all else passes in order."""

from multidict import CIMultiDict, CIMultiDictProxy

from balancer.core import Decision, Replica
from balancer.gateway import headers
from indexer.index import ReplicaId


def decision(rank: int = 0, ranks: int = 1) -> Decision:
    replica = Replica(id=ReplicaId("h:1"), endpoint="http://h:1", rank=rank, ranks=ranks)
    return Decision(
        lease=1,
        replica=replica,
        prompt_tokens=41,
        cached_tokens=40,
        is_predicted=True,
        knows_tokens=True,
        policy="p",
        candidates=(),
    )


def given(*pairs: tuple[str, str]) -> CIMultiDictProxy[str]:
    return CIMultiDictProxy(CIMultiDict(pairs))


PASSES = [
    ("Authorization", "Bearer x"),
    ("traceparent", "00-1-2-01"),
    ("X-Request-Id", "7"),
    ("x-tag", "1"),
    ("x-tag", "2"),
    ("Accept-Encoding", "br"),
]


def test_what_is_not_ours_passes_in_order_and_repeated() -> None:
    assert list(headers.to_replica(given(*PASSES), decision()).items()) == PASSES
    assert list(headers.to_client(given(*PASSES), decision(), expose=False).items()) == PASSES


def test_repeated_fields_are_spelt_alike_for_the_client_library() -> None:
    mixed = given(("x-tag", "1"), ("X-Tag", "2"), ("X-TAG", "3"))
    assert list(headers.to_replica(mixed, decision()).items()) == [("x-tag", "1"), ("x-tag", "2"), ("x-tag", "3")]


def test_what_concerns_one_connection_stays_there() -> None:
    own = given(
        ("Connection", "keep-alive, X-Mine"),
        ("connection", " x-too "),
        ("X-Mine", "1"),
        ("X-Too", "1"),
        ("Keep-Alive", "5"),
        ("Transfer-Encoding", "chunked"),
        ("TE", "trailers"),
        ("Upgrade", "h2c"),
        ("X-Kept", "1"),
    )
    assert dict(headers.to_replica(own, decision())) == {"X-Kept": "1"}
    assert dict(headers.to_client(own, decision(), expose=False)) == {"X-Kept": "1"}


def test_what_describes_the_body_as_it_came_is_said_anew() -> None:
    came = given(("Host", "gateway"), ("Content-Length", "3"), ("Content-Encoding", "gzip"), ("Expect", "100-continue"))
    assert not headers.to_replica(came, decision())


def test_an_encoded_answer_stays_encoded() -> None:
    assert "Content-Encoding" in headers.to_client(given(("Content-Encoding", "gzip")), decision(), expose=False)


def test_the_rank_is_chosen_here_and_nowhere_else() -> None:
    claimed = given(("x-DATA-parallel-rank", "9"))
    assert not headers.to_replica(claimed, decision())
    assert headers.to_replica(claimed, decision(1, 4)).getall("X-data-parallel-rank") == ["1"]


def test_a_decision_is_exposed_only_if_that_is_wanted() -> None:
    told = headers.to_client(given(), decision(), expose=True)
    assert dict(told) == {
        "x-kvlb-replica": "h:1",
        "x-kvlb-cached-tokens": "40",
        "x-kvlb-prompt-tokens": "41",
        "x-kvlb-predicted": "exact",
    }
    assert not headers.to_client(given(), decision(), expose=False)


def test_an_id_is_added_only_where_there_is_none() -> None:
    assert list(headers.named(CIMultiDict([("X-REQUEST-ID", "7")]), "new").items()) == [("X-REQUEST-ID", "7")]
    assert dict(headers.named(CIMultiDict(), "new")) == {"x-request-id": "new"}


def test_an_id_that_is_no_text_can_still_be_written_down() -> None:
    assert headers.request_id(given(("X-Request-Id", "a\udcff"))) == "a\\udcff"
    made = {headers.request_id(given(("X-Request-Id", ""))) for _ in range(2)}
    assert {len(each) for each in made} == {32}
    assert len(made) == 2


def test_questions_carry_the_clients_key_and_nothing_else_of_it() -> None:
    asked = headers.for_questions(given(("authorization", "Bearer x"), ("Cookie", "c"), ("X-Request-Id", "7")))
    assert dict(asked) == {"Authorization": "Bearer x", "Content-Type": "application/json"}
