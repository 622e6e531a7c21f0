"""What the engine's own figures teach the index.

Knows finished requests whose ``cached_tokens`` differ from what was predicted, the index and what is expected. Never knows
load or policy; time comes in as an argument. A difference is judged only after a while: the events that explain it trail
the answer.

The engine says less: blocks that were only expected or remembered are expected no more. Blocks that events have named, and no
event has removed, are believed once; when the same block is missing a second time, the rest of its chain is dropped for that
replica, and its publisher is asked for what may be missing. The engine says more: what it found is there, and is remembered.

A text is rendered twice, for us and then for the engine, and a template that writes the date makes two prompts of it at
midnight. So a difference of a rendered prompt counts only when a later rendering has the same tokens, and the same difference:
then what the engine made in between had them, too.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import msgspec

from balancer.audit import Audit, Cause
from balancer.core import Decision
from indexer.hits import placed, unnamed
from indexer.hybrid import HitRule
from indexer.index import CacheIndex, ReplicaId
from indexer.predicted import PredictedBlocks

SETTLE_SECONDS: Final = 1.0
"""How long after its end a request's blocks are still expected: events trail the answer by one scheduler step."""

RENDERED_LATER: Final = 60.0
"""Seconds after a request's end from which a rendering is surely later, though engines' clocks differ."""

MAX_SUSPECTS: Final = 10_000
"""Blocks that were missing once, or were there unnamed; the oldest of them forgotten first."""

REMEMBERED_BLOCKS: Final = 20_000
"""Blocks remembered of a replica that does not tell how many it has."""


OTHERWISE: Final = "its text may have been rendered otherwise than it was for us"


class Correction(StrEnum):
    """What was done about a difference."""

    DENIED = "denied"  # expected or remembered blocks that were not there are expected no more
    DROPPED = "dropped"  # a chain that was missing twice is dropped, and a replay asked for
    LEARNED = "learned"  # blocks that the engine found, and no event has named, are remembered


class Doubt(msgspec.Struct, frozen=True):
    """A finished request of which the engine found another part in its cache than was predicted.

    ``keys`` are the prompt's block keys, ``rule`` says how several cache groups are hit, ``life`` is the replica's cache when
    it was decided (``Healer.life``). ``ended`` is when the request had, ``rendered_at`` as in ``RouteRequest``.
    """

    decision: Decision
    actual: int
    keys: Sequence[int]
    block_size: int
    life: int
    ended: float
    rule: HitRule | None = None
    rendered_at: float | None = None

    @property
    def groups(self) -> tuple[int, ...]:
        return (0,) if self.rule is None else self.rule.groups


class Finding(msgspec.Struct, frozen=True):
    """A judged difference: where it came from, why, and what was done about it."""

    doubt: Doubt
    cause: Cause
    reason: str
    correction: Correction | None = None


class Healer:
    """Judges differences and corrects the index. Changes with ``began``, ``ended``, ``doubt`` and ``tick``."""

    def __init__(self, index: CacheIndex, predicted: PredictedBlocks, audit: Audit) -> None:
        self.corrections: Counter[Correction] = Counter(dict.fromkeys(Correction, 0))
        self._index = index
        self._predicted = predicted
        self._audit = audit
        self._doubts: deque[Doubt] = deque()
        self._suspects: OrderedDict[tuple[int, int, bool], float] = OrderedDict()  # (life, key, is there) -> since when
        self._lives: dict[ReplicaId, int] = {}
        self._last_life = 0

    def began(self, replica: ReplicaId) -> None:
        """The replica's cache began empty, for the first time or again."""
        self._last_life += 1
        self._lives[replica] = self._last_life

    def ended(self, replica: ReplicaId) -> None:
        """The replica is gone."""
        self._lives.pop(replica, None)

    def life(self, replica: ReplicaId) -> int:
        """Names the time since the replica's cache was last known to be empty; 0 for a replica that is not there."""
        return self._lives.get(replica, 0)

    def doubt(
        self,
        decision: Decision,
        actual: int,
        keys: Sequence[int],
        block_size: int,
        life: int,
        now: float,
        rule: HitRule | None = None,
        rendered_at: float | None = None,
    ) -> None:
        """A prediction was not exact; it is judged when the events that may explain it have come."""
        self._doubts.append(Doubt(decision, actual, keys, block_size, life, now, rule, rendered_at))

    def tick(self, now: float) -> list[Finding]:
        """Judge what is due."""
        findings = []
        while self._doubts and self._doubts[0].ended + SETTLE_SECONDS <= now:
            doubt = self._doubts.popleft()
            finding = self._judge(doubt)
            findings.append(finding)
            if finding.correction is not None:
                self.corrections[finding.correction] += 1
            self._audit.explain(doubt.decision, doubt.actual, finding.cause, finding.reason, now, is_compared=True)
        return findings

    def _judge(self, doubt: Doubt) -> Finding:
        replica = doubt.decision.replica
        if not self.life(replica.id):
            return Finding(doubt, Cause.ROUTING, "the replica was removed in between")
        if self.life(replica.id) != doubt.life:
            return Finding(doubt, Cause.ROUTING, "its cache was cleared in between")
        return self._judge_less(doubt) if doubt.actual < doubt.decision.cached_tokens else self._judge_more(doubt)

    def _judge_less(self, doubt: Doubt) -> Finding:
        decision, gpu = doubt.decision, self._index.gpu
        bit = gpu.bit(decision.replica.id)
        at = doubt.actual // doubt.block_size
        rest = doubt.keys[at:]
        if doubt.actual >= decision.held_tokens:
            self._deny(doubt, bit, rest)
            if decision.is_predicted:
                return Finding(
                    doubt,
                    Cause.ROUTING,
                    "blocks expected of requests under way had not been computed",
                    Correction.DENIED,
                )
            return Finding(
                doubt, Cause.INDEX, "blocks remembered from earlier requests were not there", Correction.DENIED
            )
        # With one cache of full attention it is the first of the rest that was missing, else it may be any.
        missing = rest[:1] if doubt.rule is None else rest[: decision.cached_tokens // doubt.block_size - at]
        if not gpu.removed_lately(decision.replica.id).isdisjoint(missing):
            return Finding(doubt, Cause.ROUTING, "a block was evicted before the request was computed")
        if not self._is_seen_again(doubt, rest[0], is_there=False):
            if doubt.rendered_at is not None:
                return Finding(doubt, Cause.WORKLOAD, "a block was missing that no event has removed; " + OTHERWISE)
            return Finding(doubt, Cause.INDEX, "a block was missing that no event has removed")
        for group in doubt.groups:
            gpu.discard(decision.replica.id, group, rest)
        self._deny(doubt, bit, rest)
        return Finding(
            doubt,
            Cause.INDEX,
            "a block was missing twice that no event has removed; its chain is dropped",
            Correction.DROPPED,
        )

    def _is_seen_again(self, doubt: Doubt, key: int, *, is_there: bool) -> bool:
        """Whether the same was found of this block before, and no change of the template can explain both."""
        suspect = (doubt.life, key, is_there)
        since = self._suspects.get(suspect)
        if since is None:
            self._suspects[suspect] = doubt.ended
            if len(self._suspects) > MAX_SUSPECTS:
                self._suspects.popitem(last=False)
            return False
        if doubt.rendered_at is not None and doubt.rendered_at < since + RENDERED_LATER:
            return False
        del self._suspects[suspect]
        return True

    def _deny(self, doubt: Doubt, bit: int, keys: Sequence[int]) -> None:
        for group in doubt.groups:
            self._predicted.deny(bit, placed(group, keys))

    def _judge_more(self, doubt: Doubt) -> Finding:
        replica = doubt.decision.replica
        bit = self._index.gpu.bit(replica.id)
        if doubt.rule is not None:
            # The hit implies what a prompt of that length leaves.
            implied = unnamed(doubt.rule, self._index.gpu, bit, doubt.keys, doubt.actual + 1)
        else:
            implied = self._index.gpu.lacking(bit, 0, doubt.keys[: doubt.actual // doubt.block_size])
        if not implied:
            return Finding(doubt, Cause.ROUTING, "blocks were stored before the request was computed")
        if not self._index.gpu.removed_lately(replica.id).isdisjoint(implied):
            return Finding(
                doubt, Cause.ROUTING, "blocks were stored before the request was computed, and evicted since"
            )
        if self._index.has_other_tiers(replica.id):
            return Finding(doubt, Cause.INDEX, "blocks came from another tier, which predictions leave out")
        if (
            doubt.decision.is_predicted
            and doubt.rendered_at is not None
            and not self._is_seen_again(doubt, implied[0], is_there=True)
        ):
            return Finding(doubt, Cause.WORKLOAD, "blocks were there that no event has named; " + OTHERWISE)
        self._predicted.remember(bit, implied, replica.num_gpu_blocks or REMEMBERED_BLOCKS)
        return Finding(doubt, Cause.INDEX, "blocks were there that no event has named", Correction.LEARNED)
