"""Fuzzed contents: bodies, packed and plain, lists of token ids, and answers as they go by.

The oracles are Python's own ``json`` and ``zlib``, which engines read with, and the same bytes in other pieces. What is read
here must be what they read, or be refused.
"""

import contextlib
import json
import zlib
from collections.abc import Sequence
from typing import Any, Final

from balancer import openai
from balancer import settings as settings_module
from balancer.core import Truth
from balancer.errors import RequestError
from balancer.gateway import reading
from balancer.gateway.access import STRANGER, Access
from balancer.gateway.body import MAX_MEMBERS, unpack
from balancer.nesting import is_deeper
from balancer.openai import Kind
from balancer.opening import Opening, of_body, of_stream
from balancer.sse import StreamWatch
from balancer.stages import UNTIMED
from hashing import token_text
from hashing.chain import Chain
from hashing.memory import ChainMemory
from hashing.recipes import Recipe
from hashing.token_text import MAX_ID, EngineKeys, TokenText
from tests.fuzz.words import halved, json_like, written

SETTINGS: Final = settings_module.convert({})
ACCESS: Final = Access(SETTINGS)
PATHS: Final = tuple(openai.PATHS)
STEERING: Final = frozenset({"kv_transfer_params", "ec_transfer_params"})

BODY_WORDS: Final = (
    *(b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b" ", b"\n", b"\t", b"null", b"true", b"false", b"NaN"),
    *(b'"model":', b'"model":"m",', b'"prompt":', b'"prompt":[1,2,3],', b'"token_ids":[', b'"messages":[],'),
    *(b'"input":"x",', b'"sampling_params":{', b'"extra_args":{', b'"vllm_xargs":{', b'"kv_transfer_params":{},'),
    *(b'"kv_transfer_params":1', b'"kv\\u005ftransfer_params":'),
    *(b'"ec_transfer_params":', b'"kv_cache_report_mode":"full"'),
    *(b'"priority":-1,', b'"priority":', b'"cache_salt":"s",'),
    *(b'"n":1,', b'"n":2', b'"echo":true,', b'"logprobs":1,'),
    *(b'"features":{', b'"mm_hashes":{"image":["h"]},'),
    *(b'"mm_placeholders":{"image":[{"offset":0,"length":1}]}', b'"x":'),
    *(b"1", b"-1", b"1.5", b"1e3", b"0"),
    *(b"123456", b"9223372036854775808", b"1e999", b"\xff", b"\xef\xbb\xbf", b"\\ud800"),
    *(b"1,2,3,4,", b"1," * 700, b"[" * 40, b"]" * 40),
    *(b'{"a":', b"prompt", b'"a"', b"\xc3\xa9", b'"use_beam_search":true,'),
    *(b'"max_tokens":1,', b'"truncate_prompt_tokens":1,', b'"content_parts":[1],', b'"stream":true,', b"[[1,2],[3]]"),
    *(b"--b\r\n", b"--b--\r\n"),
    *(b'Content-Disposition: form-data; name="model"\r\n\r\n', b"\r\n", b'; name="vllm_xargs"\r\n\r\n'),
)  # fmt: skip

NAMES: Final = (
    *(b'"model"', b'"prompt"', b'"messages"', b'"input"'),
    *(b'"token_ids"', b'"sampling_params"', b'"cache_salt"', b'"n"'),
    *(b'"prompt_logprobs"', b'"echo"', b'"logprobs"'),
    *(b'"top_logprobs"', b'"truncate_prompt_tokens"', b'"use_beam_search"'),
    *(b'"features"', b'"content_parts"', b'"vllm_xargs"'),
    *(b'"kv_transfer_params"', b'"ec_transfer_params"', b'"priority"'),
    *(b'"kv_cache_report_mode"', b'"extra_args"'),
    *(b'"skip_reading_prefix_cache"', b'"kv\\u005ftransfer_params"', b'"x"'),
    *(b' "model" ', b'"kv_transfer_params\\u0000"', b'"Priority"'),
    *(b'"mm_hashes"', b'"mm_placeholders"', b'"image"', b'""'),
    *(b'"vllm\\u005Fxargs"', b'"\xc3\xa9"', b'"\\ud800"', b'"\xff"', b'"offset"', b'"length"'),
)  # fmt: skip

VALUES: Final = (
    *(b"null", b"true", b"false", b"0", b"1", b"-1", b"2", b"1.0"),
    *(b"1.5", b"1e999", b"NaN", b'"m"', b'""', b'"1"', b"{}", b"[]"),
    *(b"[1,2,3]", b"[[1,2],[3]]", b"[1,[2]]", b'"text"'),
    *(b"[" + b"7," * 2_500 + b"7]", b"[1.0]", b"[true]", b'"\\ud83d\\ude00"'),
    *(b"9223372036854775807", b"18446744073709551616", b"1" * 400),
    *(b"[18446744073709551615]", b"[-1]", b'"\\""', b'"\xff"'),
    *(b"[" * 200 + b"]" * 200, b'{"a":1,"a":2}', b'{"kv_transfer_params":{"a":1}}', b'"]"'),
    *(b'"{"', b"01", b"[1,]", b" 1 ", b'"a\nb"'),
    *(b"[" + b"7, " * 2_500 + b'"]",7]', b'"\\ud800"', b'{"extra_args":{"ec_transfer_params":1}}', b'"' + b"x" * 5_000 + b'"'),
)  # fmt: skip

CONTENT_TYPES: Final = ("application/json", "", "text/plain", "multipart/form-data; boundary=b", "multipart/form-data")


class _Brain:
    """As much of one as reading a body asks for."""

    settings = SETTINGS

    def __init__(self) -> None:
        self._memory = ChainMemory(1 << 20)

    def read_ids(self, body: bytes, begin: int, end: int) -> Sequence[int] | None:
        return TokenText.read(body, begin, end, self._memory)

    def default_model(self, is_allowed: object) -> str:
        return "default"


_BRAIN: Final = _Brain()


def bodies(data: bytes) -> None:
    """A body for one of the paths, as clients may send it."""
    kind, data = data[:2].ljust(2, b"\0"), data[2:]
    path, content_type = PATHS[kind[0] % len(PATHS)], CONTENT_TYPES[kind[1] % len(CONTENT_TYPES)]
    body = json_like(data, NAMES, VALUES) if kind[1] >= 0x40 else written(data, BODY_WORDS)
    try:
        parsed = reading.parse(_BRAIN, ACCESS, STRANGER, path, content_type, body, UNTIMED)  # type: ignore[arg-type]
    except RequestError:
        return
    if path in openai.FORMS and content_type.startswith("multipart"):
        return  # another grammar, for which there is no second reader here
    theirs = _engine_reads(parsed.admitted.body)
    sent = _engine_reads(body)
    if not isinstance(theirs, dict) or not isinstance(sent, dict):
        return  # the engine refuses it
    model = theirs.get("model")
    assert parsed.model == ("default" if model is None else model)
    assert not STEERING & {name for name, value in theirs.items() if value is not None}
    for inner in (theirs.get("vllm_xargs"), _inner(theirs.get("sampling_params"), "extra_args")):
        if isinstance(inner, dict):
            steering = STEERING | {"kv_cache_report_mode"}
            assert not {name for name in steering if inner.get(name) is not None}
    assert _without_wishes(theirs) == _without_wishes(sent), "nothing else has changed"
    _check_ids(parsed, PATHS[kind[0] % len(PATHS)], theirs)


def _inner(fields: Any, name: str) -> Any:
    return fields.get(name) if isinstance(fields, dict) else None


def _engine_reads(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _without_wishes(fields: Any, depth: int = 0) -> Any:
    """The fields but for what may be taken out; NaN as a text, which is like itself."""
    if isinstance(fields, dict) and depth < 3:
        return {
            name: _without_wishes(value, depth + 1)
            for name, value in fields.items()
            if name not in STEERING and name not in {"kv_cache_report_mode", "priority"}
        }
    return repr(fields)


def _check_ids(parsed: reading.Parsed, path: str, theirs: dict[str, Any]) -> None:
    kind = openai.PATHS[path]
    if parsed.inbound.token_ids:
        value = theirs.get("prompt" if kind is Kind.COMPLETION else "token_ids")
        assert isinstance(value, list)
        value = [each for each in value if each != []] if value and isinstance(value[0], list) else [value]
        assert [list(each) for each in parsed.inbound.token_ids] == value
    if is_deeper(parsed.admitted.body, SETTINGS.limits.max_nesting):
        raise AssertionError("it is nested more deeply than it may be")


# Packed bodies

PACKED: Final = (
    *(zlib.compress(b"hello"), zlib.compress(b"x" * 5_000)),
    *(b"\x1f\x8b\x08\0\0\0\0\0\0\xff", b"\x1f\x8b", b"\x78\x9c"),
    *(b"\xcbH\xcd\xc9\xc9\x07\x00", b"\x03\x00", b"\x86\xa6\x106\x05\0\0\0"),
    *(b"\0\0\0\0", b"\x01\x05\x00\xfa\xffhello", b"\xff"),
)  # fmt: skip


def packed(data: bytes) -> None:
    """A body with a Content-Encoding."""
    body = written(data, PACKED)
    try:
        ours = unpack(body, 4_000)
    except RequestError:
        ours = None
    theirs = _inflated(body)
    if ours is not None:
        assert ours == theirs
    elif theirs is not None:
        assert len(theirs) > 4_000


def _inflated(body: bytes) -> bytes | None:
    """The same by a simple and slow way."""
    wbits = zlib.MAX_WBITS | 32 if body[:1] == b"\x1f" or (body and body[0] & 0x0F == 8) else -zlib.MAX_WBITS
    found = b""
    for _ in range(MAX_MEMBERS):
        inflate = zlib.decompressobj(wbits)
        try:
            found += inflate.decompress(body)
        except zlib.error:
            return None
        if not inflate.eof:
            return None
        body = inflate.unused_data
        if not body:
            return found
    return None


# Token ids

IDS: Final = (*(b",", b" ", b"-", b".", b"0", b"1", b"9", b"e", b"[", b"]", b"\n", b'"'),
    *(b"1,2,3,", b"123456,", b"12345678901,"),
    *(b"1234567890123456789012345678901,", b"9223372036854775807", b"null", b"\xff"),
)  # fmt: skip

_MEMORY: Final = ChainMemory(1 << 20, secret=7)
_RECIPE: Final = Recipe(block_size=4)


def ids(data: bytes) -> None:
    """A list of token ids, at a reader that remembers all that it was given before."""
    token_text.PIECE = 32  # type: ignore[misc]
    text = b"[%b]" % written(data, IDS)
    theirs: Any = _engine_reads(text) if text.isascii() else None
    is_list = (
        isinstance(theirs, list) and theirs != [] and all(type(each) is int and 0 <= each <= MAX_ID for each in theirs)
    )
    for _ in range(2):
        ours = TokenText.read(b"x" + text, 1, len(text) + 1, _MEMORY)
        assert (ours is not None) == is_list
        if ours is not None:
            assert (len(ours), list(ours)) == (len(theirs), theirs)
            assert EngineKeys(_RECIPE, ours).keys(1 << 30) == Chain(_RECIPE, theirs).keys(1 << 30)


# Answers

STREAM: Final = (
    *(b"\n", b"\r\n", b"\n\n", b"data: ", b"data:", b"event: x\n", b": c\n"),
    *(b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\"),
    *(b"data: [DONE]\n\n", b'"usage":{', b'"usage": {'),
    *(b'"finish_reason":"stop"', b'"finish_reason":"abort"', b'"finish_reason":null'),
    *(b'"choices":[{', b'"prompt_tokens":4', b'"completion_tokens":1'),
    *(b'"prompt_tokens_details":{"cached_tokens":2}', b"null", b"1"),
    *(b'data: {"error":', b'"type":"response.created"', b'"type":"response.completed"'),
    *(b'"type":"message_stop"', b"-1", b"1.5"),
    *(b'data: {"type":"message_start","message":{', b'"usage":null'),
    *(b'"response":{', b'"delta":{"role":"assistant","content":""}'),
    *(b'"stop_reason":null', b'"type":"message"', b"\xff"),
    *(b"\xe2\x82", b"1e400", b"99999999999999999999999", b'"text":"a"'),
)  # fmt: skip


def streams(data: bytes) -> None:
    """An answer, whole and in pieces."""
    at, data = halved(data)
    data = written(data, STREAM)
    at %= len(data) + 1
    whole, cut, bitwise = (
        _watched([data]),
        _watched([data[:at], data[at:]]),
        _watched([data[n : n + 1] for n in range(len(data))]),
    )
    assert whole == cut == bitwise
    for held in (data[:at], data):
        assert of_body(held, is_whole=False) is Opening.UNSAID
        assert of_body(held, is_whole=True) is not Opening.UNSAID
        assert of_stream(held, is_whole=True) is not Opening.UNSAID
    if of_stream(data[:at], is_whole=False) is not Opening.UNSAID:
        assert of_stream(data[:at], is_whole=False) is of_stream(data, is_whole=False), "what was said was final"
    truth = openai.read_answer(data)
    with contextlib.suppress(ValueError, RecursionError):
        theirs = json.loads(data)
        if truth != Truth():
            assert isinstance(theirs, dict)


def _watched(pieces: list[bytes]) -> tuple[Truth, bool, bool, bool]:
    watch = StreamWatch()
    for piece in pieces:
        watch.feed(piece)
    return watch.truth(), watch.has_output, watch.is_done, watch.has_failed
