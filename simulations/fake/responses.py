"""``/v1/responses`` as vLLM 0.32.0 reads and answers it, as far as text goes.

Knows an input of text or of messages and the events of a stream. Never knows tools, reasoning or stored conversations: they are
refused by nobody and ignored.
"""

from typing import Any, ClassVar

import msgspec

from simulations.fake.asks import Answer, Ask, check_salt, decode, named_sse
from simulations.fake.chat import Message, render
from simulations.fake.samples import Sample
from simulations.fake.tokenizer import Tokenizer


class ResponsesBody(msgspec.Struct):
    input: str | list[Message]
    model: str | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    stream: bool | None = False
    cache_salt: str | None = None
    kv_transfer_params: dict[str, Any] | None = None
    ignore_eos: bool = False
    request_id: str | None = None


class Responses:
    id_prefix: ClassVar[str] = "resp_"

    def read(self, body: bytes, tokenizer: Tokenizer) -> Ask:
        fields = decode(body, ResponsesBody)
        messages = [Message("user", fields.input)] if isinstance(fields.input, str) else fields.input
        if fields.instructions:
            messages = [Message("system", fields.instructions), *messages]
        return Ask(
            model=fields.model,
            prompts=(render(messages, tokenizer),),
            max_tokens=fields.max_output_tokens,
            is_streamed=bool(fields.stream),
            salt=check_salt(fields.cache_salt),
            transfer=fields.kv_transfer_params,
            ignore_eos=fields.ignore_eos,
            request_id=fields.request_id,
            extra_args={},
        )

    def whole(self, answer: Answer) -> dict[str, Any]:
        sample = answer.samples[0]
        is_cut = sample.finish_reason == "length"
        response = self._response(answer, "incomplete" if is_cut else "completed")
        response["incomplete_details"] = {"reason": "max_output_tokens"} if is_cut else None
        response["output"] = [self._item(answer, answer.text(sample, sample.tokens))]
        response["usage"] = self._usage(answer)
        return response

    def delta(self, answer: Answer, sample: Sample, is_first: bool) -> list[bytes]:
        text = answer.text(sample, sample.read())
        where = {**self._content(answer), "logprobs": []}
        event = self._event(answer, "output_text.delta", {**where, "delta": text})
        return [*self._opening(answer), event] if is_first else [event]

    def _opening(self, answer: Answer) -> list[bytes]:
        response = self._response(answer, "in_progress")
        response |= {"incomplete_details": None, "output": [], "usage": None}
        item = {**self._item(answer, ""), "content": [], "status": "in_progress"}
        part = {"annotations": [], "text": "", "type": "output_text", "logprobs": []}
        return [
            self._event(answer, "created", {"response": response}),
            self._event(answer, "in_progress", {"response": response}),
            self._event(answer, "output_item.added", {"item": item, "output_index": 0}),
            self._event(answer, "content_part.added", {**self._content(answer), "part": part}),
        ]

    def closing(self, answer: Answer) -> list[bytes]:
        sample = answer.samples[0]
        text = answer.text(sample, sample.tokens)
        item = self._item(answer, text)
        where = self._content(answer)
        return [
            self._event(answer, "output_text.done", {**where, "logprobs": [], "text": text}),
            self._event(answer, "content_part.done", {**where, "part": item["content"][0]}),
            self._event(answer, "output_item.done", {"item": item, "output_index": 0}),
            self._event(answer, "completed", {"response": self.whole(answer)}),
        ]

    def _event(self, answer: Answer, name: str, content: dict[str, Any]) -> bytes:
        kind = f"response.{name}"
        event = {**content, "sequence_number": answer.next_number(), "type": kind}
        return named_sse(kind, dict(sorted(event.items())))  # as vLLM orders them

    def _content(self, answer: Answer) -> dict[str, Any]:
        return {"content_index": 0, "item_id": self._item_id(answer), "output_index": 0}

    def _item_id(self, answer: Answer) -> str:
        return "msg_" + answer.id.removeprefix(self.id_prefix)

    def _item(self, answer: Answer, text: str) -> dict[str, Any]:
        return {
            "id": self._item_id(answer),
            "content": [{"annotations": [], "text": text, "type": "output_text", "logprobs": None}],
            "role": "assistant",
            "status": "completed",
            "type": "message",
            "phase": None,
        }

    def _usage(self, answer: Answer) -> dict[str, Any]:
        counts = answer.counts()
        return {
            "input_tokens": counts["prompt_tokens"],
            "input_tokens_details": {
                # vLLM fills this one in whether or not --enable-prompt-tokens-details is given.
                "cached_tokens": answer.cached_tokens,
                "cache_write_tokens": 0,
                "input_tokens_per_turn": [],
                "cached_tokens_per_turn": [],
            },
            "output_tokens": counts["completion_tokens"],
            "output_tokens_details": {
                "reasoning_tokens": 0,
                "tool_output_tokens": 0,
                "output_tokens_per_turn": [],
                "tool_output_tokens_per_turn": [],
            },
            "total_tokens": counts["total_tokens"],
        }

    def _response(self, answer: Answer, status: str) -> dict[str, Any]:
        return {
            "id": answer.id,
            "created_at": answer.created,
            "incomplete_details": None,
            "instructions": None,
            "metadata": None,
            "model": answer.model,
            "object": "response",
            "output": [],
            "parallel_tool_calls": True,
            "temperature": 1.0,
            "tool_choice": "none",
            "tools": [],
            "top_p": 1.0,
            "background": False,
            "max_output_tokens": answer.ask.max_tokens,
            "max_tool_calls": None,
            "previous_response_id": None,
            "prompt": None,
            "reasoning": None,
            "service_tier": "auto",
            "status": status,
            "text": None,
            "top_logprobs": None,
            "truncation": "disabled",
            "usage": None,
            "user": None,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "kv_transfer_params": answer.transfer,
            "ec_transfer_params": None,
            "input_messages": None,
            "output_messages": None,
        }
