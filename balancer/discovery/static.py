"""No discovery: the endpoints are those that the settings name."""

from collections.abc import AsyncIterator

import msgspec

from balancer.discovery.base import Failed, Found, discovery


@discovery("static")
class Static(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Finds nobody, once and for all."""

    async def watch(self) -> AsyncIterator[Found | Failed]:
        yield Found((), "only the settings name endpoints")
