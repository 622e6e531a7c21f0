"""``/v1/completions`` as vLLM 0.32.0 reads and answers it.

Knows the four shapes of a prompt and the shapes of the answers. Never knows an engine.
"""

from typing import Any, ClassVar

import msgspec

from simulations.fake.asks import DONE, Answer, Ask, Refused, check_salt, check_tokens, decode, sse
from simulations.fake.samples import Sample
from simulations.fake.tokenizer import Tokenizer

_NULL = msgspec.Raw(b"null")


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class CompletionBody(msgspec.Struct):
    model: str | None = None
    prompt: msgspec.Raw = _NULL
    max_tokens: int | None = None
    n: int = 1
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    cache_salt: str | None = None
    kv_transfer_params: dict[str, Any] | None = None
    prompt_logprobs: int | None = None
    ignore_eos: bool = False
    stop_token_ids: list[int] | None = None
    request_id: str | None = None


_ids = msgspec.json.Decoder(list[int])
_prompts = msgspec.json.Decoder(str | list[str | list[int]])


def read_prompts(raw: msgspec.Raw, tokenizer: Tokenizer) -> tuple[list[int], ...]:
    """The prompts of a body as token ids.

    Raises:
        Refused: none, or in no shape that vLLM takes.
    """
    try:
        one = _ids.decode(raw)
        if not one:
            raise Refused("You must pass at least one prompt")
        return (list(check_tokens(one)),)
    except msgspec.ValidationError:
        pass
    try:
        found = _prompts.decode(raw) if raw != _NULL else ""
    except msgspec.ValidationError as error:
        raise Refused(f"1 validation error:\n  {error}", param="body.prompt", kind="Bad Request") from None
    many = [found] if isinstance(found, str) else found
    if len({type(each) for each in many}) > 1:
        raise Refused("1 validation error:\n  texts and ids are mixed", param="body.prompt", kind="Bad Request")
    if found == "":
        message = "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)"
        raise Refused(message, param="prompt")
    prompts = [tokenizer.encode(each) if isinstance(each, str) else list(check_tokens(each)) for each in many]
    if not all(prompts):
        raise Refused("The decoder prompt cannot be empty")
    return tuple(prompts)


class Completions:
    id_prefix: ClassVar[str] = "cmpl-"

    def read(self, body: bytes, tokenizer: Tokenizer) -> Ask:
        fields = decode(body, CompletionBody)
        options = fields.stream_options or StreamOptions()
        return Ask(
            model=fields.model,
            prompts=read_prompts(fields.prompt, tokenizer),
            max_tokens=fields.max_tokens,
            default_max_tokens=16,
            n=fields.n,
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
                "index": index,
                "text": answer.text(sample, sample.tokens),
                "logprobs": None,
                "finish_reason": sample.finish_reason,
                "stop_reason": answer.stop_reason(sample),
                "token_ids": sample.tokens if returns_tokens else None,
                "prompt_logprobs": answer.prompt_logprobs(sample.prompt),
                "prompt_token_ids": sample.prompt if returns_tokens else None,
                "routed_experts": None,
            }
            for index, sample in enumerate(answer.samples)
        ]
        return {
            "id": answer.id,
            "object": "text_completion",
            "created": answer.created,
            "model": answer.model,
            "choices": choices,
            "service_tier": None,
            "system_fingerprint": answer.fingerprint,
            "usage": answer.usage(),
            "kv_transfer_params": answer.transfer,
            "ec_transfer_params": None,
            "metrics": None,
        }

    def delta(self, answer: Answer, sample: Sample, is_first: bool) -> list[bytes]:
        ask, tokens = answer.ask, sample.read()
        chunk = self._chunk(answer)
        chunk["choices"] = [
            {
                "index": sample.index,
                "text": answer.text(sample, tokens),
                "logprobs": None,
                "finish_reason": sample.finish_reason,
                "stop_reason": answer.stop_reason(sample),
                "prompt_token_ids": sample.prompt if ask.returns_tokens and is_first else None,
                "token_ids": tokens if ask.returns_tokens else None,
            }
        ]
        if ask.has_continuous_usage:
            chunk["usage"] = answer.counts()
        if sample.finish_reason and not ask.has_usage:
            chunk["system_fingerprint"] = answer.fingerprint
        return [sse(chunk)]

    def closing(self, answer: Answer) -> list[bytes]:
        if not answer.ask.has_usage:
            return [DONE]
        usage = {"choices": [], "usage": answer.final_usage(), "system_fingerprint": answer.fingerprint}
        return [sse({**self._chunk(answer), **usage}), DONE]

    def _chunk(self, answer: Answer) -> dict[str, Any]:
        return {"id": answer.id, "object": "text_completion", "created": answer.created, "model": answer.model}
