"""What a gateway is asked, as a workload that can be played again: times, lengths, and what prompts have in common.

Knows requests by the keys of their blocks, and hides those: what is told is a hash with a secret that is drawn for one
recording and kept nowhere, so that equal beginnings stay equal within it, and nothing can be found out about a prompt by
trying, but by who sends guesses while it is recorded. Never knows prompts, salts, clients or clocks. While nobody records it
costs nothing.
"""

from collections import deque
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

import msgspec

from balancer.core import Decision, Outcome, Truth
from indexer.index import Keys

PATH: Final = "/debug/recording"
"""Where a gateway is asked for one; the answer ends with whoever reads it, or with the gateway."""

VERSION: Final = 1

MAX_WAITING: Final = 20_000
"""Requests that wait to be written; the oldest go first."""

_SECRET_BYTES: Final = 32
_ID_BITS: Final = 53
"""What every reader of JSON keeps exactly."""

_TOLD: Final = frozenset({Outcome.OK, Outcome.CANCELLED})
"""An attempt that failed is made again, and is told then; a request that an engine refuses is no work."""


class Line(msgspec.Struct, frozen=True):
    """One request. Times are seconds, ``timestamp`` is when it came, since 1970.

    ``hash_ids`` are of ``block_size`` tokens each and name all that is before their end; those of full blocks only, and only as
    far as the tokens are known. ``output_length`` and ``cached_tokens`` are the engine's, None where it did not say;
    ``predicted_cached_tokens`` are what the replica was chosen for.
    """

    kvlb_recording: int
    timestamp: float
    input_length: int
    output_length: int | None
    block_size: int
    hash_ids: Sequence[int]
    model: str
    replica: str
    predicted_cached_tokens: int
    cached_tokens: int | None
    outcome: str
    ttft: float | None
    seconds: float


class Lost(msgspec.Struct, frozen=True):
    """So many requests are missing here: they were not taken in time."""

    kvlb_recording: int
    lost: int


class _Prompt(msgspec.Struct, frozen=True):
    length: int
    keys: Sequence[int]


class _Begun(msgspec.Struct):
    at: float
    decision: Decision
    block_size: int
    prompts: list[_Prompt]
    first: float | None = None


class _Ended(msgspec.Struct, frozen=True):
    begun: _Begun
    at: float
    outcome: Outcome
    truth: Truth


class Recorder:
    """One recording under way. Changes with every call; ``take`` may be called in another thread than the rest."""

    def __init__(self, block_size: int, secret: bytes) -> None:
        """``block_size`` is rounded up to whole blocks of each replica; ``secret`` is drawn at random for this recording."""
        if len(secret) < _SECRET_BYTES:
            raise ValueError(f"a secret has at least {_SECRET_BYTES} bytes")
        self.is_closed = False
        """Whether nothing more will come."""
        self._block_size = block_size
        self._secret = secret[:64]
        self._open: dict[int, _Begun] = {}
        self._ended: deque[_Ended] = deque(maxlen=MAX_WAITING)
        self._lost = 0

    def __repr__(self) -> str:
        return f"<Recorder {len(self._open)} under way, {len(self._ended)} to be written>"  # and never the secret

    def sent(
        self, decision: Decision, lengths: Sequence[int], chains: Sequence[Keys], block_size: int, at: float
    ) -> None:
        """A request has come at ``at`` and been sent; its ``chains`` are in keys of blocks of ``block_size`` tokens."""
        step = -(-self._block_size // block_size)
        prompts = []
        for number, length in enumerate(lengths or (decision.prompt_tokens,)):
            blocks = length // (step * block_size)
            keys: Sequence[int] = ()
            if blocks and number < len(chains):
                keys = chains[number].keys(blocks * step)[step - 1 : blocks * step : step]
            prompts.append(_Prompt(length, keys))
        self._open[decision.lease] = _Begun(at, decision, step * block_size, prompts)

    def started(self, lease: int, at: float) -> None:
        """The first output has come."""
        begun = self._open.get(lease)
        if begun is not None and begun.first is None:
            begun.first = at

    def ended(self, lease: int, outcome: Outcome, truth: Truth | None, at: float) -> None:
        """The request has ended."""
        begun = self._open.pop(lease, None)
        if begun is not None and outcome in _TOLD:
            self._lost += len(self._ended) == MAX_WAITING
            self._ended.append(_Ended(begun, at, outcome, truth or Truth()))

    def take(self) -> bytes:
        """Lines for all that has ended since the last time."""
        lines: list[Line | Lost] = []
        if self._lost:
            lost, self._lost = self._lost, 0
            lines.append(Lost(VERSION, lost))
        for _ in range(len(self._ended)):
            lines += self._lines(self._ended.popleft())
        return b"".join([msgspec.json.encode(line) + b"\n" for line in lines])

    def _lines(self, ended: _Ended) -> list[Line]:
        begun, truth = ended.begun, ended.truth
        decision, alone = begun.decision, len(begun.prompts) == 1
        name = decision.model.encode(errors="replace")
        secret = blake2b(name, key=self._secret, digest_size=_SECRET_BYTES).digest()  # another model has other blocks
        answer = truth.completion_tokens
        lines = []
        for prompt in begun.prompts:
            length = prompt.length
            if alone and not decision.knows_tokens:
                length = truth.prompt_tokens or length
            lines.append(
                Line(
                    kvlb_recording=VERSION,
                    timestamp=round(begun.at, 6),
                    input_length=max(1, length),
                    output_length=answer if answer is None or alone else answer // len(begun.prompts),
                    block_size=begun.block_size,
                    hash_ids=[hidden(key, secret) for key in prompt.keys],
                    model=decision.model,
                    replica=decision.replica.id,
                    predicted_cached_tokens=decision.cached_tokens if alone else 0,
                    cached_tokens=truth.cached_tokens if alone else None,
                    outcome=ended.outcome,
                    ttft=None if begun.first is None else round(begun.first - begun.at, 6),
                    seconds=round(ended.at - begun.at, 6),
                )
            )
        return lines


def hidden(key: int, secret: bytes) -> int:
    """A number for a block's key that says nothing of it to those who do not have the secret."""
    digest = blake2b((key & (1 << 64) - 1).to_bytes(8, "big"), key=secret, digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 64 - _ID_BITS
