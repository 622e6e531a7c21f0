"""A decode leg's answer on its way to the client: as if one engine had given it.

Knows where an answer names a transfer, the id that a leg was given, and the tokens that its engine found cached: those are the
prefill replica's to count. Everything else passes as it is. A stream is looked at line by line, and what is no whole line waits
for the rest of it; a plain answer waits for its end.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from balancer.disaggregation.plan import PARAMS

_NULL: Final = msgspec.Raw(b"null")
_MARKS: Final = (PARAMS.encode(), b"cached_tokens", b"cache_read_input_tokens")
_WITHIN: Final = ("response", "delta", "message")
"""Objects in an event that are answers themselves."""

_DETAILS: Final = ("prompt_tokens_details", "input_tokens_details")
_object: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


class AnswerFilter:
    """Feed it an answer's body; changes with every call.

    ``ids`` are the id that the engine was given and the one that the client knows; ``cached_tokens`` is what the prefill's
    engine has found, None where that is unknown: then what the decode engine says stands.
    """

    def __init__(
        self, *, is_stream: bool, ids: tuple[bytes, bytes] | None = None, cached_tokens: int | None = None
    ) -> None:
        self._is_stream = is_stream
        self._ids = ids
        self.cached_tokens = cached_tokens
        """May be found out while the answer comes: a stream tells it at its end."""
        self._held: list[bytes] = []

    def feed(self, body: bytes, *, is_last: bool) -> bytes:
        """What the client gets now."""
        if self._is_stream:
            whole, newline, rest = body.rpartition(b"\n")
            if is_last:
                whole, newline, rest = body, b"", b""
            elif not newline:
                self._held.append(body)
                return b""
            given = b"".join([*self._held, whole, newline])
            self._held = [rest] if rest else []
            return self._of_stream(given)
        self._held.append(body)
        if not is_last:
            return b""
        whole, self._held = b"".join(self._held), []
        return self._named(self._changed(whole) if any(mark in whole for mark in _MARKS) else whole)

    def _of_stream(self, lines: bytes) -> bytes:
        if any(mark in lines for mark in _MARKS):
            lines = b"\n".join([self._of_line(line) for line in lines.split(b"\n")])
        return self._named(lines)

    def _of_line(self, line: bytes) -> bytes:
        start = line.find(b"{")
        if not line.startswith(b"data:") or start < 0 or not any(mark in line for mark in _MARKS):
            return line
        return line[:start] + self._changed(line[start:])

    def _named(self, data: bytes) -> bytes:
        return data if self._ids is None else data.replace(*self._ids)

    def _changed(self, data: bytes) -> bytes:
        """The same JSON object; the very same bytes where nothing in it is to be changed."""
        try:
            fields = _object.decode(data)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            return data
        changed: dict[str, msgspec.Raw] = {}
        if fields.get(PARAMS, _NULL) != _NULL:
            changed[PARAMS] = _NULL
        usage = fields.get("usage", _NULL)
        if self.cached_tokens is not None and usage != _NULL:
            told = bytes(usage)
            if (new := self._usage(told)) != told:
                changed["usage"] = msgspec.Raw(new)
        for name in _WITHIN:
            inner = bytes(fields.get(name, _NULL))
            if inner[:1] == b"{" and (new := self._changed(inner)) != inner:
                changed[name] = msgspec.Raw(new)
        return msgspec.json.encode({**fields, **changed}) if changed else data

    def _usage(self, data: bytes) -> bytes:
        """What the client is told of the prompt's cost; the number of its tokens is the same at every engine."""
        try:
            fields = _object.decode(data)
        except msgspec.MsgspecError:
            return data
        cached = msgspec.Raw(b"%d" % (self.cached_tokens or 0))
        changed: dict[str, msgspec.Raw] = {}
        for name in _DETAILS:
            details = bytes(fields.get(name, _NULL))
            if b"cached_tokens" in details:
                changed[name] = msgspec.Raw(msgspec.json.encode({**_object.decode(details), "cached_tokens": cached}))
        if "cache_read_input_tokens" in fields:  # Anthropic's dialect leaves them out of the input tokens
            changed |= _anthropic(fields, self.cached_tokens or 0)
        return msgspec.json.encode({**fields, **changed}) if changed else data


def _anthropic(fields: Mapping[str, msgspec.Raw], cached_tokens: int) -> dict[str, msgspec.Raw]:
    told = [fields.get(name, _NULL) for name in ("input_tokens", "cache_read_input_tokens")]
    if _NULL in told:
        return {}
    total = sum(msgspec.json.decode(each, type=int) for each in told)
    return {
        "input_tokens": msgspec.Raw(b"%d" % max(0, total - cached_tokens)),
        "cache_read_input_tokens": msgspec.Raw(b"%d" % cached_tokens),
    }
