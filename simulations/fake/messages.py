"""``/v1/messages`` as vLLM 0.32.0 reads and answers it: Anthropic's API, as far as text goes.

Knows the body and the events of a stream. Never knows tools; they are ignored.
"""

from typing import Any, ClassVar, Final

import msgspec

from simulations.fake.asks import Answer, Ask, check_salt, decode, named_sse
from simulations.fake.chat import Message, Part, render
from simulations.fake.samples import Sample
from simulations.fake.tokenizer import Tokenizer

STOP_REASONS: Final = {"length": "max_tokens", "stop": "end_turn", "abort": None}


class CountBody(msgspec.Struct):
    messages: list[Message]
    model: str | None = None
    system: str | list[Part] | None = None

    def prompt(self, tokenizer: Tokenizer) -> list[int]:
        """The conversation as token ids.

        Raises:
            Refused: it is empty, or has anything but text in it.
        """
        return render([Message("system", self.system), *self.messages] if self.system else self.messages, tokenizer)


class MessagesBody(CountBody, kw_only=True):
    max_tokens: int
    stream: bool | None = False
    cache_salt: str | None = None
    kv_transfer_params: dict[str, Any] | None = None
    ignore_eos: bool = False


class Messages:
    id_prefix: ClassVar[str] = "chatcmpl-"  # vLLM answers through its chat completions

    def read(self, body: bytes, tokenizer: Tokenizer) -> Ask:
        fields = decode(body, MessagesBody)
        return Ask(
            model=fields.model,
            prompts=(fields.prompt(tokenizer),),
            max_tokens=fields.max_tokens,
            is_streamed=bool(fields.stream),
            salt=check_salt(fields.cache_salt),
            transfer=fields.kv_transfer_params,
            ignore_eos=fields.ignore_eos,
        )

    def whole(self, answer: Answer) -> dict[str, Any]:
        sample = answer.samples[0]
        return {
            "id": answer.id,
            "type": "message",
            "role": "assistant",
            "content": [{"type": "text", "text": answer.text(sample, sample.tokens)}],
            "model": answer.model,
            "stop_reason": STOP_REASONS[sample.finish_reason or "stop"],
            "usage": self._usage(answer),
            **({} if answer.transfer is None else {"kv_transfer_params": answer.transfer}),
        }

    def delta(self, answer: Answer, sample: Sample, is_first: bool) -> list[bytes]:
        text = {"type": "text_delta", "text": answer.text(sample, sample.read())}
        event = self._event("content_block_delta", {"delta": text, "index": 0})
        return [*self._opening(answer), event] if is_first else [event]

    def _opening(self, answer: Answer) -> list[bytes]:
        message: dict[str, Any] = {
            "id": answer.id,
            "type": "message",
            "role": "assistant",
            "content": [],
            "model": answer.model,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": answer.prompt_tokens, "output_tokens": 0},
        }
        return [
            self._event("message_start", {"message": message}),
            self._event("content_block_start", {"content_block": {"type": "text", "text": ""}, "index": 0}),
        ]

    def closing(self, answer: Answer) -> list[bytes]:
        reason = STOP_REASONS[answer.samples[0].finish_reason or "stop"]
        delta = {"delta": {"stop_reason": reason, "stop_sequence": None}, "usage": self._usage(answer)}
        return [
            self._event("content_block_stop", {"index": 0}),
            self._event("message_delta", delta),
            self._event("message_stop", {}),
        ]

    def _event(self, kind: str, content: dict[str, Any]) -> bytes:
        return named_sse(kind, {"type": kind, **content})

    def _usage(self, answer: Answer) -> dict[str, Any]:
        usage: dict[str, Any] = {"input_tokens": answer.prompt_tokens, "output_tokens": answer.completion_tokens}
        if not answer.has_details:
            return usage
        # Anthropic counts what was read from the cache apart from the input.
        cached = answer.cached_tokens
        usage["input_tokens"] -= cached
        return {**usage, "cache_creation_input_tokens": 0, "cache_read_input_tokens": cached}
