"""Records what ext_proc's messages look like, as Envoy's own definitions have them: ``python tests/golden/record_ext_proc.py``.

Run it in an environment of its own with ``xds-protos`` (1.85.0 when ``ext_proc.binpb`` was recorded): that package brings
modules of others, too, in other versions than kvlb's development tools need. Comments and options are left out.
"""

from pathlib import Path
from typing import Any

WANTED = "envoy.service.ext_proc.v3.external_processor_pb2"


def main() -> None:
    import importlib

    from google.protobuf import descriptor_pb2

    found = descriptor_pb2.FileDescriptorSet()
    seen: set[str] = set()

    def add(file: Any) -> None:
        if file.name in seen:
            return
        seen.add(file.name)
        for each in file.dependencies:
            add(each)
        made = found.file.add()
        file.CopyToProto(made)
        made.ClearField("source_code_info")
        made.ClearField("options")
        made.ClearField("service")
        made.ClearField("extension")
        for message in made.message_type:
            _bare(message)
        for enum in made.enum_type:
            _bare_enum(enum)

    def _bare(message: Any) -> None:
        is_map = message.options.map_entry
        message.ClearField("options")
        message.ClearField("extension")
        if is_map:
            message.options.map_entry = True
        for each in message.field:
            each.ClearField("options")
        for each in message.oneof_decl:
            each.ClearField("options")
        for each in message.nested_type:
            _bare(each)
        for each in message.enum_type:
            _bare_enum(each)

    def _bare_enum(enum: Any) -> None:
        enum.ClearField("options")
        for each in enum.value:
            each.ClearField("options")

    add(importlib.import_module(WANTED).DESCRIPTOR)
    Path(__file__).with_name("ext_proc.binpb").write_bytes(found.SerializeToString(deterministic=True))


if __name__ == "__main__":
    main()
