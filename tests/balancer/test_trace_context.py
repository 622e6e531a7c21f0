"""``trace_context.py``: what is valid is gone on with, what is not is nobody's trace."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.trace_context import TraceContext, begin, read

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
VALID = f"00-{TRACE}-{SPAN}-01"

CONTEXTS = st.builds(
    TraceContext, st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1), st.integers(0, 3)
)  # fmt: skip


@given(CONTEXTS)
def test_what_is_written_is_read(context: TraceContext) -> None:
    assert read(context.header()) == context


def test_a_header_is_read_as_the_recommendation_has_it() -> None:
    context = read(VALID.encode())
    assert context == TraceContext(int(TRACE, 16), int(SPAN, 16), 1)
    assert context.is_sampled
    assert context.child(1).header() == f"00-{TRACE}-{1:016x}-01".encode()


@pytest.mark.parametrize(
    ("value", "is_sampled"),
    [
        (VALID[:-2] + "00", False),
        (VALID[:-2] + "fe", False),  # flags that nobody knows yet
        (f"  {VALID}\t", True),
        (f"cc-{TRACE}-{SPAN}-01", True),  # a later version
        (f"cc-{TRACE}-{SPAN}-01-what-the-future-will-be-like", True),
    ],
)
def test_what_may_be_used_is_used(value: str, is_sampled: bool) -> None:
    context = read(value.encode())
    assert context is not None
    assert context.is_sampled is is_sampled
    assert context.flags in {0, 1, 2, 3}


@pytest.mark.parametrize(
    "value",
    [
        "",
        "00",
        VALID.upper(),
        f"ff-{TRACE}-{SPAN}-01",
        f"0-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[1:]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-01-more",
        f"cc-{TRACE}-{SPAN}-01.more",
        f"00-{TRACE[:-1]}g-{SPAN}-01",
        f"{VALID},{VALID}",
    ],
)
def test_what_may_not_be_used_is_not(value: str) -> None:
    assert read(value.encode()) is None


def test_no_header_is_no_trace() -> None:
    assert read(None) is None


@given(st.binary(max_size=80))
def test_whatever_comes_is_read_or_not(value: bytes) -> None:
    context = read(value)
    assert context is None or (context.trace_id and context.span_id)


def test_a_trace_that_begins_says_that_its_id_is_random() -> None:
    assert begin(1, 2, is_sampled=True).header().endswith(b"-03")
    assert not begin(1, 2, is_sampled=False).is_sampled
