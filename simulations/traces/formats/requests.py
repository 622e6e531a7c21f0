"""Logs of OpenAI requests: bodies as clients sent them, with times and answers where these were kept; one JSON object a line.

Knows ``body`` or ``request`` (or the line itself) with ``messages``, ``prompt`` or ``input``, and where answers tell their
length. Never keeps a text, and never repeats one.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from simulations.traces.formats.base import Desk, formats, message_of
from simulations.traces.formats.ids import decoded, name_of, whole
from simulations.traces.formats.spoken import Scribe
from simulations.traces.texts import text_of, text_of_chat
from simulations.traces.times import Clock, kind_of
from simulations.traces.trace import TraceBuilder, TraceError

_BODIES: Final = ("body", "request", "request_body")
_ANSWERS: Final = ("response", "response_body", "answer")
_TIMES: Final = ("timestamp", "time", "ts", "created_at", "created")


@formats.register("requests")
class Requests(msgspec.Struct, frozen=True):
    def recognises(self, first: bytes, fields: Mapping[str, Any] | None) -> bool:
        if fields is None or "kvlb_recording" in fields:
            return False
        return bool(fields.keys() & {*_BODIES, "messages"}) or (
            "model" in fields and bool(fields.keys() & {"prompt", "input"})
        )

    def read(self, desk: Desk) -> TraceBuilder:
        scribe, clock, options = Scribe(desk), Clock(desk.options.time_unit), desk.options
        told_tokens = counted_tokens = 0
        for number, line in desk.records():
            try:
                told = decoded(line)
                body = _object(told, _BODIES) or told
                prompts = list(_prompts(scribe, body))
                if not prompts:
                    raise TraceError("body", "has neither messages, prompt nor input")
                usage = _usage(told)
                at = told.get(options.columns["timestamp"]) if "timestamp" in options.columns else _first(told, _TIMES)
                arrival = scribe.next_arrival() if at is None else clock.seconds(at)
                answer = _answer(scribe, told, usage)
                scribe.unanswered += answer is None
                session = name_of(told.get(options.column("session_id")), "session_id")
                made = [scribe.prompt(prompt) for prompt in prompts]
                for length, ids in made:
                    scribe.builder.add(arrival, length, max(1, (answer or 1) // len(made)), ids, session=session)
                if said := usage.get("prompt_tokens", usage.get("input_tokens", 0)):
                    told_tokens += said
                    counted_tokens += sum([length for length, _ in made])
            except TraceError as error:
                desk.skip(number, options.column(error.field), message_of(error))
        scribe.tell(desk)
        if not clock.was_told and clock.unit is not None:
            desk.note(f"times are taken for {clock.unit}; --time-unit says otherwise")
        if told_tokens:
            desk.note(f"prompts have {counted_tokens / told_tokens:.2f} times the tokens that answers' usage says")
        return scribe.builder


def _prompts(scribe: Scribe, body: Mapping[str, Any]) -> Iterator[object]:
    """The prompts of one body, as texts or token ids."""
    system = _system(body)
    if "messages" in body:
        scribe.has_chats = True
        messages = body["messages"]
        if system and isinstance(messages, list):
            messages = [{"role": "system", "content": system}, *messages]
        yield text_of_chat(messages, body.get("tools"))
    elif "prompt" in body:
        prompt = body["prompt"]
        if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
            yield from prompt
        else:
            yield prompt
    elif "input" in body:
        scribe.has_chats = True
        said = body["input"]
        messages = said if isinstance(said, list) else [{"role": "user", "content": said}]
        yield text_of_chat(
            [*([{"role": "system", "content": system}] if system else []), *messages], body.get("tools"), "input"
        )


def _system(body: Mapping[str, Any]) -> str:
    """What stands before the messages in other dialects than chat completions."""
    found = body.get("system", body.get("instructions"))
    return text_of(found, "system") if found else ""


def _object(told: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any] | None:
    """The first of these that is there, as an object; some logs have it as a text of JSON."""
    value = _first(told, names)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise TraceError(names[0], "is a text that is no JSON") from None
    if value is not None and not isinstance(value, dict):
        raise TraceError(names[0], f"must be an object, got {kind_of(value)}")
    return value


def _first(told: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((told[name] for name in names if told.get(name) is not None), None)


def _responded(told: Mapping[str, Any]) -> dict[str, Any]:
    response = _first(told, _ANSWERS)
    if not isinstance(response, dict):
        return {}
    inner = response.get("body")
    return inner if isinstance(inner, dict) else response


def _usage(told: Mapping[str, Any]) -> dict[str, Any]:
    for holder in (told, _responded(told)):
        if isinstance(usage := holder.get("usage"), dict):
            return {name: value for name, value in usage.items() if isinstance(value, int)}
    return {}


def _answer(scribe: Scribe, told: Mapping[str, Any], usage: Mapping[str, Any]) -> int | None:
    """Tokens of the answer; None where nobody says."""
    said = usage.get("completion_tokens", usage.get("output_tokens"))
    if said is not None:
        return whole(said, "usage")
    response = _first(told, _ANSWERS)
    if isinstance(response, str):
        return scribe.tokens(response)
    choices = _responded(told).get("choices")
    if not isinstance(choices, list):
        return None
    texts = []
    for choice in choices:
        if isinstance(choice, dict):
            message = choice.get("message")
            found = message.get("content") if isinstance(message, dict) else choice.get("text")
            texts.append(found if isinstance(found, str) else "")
    return sum([scribe.tokens(text) for text in texts]) or None
