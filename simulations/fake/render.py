"""The ``/render`` paths as vLLM 0.32.0 answers them: what a body comes down to in tokens, without asking the model.

Knows the shape of the result, which is a body for ``/inference/v1/generate``. Never knows an engine.
"""

from collections.abc import Sequence
from typing import Any

from simulations.fake.asks import Ask


def render(ask: Ask, name: str, model: str, max_model_len: int) -> list[dict[str, Any]]:
    """One result for each prompt of the request."""
    several = len(ask.prompts) > 1
    return [
        _result(ask, f"{name}-{number}" if several else name, model, prompt, max_model_len)
        for number, prompt in enumerate(ask.prompts)
    ]


def _result(ask: Ask, name: str, model: str, prompt: Sequence[int], max_model_len: int) -> dict[str, Any]:
    return {
        "request_id": name,
        "token_ids": prompt,
        "token_offsets": None,
        "features": None,
        "content_parts": None,
        "sampling_params": _sampling_params(ask, max_model_len - len(prompt)),
        "model": model,
        "reasoning_ended": None,
        "reasoning_parser_kwargs": None,
        "return_token_ids": ask.returns_tokens or None,
        "output_mode": "tokens",
        "stream": ask.is_streamed,
        "stream_options": None,
        "cache_salt": ask.salt,
        "priority": 0,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
    }


def _sampling_params(ask: Ask, room: int) -> dict[str, Any]:
    params: dict[str, Any] = {
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "temperature": 1.0,
        "top_p": 1.0,
        "min_p": 0.0,
        "stop": [],
        "stop_token_ids": ask.stop_token_ids,
    }
    if ask.ignore_eos:
        params["ignore_eos"] = True
    # A completion without a limit is rendered without one; the other APIs fill the context.
    if ask.max_tokens is not None or ask.default_max_tokens is None:
        params["max_tokens"] = room if ask.max_tokens is None else ask.max_tokens
    return {
        **params,
        "output_kind": 2,
        "skip_clone": True,
        **({} if ask.extra_args is None else {"extra_args": ask.extra_args}),
        "bad_words": [],
        "skip_reading_prefix_cache": ask.skip_cache,
    }
