"""What a prompt finds in the index of replicas with several cache groups.

Knows the index's tables, chains and the hit rule (``hybrid.py``), and brings them together: each table is asked once for all
replicas. Never knows why a block is there.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from indexer.hybrid import Found, HitRule, Part
from indexer.index import Keys, TierIndex


def matches(
    rule: HitRule,
    tier: TierIndex,
    chain: Keys,
    prompt_tokens: int,
    among: Sequence[int],
    also: Mapping[int, int] | None = None,
) -> list[tuple[int, int]]:
    """Pairs (bit, tokens): what each replica of the bits ``among`` takes of the prompt from its caches, where it is anything.

    ``chain`` is hashed by ``rule.hash_size``, and no further than somebody holds it. ``also`` names further holders, by
    ``placed`` keys.
    """
    hashed = prompt_tokens // rule.hash_size
    runs = [_runs(rule, part, tier, chain, hashed, among, also) if part.is_full else None for part in rule.parts]
    reach = {bit: _reach(rule, runs, bit, hashed) for bit in among}
    furthest = max(reach.values(), default=0)
    keys = chain.keys(furthest)[:furthest]
    found = [
        Found(
            _held(part, tier, keys, also) if not part.is_full or part.block_size > part.step * rule.hash_size else (),
            run,
        )
        for part, run in zip(rule.parts, runs, strict=True)
    ]
    tokens = ((bit, rule.usable_tokens(prompt_tokens, found, bit)) for bit, hashes in reach.items() if hashes)
    return [(bit, count) for bit, count in tokens if count]


def _runs(
    rule: HitRule,
    part: Part,
    tier: TierIndex,
    chain: Keys,
    hashed: int,
    among: Sequence[int],
    also: Mapping[int, int] | None,
) -> dict[int, int]:
    """How many leading blocks each bit holds in all groups of a part of full attention."""
    m = part.block_size // rule.hash_size
    every = chain if m == 1 else Every(chain, m)
    runs = dict.fromkeys(among, hashed // m)
    for group in part.groups:
        expected = _InGroup(group, also) if also and group else also
        for bits, blocks in tier.depths(every, hashed // m, sum(among), group, expected):
            for bit in among:
                if bits & bit:
                    runs[bit] = min(runs[bit], blocks)
    return runs


def _reach(rule: HitRule, runs: Sequence[Mapping[int, int] | None], bit: int, hashed: int) -> int:
    """Beyond how many hashes this bit's hit cannot go, with what lookups need to see behind it."""
    reach = hashed
    for part, run in zip(rule.parts, runs, strict=True):
        if run is not None:
            m = part.block_size // rule.hash_size
            blocks = run[bit] + (part.step < m)  # a prompt's end may be cached inside the block after the last
            reach = min(reach, blocks * m)
    margin = max((part.block_size // rule.hash_size for part in rule.parts if part.is_eagle), default=0)
    return min(reach + margin, hashed) if reach else 0


def _held(part: Part, tier: TierIndex, keys: Sequence[int], also: Mapping[int, int] | None) -> list[int]:
    """Who holds each place of the part, in all of its groups."""
    places = keys[part.step - 1 :: part.step]
    held: list[int] = []
    for group in part.groups:
        get = tier.groups.get(group, {}).get
        here = [get(key, 0) for key in places]
        if also:
            here = [bits | also.get(key, 0) for bits, key in zip(here, placed(group, places), strict=True)]
        held = [one & other for one, other in zip(held, here, strict=True)] if held else here
    return held


class Every:
    """Every m-th key of a chain: those of blocks that are m times as long."""

    def __init__(self, chain: Keys, m: int) -> None:
        self._chain = chain
        self._m = m

    def keys(self, count: int) -> Sequence[int]:
        return self._chain.keys(count * self._m)[self._m - 1 :: self._m]


class _InGroup(Mapping[int, int]):
    """Expected holders of one group's blocks, by their own keys."""

    def __init__(self, group: int, also: Mapping[int, int]) -> None:
        self._salt = _salt(group)
        self._also = also

    def __getitem__(self, key: int) -> int:
        return self._also[key ^ self._salt]

    def __iter__(self) -> Iterator[int]:
        return (key ^ self._salt for key in self._also)

    def __len__(self) -> int:
        return len(self._also)


def placed(group: int, keys: Iterable[int]) -> Iterable[int]:
    """The keys of blocks that are expected in this group (``indexer.predicted``): what is expected of one is not of another.

    Those of group 0, which is the only one of most models, are the keys themselves.
    """
    if not group:
        return keys
    salt = _salt(group)
    return [key ^ salt for key in keys]


def _salt(group: int) -> int:
    return group * 0x9E37_79B9_7F4A_7C15 & 0xFFFF_FFFF_FFFF_FFFF


def unnamed(rule: HitRule, tier: TierIndex, bit: int, keys: Sequence[int], prompt_tokens: int) -> list[int]:
    """Of the blocks that a prompt of these keys leaves when it is finished, those that the tables lack; ``placed`` keys."""
    missing: list[int] = []
    for groups, places in rule.kept(prompt_tokens):
        for group in groups:
            missing += placed(group, tier.lacking(bit, group, [keys[at] for at in places]))
    return missing
