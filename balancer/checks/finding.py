"""What a check says, and how many findings become few lines.

Knows verdicts and subjects. Never knows what was checked.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from balancer.words import printable

SHOWN: Final = 3
"""Subjects that a line names where all is well; the rest is counted."""


class Verdict(StrEnum):
    """How serious it is, from nothing to everything."""

    SKIPPED = "skipped"  # nothing could be said
    OK = "ok"
    DEGRADED = "degraded"  # works, with less than there could be
    BROKEN = "broken"  # does not do what it is there for

    @property
    def rank(self) -> int:
        """The higher, the worse."""
        return list(Verdict).index(self)


class Finding(msgspec.Struct, frozen=True):
    """One subject's result; ``remedy`` is what to do about it, empty where there is nothing to do."""

    verdict: Verdict
    subject: str
    told: str
    remedy: str = ""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """All subjects of one check of which the same is to be said."""

    check: str
    verdict: Verdict
    subjects: list[str]
    told: str
    remedy: str = ""

    def __str__(self) -> str:
        shown = SHOWN if self.verdict is Verdict.OK else len(self.subjects)
        named = ", ".join(self.subjects[:shown])
        more = f" and {len(self.subjects) - shown} more" if len(self.subjects) > shown else ""
        remedy = f"; {self.remedy}" if self.remedy else ""
        return printable(f"{self.verdict:<8}  {self.check:<9}  {named}{more}: {self.told}{remedy}")


def ok(subject: str, told: str) -> Finding:
    return Finding(Verdict.OK, subject, told)


def degraded(subject: str, told: str, remedy: str) -> Finding:
    return Finding(Verdict.DEGRADED, subject, told, remedy)


def broken(subject: str, told: str, remedy: str) -> Finding:
    return Finding(Verdict.BROKEN, subject, told, remedy)


def skipped(subject: str, told: str, remedy: str = "") -> Finding:
    return Finding(Verdict.SKIPPED, subject, told, remedy)


def gathered(check: str, findings: Iterable[Finding]) -> list[Result]:
    """One result for all subjects with the same to say, in the order in which they were found."""
    grouped: dict[tuple[Verdict, str, str], list[str]] = {}
    for each in findings:
        grouped.setdefault((each.verdict, each.told, each.remedy), []).append(each.subject)
    return [
        Result(check=check, verdict=verdict, subjects=subjects, told=told, remedy=remedy)
        for (verdict, told, remedy), subjects in grouped.items()
    ]


def worst(results: Sequence[Result]) -> Verdict:
    """The most serious verdict of all; ok when nothing could be said."""
    return max(
        (each.verdict for each in results if each.verdict is not Verdict.SKIPPED),
        key=lambda v: v.rank,
        default=Verdict.OK,
    )
