"""Stores that both engines read and write: the decode leg finds there what the prefill leg has left, and nobody is told.

Knows that there is nothing to say, and to whom an answer says what.
"""

from typing import ClassVar

import msgspec

from balancer.disaggregation.plan import Answered, Leg, Pair, Plain, connector, fields_of, lacks


@connector("shared")
class Shared(Plain, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A store without any parameters: vLLM's ``ExampleConnector`` (a directory; ``SharedStorageConnector`` <= 0.11), the file
    tier of ``OffloadingConnector``, ``MooncakeStoreConnector``, and ``LMCacheConnectorV1`` before a shared cache.
    """

    shares: ClassVar[bool] = True
    tells_loaded: ClassVar[bool] = True

    chunk_size: int = 1
    """Tokens that the store keeps together, where it is more than a block of the engines (LMCache: 256)."""

    def __post_init__(self) -> None:
        _check(self.chunk_size)

    @property
    def chunk_tokens(self) -> int:
        return self.chunk_size

    def prefill(self, pair: Pair, /) -> Leg:
        return Leg()

    def decode(self, pair: Pair, answered: Answered | None, /) -> Leg | None:
        return Leg()


@connector("lmcache_mp")
class LMCacheMP(Plain, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``LMCacheMPConnector`` before an LMCache server. It tells how much it had, if it is asked with any parameters."""

    shares: ClassVar[bool] = True
    tells_loaded: ClassVar[bool] = True

    chunk_size: int = 256
    """Tokens that the server keeps together: its ``--chunk-size``."""

    def __post_init__(self) -> None:
        _check(self.chunk_size)

    @property
    def chunk_tokens(self) -> int:
        return self.chunk_size

    def prefill(self, pair: Pair, /) -> Leg:
        return Leg()

    def decode(self, pair: Pair, answered: Answered | None, /) -> Leg | None:
        return Leg({"num_lmcache_extra_cached_tokens": True})


@connector("lmcache")
class LMCacheV1(Plain, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``LMCacheConnectorV1`` between two engines: the first sends the blocks to where the LMCache of the second listens.

    The decode replica's ``transfer.address`` is ``HOST:INIT_PORT:ALLOC_PORT`` of its LMCache (``pd_peer_host``,
    ``pd_peer_init_port``, ``pd_peer_alloc_port``).
    """

    tells_loaded: ClassVar[bool] = True

    def prefill(self, pair: Pair, /) -> Leg:
        host, _, ports = (pair.decode.transfer.address or "").partition(":")
        init, _, alloc = ports.partition(":")
        spec = {
            "req_id": pair.transfer_id,
            "receiver_host": host,
            "receiver_init_port": _ports(init),
            "receiver_alloc_port": _ports(alloc),
        }
        return Leg({"ret_first_tok": True, "disagg_spec": spec})

    def decode(self, pair: Pair, answered: Answered | None, /) -> Leg | None:
        told = fields_of(None if answered is None else answered.params)
        return None if lacks(told, "first_tok") else Leg()


def _check(chunk_size: int) -> None:
    if chunk_size < 1:
        raise ValueError("chunk_size: the tokens that the store keeps together, 1 or more")


def _ports(text: str) -> list[int]:
    return [int(each) for each in text.split("/") if each.isdecimal()]
