"""A store that is known by events alone: those of the replicas that read from it, or of a publisher of its own.

Knows which ``kv_transfer_params`` steer vLLM's OffloadingConnector. Opens nothing: events come as those of replicas do.
"""

from typing import Any

import msgspec

from balancer.connectors.base import Session, Writer, connector
from balancer.store_settings import StoreSettings
from balancer.stores import Reading, Traits


@connector("events")
class Events(msgspec.Struct, frozen=True):
    """``reading`` is ``rest`` for vLLM's OffloadingConnector, ``whole`` for stores that are looked through from the start."""

    reading: Reading = Reading.REST

    @property
    def traits(self) -> Traits:
        return Traits(self.reading)

    @property
    def is_asked(self) -> bool:
        return False

    def open(self, settings: StoreSettings, writer: Writer) -> Session | None:
        return None

    def carries(self, tokens: int) -> dict[str, Any]:
        return {}
