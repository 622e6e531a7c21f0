import msgspec
import pytest

from simulations.report.document import SCHEMA, decode, encode
from tests.support.runs import report, result, trace


def test_equal_inputs_give_equal_bytes() -> None:
    made = [encode(report(result(seed=1), result("round_robin", seed=2))) for _ in range(2)]
    assert made[0] == made[1]
    assert made[0].endswith(b"}\n")


def test_it_can_be_read_back() -> None:
    made = report(result(), result("round_robin", refused=1.0))
    assert decode(encode(made)) == made


def test_it_says_what_it_is_and_of_which_trace() -> None:
    made = msgspec.json.decode(encode(report(result(cache_tokens=640))))
    assert (made["kind"], made["schema"]) == ("kvlb simulate", SCHEMA)
    assert made["versions"] == {"kvlb": "1.2.3"}
    assert made["trace"]["requests"] == 200
    assert made["trace"]["sessions"] > 1
    assert [pool["tokens"] for pool in made["bounds"]["pools"]] == [1280, 2560, 5120]
    assert made["bounds"]["rule"] == "full_blocks"
    assert made["results"][0]["cache_tokens"] == 640


def test_other_schemas_are_refused() -> None:
    other = encode(report(result())).replace(b'"schema": 1', b'"schema": 2')
    with pytest.raises(msgspec.ValidationError, match="schema 2 is not 1"):
        decode(other)
    with pytest.raises(msgspec.ValidationError):
        decode(b'{"kind": "something"}')


def test_bounds_may_be_missing() -> None:
    assert report(result(), with_bounds=False).bounds is None


def test_a_trace_of_nothing_has_facts() -> None:
    assert report(of=trace(0)).trace.requests == 0


def test_pools_are_found_though_blocks_are_whole() -> None:
    facts = report(result()).bounds
    assert facts is not None
    assert [pool and pool.tokens for pool in map(facts.pool_of, (1280, 1290, 1300, 5100, 10, None))] == [
        1280,
        1280,
        None,
        5120,
        None,
        None,
    ]
