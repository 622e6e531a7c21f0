"""What an engine asks of whoever can bring it blocks that it lacks: the scheduler's side of vLLM's KV connectors.

Knows keys of blocks. Never knows links or time: a load has come when ``Engine.loaded`` says so.
"""

from collections.abc import Sequence
from typing import Protocol


class Connector(Protocol):
    """vLLM 0.32's ``get_num_new_matched_tokens``, of connectors that load between steps, in blocks."""

    def reach(self, keys: Sequence[int], first: int, last: int, /) -> int:
        """How many of the blocks with these keys, from number ``first`` on, ``last`` left out, can be loaded without a gap."""
        ...
