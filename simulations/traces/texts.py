"""Texts become block ids: tokenised, cut into blocks, each block hashed, and then forgotten.

Knows a tokenizer, the layout of chats and one hash. Never keeps a text, and never repeats one, not even in an error. Ids name
what is in one block: whoever gets them chains them.
"""

import json
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from xxhash import xxh3_64_intdigest

from balancer.errors import ConfigError
from simulations.fake.tokenizer import Tokenizer
from simulations.traces.times import kind_of
from simulations.traces.trace import TraceError

BLOCK_SIZE: Final = 16
"""Tokens; vLLM's own default."""

STAND_IN: Final = (
    "texts were cut by a stand-in for a tokenizer, into pieces of one to three letters: what prompts share is right, their "
    "lengths are more than a model's; --tokenizer PATH names a real one"
)
CHAT_LAYOUT: Final = "chats were laid out as ChatML, whatever their models' templates are"

_PLACES: Final = ("content", "role")


class Encoder:
    """Cuts texts into tokens."""

    def __init__(self, path: str | None) -> None:
        """``path`` is a ``tokenizer.json`` or its folder; without one a stand-in cuts.

        Raises:
            ConfigError: it cannot be used.
        """
        self.is_stand_in = path is None
        self._encode: Callable[[str], Sequence[int]] = Tokenizer().encode if path is None else _real(path)

    def tokens(self, text: str) -> Sequence[int]:
        """Its token ids."""
        return self._encode(text)


def _real(path: str) -> Callable[[str], Sequence[int]]:
    try:
        import tokenizers  # noqa: PLC0415 - optional
    except ImportError:
        raise ConfigError("--tokenizer: needs the package tokenizers; install kvlb[tokenizers]") from None
    file = Path(path) / "tokenizer.json" if Path(path).is_dir() else Path(path)
    if not file.is_file():
        raise ConfigError(
            f"--tokenizer: there is no '{file}'; name a tokenizer.json, or the folder of a model that has one"
        )
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:
        raise ConfigError(f"--tokenizer: '{file}' cannot be used: {str(error)[:200]}; name a tokenizer.json") from None

    def encode(text: str) -> Sequence[int]:
        found: Sequence[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return found

    return encode


def block_ids(tokens: Sequence[int], block_size: int) -> list[int]:
    """An id for what is in each block, a last partial one included.

    Raises:
        TraceError: a token is none.
    """
    try:
        packed = array("I", tokens)
    except (TypeError, OverflowError):
        raise TraceError("prompt", f"must hold token ids from 0 to {2**32 - 1}") from None
    view = memoryview(packed)
    return [xxh3_64_intdigest(view[at : at + block_size]) for at in range(0, len(packed), block_size)]


def text_of_chat(messages: object, tools: object = None, field: str = "messages") -> str:
    """A conversation in the ChatML layout, open for the next answer.

    Raises:
        TraceError: it is none.
    """
    if not isinstance(messages, list):
        raise TraceError(field, f"must be a list of messages, got {kind_of(messages)}")
    told = [f"<|im_start|>tools\n{_written(tools)}<|im_end|>\n"] if tools else []
    for message in messages:
        if not isinstance(message, dict):
            raise TraceError(field, f"must hold objects with role and content, got {kind_of(message)}")
        rest = {name: value for name, value in message.items() if name not in _PLACES and value is not None}
        role = message.get("role", "user")
        told.append(
            f"<|im_start|>{role if isinstance(role, str) else 'user'}\n{text_of(message.get('content'), field)}"
        )
        told.append(f"{_written(rest) if rest else ''}<|im_end|>\n")
    return "".join([*told, "<|im_start|>assistant\n"])


def text_of(content: object, field: str) -> str:
    """A message's text; of parts that are no text, a name of what they are.

    Raises:
        TraceError: it is neither a text nor a list of parts.
    """
    match content:
        case None:
            return ""
        case str():
            return content
        case list():
            return "".join([_part(part) for part in content])
    raise TraceError(field, f"must have texts for content, got {kind_of(content)}")


def _part(part: object) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict) and isinstance(text := part.get("text"), str):
        return text
    return f"<{xxh3_64_intdigest(_written(part).encode(errors='replace')):016x}>"


def _written(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)
