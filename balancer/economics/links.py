"""How long bytes take from where they lie to the cache of a replica.

Knows rates and delays. Never knows what the bytes are, or who moves them.
"""

import difflib
import math
from typing import Final

import msgspec

from balancer.errors import ConfigError

SHARE: Final = 0.9
"""Of a link's own rate that arrives as data: TCP in frames of 1,500 bytes leaves 94 %, and there are pauses between blocks."""

NETWORK_SECONDS: Final = 0.001
"""Until the first byte comes over a network: asking what is there, and a round trip. An assumption; measure yours."""

DISK_SECONDS: Final = 0.0001
"""Until the first byte comes from an NVMe drive: a read takes about 100 microseconds. An assumption, too."""

_GBIT: Final = 1e9 / 8


class Link(msgspec.Struct, frozen=True):
    """One way for blocks into a replica's cache.

    Attributes:
        bandwidth: bytes a second that arrive, for one replica with all of its devices.
        latency: seconds until the first byte, of each load.
        setup: seconds that whoever moves them takes besides (a handshake, memory to be registered), of each load, too.
        source: where the figures are from, for people.
    """

    bandwidth: float
    latency: float = 0.0
    setup: float = 0.0
    source: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.bandwidth < math.inf:
            raise ValueError(f"bandwidth must be a number of bytes a second above 0, got {self.bandwidth}")
        for name in ("latency", "setup"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be a number of seconds, 0 or more, got {getattr(self, name)}")

    @property
    def fixed(self) -> float:
        """Seconds of a load, however short it is."""
        return self.latency + self.setup

    def seconds(self, size: float) -> float:
        """What it takes to move so many bytes; nothing takes no time."""
        return self.fixed + size / self.bandwidth if size > 0 else 0.0


def network(gbits: float, source: str = "") -> Link:
    """A network of this rate, in 10^9 bits a second."""
    return Link(gbits * _GBIT * SHARE, NETWORK_SECONDS, source=source or f"{gbits:g} Gbit/s, {SHARE:.0%} of it data")


def _bus(gigabytes: float, latency: float, source: str) -> Link:
    return Link(gigabytes * 1e9 * SHARE, latency, source=f"{source}, {SHARE:.0%} of it data")


LINKS: Final = {
    "10gbe": network(10, f"IEEE 802.3ae: 10 Gbit/s, {SHARE:.0%} of it data"),
    "25gbe": network(25, f"IEEE 802.3by: 25 Gbit/s, {SHARE:.0%} of it data"),
    "100gbe": network(100, f"IEEE 802.3ba: 100 Gbit/s, {SHARE:.0%} of it data"),
    "400gbe": network(400, f"IEEE 802.3bs: 400 Gbit/s, {SHARE:.0%} of it data"),
    "nvme-pcie4": _bus(6.8, DISK_SECONDS, "Samsung PM9A3 (PCIe 4.0 x4): 6,800 MB/s sequential read"),
    "nvme-pcie5": _bus(14.0, DISK_SECONDS, "Samsung PM1743 (PCIe 5.0 x4): 14,000 MB/s sequential read"),
    "ram-pcie4": _bus(31.5, 0.0, "PCIe 4.0 x16 from host memory: 16 GT/s a lane, 128b/130b, one direction"),
    "ram-pcie5": _bus(63.0, 0.0, "PCIe 5.0 x16 from host memory: 32 GT/s a lane, 128b/130b, one direction"),
}
"""Links by name. Bandwidths of single drives and slots; a replica on several devices has as many slots."""


def link_named(field: str, name: str) -> Link:
    """The link of this name; ``field`` is where it was written.

    Raises:
        ConfigError: there is none.
    """
    found = LINKS.get(name.lower())
    if found is None:
        near = difflib.get_close_matches(name.lower(), LINKS, 1)
        remedy = f"did you mean {near[0]}?" if near else f"there are: {', '.join(LINKS)}"
        raise ConfigError(f"{field}: there is no link '{name}'; {remedy}")
    return found
