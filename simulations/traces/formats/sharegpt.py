"""ShareGPT's conversations, one JSON list or one object a line, as ``vllm bench`` takes them.

Knows ``conversations``: texts (``value``) by turns of somebody (``from``). Each turn of the model becomes a request whose
prompt is all that was said before, so a conversation is played as it was; ``vllm bench`` plays its first turn only. There are
no times.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from simulations.traces.formats.base import Desk, formats, message_of
from simulations.traces.formats.ids import decoded
from simulations.traces.formats.spoken import DECODE_SECONDS, Scribe
from simulations.traces.texts import text_of_chat
from simulations.traces.times import kind_of
from simulations.traces.trace import TraceBuilder, TraceError

_MODEL: Final = frozenset({"gpt", "chatgpt", "assistant", "bing", "bard", "model"})
_ROLES: Final = {"human": "user", "user": "user", "system": "system"}


@formats.register("sharegpt")
class ShareGpt(msgspec.Struct, frozen=True):
    def recognises(self, first: bytes, fields: Mapping[str, Any] | None) -> bool:
        return fields is not None and ("conversations" in fields or "conversation" in fields)

    def read(self, desk: Desk) -> TraceBuilder:
        scribe = Scribe(desk)
        scribe.has_chats = True
        pause = desk.options.pause
        silent = 0
        for number, line in desk.records():
            try:
                messages = _messages(decoded(line))
                turns = [at for at, message in enumerate(messages) if at and message["role"] == "assistant"]
                silent += not turns
                arrival = scribe.next_arrival() if turns else 0.0
                for turn, at in enumerate(turns):
                    answer = max(1, scribe.tokens(messages[at]["content"]))
                    length, ids = scribe.prompt(text_of_chat(messages[:at]))
                    scribe.builder.add(arrival, length, answer, ids, session=number, pause=pause if turn else None)
                    arrival += answer * DECODE_SECONDS + pause
            except TraceError as error:
                desk.skip(number, error.field, message_of(error))
        scribe.tell(desk)
        desk.note(f"the next turn follows {pause:g} seconds after an answer (--pause)")
        if silent:
            desk.note(f"{silent:,} conversations have no answer behind a question, and were left out")
        return scribe.builder


def _messages(told: Mapping[str, Any]) -> list[dict[str, str]]:
    turns = told.get("conversations", told.get("conversation"))
    if not isinstance(turns, list):
        raise TraceError("conversations", f"must be a list of turns, got {kind_of(turns)}")
    messages = []
    for turn in turns:
        said = turn.get("value", turn.get("content")) if isinstance(turn, dict) else None
        if not isinstance(said, str):
            raise TraceError("conversations", f"must hold turns with from and value, got {kind_of(turn)}")
        who = str(turn.get("from", turn.get("role"))).lower()
        messages.append({"role": "assistant" if who in _MODEL else _ROLES.get(who, "user"), "content": said})
    return messages
