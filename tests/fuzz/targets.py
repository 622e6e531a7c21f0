"""All targets by their names: functions of bytes that raise where something is wrong with kvlb."""

from collections.abc import Callable, Mapping
from typing import Final

from tests.fuzz import contents, events, messages

TARGETS: Final[Mapping[str, Callable[[bytes], None]]] = {
    "requests": messages.requests,
    "answers": messages.answers,
    "bodies": contents.bodies,
    "packed": contents.packed,
    "ids": contents.ids,
    "streams": contents.streams,
    "events": events.events,
}
