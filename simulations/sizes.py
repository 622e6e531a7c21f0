"""How large a fleet may be that is played.

Knows numbers of replicas. Never knows what they are made of.
"""

from typing import Annotated, Final

import msgspec

MOST_REPLICAS: Final = 4096
"""Of one fleet. Each request looks at all of them, so a run of more takes hours, and no router serves that many."""

Replicas = Annotated[int, msgspec.Meta(ge=1, le=MOST_REPLICAS)]
"""A field with the number of a fleet's replicas."""
