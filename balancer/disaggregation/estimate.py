"""What one request costs if its decode replica computes the prompt itself, and if another one does.

Knows seconds. Never knows how they were found out (``balancer.transfers``), nor what is done about them.
"""

import msgspec


class Estimate(msgspec.Struct, frozen=True):
    """Both ways, at one decode replica.

    Attributes:
        alone: seconds until the first token if the replica computes what it lacks, with what answers under way lose by that.
        split: the same if another one computes the prompt.
        transfer_seconds: what the transfer takes, and waits for others on the same link; a part of ``split``.
        prefill_seconds: until the prompt is computed there, its wait among it; a part of ``split``, too.
        delay: what passes behind the decode replica's own wait, in seconds, until it has the prompt.
    """

    alone: float
    split: float
    transfer_seconds: float
    prefill_seconds: float
    delay: float

    @property
    def splits(self) -> bool:
        """Whether it is quicker to have the prompt computed elsewhere."""
        return self.split < self.alone
