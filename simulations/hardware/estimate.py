"""How fast a model runs on an accelerator, and what its cache holds: arithmetic, from data sheets and configurations.

Knows ``gpus.toml`` and ``models.toml`` beside it, and which share of a data sheet's figures real kernels reach. Never knows a
measurement: ``kvlb calibrate`` makes one, and whoever has one should use it instead.
"""

import difflib
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Annotated, Final, TypeVar

import msgspec

from balancer.errors import ConfigError
from simulations.latency import LatencyModel

COMPUTE_SHARE: Final = 0.5
"""Of the dense peak, in prefill: a middle of what serving reaches (published figures of vLLM lie from 0.35 to 0.65)."""

BANDWIDTH_SHARE: Final = 0.75
"""Of the peak, in decode."""

STEP_OVERHEAD: Final = 1e-3
"""Seconds of scheduling, launching and sampling a step."""

MEMORY_SHARE: Final = 0.9
"""vLLM's ``--gpu-memory-utilization``."""

ACTIVATIONS_GB: Final = 2.0
"""Memory of a device that neither weights nor cache get: activations, graphs and the runtime."""

Positive = Annotated[float, msgspec.Meta(gt=0)]


class Gpu(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One device; see ``gpus.toml``."""

    tflops: Positive
    memory_gb: Positive
    bandwidth_gbs: Positive
    source: str


class Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One model; see ``models.toml``."""

    parameters: Positive
    layers: Annotated[int, msgspec.Meta(ge=1)]
    heads: Annotated[int, msgspec.Meta(ge=1)]
    head_size: Annotated[int, msgspec.Meta(ge=1)]
    kv_elements: Annotated[int, msgspec.Meta(ge=1)]
    source: str
    active: Positive | None = None
    weight_bytes: Positive = 2.0
    latent: bool = False

    def kv_bytes(self, bytes_each: float = 2.0) -> float:
        """Bytes that one token leaves in the cache, at ``bytes_each`` a number (1 for 8 bits)."""
        return self.layers * self.kv_elements * bytes_each


class Estimate(msgspec.Struct, frozen=True):
    """One replica.

    Attributes:
        latency: what a step costs.
        cache_tokens: what its cache holds.
        kv_bytes: bytes of a token in it.
        prefill_tps: prompt tokens a second, attention's share left out.
        words: what it rests on, for people.
    """

    latency: LatencyModel
    cache_tokens: int
    kv_bytes: float
    prefill_tps: float
    words: str


T = TypeVar("T")


@cache
def gpus() -> Mapping[str, Gpu]:
    """By name."""
    return _read("gpus.toml", Gpu)


@cache
def models() -> Mapping[str, Model]:
    """By name."""
    return _read("models.toml", Model)


class Hardware(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a replica is made of.

    Attributes:
        model: a name of ``models.toml``.
        gpu: a name of ``gpus.toml``.
        count: devices that share the model evenly (tensor parallelism, taken to cost nothing).
        weight_bytes: of a number of the weights: 2 for 16 bits, 1 for 8; the model's own by default.
        kv_bytes: of a number in the cache.
    """

    model: str
    gpu: str
    count: Annotated[int, msgspec.Meta(ge=1)] = 1
    weight_bytes: Positive | None = None
    kv_bytes: Positive = 2.0


class TooSmall(ConfigError):
    """Devices that cannot hold a model; ``why`` goes on behind their name."""

    def __init__(self, message: str, why: str) -> None:
        super().__init__(message)
        self.why = why


def estimate(hardware: Hardware) -> Estimate:
    """What a replica of this hardware can do. Computing is taken to be in 16 bits, whatever the weights are stored in.

    Raises:
        ConfigError: there is no such model or device.
        TooSmall: the weights leave no room for a cache.
    """
    model, gpu, count = hardware.model, hardware.gpu, hardware.count
    what, device = model_named("model", model), device_named("gpu", gpu)
    flops = device.tflops * 1e12 * COMPUTE_SHARE * count
    bandwidth = device.bandwidth_gbs * 1e9 * BANDWIDTH_SHARE * count
    weights = what.parameters * 1e9 * (hardware.weight_bytes or what.weight_bytes)
    kv_bytes = what.kv_bytes(hardware.kv_bytes)
    room = (device.memory_gb * MEMORY_SHARE - ACTIVATIONS_GB) * 1e9 * count - weights
    if room < kv_bytes * 1024:
        least = 1 + int(weights / ((device.memory_gb * MEMORY_SHARE - ACTIVATIONS_GB) * 1e9))
        why = f"cannot hold {model} ({weights / 1e9:.0f} GB of weights) and a cache; take {least} at least"
        raise TooSmall(f"gpu: {count} x {gpu} {why}", why)
    token = 2 * (what.active or what.parameters) * 1e9 / flops
    return Estimate(
        latency=LatencyModel(
            overhead=STEP_OVERHEAD,
            weights=weights / bandwidth,
            token=token,
            pair=4 * what.heads * what.head_size * what.layers / flops,
            context_token=kv_bytes / bandwidth,
        ),
        cache_tokens=int(room / kv_bytes),
        kv_bytes=kv_bytes,
        prefill_tps=1 / token,
        words=(
            f"{model} on {count} x {gpu}: {COMPUTE_SHARE:.0%} of {device.tflops:g} TFLOP/s, {BANDWIDTH_SHARE:.0%} of "
            f"{device.bandwidth_gbs:g} GB/s; {device.source}; {what.source}"
        ),
    )


def model_named(field: str, name: str) -> Model:
    """The model of this name; ``field`` is where it was written.

    Raises:
        ConfigError: there is none.
    """
    return _named(field, name, models())


def device_named(field: str, name: str) -> Gpu:
    """The device of this name; ``field`` is where it was written.

    Raises:
        ConfigError: there is none.
    """
    return _named(field, name, gpus())


def _named(field: str, name: str, known: Mapping[str, T]) -> T:
    found = known.get(name.lower())
    if found is None:
        near = difflib.get_close_matches(name.lower(), known, 1)
        remedy = f"did you mean {near[0]}?" if near else f"there are: {', '.join(sorted(known))}"
        raise ConfigError(f"{field}: there is no {name!r}; {remedy}")
    return found


def _read(name: str, kind: type[T]) -> Mapping[str, T]:
    data = tomllib.loads(files("simulations.hardware").joinpath(name).read_text(encoding="utf-8"))
    return msgspec.convert(data, dict[str, kind])  # type: ignore[valid-type]
