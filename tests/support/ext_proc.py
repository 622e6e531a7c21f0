"""The messages of ext_proc as protobuf itself reads and writes them, by Envoy's definitions (``tests/golden/ext_proc.binpb``).

Knows how a proxy says what it says. Knows nothing of kvlb's own codec.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

GOLDEN: Final = Path(__file__).parents[1] / "golden" / "ext_proc.binpb"


def _classes() -> tuple[Any, Any]:
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(GOLDEN.read_bytes()).file:
        pool.AddSerializedFile(file.SerializeToString())
    names = ("ProcessingRequest", "ProcessingResponse")
    found = [pool.FindMessageTypeByName(f"envoy.service.ext_proc.v3.{name}") for name in names]
    return message_factory.GetMessageClass(found[0]), message_factory.GetMessageClass(found[1])


ProcessingRequest, ProcessingResponse = _classes()

FULL, BUFFERED, STREAMED, NONE = 4, 2, 1, 0
"""Body modes."""

Fields = Sequence[tuple[str, str]]


def headers(
    fields: Fields,
    *,
    is_last: bool = False,
    modes: tuple[int, int] | None = None,
    of: str = "request",
    metadata: dict[str, dict[str, Any]] | None = None,
) -> bytes:
    """Headers of a request or a response."""
    made = ProcessingRequest()
    told = getattr(made, f"{of}_headers")
    told.end_of_stream = is_last
    told.SetInParent()
    for name, value in fields:
        told.headers.headers.add(key=name, raw_value=value.encode())
    if modes is not None:
        made.protocol_config.request_body_mode, made.protocol_config.response_body_mode = modes
    for name, values in (metadata or {}).items():
        made.metadata_context.filter_metadata[name].update(values)
    return bytes(made.SerializeToString())


def body(data: bytes, *, is_last: bool = False, of: str = "request") -> bytes:
    made = ProcessingRequest()
    told = getattr(made, f"{of}_body")
    told.body, told.end_of_stream = data, is_last
    told.SetInParent()
    return bytes(made.SerializeToString())


def trailers(fields: Fields = (), *, of: str = "request") -> bytes:
    made = ProcessingRequest()
    told = getattr(made, f"{of}_trailers")
    told.SetInParent()
    for name, value in fields:
        told.trailers.headers.add(key=name, raw_value=value.encode())
    return bytes(made.SerializeToString())


def reply(data: bytes) -> Any:
    """What a proxy makes of a reply."""
    return ProcessingResponse.FromString(data)


def set_headers(mutation: Any) -> dict[str, str]:
    """What a mutation sets."""
    return {each.header.key: each.header.raw_value.decode() for each in mutation.set_headers}
