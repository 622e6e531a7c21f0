"""Cross-origin requests of browsers: which answers a page of another origin may read.

Knows the Fetch standard's headers and ``[cors]``. A preflight comes without credentials, so it is answered before anybody is
asked for a key; what it allows is no more than what keys allow afterwards.
"""

from balancer.security import CorsSettings

EXPOSED = "x-request-id, x-kvlb-replica, x-kvlb-cached-tokens, x-kvlb-prompt-tokens, x-kvlb-predicted, retry-after"


def headers(settings: CorsSettings, origin: str | None) -> dict[str, str]:
    """What every answer to a page of this origin has besides; nothing where it may not read it."""
    if not settings.origins:
        return {}
    if "*" in settings.origins:
        return {"Access-Control-Allow-Origin": "*", "Access-Control-Expose-Headers": EXPOSED}
    if origin not in settings.origins or origin is None:
        return {"Vary": "Origin"}
    return {"Access-Control-Allow-Origin": origin, "Access-Control-Expose-Headers": EXPOSED, "Vary": "Origin"}


def preflight(settings: CorsSettings, origin: str | None, method: str | None, asked: str | None) -> dict[str, str]:
    """The headers of the answer to OPTIONS; ``asked`` is ``Access-Control-Request-Headers``."""
    told = headers(settings, origin)
    if "Access-Control-Allow-Origin" not in told or method is None:
        return told
    told["Access-Control-Allow-Methods"] = "GET, POST, OPTIONS"
    if asked and all(part.strip().replace("-", "").replace("_", "").isalnum() for part in asked.split(",")):
        told["Access-Control-Allow-Headers"] = asked
    told["Access-Control-Max-Age"] = str(settings.max_age_seconds)
    return told
