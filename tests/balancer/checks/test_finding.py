"""``checks/finding.py``: many subjects are few lines, and the worst of all is the verdict."""

from balancer.checks.finding import Verdict, broken, degraded, gathered, ok, skipped, worst


def test_subjects_of_which_the_same_is_said_share_a_line() -> None:
    results = gathered(
        "events",
        [ok("a", "on"), broken("b", "off", "turn it on"), ok("c", "on"), ok("d", "on"), ok("e", "on")]
        + [broken(name, "late", "wait") for name in "fghi"],
    )
    assert [str(each) for each in results] == [
        "ok        events     a, c, d and 1 more: on",
        "broken    events     b: off; turn it on",
        "broken    events     f, g, h, i: late; wait",
    ]


def test_findings_with_other_remedies_are_told_apart() -> None:
    assert len(gathered("x", [degraded("a", "off", "do this"), degraded("b", "off", "do that")])) == 2


def test_the_worst_is_the_verdict_and_what_was_skipped_says_nothing() -> None:
    findings = [skipped("a", "?"), ok("b", "on"), degraded("c", "slow", "mend it"), broken("d", "off", "mend it")]
    seen = [worst(gathered("x", findings[:count])) for count in range(5)]
    assert seen == [Verdict.OK, Verdict.OK, Verdict.OK, Verdict.DEGRADED, Verdict.BROKEN]


def test_what_an_engine_says_is_one_line_without_orders_to_a_terminal() -> None:
    (result,) = gathered("x", [broken("a", "it says '\x1b[2J\n'", "mend it")])
    assert str(result) == "broken    x          a: it says '\\x1b[2J\\n'; mend it"
