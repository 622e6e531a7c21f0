"""``config.json`` files of models, for what their prompts weigh.

Knows paths. Never knows what stands in such a file (``balancer.economics.model_config``).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from balancer.economics.economy import Economy
from balancer.economics.links import Link
from balancer.economics.model_config import cache_shape
from balancer.errors import ConfigError
from balancer.settings import Settings


def read_config(where: str, path: Path) -> Mapping[str, Any]:
    """A model's config.json, from the file or its folder; ``where`` is where the path was written.

    Raises:
        ConfigError: there is none, or it is no JSON object.
    """
    file = path / "config.json" if path.is_dir() else path
    try:
        found = msgspec.json.decode(file.read_bytes())
    except OSError as error:
        raise ConfigError(f"{where}: '{path}': {error.strerror}; name a model's config.json") from None
    except msgspec.DecodeError as error:
        raise ConfigError(f"{where}: '{path}' is not valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{where}: '{path}' is not a JSON object; name a model's config.json")
    return found


def economy_of(settings: Settings) -> Economy:
    """Links and weights of these settings.

    Raises:
        ConfigError: a model's config.json cannot be read, or does not say what its prompts weigh.
    """
    shapes = {}
    for at, model in enumerate(settings.models):
        if model.config is None:
            continue
        where = f"models[{at}].config"
        config = read_config(where, Path(model.config))
        try:
            shapes[model.name] = cache_shape(config, model.kv_cache_dtype, model.config)
        except ConfigError as error:
            raise ConfigError(f"{where}: '{model.config}': {error}") from None
    stores = {
        store.name: Link(store.gigabits_per_second * 1e9 / 8, store.latency_ms / 1000, source="as given")
        for store in settings.stores
        if store.gigabits_per_second is not None
    }
    transfer = settings.disaggregation.transfer
    link = None if transfer is None else transfer.made("disaggregation")
    return Economy(settings.links, settings.models, shapes, stores, link)
