"""How a replica hashes: algorithm, block size, root and the form of the extra keys.

Knows what each vLLM release does and when the root cannot be known from outside. Never knows a replica, a
request or this process's own environment (least of all its PYTHONHASHSEED). A recipe is a value: equal
recipes hash alike, and it serves as a dict key.
"""

import re
from functools import lru_cache
from typing import Final, Literal, Self, TypeAlias, get_args

import msgspec

from hashing.errors import RecipeError
from hashing.serialize import DIGEST_BYTES, Algorithm, seed_digest

__all__ = ["DEFAULT_SEED", "Algorithm", "Recipe"]

LoraForm: TypeAlias = Literal["tagged", "name", "id"]
MultimodalForm: TypeAlias = Literal["tagged", "offset", "id"]
SaltForm: TypeAlias = Literal["tagged", "plain"]
EmbedsForm: TypeAlias = Literal["tagged", "plain", "absent"]

DEFAULT_SEED: Final = "vllm-none-hash"
"""What vLLM >= 0.30 hashes into the root when PYTHONHASHSEED is not set (sha256 kinds only)."""

_ALGORITHMS: Final = get_args(Algorithm)
_VERSION: Final = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?")


class Recipe(msgspec.Struct, frozen=True):
    """How a replica hashes.

    ``seed`` is the engine's PYTHONHASHSEED, as the *string* in its environment; None when it is not set.
    ``root`` is the root itself where it is known by other means, and beats the seed. ``unseeded`` says what
    the engine does without a seed: a fixed root (vLLM >= 0.30) or a random one for each process. The forms
    say how extras enter the hash.

    Raises:
        RecipeError: an algorithm that vLLM does not have, a block size below 1, a root of the wrong length.
    """

    algorithm: Algorithm = "sha256"
    block_size: int = 16
    seed: str | None = None
    root: bytes | None = None
    unseeded: Literal["fixed", "random"] = "fixed"
    lora_form: LoraForm = "tagged"
    multimodal_form: MultimodalForm = "tagged"
    salt_form: SaltForm = "tagged"
    embeds_form: EmbedsForm = "tagged"

    def __post_init__(self) -> None:
        if self.algorithm not in _ALGORITHMS:
            raise RecipeError(f"algorithm: {self.algorithm!r} is unknown; use one of {', '.join(_ALGORITHMS)}")
        if self.block_size < 1:
            raise RecipeError(f"block_size: {self.block_size} is too small; use the engine's --block-size")
        width = DIGEST_BYTES[self.algorithm]
        if self.root is not None and len(self.root) != width:
            raise RecipeError(f"root: {len(self.root)} bytes given; {self.algorithm} needs {width}")

    @classmethod
    def for_version(
        cls, version: str, *, algorithm: Algorithm = "sha256", block_size: int = 16, seed: str | None = None
    ) -> Self:
        """The recipe of a vLLM release, such as "0.32.0" (``GET /version``); suffixes like rc1 or .dev7 are
        ignored.

        Between the releases that were read (0.11, 0.14, 0.18, 0.22, 0.28, 0.30, 0.31) the newer behaviour is
        assumed unless the change itself is known to lie elsewhere.

        Raises:
            RecipeError: not a version, or one whose block hashes cannot be mirrored.
        """
        release = _parse(version)
        if release < (0, 11):
            raise RecipeError(f"version: vLLM {version} hashes in its own way; 0.11 or later is needed")
        if release < (0, 14) and algorithm.startswith("xxhash"):
            raise RecipeError(f"algorithm: vLLM {version} has no {algorithm}; 0.14 or later is needed")
        is_tagged = release >= (0, 31)
        return cls(
            algorithm=algorithm,
            block_size=block_size,
            seed=seed,
            unseeded="fixed" if release >= (0, 29) else "random",
            lora_form="tagged" if is_tagged else "name" if release >= (0, 11, 1) else "id",  # vllm#27211
            multimodal_form="tagged" if is_tagged else "offset" if release >= (0, 19) else "id",  # vllm#36708
            salt_form="tagged" if is_tagged else "plain",
            embeds_form="tagged" if is_tagged else "plain" if release >= (0, 12) else "absent",
        )

    @property
    def digest_bytes(self) -> int:
        return DIGEST_BYTES[self.algorithm]

    @property
    def has_known_root(self) -> bool:
        """Whether ``none_hash`` can answer; without a root, hashes must be learned from events."""
        if self.root is not None or self.seed is not None:
            return True
        return self.unseeded == "fixed" and self.algorithm.startswith("sha256")

    def none_hash(self) -> bytes:
        """The digest that stands for the parent of every first block (vLLM's NONE_HASH).

        Raises:
            RecipeError: the engine draws it at random and never tells.
        """
        if self.root is not None:
            return self.root
        if not self.has_known_root:
            cause = "xxhash kinds draw" if self.algorithm.startswith("xxhash") else "vLLM before 0.30 draws"
            raise RecipeError(f"seed: {cause} a random root for each process; set PYTHONHASHSEED on the engines")
        return _none_hash(self.algorithm, DEFAULT_SEED if self.seed is None else self.seed)


@lru_cache(maxsize=256)
def _none_hash(algorithm: Algorithm, seed: str) -> bytes:
    try:
        return seed_digest(algorithm, seed)
    except UnicodeEncodeError:
        raise RecipeError(f"seed: {seed!r} is not valid Unicode; use digits") from None


def _parse(version: str) -> tuple[int, ...]:
    found = _VERSION.match(version.strip())
    if found is None:
        raise RecipeError(f"version: {version!r} is not a vLLM version; give one like 0.32.0")
    return tuple(int(part or 0) for part in found.groups())
