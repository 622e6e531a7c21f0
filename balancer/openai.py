"""Request bodies of the inference endpoints -> what routing needs of them; answers -> what the engine says of itself.

Knows the OpenAI, Anthropic and tokens-in shapes as vLLM 0.32 reads them. Never changes a byte: the body that came is the body
that is forwarded, and a field that is not needed here is not looked at. What the engine would refuse is left for the engine to
refuse, in its own words; only a body whose model cannot be read is refused here.
"""

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final

import msgspec

from balancer.core import Truth
from balancer.errors import BadRequest, RequestError

_NULL: Final = msgspec.Raw(b"null")


class Kind(StrEnum):
    """How a path's body carries its prompt."""

    COMPLETION = "completion"  # `prompt`: text, texts, token ids, or lists of token ids
    CHAT = "chat"  # `messages`, rendered by a template; also /v1/responses and /v1/messages
    GENERATE = "generate"  # `token_ids`
    OPAQUE = "opaque"  # goes to any replica of the model


PATHS: Final[dict[str, Kind]] = {
    "/v1/completions": Kind.COMPLETION,
    "/v1/chat/completions": Kind.CHAT,
    "/v1/responses": Kind.CHAT,
    "/v1/messages": Kind.CHAT,
    "/inference/v1/generate": Kind.GENERATE,
    "/v1/chat/completions/batch": Kind.OPAQUE,
    "/v1/embeddings": Kind.OPAQUE,
    "/v1/score": Kind.OPAQUE,
    "/score": Kind.OPAQUE,
    "/v1/rerank": Kind.OPAQUE,
    "/v2/rerank": Kind.OPAQUE,
    "/rerank": Kind.OPAQUE,
    "/pooling": Kind.OPAQUE,
    "/classify": Kind.OPAQUE,
    "/generative_scoring": Kind.OPAQUE,
    "/v1/audio/transcriptions": Kind.OPAQUE,
    "/v1/audio/translations": Kind.OPAQUE,
    "/v1/messages/count_tokens": Kind.OPAQUE,
    "/tokenize": Kind.OPAQUE,
    "/detokenize": Kind.OPAQUE,
    "/v1/completions/render": Kind.OPAQUE,
    "/v1/chat/completions/render": Kind.OPAQUE,
    "/v1/responses/render": Kind.OPAQUE,
    "/v1/messages/render": Kind.OPAQUE,
    "/v1/completions/derender": Kind.OPAQUE,
    "/v1/chat/completions/derender": Kind.OPAQUE,
}
"""Every path that is forwarded, and nothing else is: the engine's administration is not for clients."""


class Inbound(msgspec.Struct, frozen=True):
    """What routing needs of one request.

    ``token_ids`` has the prompts that came as token ids; empty when they came as text (``has_text``: someone has to tokenise)
    or are of no use for routing. ``is_comparable`` says whether the answer's ``cached_tokens`` is that of one single prompt
    and sample.
    """

    kind: Kind
    model: str | None
    token_ids: tuple[Sequence[int], ...] = ()
    has_text: bool = False
    salt: str | None = None
    reads_cache: bool = True
    is_comparable: bool = True


class _SamplingParams(msgspec.Struct):
    prompt_logprobs: Any = None
    skip_reading_prefix_cache: Any = None
    n: Any = 1


class _Body(msgspec.Struct):
    model: Any = None
    prompt: msgspec.Raw = _NULL
    messages: msgspec.Raw = _NULL
    input: msgspec.Raw = _NULL
    token_ids: msgspec.Raw = _NULL
    sampling_params: msgspec.Raw = _NULL
    cache_salt: Any = None
    prompt_logprobs: Any = None
    echo: Any = None
    logprobs: Any = None
    top_logprobs: Any = None
    truncate_prompt_tokens: Any = None
    use_beam_search: Any = None
    n: Any = 1
    features: Any = None


_body = msgspec.json.Decoder(_Body)
_ids = msgspec.json.Decoder(list[int])
_ids_lists = msgspec.json.Decoder(list[list[int]])
_sampling = msgspec.json.Decoder(_SamplingParams)


def read(path: str, content_type: str, body: bytes) -> Inbound:
    """What routing needs of a request to ``path``, which must be one of ``PATHS``.

    Raises:
        BadRequest: the body is not what its content type says, or its model is not a string.
    """
    kind = PATHS[path]
    if content_type.startswith("multipart/"):
        return Inbound(kind, _multipart_model(body))
    try:
        fields = _body.decode(body)
    except msgspec.ValidationError as error:
        raise BadRequest(f"the body must be a JSON object: {error}") from error
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise BadRequest(f"the body is not valid JSON: {error}") from error
    if fields.model is not None and not isinstance(fields.model, str):
        raise BadRequest("model: expected a string, the name of a served model", param="model")
    if kind is Kind.OPAQUE:
        return Inbound(kind, fields.model)
    ids = _prompts(kind, fields)
    sampling = _sampling_params(fields)
    return Inbound(
        kind=kind,
        model=fields.model,
        token_ids=ids,
        has_text=not ids and kind is not Kind.GENERATE,
        salt=fields.cache_salt if isinstance(fields.cache_salt, str) and fields.cache_salt else None,
        reads_cache=_reads_cache(fields, sampling),
        is_comparable=len(ids) <= 1 and _is_one(fields.n) and _is_one(sampling.n) and not fields.use_beam_search,
    )


def _is_one(count: Any) -> bool:
    return count is None or count == 1


def _prompts(kind: Kind, fields: _Body) -> tuple[Sequence[int], ...]:
    if kind is Kind.GENERATE:
        # Multimodal features change the hashes of the blocks they lie in; without them the ids would promise too much.
        return () if fields.features else _as_ids(fields.token_ids)
    if kind is Kind.COMPLETION and fields.truncate_prompt_tokens is None:
        return _as_ids(fields.prompt)
    return ()


def _as_ids(raw: msgspec.Raw) -> tuple[Sequence[int], ...]:
    try:
        ids = _ids.decode(raw)
        return (ids,) if ids else ()
    except msgspec.MsgspecError:
        pass
    try:
        return tuple(prompt for prompt in _ids_lists.decode(raw) if prompt)
    except msgspec.MsgspecError:
        return ()


def _sampling_params(fields: _Body) -> _SamplingParams:
    try:
        return _sampling.decode(fields.sampling_params)
    except msgspec.MsgspecError:
        return _SamplingParams()


def _reads_cache(fields: _Body, sampling: _SamplingParams) -> bool:
    """Whether vLLM looks into its cache for this request.

    Log-probabilities of the prompt need its logits, so the whole prompt is computed (vLLM 0.32.0, ``SamplingParams``:
    ``skip_reading_prefix_cache`` defaults to ``prompt_logprobs is not None``); ``echo`` asks for as many of them as
    ``logprobs`` (completions) or ``top_logprobs`` (chat) says.
    """
    if sampling.skip_reading_prefix_cache is not None:
        return not sampling.skip_reading_prefix_cache
    if fields.prompt_logprobs is not None or sampling.prompt_logprobs is not None:
        return False
    asked = fields.top_logprobs if fields.messages != _NULL else fields.logprobs
    return not (fields.echo and asked is not None and asked is not False)


def _multipart_model(body: bytes) -> str | None:
    found = re.search(rb'name="?model"?[^\r\n]*\r\n(?:[^\r\n]+\r\n)*\r\n([^\r\n]{1,512})\r\n', body)
    return found[1].decode(errors="replace") if found else None


# Answers


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    """``usage`` of all three dialects: OpenAI chat and completions, OpenAI responses, Anthropic messages."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _Details | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class _Choice(msgspec.Struct):
    finish_reason: str | None = None


class _Nested(msgspec.Struct):
    usage: _Usage | None = None


class _Answer(msgspec.Struct):
    usage: _Usage | None = None
    choices: list[_Choice] = []
    response: _Nested | None = None  # the last event of a /v1/responses stream


_answer = msgspec.json.Decoder(_Answer)


def read_answer(body: bytes) -> Truth:
    """What an answer, or one event of a stream, says of its request; nothing where it cannot be read."""
    try:
        answer = _answer.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return Truth()
    usage = answer.usage or (answer.response.usage if answer.response else None)
    finish = next((choice.finish_reason for choice in answer.choices if choice.finish_reason), None)
    if usage is None:
        return Truth(finish_reason=finish)
    details = usage.prompt_tokens_details or usage.input_tokens_details
    prompt_tokens = usage.prompt_tokens if usage.prompt_tokens is not None else usage.input_tokens
    if prompt_tokens is not None:  # the Anthropic dialect leaves cached tokens out of the input tokens
        prompt_tokens += (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
    return Truth(
        prompt_tokens=prompt_tokens,
        cached_tokens=details.cached_tokens if details else usage.cache_read_input_tokens,
        completion_tokens=usage.completion_tokens if usage.completion_tokens is not None else usage.output_tokens,
        finish_reason=finish,
    )


def error_body(error: RequestError) -> bytes:
    """The error as OpenAI clients expect it."""
    return msgspec.json.encode(
        {"error": {"message": error.message, "type": error.type, "param": error.param, "code": error.code}}
    )
