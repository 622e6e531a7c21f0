"""What a stretch of a prompt weighs in a cache.

Knows layers by what they keep of a prompt. Never knows where that was read (``balancer.economics.model_config``) or how long it
takes to move.
"""

import msgspec


class Layers(msgspec.Struct, frozen=True):
    """Layers that keep the same of a prompt, all of them together.

    Attributes:
        token_bytes: of each token that they keep.
        window: they keep only so many tokens, the last ones; None for all.
        state_bytes: besides, whatever the length (Mamba, linear attention): what the next token goes on from.
    """

    token_bytes: float = 0.0
    window: int | None = None
    state_bytes: float = 0.0


class CacheShape(msgspec.Struct, frozen=True):
    """What a model keeps of a prompt, without what engines add to it (padding, copies of heads on several devices).

    ``source`` says, for people, where that is from.
    """

    layers: tuple[Layers, ...]
    source: str = ""

    @classmethod
    def uniform(cls, token_bytes: float, source: str = "") -> "CacheShape":
        """Each token weighs the same, as with full attention in all layers."""
        return cls((Layers(token_bytes),), source)

    @property
    def bytes_per_token(self) -> float:
        """What one more token adds to a prompt that is longer than all windows."""
        return sum(each.token_bytes for each in self.layers if each.window is None)

    @property
    def windows(self) -> tuple[int, ...]:
        """Lengths from which on a token weighs less than before."""
        return tuple(sorted({each.window for each in self.layers if each.window is not None}))

    def size(self, tokens: int) -> float:
        """Bytes of a prompt's first tokens."""
        return self.moved(0, tokens, tokens)

    def moved(self, start: int, end: int, until: int) -> float:
        """Bytes of the tokens from ``start`` to ``end``, as a part of what has to be there to go on at ``until``.

        Of windows only what is still seen from there has to be; a state is that at ``until``.
        """
        if end <= start:
            return 0.0
        total = 0.0
        for each in self.layers:
            first = start if each.window is None else max(start, until - each.window)
            total += each.token_bytes * max(0, end - first)
            if end == until:
                total += each.state_bytes
        return total
