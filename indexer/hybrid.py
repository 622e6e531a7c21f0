"""How much of a prompt a hybrid model's caches give: vLLM's hit rule for several cache groups at once.

Knows the groups of one replica (kind, block size, window) and which blocks of a prompt lie in each of them. Never knows how a
block was announced, what a request is or where it goes. Everything here is a function of its arguments.

A model with sliding-window, Mamba or chunked layers keeps a cache for each kind of layer, and a prompt is hit only as far as
*all* of them allow: full attention needs every block from the first one on, a sliding window only the blocks that it still
sees, Mamba the one block whose state it goes on from. Hashes are those of one fine chain; a group whose blocks are m times as
long uses every m-th of them, so the same key names the same prefix in every group.

Source: vLLM 0.32.0, ``HybridKVCacheCoordinator.find_longest_cache_hit`` and the managers in
``single_type_kv_cache_manager.py``, step for step; held against them by ``tests/real/test_hybrid_real.py``.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from math import gcd, lcm
from typing import Final

import msgspec

FULL_ATTENTION: Final = frozenset({"full_attention", "mla_attention", "sink_full_attention"})
"""Values of ``kv_cache_spec_kind`` whose blocks are hit from block 0 on."""

SLIDING_WINDOW: Final = frozenset({"sliding_window", "sliding_window_mla"})
CHUNKED_LOCAL: Final = "chunked_local_attention"
MAMBA: Final = "mamba"
MAX_UNIT: Final = 4_096
"""The longest ``--prefix-match-unit``, in tokens, that is looked for where nobody tells it."""

KNOWN_KINDS: Final = FULL_ATTENTION | SLIDING_WINDOW | {CHUNKED_LOCAL, MAMBA}


class GroupSpec(msgspec.Struct, frozen=True):
    """One cache group; sizes in tokens.

    ``window`` is the sliding window, or the chunk of chunked local attention (which no event tells). ``is_eagle`` says whether
    a draft model has the last block of each hit computed anew.
    """

    group: int
    kind: str
    block_size: int
    window: int | None = None
    is_eagle: bool = False


class Part(msgspec.Struct, frozen=True):
    """Groups of one kind, size and window: they are looked up jointly, and a block counts only if all of them hold it."""

    kind: str
    block_size: int
    window: int
    groups: tuple[int, ...]
    is_eagle: bool
    step: int
    """Hashes of the fine chain from one place where a hit may end to the next."""

    @property
    def is_full(self) -> bool:
        return self.kind in FULL_ATTENTION

    @property
    def window_blocks(self) -> int:
        """Consecutive blocks that a sliding window sees behind its next token."""
        return -(-(self.window - 1) // self.block_size)


class Found(msgspec.Struct):
    """What one prompt finds in one part: the bit set of the holders at each place, and how far each bit holds every block."""

    held: Sequence[int]
    runs: Mapping[int, int] | None = None
    _occupied: list[int] | None = None

    def run(self, bit: int, scale: int) -> int:
        """Leading blocks that are held, ``scale`` places each."""
        if self.runs is not None:
            return self.runs.get(bit, 0)
        blocks = 0
        while (blocks + 1) * scale <= len(self.held) and self.held[(blocks + 1) * scale - 1] & bit:
            blocks += 1
        return blocks

    def held_below(self, top: int, bit: int) -> Iterator[int]:
        """The places below ``top`` that this bit holds, the last one first."""
        if self._occupied is None:
            # Made once for all replicas: a window's cache is nearly empty by default (vLLM 0.32, retention interval 0).
            self._occupied = [at for at, held in enumerate(self.held) if held]
        for at in reversed(self._occupied):
            if at < top and self.held[at] & bit:
                yield at


class HitRule(msgspec.Struct, frozen=True):
    """The rule of one set of groups. ``alignment`` is what every hit is a multiple of; all in tokens."""

    hash_size: int
    alignment: int
    parts: tuple[Part, ...]

    @property
    def groups(self) -> tuple[int, ...]:
        return tuple(group for part in self.parts for group in part.groups)

    @property
    def has_parts_of_blocks(self) -> bool:
        """Whether the end of a prompt is cached inside its block: then blocks have more than one key."""
        return any(part.block_size > self.hash_size and (part.is_full or part.kind == MAMBA) for part in self.parts)

    @property
    def has_one_group(self) -> bool:
        """Then vLLM looks once, and without the margin that makes up for what a draft model drops."""
        return len(self.groups) == 1

    def usable_tokens(self, prompt_tokens: int, found: Sequence[Found], bit: int) -> int:
        """How many leading tokens of the prompt the replica of this bit takes from its caches, as the engine counts them.

        ``found`` belongs to ``parts``, one each, with as many places as are hashed or can matter.
        """
        hit = max(0, prompt_tokens - 1)  # the last token is always computed, for its logits
        hashed = prompt_tokens // self.hash_size * self.hash_size
        full: dict[int, int] = {}  # full attention is looked up once: what it holds can only be trimmed
        verified: set[int] = set()  # parts whose draft model has dropped its block at the present length
        # With one other group beside full attention vLLM does not look again.
        looks_once = self.has_one_group or (len(self.parts) == 2 and self.parts[0].is_full)
        while True:
            current = hit
            for at, part in enumerate(self.parts):
                if at in full:
                    current = min(current, full[at])
                    continue
                drops = part.is_eagle and at not in verified
                reach = current
                if drops and not self.has_one_group and part.kind != MAMBA:
                    reach = min(current + min(part.block_size, self.alignment), hashed)
                new = self._find(part, found[at], bit, reach, drops)
                if drops:
                    verified.add(at)
                elif new < current:
                    verified.clear()
                current = new
                if part.is_full:
                    full[at] = new
            if current >= hit or looks_once:
                return min(current, hit)
            hit = current

    def _find(self, part: Part, found: Found, bit: int, reach: int, drops: bool) -> int:
        if part.is_full:
            return self._full(part, found, bit, reach, drops)
        if part.kind == MAMBA:
            return self._mamba(part, found, bit, reach)
        if part.kind == CHUNKED_LOCAL:
            return self._chunked(part, found, bit, reach)
        return self._window(part, found, bit, reach, drops)

    def _full(self, part: Part, found: Found, bit: int, reach: int, drops: bool) -> int:
        size, unit = part.block_size, part.step * self.hash_size
        scale = size // unit
        blocks = min(found.run(bit, scale), reach // size)
        hit = blocks * size
        # The end of a prompt may be cached inside its last block, which is not full.
        last = min((blocks + 1) * scale - 1, reach // unit, len(found.held))
        for at in range(last - 1, blocks * scale - 1, -1):
            if found.held[at] & bit:
                hit = (at + 1) * unit
                break
        if drops and hit:
            hit -= min(self.alignment, size)
        return hit - hit % self.alignment

    def _mamba(self, part: Part, found: Found, bit: int, reach: int) -> int:
        unit = part.step * self.hash_size
        for at in found.held_below(reach // unit, bit):
            if (at + 1) * unit % self.alignment == 0:
                return (at + 1) * unit
        return 0

    def _window(self, part: Part, found: Found, bit: int, reach: int, drops: bool) -> int:
        size = part.block_size
        needed = part.window_blocks + drops
        run = end = 0
        for at in found.held_below(reach // size, bit):
            if run and at != end - run - 1:
                run = 0
            if not run:
                if (at + 1 - drops) * size % self.alignment:
                    continue
                end = at + 1
            run += 1
            if run >= needed:
                break
        else:
            # Short of a window, only what reaches back to the first token counts.
            if end != run:
                return 0
            end -= end * size % self.alignment // size
        if drops and end:
            end -= 1
            end -= end * size % self.alignment // size
        return end * size

    def _chunked(self, part: Part, found: Found, bit: int, reach: int) -> int:
        size = part.block_size
        blocks = reach // part.window * part.window // size  # chunks before the present one are not looked at any more
        while blocks < min(reach // size, len(found.held)) and found.held[blocks] & bit:
            blocks += 1
        return blocks * size

    def kept(self, prompt_tokens: int) -> Iterator[tuple[tuple[int, ...], list[int]]]:
        """Which blocks a finished prompt leaves, however little is retained: those by which a repeat of it is hit.

        Pairs (groups, places in the chain of hashes).
        """
        hashed = prompt_tokens // self.hash_size
        end = max(0, prompt_tokens - 1) // self.alignment * self.alignment // self.hash_size
        for part in self.parts:
            m = part.block_size // self.hash_size
            if part.kind == MAMBA:
                places = [end - 1] if end else []
            elif part.kind in SLIDING_WINDOW:
                places = list(range(max(m, end - (part.window_blocks - 1) * m) - 1, end, m))
            else:
                places = list(range(m - 1, hashed, m))
                if part.is_full and end % m:
                    places.append(end - 1)  # cached inside its block
            yield part.groups, places


def why_unknown(groups: Sequence[GroupSpec]) -> str:
    """Why the hit rule of these groups cannot be told, in words for an operator; empty where it can."""
    numbers = sorted(spec.group for spec in groups)
    if silent := [at for at, number in enumerate(numbers) if at != number]:
        return f"its cache group {silent[0]} tells nothing of what it holds, as others do"
    for spec in groups:
        if reason := _why_unknown(spec):
            return f"its cache group {spec.group} {reason}"
    if any(spec.kind == CHUNKED_LOCAL for spec in groups) and len({spec.block_size for spec in groups}) > 1:
        return "it has chunked local attention beside blocks of another size, which vLLM 0.32 does not serve"
    return ""


def is_known(spec: GroupSpec) -> bool:
    """Whether this group's part of the rule can be told."""
    return not _why_unknown(spec)


def _why_unknown(spec: GroupSpec) -> str:
    if spec.kind not in KNOWN_KINDS:
        return f"is of a kind whose hits follow a rule not known here: {spec.kind!r}"
    if spec.block_size < 1:
        return "tells no block size"
    if spec.kind in SLIDING_WINDOW and (spec.window or 0) < 1:
        return "does not tell its sliding window"
    if spec.kind == CHUNKED_LOCAL and (spec.window or 0) < 1:
        return "has chunked local attention, whose chunk no event tells; set replicas.attention_chunk"
    return ""


def hash_sizes(sizes: Sequence[int], announced: int | None) -> list[int]:
    """What a hybrid replica's hashes may cover, in tokens, the likeliest first: ``sizes`` are its groups' block sizes.

    Source: vLLM 0.32.0, ``resolve_kv_cache_block_sizes``: the greatest common divisor, or ``--prefix-match-unit``, which
    divides it. (Their least common multiple where Mamba is not aligned; then the sizes are all the same.)
    """
    common = gcd(*sizes)
    divisors = [size for size in range(min(common // 2, MAX_UNIT), 0, -1) if common % size == 0]
    likeliest = [announced] if announced and common % announced == 0 else []
    return list(dict.fromkeys([common, *likeliest, *divisors]))


@lru_cache(maxsize=256)
def hit_rule(groups: tuple[GroupSpec, ...], hash_size: int) -> HitRule:
    """The rule of these groups, whose block sizes are multiples of ``hash_size``."""
    sizes = [spec.block_size for spec in groups]
    # Longer Mamba blocks than hashes: only mode "align" has that (vLLM 0.32), and then hits may end inside blocks, unless a
    # group that can only be hit at whole blocks has longer ones, too.
    is_fine = any(spec.kind == MAMBA and spec.block_size > hash_size for spec in groups) and all(
        spec.kind in FULL_ATTENTION or spec.kind == MAMBA or spec.block_size == hash_size for spec in groups
    )
    parts: dict[tuple[str, int, int], list[GroupSpec]] = {}
    for spec in sorted(groups, key=lambda spec: (spec.kind not in FULL_ATTENTION, spec.group)):
        parts.setdefault((spec.kind, spec.block_size, spec.window or 0), []).append(spec)
    return HitRule(
        hash_size=hash_size,
        alignment=hash_size if is_fine else lcm(*sizes),
        parts=tuple(
            Part(
                kind,
                size,
                window,
                groups=tuple(spec.group for spec in specs),
                is_eagle=any(spec.is_eagle for spec in specs),
                step=1 if is_fine else size // hash_size,
            )
            for (kind, size, window), specs in parts.items()
        ),
    )
