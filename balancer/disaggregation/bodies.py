"""A client's body -> the bodies of the two legs; a prefill's answer -> what the decode leg needs of it.

Knows the fields of the five ways to ask for text (vLLM 0.32) that say how much is generated and how it is told. Every other
value keeps its bytes. What could change the prompt stays on the prefill leg, be it of no use there: both engines must come to
the very same tokens, or nothing that was computed is found.
"""

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from balancer.disaggregation.plan import PARAMS, Answered, Leg
from balancer.openai import read_answer
from balancer.strip import members

CHAT: Final = "/v1/chat/completions"
PATHS: Final = ("/v1/completions", CHAT, "/v1/responses", "/v1/messages", "/inference/v1/generate")
"""Whose requests can be split."""

_ONE: Final = msgspec.Raw(b"1")
_FALSE: Final = msgspec.Raw(b"false")
_TRUE: Final = msgspec.Raw(b"true")
_NULL: Final = msgspec.Raw(b"null")
_NOTHING: Final = msgspec.Raw(b"{}")

_LIMITS: Final[Mapping[str, tuple[str, ...]]] = {
    "/v1/completions": ("max_tokens",),
    CHAT: ("max_tokens", "max_completion_tokens"),
    "/v1/responses": ("max_output_tokens",),
    "/v1/messages": ("max_tokens",),
}
"""By path: what limits the answer. The first is said always, the others only where the client says them."""

_OF_THE_ANSWER: Final = frozenset(
    "stream_options n best_of min_tokens stop stop_sequences stop_token_ids ignore_eos logprobs top_logprobs "
    "prompt_logprobs echo logit_bias bad_words allowed_token_ids structured_outputs guided_json guided_regex guided_choice "
    "guided_grammar return_token_ids return_tokens_as_token_ids include background max_tool_calls repetition_detection".split()
)
"""Fields that the one token of a prefill leg can do without. ``response_format``, ``tools`` and ``tool_choice`` are not among
them: templates read them (Kimi, DeepSeek, Cohere), and vLLM takes a half-made answer for what it is."""

_SEVERAL: Final = re.compile(rb'\[\s*[\["]')
"""Begins a list of texts, or of lists of token ids."""

_ELSEWHERE: Final = ("previous_response_id", "previous_input_messages")
"""Fields by which a request goes on from what one engine has stored, and no other one has."""


def can_split(path: str, fields: Mapping[str, msgspec.Raw], *, shares: bool = False) -> bool:
    """Whether the prompt can be computed elsewhere: not where the client says itself whence it comes, or one engine keeps it.

    With ``shares`` one leg may compute several prompts (``plan.Connector``).
    """
    if path not in PATHS or fields.get(PARAMS, _NULL) != _NULL:
        return False
    if not shares and _SEVERAL.match(fields.get("prompt", _NULL)):
        return False
    return all(fields.get(name, _NULL) == _NULL for name in _ELSEWHERE)


def prefill_body(path: str, fields: Mapping[str, msgspec.Raw], leg: Leg) -> bytes:
    """The body of the prefill leg: one prompt, one token, told at once."""
    made = {name: raw for name, raw in fields.items() if name not in _OF_THE_ANSWER}
    made["stream"] = _FALSE
    if path == "/inference/v1/generate":
        made["sampling_params"] = msgspec.Raw(_prefill_sampling(made.get("sampling_params", _NULL), leg))
    else:
        first, *others = _LIMITS[path]
        made[first] = _ONE
        for name in others:
            if made.get(name, _NULL) != _NULL:
                made[name] = _ONE
        if leg.ends_by_length:
            made["ignore_eos"] = _TRUE
    if path == "/v1/responses":
        made["store"] = _FALSE
    if leg.returns_tokens:
        made["return_token_ids"] = _TRUE
    return msgspec.json.encode(_with_params(made, leg))


def decode_body(body: bytes, fields: Mapping[str, msgspec.Raw], leg: Leg) -> bytes:
    """The body of the decode leg: the client's own, and the transfer's parameters after it."""
    if leg.params is None:
        return body
    if PARAMS in fields or not fields:
        return msgspec.json.encode(_with_params(dict(fields), leg))
    return b'%b,"%b":%b}' % (body.rstrip(b" \t\r\n")[:-1], PARAMS.encode(), _encoded(leg))


def releasing_body(leg: Leg) -> bytes:
    """A decode leg that its engine refuses before it computes anything: no model has this name.

    vLLM >= 0.28 tells the prefill engine then that nobody will fetch its blocks (``_with_kv_transfer_rejection_cleanup``).
    """
    told = {"model": "kvlb: nobody fetches this", "prompt": [0], "max_tokens": 1, PARAMS: msgspec.Raw(_encoded(leg))}
    return msgspec.json.encode(told)


def read_answered(body: bytes) -> Answered | None:
    """What a prefill leg has answered; None where that is no answer of an engine."""
    try:
        told = _answer.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    truth = read_answer(body)
    ids = told.prompt_token_ids
    if ids == _NULL and told.choices:
        ids = told.choices[0].prompt_token_ids
    params = told.kv_transfer_params
    return Answered(
        None if params in (_NULL, _NOTHING) else params,
        None if ids == _NULL else ids,
        truth.prompt_tokens,
        truth.cached_tokens,
        truth.finish_reason,
    )


class _Choice(msgspec.Struct):
    prompt_token_ids: msgspec.Raw = _NULL


class _Answer(msgspec.Struct):
    kv_transfer_params: msgspec.Raw = _NULL
    prompt_token_ids: msgspec.Raw = _NULL
    choices: list[_Choice] = []


_answer: Final = msgspec.json.Decoder(_Answer)


def _prefill_sampling(raw: msgspec.Raw, leg: Leg) -> bytes:
    params = members(bytes(raw))
    made = {name: value for name, value in params.items() if name not in _OF_THE_ANSWER}
    made["max_tokens"] = _ONE
    if leg.ends_by_length:
        made["ignore_eos"] = _TRUE
    return msgspec.json.encode(made)


def _with_params(fields: dict[str, msgspec.Raw], leg: Leg) -> dict[str, msgspec.Raw]:
    fields.pop(PARAMS, None)
    if leg.params is not None:
        fields[PARAMS] = msgspec.Raw(_encoded(leg))
    return fields


def _encoded(leg: Leg) -> bytes:
    return bytes(leg.params) if isinstance(leg.params, msgspec.Raw) else msgspec.json.encode(leg.params)
