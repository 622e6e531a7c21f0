"""``/v1/chat/completions`` as vLLM 0.32.0 reads and answers it.

Knows messages of text and the shapes of the answers. Never knows an engine.
"""

from collections.abc import Iterable
from typing import Any, ClassVar

import msgspec

from simulations.fake.asks import DONE, Answer, Ask, Refused, check_salt, decode, sse
from simulations.fake.completions import StreamOptions
from simulations.fake.samples import Sample
from simulations.fake.tokenizer import Tokenizer


class Part(msgspec.Struct):
    type: str = "text"
    text: str = ""


class Message(msgspec.Struct):
    role: str
    content: str | list[Part] | None = None


class ChatBody(msgspec.Struct):
    messages: list[Message]
    model: str | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    add_generation_prompt: bool = True
    n: int | None = 1
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    cache_salt: str | None = None
    kv_transfer_params: dict[str, Any] | None = None
    prompt_logprobs: int | None = None
    ignore_eos: bool = False
    stop_token_ids: list[int] | None = None
    request_id: str | None = None


def text_of(content: str | Iterable[Part] | None) -> str:
    """The text of a message, whose parts stand on lines of their own.

    Raises:
        Refused: a part is not text.
    """
    if content is None or isinstance(content, str):
        return content or ""
    parts = list(content)
    for part in parts:
        if part.type not in {"text", "input_text", "output_text"}:
            raise Refused(f"At most 0 {part.type.removesuffix('_url')}(s) may be provided in one prompt.")
    return "\n".join(part.text for part in parts)


def render(messages: Iterable[Message], tokenizer: Tokenizer, *, is_open: bool = True) -> list[int]:
    """A conversation as token ids.

    Raises:
        Refused: it is empty, or has anything but text in it.
    """
    turns = [(message.role, text_of(message.content)) for message in messages]
    if not turns:
        raise Refused("Cannot apply chat template to an empty conversation. Provide at least one message.")
    return tokenizer.render_chat(turns, is_open=is_open)


class Chat:
    id_prefix: ClassVar[str] = "chatcmpl-"

    def read(self, body: bytes, tokenizer: Tokenizer) -> Ask:
        fields = decode(body, ChatBody)
        options = fields.stream_options or StreamOptions()
        limit = fields.max_completion_tokens
        # vLLM >= 0.28: whoever has the tokens already need not have them made again.
        given = (fields.kv_transfer_params or {}).pop("prompt_token_ids", None)
        prompt = given or render(fields.messages, tokenizer, is_open=fields.add_generation_prompt)
        return Ask(
            model=fields.model,
            prompts=(prompt,),
            max_tokens=fields.max_tokens if limit is None else limit,
            n=fields.n or 1,
            is_streamed=bool(fields.stream),
            has_usage=bool(options.include_usage),
            has_continuous_usage=bool(options.continuous_usage_stats),
            returns_tokens=bool(fields.return_token_ids),
            salt=check_salt(fields.cache_salt),
            skip_cache=fields.prompt_logprobs is not None,
            has_prompt_logprobs=fields.prompt_logprobs is not None,
            ignore_eos=fields.ignore_eos,
            stop_token_ids=tuple(fields.stop_token_ids or ()),
            request_id=fields.request_id,
            transfer=fields.kv_transfer_params,
        )

    def whole(self, answer: Answer) -> dict[str, Any]:
        returns_tokens = answer.ask.returns_tokens
        choices = [
            {
                "index": sample.index,
                "message": {
                    "role": "assistant",
                    "content": answer.text(sample, sample.tokens),
                    "refusal": None,
                    "annotations": None,
                    "audio": None,
                    "function_call": None,
                    "reasoning": None,
                },
                "logprobs": None,
                "finish_reason": sample.finish_reason,
                "stop_reason": answer.stop_reason(sample),
                "token_ids": sample.tokens if returns_tokens else None,
                "routed_experts": None,
            }
            for sample in answer.samples
        ]
        usage = answer.usage()
        if usage["prompt_tokens_details"]:
            usage["prompt_tokens_details"]["created_cache_tokens"] = 0
        return {
            "id": answer.id,
            "object": "chat.completion",
            "created": answer.created,
            "model": answer.model,
            "choices": choices,
            "service_tier": None,
            "system_fingerprint": answer.fingerprint,
            "usage": usage,
            "prompt_logprobs": answer.prompt_logprobs(answer.ask.prompts[0]),
            "prompt_token_ids": answer.ask.prompts[0] if returns_tokens else None,
            "prompt_text": None,
            "kv_transfer_params": answer.transfer,
            "ec_transfer_params": None,
            "metrics": None,
        }

    def delta(self, answer: Answer, sample: Sample, is_first: bool) -> list[bytes]:
        # What is said before the first token counts none of them.
        opening = [self._opening(answer, sample)] if is_first else []
        tokens = sample.read()
        choice: dict[str, Any] = {
            "index": sample.index,
            "delta": {"content": answer.text(sample, tokens)},
            "logprobs": None,
            "finish_reason": sample.finish_reason,
        }
        if sample.finish_reason:
            choice["stop_reason"] = answer.stop_reason(sample)
        choice["token_ids"] = tokens if answer.ask.returns_tokens else None
        chunk = {**self._chunk(answer), "choices": [choice]}
        if answer.ask.has_continuous_usage:
            chunk["usage"] = {**answer.counts(), "completion_tokens_details": None}
        if sample.finish_reason and not answer.ask.has_usage:
            chunk["system_fingerprint"] = answer.fingerprint
        return [*opening, sse(chunk)]

    def _opening(self, answer: Answer, sample: Sample) -> bytes:
        delta = {"role": "assistant", "content": ""}
        choice = {"index": sample.index, "delta": delta, "logprobs": None, "finish_reason": None}
        chunk = {**self._chunk(answer), "choices": [choice]}
        if answer.ask.has_continuous_usage:
            prompt = answer.prompt_tokens
            counts = {"prompt_tokens": prompt, "total_tokens": prompt, "completion_tokens": 0}
            chunk["usage"] = {**counts, "completion_tokens_details": None}
        chunk["prompt_token_ids"] = sample.prompt if answer.ask.returns_tokens else None
        chunk["prompt_text"] = None
        return sse(chunk)

    def closing(self, answer: Answer) -> list[bytes]:
        if not answer.ask.has_usage:
            return [DONE]
        usage = answer.final_usage()
        if "prompt_tokens_details" in usage:
            usage["prompt_tokens_details"]["created_cache_tokens"] = 0
        chunk = {**self._chunk(answer), "choices": [], "usage": usage, "system_fingerprint": answer.fingerprint}
        return [sse(chunk), DONE]

    def _chunk(self, answer: Answer) -> dict[str, Any]:
        return {"id": answer.id, "object": "chat.completion.chunk", "created": answer.created, "model": answer.model}
