"""Flags by which commands let people say what a replica is made of.

Knows ``argparse``. Never knows what comes of it: that is ``simulations.hardware.estimate``.
"""

import argparse

import msgspec

from balancer.errors import ConfigError
from simulations.flags import flag
from simulations.hardware.estimate import Hardware, gpus, models


def add_hardware_options(group: argparse._ArgumentGroup) -> None:
    """The flags of ``hardware_of``."""
    group.add_argument("--model", metavar="NAME", help=f"model that replicas run: {', '.join(models())}")
    group.add_argument("--gpu", metavar="NAME", help=f"what they run it on: {', '.join(gpus())}")
    group.add_argument("--gpus", type=int, metavar="N", help="devices of one replica (default 1)")
    group.add_argument("--weight-bits", type=int, metavar="N", help="bits of a weight (default: the model's own)")
    group.add_argument("--kv-bits", type=int, metavar="N", help="bits of a number in the cache (default 16)")


def hardware_of(args: argparse.Namespace, known: Hardware | None = None) -> Hardware | None:
    """What these flags say, on top of what is known; None where neither says anything.

    Raises:
        ConfigError: a model without a device, or a device without a model; a number that cannot be.
    """
    model = args.model or (known.model if known else None)
    gpu = args.gpu or (known.gpu if known else None)
    if model is None and gpu is None:
        for name in ("gpus", "weight_bits", "kv_bits"):
            if getattr(args, name) is not None:
                raise ConfigError(
                    f"{flag(name)}, --model: {flag(name)} is of what --model and --gpu name, and both are missing; give them, "
                    "too, as in --model llama-3.1-8b --gpu h100, or leave it out"
                )
        return None
    if model is None or gpu is None:
        raise ConfigError("--model, --gpu: a speed takes both, as in --model llama-3.1-8b --gpu h100")
    given = {} if known is None else msgspec.structs.asdict(known)
    given |= {"model": model, "gpu": gpu}
    for name, field, unit in (("gpus", "count", 1), ("weight_bits", "weight_bytes", 8), ("kv_bits", "kv_bytes", 8)):
        value = getattr(args, name)
        if value is None:
            continue
        if value < 1:
            raise ConfigError(f"{flag(name)}: must be at least 1, got {value}")
        given[field] = value if unit == 1 else value / unit
    return Hardware(**given)
