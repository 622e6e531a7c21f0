"""Bytes by name, as many as fit: the least recently used go first.

Knows sizes. Never knows what the names or the bytes mean.
"""

from collections import OrderedDict
from sys import getsizeof
from typing import Final

# The dict's slot, its index, and the node and key reference of OrderedDict's list, with room to grow.
_SLOT_BYTES: Final = 250


class ByteStore:
    """At most ``max_bytes``, containers included. Changes with ``get`` and ``put``."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._items: OrderedDict[bytes, bytes] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        """The number of items held."""
        return len(self._items)

    @property
    def bytes_held(self) -> int:
        """Memory in use, with what the containers cost."""
        return self._bytes

    def get(self, name: bytes) -> bytes | None:
        """What was put under the name, if it is still there."""
        found = self._items.get(name)
        if found is not None:
            self._items.move_to_end(name)
        return found

    def put(self, name: bytes, value: bytes) -> None:
        """Keep the value, unless there is one of this name, and let go of others until the bound holds again."""
        if name in self._items:
            self._items.move_to_end(name)
            return
        self._items[name] = value
        self._bytes += _cost(name, value)
        while self._bytes > self._max_bytes:
            self._bytes -= _cost(*self._items.popitem(last=False))


def _cost(name: bytes, value: bytes) -> int:
    return getsizeof(name) + getsizeof(value) + _SLOT_BYTES
