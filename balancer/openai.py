"""Request bodies of the inference endpoints -> what routing needs of them; answers -> what the engine says of itself.

Knows the OpenAI, Anthropic and tokens-in shapes as vLLM 0.32 reads them. Never changes a byte: the body that came is the body
that is forwarded, and a field that is not needed here is not looked at. What the engine would refuse is left for the engine to
refuse, in its own words; only a body whose model cannot be read is refused here. The time for a body grows with its length and
with nothing else: what is not small where it should be is not taken apart, and a huge prompt is routed by load.
"""

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import msgspec

from balancer import forms, wishes
from balancer.conversations import MAX_NAME
from balancer.core import Truth
from balancer.errors import BadRequest, RequestError
from balancer.json_bodies import find_list
from balancer.media import NO_MEDIA, Media, read_features
from balancer.wishes import NO_WISHES, Wishes

MAX_PROMPT_BYTES: Final = 8 * 1024 * 1024
"""Longest JSON of token ids that is taken apart: over a million ids, which take a third of a second to hash."""

MAX_PROMPTS: Final = 128
"""Most prompts of one request that are looked at: each costs a chain and a lookup, however short it is."""

MAX_MODEL_BYTES: Final = 4096
"""Longest name of a model, as JSON: names are paths at the most."""

_SMALL: Final = 64
"""Longest JSON of a number or a flag, in bytes."""

_LARGE: Final = "(large)"
"""Stands for a value that no number or flag is: true, neither null nor one."""

_NULL: Final = wishes.NULL
_NO_CONVERSATION: Final[Mapping[str, str]] = MappingProxyType({})
_ONE: Final = msgspec.Raw(b"1")
_TRUE: Final = msgspec.Raw(b"true")


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


FORMS: Final = frozenset({"/v1/audio/transcriptions", "/v1/audio/translations"})
"""Paths whose bodies may be forms; all others are JSON, whatever their Content-Type says."""


class Inbound(msgspec.Struct, frozen=True):
    """What routing needs of one request.

    ``token_ids`` has the prompts that came as token ids, ``media`` what lies among them besides text; empty when they came as
    text (``has_text``: someone has to tokenise) or are of no use for routing. ``is_comparable`` says whether the answer's
    ``cached_tokens`` is that of one single prompt and sample. ``wishes`` are what it asks for beyond an answer,
    ``is_streamed`` whether that comes piece by piece; ``conversation`` has the fields that name the conversation that it
    belongs to.
    """

    kind: Kind
    model: str | None
    token_ids: tuple[Sequence[int], ...] = ()
    has_text: bool = False
    salt: str | None = None
    reads_cache: bool = True
    is_comparable: bool = True
    media: Media = NO_MEDIA
    wishes: Wishes = NO_WISHES
    is_streamed: bool = False
    conversation: Mapping[str, str] = _NO_CONVERSATION


ReadIds: TypeAlias = Callable[[bytes, int, int], Sequence[int] | None]
"""Reads the JSON list between two places of a body; None unless it is one of token ids."""

LONG: Final = 4 * 1024
"""From here on a list of token ids is read apart from the rest of its body, and what was read before is not read again."""

_FIELDS: Final = {Kind.COMPLETION: "prompt", Kind.GENERATE: "token_ids"}
_CUT: Final = msgspec.Raw(b"4702394921427289928")
"""Stands for a list that was cut out; whoever sends it instead of a list will be refused by the engine."""


class _SamplingParams(msgspec.Struct):
    prompt_logprobs: msgspec.Raw = _NULL
    skip_reading_prefix_cache: msgspec.Raw = _NULL
    n: msgspec.Raw = _ONE
    extra_args: msgspec.Raw = _NULL


class _Body(msgspec.Struct):
    """Raw throughout: values of any other type would be built before anything could be known of their size."""

    model: msgspec.Raw = _NULL
    prompt: msgspec.Raw = _NULL
    messages: msgspec.Raw = _NULL
    input: msgspec.Raw = _NULL
    token_ids: msgspec.Raw = _NULL
    sampling_params: msgspec.Raw = _NULL
    cache_salt: msgspec.Raw = _NULL
    prompt_logprobs: msgspec.Raw = _NULL
    echo: msgspec.Raw = _NULL
    logprobs: msgspec.Raw = _NULL
    top_logprobs: msgspec.Raw = msgspec.Raw(b"0")  # vLLM's default for chat; null is something else
    truncate_prompt_tokens: msgspec.Raw = _NULL
    use_beam_search: msgspec.Raw = _NULL
    n: msgspec.Raw = _ONE
    features: msgspec.Raw = _NULL
    content_parts: msgspec.Raw = _NULL
    vllm_xargs: msgspec.Raw = _NULL
    kv_transfer_params: msgspec.Raw = _NULL
    ec_transfer_params: msgspec.Raw = _NULL
    priority: msgspec.Raw = _NULL
    stream: msgspec.Raw = _NULL
    session_id: msgspec.Raw = _NULL
    prompt_cache_key: msgspec.Raw = _NULL


_body = msgspec.json.Decoder(_Body)
_text = msgspec.json.Decoder(str)
_ids = msgspec.json.Decoder(list[int])
_ids_lists = msgspec.json.Decoder(list[list[int]])
_sampling = msgspec.json.Decoder(_SamplingParams)
_NO_SAMPLING: Final = _SamplingParams()


def read(path: str, content_type: str, body: bytes, read_ids: ReadIds | None = None) -> Inbound:
    """What routing needs of a request to ``path``, which must be one of ``PATHS``; ``content_type`` is the whole header.

    ``read_ids`` reads long lists of token ids.

    Raises:
        BadRequest: the body is not what its content type says, or its model is not a string.
    """
    kind = PATHS[path]
    if path in FORMS and forms.is_form(content_type):
        return _read_form(kind, content_type, body)
    try:
        if read_ids is not None and len(body) >= LONG and kind in _FIELDS:
            found = _read_long(kind, body, read_ids)
            if found is not None:
                return found
        return _read(kind, _body.decode(body))
    except msgspec.ValidationError as error:
        raise BadRequest(f"the body must be a JSON object: {error}") from error
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise BadRequest(f"the body is not valid JSON: {error}") from error


def _read_long(kind: Kind, body: bytes, read_ids: ReadIds) -> Inbound | None:
    """The same of a body with a long list of token ids, which a JSON parser would take a nanosecond a byte to skip alone.

    None where there is none, or not where it has to be: then the whole body has to be read, and says what it is.
    """
    field = _FIELDS[kind]
    place = find_list(body, field.encode())
    if place is None or not LONG <= place[1] - place[0] <= MAX_PROMPT_BYTES:
        return None
    begin, end = place
    try:
        fields = _body.decode(b"%b%b%b" % (body[:begin], _CUT, body[end:]))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    if getattr(fields, field) != _CUT:  # it was another field, deeper down or in a text
        return None
    ids = read_ids(body, begin, end)
    return None if ids is None else _read(kind, fields, ids)


def _read(kind: Kind, fields: _Body, long: Sequence[int] = ()) -> Inbound:
    model = _model(fields.model)
    if kind is Kind.CHAT and _is_plain(fields):
        return Inbound(
            kind, model, (), has_text=True, conversation=_conversation(fields), is_streamed=fields.stream == _TRUE
        )
    sampling = _sampling_params(fields)
    asked = wishes.of_body(fields, sampling.extra_args)
    salt = msgspec.json.decode(fields.cache_salt) if _is_string(fields.cache_salt) else None
    if kind is Kind.OPAQUE:
        return Inbound(
            kind,
            model,
            salt=salt or None,
            wishes=asked,
            conversation=_conversation(fields),
            is_streamed=fields.stream == _TRUE,
        )
    ids = _prompts(kind, fields, long)
    is_one_sample = _is_one(fields.n) and _is_one(sampling.n) and not _plain(fields.use_beam_search)
    return Inbound(
        kind=kind,
        model=model,
        token_ids=ids,
        has_text=not ids and kind is not Kind.GENERATE and not _is_huge(fields.prompt),
        salt=salt or None,
        reads_cache=_reads_cache(fields, sampling),
        is_comparable=len(ids) <= 1 and is_one_sample,
        media=read_features(fields.features) if ids and kind is Kind.GENERATE else NO_MEDIA,
        wishes=asked,
        is_streamed=fields.stream == _TRUE,
        conversation=_conversation(fields),
    )


def _conversation(fields: _Body) -> Mapping[str, str]:
    """What names the conversation: texts alone, and none that is long."""
    if fields.session_id is fields.prompt_cache_key is _NULL:
        return _NO_CONVERSATION
    told = {}
    for name, raw in (("session_id", fields.session_id), ("prompt_cache_key", fields.prompt_cache_key)):
        if _is_string(raw) and len(raw) <= MAX_NAME:
            with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):  # the engine refuses it
                told[name] = _text.decode(raw)
    return told


def _is_plain(fields: _Body) -> bool:
    """Whether nothing is there but what every request has: by identity, in a twentieth of the time of looking at each."""
    return (
        fields.n is _ONE
        and fields.sampling_params
        is fields.cache_salt
        is fields.prompt
        is fields.prompt_logprobs
        is fields.echo
        is fields.use_beam_search
        is fields.vllm_xargs
        is fields.kv_transfer_params
        is fields.ec_transfer_params
        is fields.priority
        is _NULL
    )


def _model(raw: msgspec.Raw) -> str | None:
    if raw is _NULL or raw == _NULL:
        return None
    if not _is_string(raw) or len(raw) > MAX_MODEL_BYTES:
        raise BadRequest("model: expected a string, the name of a served model", param="model")
    return _text.decode(raw)


def _is_string(raw: msgspec.Raw) -> bool:
    return raw is not _NULL and memoryview(raw)[:1].tobytes() == b'"'


def _plain(raw: msgspec.Raw) -> Any:
    """A number or a flag; anything larger is not taken apart."""
    if raw is _NULL:  # most fields are not there
        return None
    try:
        return msgspec.json.decode(raw) if len(raw) <= _SMALL else _LARGE
    except msgspec.ValidationError:  # a number that no float can hold
        return _LARGE


def _is_one(count: msgspec.Raw) -> bool:
    return count is _ONE or _plain(count) in (None, 1)


def _is_huge(prompt: msgspec.Raw) -> bool:
    """Whether it is more than what is taken apart here, and more than an engine should be asked to tokenise for us."""
    if prompt is _NULL:
        return False
    if len(prompt) > MAX_PROMPT_BYTES:
        return True
    text = bytes(prompt)
    return text.count(b"[") > 1 + MAX_PROMPTS and re.match(rb"\[\s*\[", text) is not None


def _prompts(kind: Kind, fields: _Body, long: Sequence[int]) -> tuple[Sequence[int], ...]:
    if kind is Kind.GENERATE and _plain(fields.content_parts):
        return ()  # pictures that are still to be loaded take the places of more tokens than there are now
    if kind is Kind.COMPLETION and fields.truncate_prompt_tokens != _NULL:
        return ()
    if long:
        return (long,)
    if kind is Kind.CHAT:
        return ()
    return _as_ids(fields.prompt if kind is Kind.COMPLETION else fields.token_ids)


def _as_ids(raw: msgspec.Raw) -> tuple[Sequence[int], ...]:
    if _is_huge(raw):
        return ()
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
    if fields.sampling_params is _NULL:
        return _NO_SAMPLING
    try:
        return _sampling.decode(fields.sampling_params)
    except msgspec.MsgspecError:  # null, or what the engine will refuse
        return _NO_SAMPLING


def _reads_cache(fields: _Body, sampling: _SamplingParams) -> bool:
    """Whether vLLM looks into its cache for this request.

    Log-probabilities of the prompt need its logits, so the whole prompt is computed (vLLM 0.32.0, ``SamplingParams``:
    ``skip_reading_prefix_cache`` defaults to ``prompt_logprobs is not None``); ``echo`` asks for as many of them as
    ``logprobs`` (completions) or ``top_logprobs`` (chat) says.
    """
    if sampling is _NO_SAMPLING and fields.prompt_logprobs is _NULL and fields.echo is _NULL:
        return True
    if sampling.skip_reading_prefix_cache != _NULL:
        return not _plain(sampling.skip_reading_prefix_cache)
    if fields.prompt_logprobs != _NULL or sampling.prompt_logprobs != _NULL:
        return False
    asked = _plain(fields.top_logprobs if fields.messages != _NULL else fields.logprobs)
    return not (_plain(fields.echo) and asked is not None and asked is not False)


def _read_form(kind: Kind, content_type: str, body: bytes) -> Inbound:
    fields = forms.read(content_type, body)
    model = fields.get("model", b"")
    if model is None:
        raise BadRequest("model: expected the name of a served model", param="model")
    return Inbound(kind, model.decode(errors="replace") or None, wishes=wishes.of_form(fields))


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
        {"error": {"message": message_of(error), "type": error.type, "param": error.param, "code": error.code}}
    )


def message_of(error: RequestError) -> str:
    """The message as text: it may quote a header, and a header may be no text at all."""
    return error.message.encode(errors="backslashreplace").decode()
