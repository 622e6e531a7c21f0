"""Which label selectors are taken: those that the API server takes."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.discovery.selectors import problem


@pytest.mark.parametrize(
    "selector",
    [
        "app=vllm",
        "app==vllm",
        " app = vllm , canary != yes",
        "app in (vllm, vllm-lora)",
        "app in(vllm)",
        "app notin (a,b),tier",
        "app in (a,)",
        "!canary",
        "! canary,app",
        "app=",
        "app!=,x",
        "rank>3,rank<10",
        "app.kubernetes.io/name=kvlb",
        "in=a",
        "A_b.c=x_Y.z",
    ],
)
def test_what_the_server_takes_is_taken(selector: str) -> None:
    assert problem(selector) is None


@pytest.mark.parametrize(
    ("selector", "told"),
    [
        ("app in (x", "'app in (x' is no requirement"),
        ("a=b,app in (x", "'app in (x' is no requirement"),
        ("app in x", "is no requirement"),
        ("app in", "is no requirement"),
        ("appin (x)", "is no requirement"),
        ("app=vllm)", "is no requirement"),
        ("app=a b", "'app=a b' is no requirement"),
        ("app: vllm", "is no requirement"),
        ("a=b,", "it ends with a comma"),
        (",a=b", "is no requirement"),
        ("=b", "is no requirement"),
        ("!a=b", "is no requirement"),
        ("app===b", "is no requirement"),
        ("-app=b", "'-app' is no name of a label"),
        ("a/b/c=d", "'a/b/c' is no name of a label"),
        ("a..b/c=d", "'a..b/c' is no name of a label"),
        ("UP.io/a=d", "'UP.io/a' is no name of a label"),
        ("app=-b", "'-b' is no value of a label"),
        ("app in (a, b c)", "'b c' is no value of a label"),
        (f"app={'x' * 64}", "is no value of a label"),
        (f"{'x' * 64}=b", "is no name of a label"),
        (f"{'x' * 254}/a=b", "is no name of a label"),
        ("rank>many", "'many' is no number"),
    ],
)
def test_what_the_server_refuses_is_refused(selector: str, told: str) -> None:
    assert told in (problem(selector) or "")


WORDS = st.text(string.ascii_letters + string.digits, min_size=1, max_size=63)
ONES = st.one_of(
    WORDS,
    WORDS.map(lambda key: f"!{key}"),
    st.tuples(WORDS, st.sampled_from(["=", " = ", "==", "!="]), WORDS).map("".join),
    st.tuples(WORDS, st.sampled_from(["in", "notin"]), st.lists(WORDS, min_size=1)).map(
        lambda each: f"{each[0]} {each[1]} ({', '.join(each[2])})"
    ),
)


@given(st.lists(ONES, min_size=1, max_size=5))
def test_requirements_go_together(ones: list[str]) -> None:
    assert problem(",".join(ones)) is None
    assert problem(",".join(ones) + ",") is not None


@given(st.text(" ,()!=<>abin-/", max_size=40))
def test_any_text_ends_with_a_word_or_none(text: str) -> None:
    assert problem(text) != ""
