"""What all request bodies come down to, what an answer is made of, and what a refused client is told.

Knows the terms that the APIs share. Never knows one API's names for them (``completions``, ``chat``, ``responses``,
``messages``, ``generate``), an engine or a socket.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Final, Protocol, TypeVar

import msgspec

from simulations.fake.samples import Sample
from simulations.fake.tokenizer import VOCABULARY, Tokenizer

DONE: Final = b"data: [DONE]\n\n"

MAX_SALT: Final = 128
NOT_IN_SALT: Final = frozenset("@/\\\0")
"""Source: vLLM 0.32.0, ``entrypoints/generate/base/protocol.py``."""

_Body = TypeVar("_Body", bound=msgspec.Struct)


class Refused(Exception):
    """The request is answered with an error, in vLLM's words; ``kind`` is the error object's ``type``."""

    def __init__(
        self, message: str, *, param: str | None = None, status: int = 400, kind: str = "BadRequestError"
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.status = status
        self.kind = kind


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """A request, understood.

    ``prompts`` are token ids. ``max_tokens`` is None where the client sets no limit; then ``default_max_tokens`` is the limit
    of the API, and None again where that is the context. ``request_id`` is what the body names, and
    ``extra_args`` only decorates what is rendered; ``transfer`` are
    its ``kv_transfer_params``.
    """

    model: str | None
    prompts: tuple[Sequence[int], ...]
    max_tokens: int | None
    default_max_tokens: int | None = None
    n: int = 1
    is_streamed: bool = False
    has_usage: bool = False
    has_continuous_usage: bool = False
    returns_tokens: bool = False
    returns_text: bool = True
    salt: str | None = None
    skip_cache: bool = False
    has_prompt_logprobs: bool = False
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    request_id: str | None = None
    extra_args: dict[str, Any] | None = None
    transfer: dict[str, Any] | None = None


class Answer:
    """What is known of a request's answer while it grows; mutable. Samples are ordered by prompt, then by ``n``."""

    def __init__(
        self, ask: Ask, name: str, model: str, created: int, version: str, tokenizer: Tokenizer, *, has_details: bool
    ) -> None:
        self.ask = ask
        self.id = name
        self.model = model
        self.created = created
        self.fingerprint = f"vllm-{version}-fake"
        self.samples: list[Sample] = []
        self.has_details = has_details
        self.transfer: dict[str, Any] | None = None
        """What whoever fetches its blocks has to say."""
        self.loaded_tokens = 0
        """What a connector has brought, and counts as cached (NIXL's does not)."""
        self._tokenizer = tokenizer
        self._number = 0

    def next_number(self) -> int:
        """0, 1, 2 and so on: for streams that number their events."""
        self._number += 1
        return self._number - 1

    def text(self, sample: Sample, tokens: Sequence[int]) -> str:
        """What the sample's tokens say; a token that ended it says nothing."""
        has_stopped = sample.finish_reason == "stop" and len(tokens) > 0
        return self._tokenizer.decode(tokens[:-1] if has_stopped else tokens, skip_special=True)

    def stop_reason(self, sample: Sample) -> int | None:
        """The token that ended the sample, if the client named it; None for the model's own end of text."""
        if sample.finish_reason != "stop" or sample.tokens[-1] == self._tokenizer.end_of_text:
            return None
        return sample.tokens[-1]

    def prompt_logprobs(self, prompt: Sequence[int]) -> list[Any] | None:
        """Log-probabilities of a prompt, if they were asked for: without weights, every token is the likeliest."""
        if not self.ask.has_prompt_logprobs:
            return None
        rest = ({str(token): self._logprob(token)} for token in prompt[1:])
        return [None, *rest]

    def _logprob(self, token: int) -> dict[str, Any]:
        return {"logprob": -0.5, "rank": 1, "decoded_token": self._tokenizer.decode([token])}

    @property
    def prompt_tokens(self) -> int:
        return sum(len(prompt) for prompt in self.ask.prompts)

    @property
    def completion_tokens(self) -> int:
        return sum(len(sample.tokens) for sample in self.samples)

    @property
    def cached_tokens(self) -> int:
        """vLLM reports those of one prompt, however many there are: of the first in a stream, else of the last."""
        return max(self.loaded_tokens, self.samples[0 if self.ask.is_streamed else -1].cached_tokens or 0)

    def usage(self) -> dict[str, Any]:
        """``usage`` of a whole answer."""
        details = None
        if self.has_details:
            details = {"cached_tokens": self.cached_tokens, "created_cache_tokens": None, "multimodal_tokens": None}
        return {**self.counts(), "prompt_tokens_details": details, "completion_tokens_details": None}

    def final_usage(self) -> dict[str, Any]:
        """``usage`` at the end of a stream: nothing is named that is not there."""
        if not self.has_details:
            return self.counts()
        return {**self.counts(), "prompt_tokens_details": {"cached_tokens": self.cached_tokens}}

    def counts(self) -> dict[str, Any]:
        prompt, completion = self.prompt_tokens, self.completion_tokens
        return {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion}


class Api(Protocol):
    """One way to ask for text: how its body is read and how its answers look."""

    id_prefix: ClassVar[str]

    def read(self, body: bytes, tokenizer: Tokenizer) -> Ask:
        """Understand a body.

        Raises:
            Refused: it cannot be.
        """
        ...

    def whole(self, answer: Answer) -> dict[str, Any]: ...

    def delta(self, answer: Answer, sample: Sample, is_first: bool) -> list[bytes]:
        """The events that tell of the sample's unread tokens."""
        ...

    def closing(self, answer: Answer) -> list[bytes]:
        """The events after the last token."""
        ...


def error_body(error: Refused) -> dict[str, Any]:
    """The error as OpenAI clients expect it."""
    fields = {"message": error.message, "type": error.kind, "param": error.param, "code": error.status}
    return {"error": fields}


def sse(chunk: Any) -> bytes:
    return b"data: " + _encode(chunk) + b"\n\n"


def named_sse(name: str, chunk: Any) -> bytes:
    return b"event: " + name.encode() + b"\n" + sse(chunk)


def decode(body: bytes, form: type[_Body]) -> _Body:
    """The body as a struct.

    Raises:
        Refused: it is no JSON object, or a field has the wrong type.
    """
    try:
        return msgspec.json.decode(body, type=form, strict=False)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$")
        place = "body" + path.rstrip("`")
        raise Refused(f"1 validation error:\n  {message} at {place}", param=place, kind="Bad Request") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(f"1 validation error:\n  JSON decode error: {error}", param="body", kind="Bad Request") from None


def check_tokens(tokens: Sequence[int]) -> Sequence[int]:
    """The ids themselves.

    Raises:
        Refused: one of them is not in the vocabulary.
    """
    if tokens and not 0 <= min(tokens) <= max(tokens) < VOCABULARY:
        wrong = next(token for token in tokens if not 0 <= token < VOCABULARY)
        raise Refused(f"Token id {wrong} is out of vocabulary")
    return tokens


def check_salt(salt: str | None) -> str | None:
    """The salt itself.

    Raises:
        Refused: it is empty, too long, or has a character that engines refuse.
    """
    if salt == "":
        raise Refused(
            "Parameter 'cache_salt' must be a non-empty string if provided. (parameter=cache_salt)", param="cache_salt"
        )
    if salt is not None and (len(salt) > MAX_SALT or not NOT_IN_SALT.isdisjoint(salt)):
        message = (
            f"Parameter 'cache_salt' must be at most {MAX_SALT} characters and must not contain '@', '/', '\\\\', or NUL. "
            "(parameter=cache_salt)"
        )
        raise Refused(message, param="cache_salt")
    return salt


_encode = msgspec.json.Encoder().encode
