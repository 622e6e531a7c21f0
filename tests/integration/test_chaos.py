"""Some seconds of ``python -m tests.chaos.run``: all is hurt that can be, under load, and every request is counted."""

import asyncio
import json
from pathlib import Path

import pytest

from tests.chaos.asks import Ask
from tests.chaos.client import Answer
from tests.chaos.ledger import Ending, Ledger, judge
from tests.chaos.run import Plan, chaos

SECONDS = 240


@pytest.mark.parametrize("processes", [1, 2])
def test_whatever_is_done_to_replicas_no_request_is_lost_and_nothing_stays(processes: int, tmp_path: Path) -> None:
    plan = Plan(
        seconds=15,
        processes=processes,
        seed=5,
        rate=10.0,
        warm_up=4.0,
        idle=5.0,
        patience=30.0,
        haste=2.0,
        has_quick_probes=True,
    )

    async def run() -> None:
        async with asyncio.timeout(SECONDS):
            told = await chaos(plan, tmp_path)
        assert told["violations"] == [], json.dumps(told, indent=1)
        assert told["endings"]["whole"] > 0
        assert sum(told["faults"].values()) > 2

    asyncio.run(run())


# The ledger itself

STREAMED = Ask("/v1/completions", b"", True, " one two", 3, 2)
PLAIN = Ask("/v1/chat/completions", b"", False, " one two", 3, 2)
USAGE = '"usage":{"prompt_tokens":3,"completion_tokens":2}'


def event(text: str, reason: str | None = None) -> str:
    return "data: " + json.dumps({"choices": [{"text": text, "finish_reason": reason}]}) + "\n\n"


BEGUN = event(" one")
LAST = event(" two", "length") + 'data: {"choices":[],' + USAGE + "}\n\n"
ERROR = 'data: {"error":{"message":"broke off"}}\n\n'
DONE = "data: [DONE]\n\n"


def answer(body: str, *, is_whole: bool = True, status: int = 200, has_hung: bool = False) -> Answer:
    made = Answer()
    made.status, made.body, made.is_whole, made.has_begun = status, bytearray(body.encode()), is_whole, bool(status)
    made.has_hung = has_hung
    return made


@pytest.mark.parametrize(
    ("given", "ending"),
    [
        (answer(BEGUN + LAST + DONE), Ending.WHOLE),
        (answer(BEGUN + LAST), Ending.WRONG),
        (answer(BEGUN + DONE), Ending.WRONG),
        (answer(BEGUN.replace("one", "1") + LAST + DONE), Ending.WRONG),
        (answer(BEGUN + LAST.replace(":3", ":4") + DONE), Ending.WRONG),
        (answer(BEGUN + ERROR + DONE), Ending.WRONG),
        (answer(BEGUN + event("", "abort") + DONE), Ending.ABORTED),
        (answer(event(" other", "abort") + DONE), Ending.WRONG),
        (answer(BEGUN + ERROR, is_whole=False), Ending.TOLD),
        (answer(BEGUN + BEGUN[:20] + "\n\n" + ERROR, is_whole=False), Ending.TOLD),
        (answer(BEGUN, is_whole=False), Ending.WRONG),
        (answer(event(" other") + ERROR, is_whole=False), Ending.WRONG),
        (answer(BEGUN + LAST + DONE, is_whole=False), Ending.WRONG),
        (answer(BEGUN, is_whole=False, has_hung=True), Ending.HUNG),
        (answer("{}", status=502), Ending.REFUSED),
        (answer("", status=0, is_whole=False), Ending.FAILED),
    ],
)
def test_the_ending_of_a_stream_is_known(given: Answer, ending: Ending) -> None:
    assert judge(STREAMED, given)[0] is ending


def plain(text: str, reason: str = "length") -> str:
    return json.dumps({"choices": [{"message": {"content": text}, "finish_reason": reason}]})[:-1] + "," + USAGE + "}"


@pytest.mark.parametrize(
    ("given", "ending"),
    [
        (answer(plain(" one two")), Ending.WHOLE),
        (answer(plain(" one")), Ending.WRONG),
        (answer(plain(" one", "abort")), Ending.ABORTED),
        (answer(plain(" one two")[:-1]), Ending.WRONG),
        (answer(plain(" one two")[:-1], is_whole=False), Ending.TOLD),
    ],
)
def test_the_ending_of_a_plain_answer_is_known(given: Answer, ending: Ending) -> None:
    assert judge(PLAIN, given)[0] is ending


def test_what_fails_while_somebody_is_well_is_a_violation() -> None:
    ledger = Ledger()
    for given in (answer("{}", status=502), answer(BEGUN, is_whole=False), answer(BEGUN + LAST + DONE)):
        for was_anybody_well in (True, False):
            ledger.add(STREAMED, given, 1.0, was_anybody_well=was_anybody_well)
    assert (len(ledger.violations), ledger.excused) == (3, 1), "a stream that ends without a word never may"
