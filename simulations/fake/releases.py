"""What a vLLM release has and what it lacks, as far as a client of the server can tell.

Knows version numbers and the features that kvlb meets (0.11 - 0.32). Never knows a request or an event. Where a change lies
between two releases that were read, it is dated to the later one.
"""

import re
from typing import Final

import msgspec

NEWEST: Final = "0.32.0"


class Release(msgspec.Struct, frozen=True):
    """One release, such as "0.32.0".

    Raises:
        ValueError: the text is no version, or one from before KV events could be mirrored.
    """

    version: str = NEWEST

    def __post_init__(self) -> None:
        if self.number < (0, 11):
            raise ValueError(f"{self.version!r} is too old to be imitated; use 0.11.0 or later")

    @property
    def number(self) -> tuple[int, int]:
        """Major and minor."""
        found = re.match(r"(\d+)\.(\d+)", self.version)
        if found is None:
            raise ValueError(f"{self.version!r} is not a vLLM version; give one like {NEWEST}")
        return int(found[1]), int(found[2])

    @property
    def has_map_events(self) -> bool:
        """Events are maps; before, they were arrays."""
        return self.number >= (0, 24)

    @property
    def num_stored_fields(self) -> int:
        """How many fields of a BlockStored array there are, its tag not counted."""
        number = self.number
        return 11 if number >= (0, 22) else 8 if number >= (0, 18) else 7 if number >= (0, 14) else 6

    @property
    def has_replay_topic(self) -> bool:
        """Replayed batches carry their topic."""
        return self.number >= (0, 26)

    @property
    def has_event_sources(self) -> bool:
        """``GET /kv_event_sources``."""
        return self.number >= (0, 31)

    @property
    def has_effective_block_size(self) -> bool:
        """The label of ``vllm:cache_config_info`` with context parallelism in it."""
        return self.number >= (0, 31)

    @property
    def has_render(self) -> bool:
        return self.number >= (0, 18)

    @property
    def has_generate(self) -> bool:
        """``/inference/v1/generate``."""
        return self.number >= (0, 14)

    @property
    def needs_scale_out(self) -> bool:
        """Without ``--enable-scale-out``, the render and generate paths are there and refuse."""
        return self.number >= (0, 30)

    @property
    def has_rank_header(self) -> bool:
        """``X-data-parallel-rank``."""
        return self.number >= (0, 14)

    @property
    def has_gpu_metric_names(self) -> bool:
        """``vllm:gpu_cache_usage_perc`` and its kind, beside the names without ``gpu_``."""
        return self.number <= (0, 11)

    @property
    def has_sleep_state(self) -> bool:
        """``vllm:engine_sleep_state``."""
        return self.number >= (0, 14)

    @property
    def has_waiting_reasons(self) -> bool:
        return self.number >= (0, 22)
