"""What one fake engine is to be, as its user says it.

Knows names, numbers and defaults, and what cannot be: each field that cannot be used is named with its remedy. Never opens a
socket or draws a random number.
"""

import math
from typing import Self

import msgspec

from hashing.errors import RecipeError
from hashing.extras import Lora
from hashing.recipes import Algorithm, Recipe
from simulations.engine_values import EngineConfig
from simulations.fake.releases import NEWEST, Release
from simulations.fake.transfers import ConnectorName
from simulations.latency import LatencyModel


class FakeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One server. A port of 0 is chosen by the system.

    ``event_port`` and ``replay_port`` are those of data-parallel rank 0, each further rank has the next one; None means that
    there are no events, or no replay. ``num_gpu_blocks`` is for each rank. ``speed`` divides all times: 10 is ten times as
    fast. ``answer_tokens`` is when the model ends by itself, where a request sets no limit. ``max_num_queued_reqs`` is how many
    samples may wait and run together before more are refused. ``connector`` is how it fetches what other fake engines of this
    process have computed, ``store`` the name of what those with a shared one share; ``lease_seconds`` is how long it keeps what
    nobody fetches, ``transfer_patience`` how long it waits for what another one is to send, in seconds.

    Raises:
        ValueError: a field that cannot be used.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    model: str = "fake"
    event_port: int | None = 5557
    replay_port: int | None = 5657
    topic: str = ""
    vllm_version: str = NEWEST
    data_parallel_size: int = 1
    block_size: int = 16
    num_gpu_blocks: int = 4096
    max_model_len: int = 8192
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    hash_algorithm: str = "sha256"
    hash_seed: str | None = None
    has_int_hashes: bool = True
    latency: LatencyModel = LatencyModel()
    speed: float = 1.0
    loras: tuple[Lora, ...] = ()
    has_prefix_caching: bool = True
    has_scale_out: bool = True
    has_dev_mode: bool = True
    has_usage_details: bool = True
    answer_tokens: int = 128
    shutdown_timeout: float = 0.0
    api_key: str | None = None
    max_num_queued_reqs: int | None = None
    connector: ConnectorName = ""
    store: str = ""
    lease_seconds: float = 30.0
    transfer_patience: float = 480.0

    def __post_init__(self) -> None:
        if not self.model:
            raise ValueError("model: the name is empty")
        if self.data_parallel_size < 1:
            raise ValueError(f"data_parallel_size must be at least 1, got {self.data_parallel_size}")
        if not 0 < self.speed < math.inf:
            raise ValueError(f"speed must be a number above 0, got {self.speed}")
        if not 0 <= self.shutdown_timeout < math.inf:
            raise ValueError(f"shutdown_timeout must be a number of seconds, 0 or more, got {self.shutdown_timeout}")
        if self.max_num_queued_reqs is not None and self.max_num_queued_reqs < 0:
            raise ValueError(f"max_num_queued_reqs must be 0 or more, got {self.max_num_queued_reqs}")
        for name in ("host", "model", "topic", "api_key"):
            if not _is_text(getattr(self, name)):
                raise ValueError(f"{name}: {getattr(self, name)!r} is not valid text")
        for name in ("port", "event_port", "replay_port"):
            port = getattr(self, name)
            if port is not None and not 0 <= port <= 65_536 - self.data_parallel_size:
                raise ValueError(f"{name}: {port} is no port that {self.data_parallel_size} ranks could have")
        if self.event_port and self.replay_port and abs(self.event_port - self.replay_port) < self.data_parallel_size:
            raise ValueError(
                f"replay_port: {self.replay_port} is taken by the event ports of {self.data_parallel_size} ranks from "
                f"{self.event_port} on; choose one further away"
            )
        self.engine(b"\0" * self._recipe().digest_bytes)

    @property
    def release(self) -> Release:
        return Release(self.vllm_version)

    def _recipe(self) -> Recipe:
        algorithm: Algorithm = self.hash_algorithm  # type: ignore[assignment]  # checked by Recipe itself
        try:
            return Recipe.for_version(
                self.release.version, algorithm=algorithm, block_size=self.block_size, seed=self.hash_seed
            )
        except RecipeError as error:
            raise ValueError(str(error)) from None

    @property
    def digest_bytes(self) -> int:
        """Length of a root that ``engine`` may be given."""
        return self._recipe().digest_bytes

    def engine(self, random_root: bytes) -> EngineConfig:
        """One rank's engine; ``random_root`` is what it hashes from if its release draws the root anew for each process."""
        recipe = self._recipe()
        if not recipe.has_known_root:
            recipe = msgspec.structs.replace(recipe, root=random_root)
        return EngineConfig(
            recipe=recipe,
            num_gpu_blocks=self.num_gpu_blocks,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_num_seqs=self.max_num_seqs,
            max_model_len=self.max_model_len,
            has_prefix_caching=self.has_prefix_caching,
        )

    def lora(self, model: str) -> Lora | None:
        """The adapter with this name."""
        return next((lora for lora in self.loras if lora.name == model), None)

    def with_ports(self, port: int, event_port: int | None, replay_port: int | None) -> Self:
        """The same with ports that the system has chosen."""
        return msgspec.structs.replace(self, port=port, event_port=event_port, replay_port=replay_port)


def _is_text(value: str | None) -> bool:
    """Whether it can be encoded: bytes of the command line that are not UTF-8 become lone surrogates."""
    return value is None or not any("\ud800" <= letter <= "\udfff" for letter in value)
