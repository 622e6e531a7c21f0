"""What a client may not ask of an engine, taken out of its body.

Knows one thing so far: vLLM's report mode (>= 0.26), which makes an engine announce blocks that it merely reused. Announced
like new ones, they would be counted as further copies for ever, and every prediction for that replica would be too high. All
other bytes stay what they were; a body without it is returned as it came.
"""

from typing import Final

import msgspec

REPORT_MODE: Final = "kv_cache_report_mode"
_NAME: Final = REPORT_MODE.encode()

_object = msgspec.json.Decoder(dict[str, msgspec.Raw])


def without_report_mode(body: bytes) -> bytes:
    """The body without ``vllm_xargs.kv_cache_report_mode`` and ``sampling_params.extra_args.kv_cache_report_mode``."""
    if _NAME not in body and b"\\u" not in body:  # a name may be written with escapes, which engines read all the same
        return body
    fields = _read(body)
    xargs = _strip(fields.get("vllm_xargs"), ())
    sampling = _strip(fields.get("sampling_params"), ("extra_args",))
    if xargs is None and sampling is None:
        return body
    if xargs is not None:
        fields["vllm_xargs"] = xargs
    if sampling is not None:
        fields["sampling_params"] = sampling
    return msgspec.json.encode(fields)


def _strip(raw: msgspec.Raw | None, path: tuple[str, ...]) -> msgspec.Raw | None:
    """The object without the name, at the end of this path within it; None where it is not there."""
    if raw is None:
        return None
    fields = _read(bytes(raw))
    if not path:
        if fields.pop(REPORT_MODE, None) is None:
            return None
    else:
        inner = _strip(fields.get(path[0]), path[1:])
        if inner is None:
            return None
        fields[path[0]] = inner
    return msgspec.Raw(msgspec.json.encode(fields))


def _read(data: bytes) -> dict[str, msgspec.Raw]:
    try:
        return _object.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return {}  # no object: the engine will say so
