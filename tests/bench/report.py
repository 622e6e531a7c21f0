"""One line of JSON for a measurement, with what it was measured on. Knows machines and versions, never what is measured."""

import json
import os
import platform
import ssl
from importlib.metadata import version
from pathlib import Path

PACKAGES = ("msgspec", "pyzmq", "xxhash", "aiohttp")


def report(bench: str, inputs: dict[str, object], figures: dict[str, object]) -> None:
    """Print it."""
    versions = {
        "python": platform.python_version(),
        "openssl": ssl.OPENSSL_VERSION,
        **{each: version(each) for each in PACKAGES},
    }
    machine = {"cpu": cpu_model(), "cores": os.cpu_count(), "system": platform.system()}
    print(
        json.dumps({"bench": bench, **figures, "inputs": inputs, "versions": versions, "machine": machine}), flush=True
    )


def cpu_model() -> str:
    """The processor's own name for itself."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor()


def rss() -> int:
    """Resident memory of this process, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
