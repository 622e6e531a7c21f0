"""``/inference/v1/generate`` as vLLM 0.32.0 reads and answers it: tokens in, tokens out.

Knows the body, of which everything but the prompt may be left out, and the shapes of the answers. Never knows an engine.
"""

from typing import Any, ClassVar

import msgspec

from simulations.fake.asks import DONE, Answer, Ask, Refused, check_salt, check_tokens, decode, sse
from simulations.fake.completions import StreamOptions
from simulations.fake.samples import Sample
from simulations.fake.tokenizer import Tokenizer


class SamplingParams(msgspec.Struct):
    max_tokens: int | None = None
    n: int = 1
    ignore_eos: bool = False
    stop_token_ids: list[int] | None = None
    prompt_logprobs: int | None = None
    skip_reading_prefix_cache: bool | None = None


class GenerateBody(msgspec.Struct):
    token_ids: list[int]
    sampling_params: SamplingParams
    model: str | None = None
    request_id: str | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    cache_salt: str | None = None
    kv_transfer_params: dict[str, Any] | None = None
    output_mode: str = "tokens"


class Generate:
    id_prefix: ClassVar[str] = "generate-tokens-"

    def read(self, body: bytes, tokenizer: Tokenizer) -> Ask:
        fields = decode(body, GenerateBody)
        if not fields.token_ids:
            message = "1 validation error:\n  List should have at least 1 item after validation, not 0"
            raise Refused(message, param="body.token_ids", kind="Bad Request")
        params = fields.sampling_params
        options = fields.stream_options or StreamOptions()
        skips = params.skip_reading_prefix_cache
        return Ask(
            model=fields.model,
            prompts=(check_tokens(fields.token_ids),),
            max_tokens=params.max_tokens,
            n=params.n,
            is_streamed=bool(fields.stream),
            has_usage=bool(options.include_usage),
            has_continuous_usage=bool(options.continuous_usage_stats),
            returns_tokens=bool(fields.return_token_ids),
            returns_text=fields.output_mode == "text",
            salt=check_salt(fields.cache_salt),
            has_prompt_logprobs=params.prompt_logprobs is not None,
            skip_cache=params.prompt_logprobs is not None if skips is None else skips,
            ignore_eos=params.ignore_eos,
            stop_token_ids=tuple(params.stop_token_ids or ()),
            request_id=fields.request_id,
            transfer=fields.kv_transfer_params,
        )

    def whole(self, answer: Answer) -> dict[str, Any]:
        return {
            "request_id": answer.id,
            "model": answer.model,
            "created": answer.created,
            "usage": answer.usage(),
            "prompt_logprobs": answer.prompt_logprobs(answer.ask.prompts[0]),
            "prompt_token_id_logprobs": None,
            "prompt_token_ids": answer.ask.prompts[0] if answer.ask.returns_tokens else None,
            "mm_placeholders": None,
            "metrics": None,
            "kv_transfer_params": answer.transfer,
            "ec_transfer_params": None,
            "output_mode": self._mode(answer),
            "choices": [self._choice(answer, sample, sample.tokens) for sample in answer.samples],
        }

    def delta(self, answer: Answer, sample: Sample, is_first: bool) -> list[bytes]:
        ask = answer.ask
        chunk: dict[str, Any] = {
            "request_id": answer.id,
            "usage": answer.counts() if ask.has_continuous_usage else None,
        }
        if is_first and ask.returns_tokens:
            chunk["prompt_token_ids"] = sample.prompt
        chunk["output_mode"] = self._mode(answer)
        chunk["choices"] = [self._choice(answer, sample, sample.read())]
        return [sse(chunk)]

    def closing(self, answer: Answer) -> list[bytes]:
        if not answer.ask.has_usage:
            return [DONE]
        usage = answer.final_usage()
        return [sse({"request_id": answer.id, "usage": usage, "output_mode": self._mode(answer), "choices": []}), DONE]

    def _mode(self, answer: Answer) -> str:
        return "text" if answer.ask.returns_text else "tokens"

    def _choice(self, answer: Answer, sample: Sample, tokens: list[int]) -> dict[str, Any]:
        versions = [{"version": "default", "start": 0, "end": len(sample.tokens)}]
        choice: dict[str, Any] = {
            "index": sample.index,
            "finish_reason": sample.finish_reason,
            "stop_reason": answer.stop_reason(sample),
            "token_ids": tokens,
            "routed_experts": None,
            "sampling_mask": None,
            "weight_versions": versions if sample.finish_reason else None,
        }
        if answer.ask.returns_text:
            choice["text"] = answer.text(sample, tokens)
        choice["logprobs"] = None
        return choice
