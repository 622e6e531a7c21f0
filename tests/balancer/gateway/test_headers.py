"""``gateway/headers.py``: what concerns one connection stays there, what is kvlb's is kvlb's, all else passes in order."""

from balancer.gateway import headers
from balancer.header_names import ROUTING
from tests.support.routing import decision


def given(*pairs: tuple[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in pairs]


def told(lines: bytes) -> list[tuple[str, str]]:
    """The headers of these lines, without the id that every request has."""
    pairs = [line.partition(": ")[::2] for line in lines.decode().split("\r\n")[:-1]]
    return [(name, value) for name, value in pairs if value != "id"]


def to_replica(fields: list[tuple[bytes, bytes]], rank: int = 0, ranks: int = 1) -> list[tuple[str, str]]:
    return told(headers.to_replica(fields, decision(rank, ranks), "id"))


def to_client(fields: list[tuple[bytes, bytes]], *, expose: bool = False) -> list[tuple[str, str]]:
    return told(headers.to_client(fields, decision(), "id", expose=expose))


PASSES = [
    ("Authorization", "Bearer x"),
    ("traceparent", "00-1-2-01"),
    ("X-Request-Id", "7"),
    ("x-tag", "1"),
    ("X-Tag", "2"),
    ("Accept-Encoding", "br"),
]


def test_what_is_not_ours_passes_in_order_and_repeated() -> None:
    assert to_replica(given(*PASSES)) == PASSES
    assert to_client(given(*PASSES)) == PASSES


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
    assert to_replica(own) == to_client(own) == [("X-Kept", "1")]


def test_what_describes_the_body_as_it_came_is_said_anew() -> None:
    came = given(("Host", "gateway"), ("Content-Length", "3"), ("Content-Encoding", "gzip"), ("Expect", "100-continue"))
    assert to_replica(came) == []


def test_an_encoded_answer_stays_encoded() -> None:
    assert to_client(given(("Content-Encoding", "gzip"))) == [("Content-Encoding", "gzip")]


def test_the_rank_is_chosen_here_and_nowhere_else() -> None:
    claimed = given(("x-DATA-parallel-rank", "9"))
    assert to_replica(claimed) == []
    assert to_replica(claimed, 1, 4) == [("X-data-parallel-rank", "1")]


def test_a_decision_is_exposed_only_if_that_is_wanted() -> None:
    claimed = given(("X-kvlb-replica", "another"))
    assert to_client(claimed, expose=True) == [
        ("x-kvlb-replica", "h:1"),
        ("x-kvlb-cached-tokens", "40"),
        ("x-kvlb-prompt-tokens", "41"),
        ("x-kvlb-predicted", "exact"),
    ]
    assert to_client(claimed) == []


def test_what_names_hosts_to_engines_is_never_a_clients_to_say() -> None:
    asked = [(name.decode(), "evil:1") for name in ROUTING] + [("Origin", "https://a.example")]
    assert to_replica(given(*asked)) == []
    for own in (b"___prefill_addr_evil:1___decode_addr_evil:2_1", b"a___decode_addr_evil:2"):
        made = headers.request_id({b"x-request-id": own})
        assert "evil" not in made
        assert told(headers.to_replica([(b"x-request-id", own)], decision(), made)) == [("x-request-id", made)]


def test_a_clients_key_ends_here_where_keys_are_ours() -> None:
    fields = given(("authorization", "Bearer mine"), ("X-Api-Key", "mine"), ("x-tag", "1"))
    kept_back = frozenset({b"authorization", b"x-api-key"})
    assert told(headers.to_replica(fields, decision(), "id", kept_back)) == [("x-tag", "1")]
    lines = headers.to_replica(fields, decision(), "id", kept_back, b"Bearer ours")
    assert told(lines) == [("x-tag", "1"), ("Authorization", "Bearer ours")]


def test_what_serves_behind_us_is_told_to_whoever_may_know_the_fleet() -> None:
    assert to_client(given(("Server", "uvicorn"))) == []
    assert ("Server", "uvicorn") in to_client(given(("Server", "uvicorn")), expose=True)


def test_an_id_is_added_only_where_there_is_none() -> None:
    for own, expected in (
        ([("X-REQUEST-ID", "7")], ("X-REQUEST-ID", "7")),
        ([("X-REQUEST-ID", "")], ("X-REQUEST-ID", "new")),
        ([], ("x-request-id", "new")),
    ):
        assert told(headers.to_replica(given(*own), decision(), "new")) == [expected]
        assert told(headers.to_client(given(*own), decision(), "new", expose=False)) == [expected]


def test_an_id_that_is_no_text_can_still_be_written_down() -> None:
    assert headers.request_id({b"x-request-id": b"a\xff"}) == "a\\udcff"
    made = {headers.request_id({b"x-request-id": b""}) for _ in range(2)}
    assert {len(each) for each in made} == {32}
    assert len(made) == 2
