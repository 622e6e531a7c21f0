"""Settings files: one in TOML, and those that it names with ``include``.

Knows how files become one tree, and that no setting stands in two of them. Never knows what a setting means: that is
``balancer.settings``. So what nobody else may read can lie in a file of its own.
"""

from pathlib import Path
from typing import Any, Final

from balancer import settings
from balancer.errors import ConfigError

INCLUDE: Final = "include"


def read(name: str) -> dict[str, Any]:
    """The plain values of the file, and of those that it includes; their names are relative to its folder.

    Raises:
        ConfigError: a file that cannot be read, or a setting that stands in two of them.
    """
    tree = _read_one(name)
    included = tree.pop(INCLUDE, [])
    names = [included] if isinstance(included, str) else included
    if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
        raise ConfigError(f"--config: '{name}': {INCLUDE}: give the name of a file, or a list of such names")
    for each in names:
        path = str(Path(name).parent / each)
        further = _read_one(path)
        if INCLUDE in further:
            raise ConfigError(f"--config: '{path}': {INCLUDE}: a file that is included cannot include others")
        _merge(tree, further, path)
    return tree


def _merge(tree: dict[str, Any], further: dict[str, Any], path: str, prefix: str = "") -> None:
    """Tables become one, and so do lists of tables; a value stands once."""
    for name, value in further.items():
        known = tree.setdefault(name, value)
        if known is value:
            continue
        if isinstance(known, dict) and isinstance(value, dict):
            _merge(known, value, path, f"{prefix}{name}.")
        elif _are_tables(known) and _are_tables(value):
            known.extend(value)
        else:
            raise ConfigError(
                f"--config: '{path}': {prefix}{name}: stands in the file that includes this one, too; leave one of them out"
            )


def _are_tables(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, dict) for each in value)


def _read_one(name: str) -> dict[str, Any]:
    try:
        return settings.parse(Path(name).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--config: cannot read '{name}': {error.strerror or error}") from error
    except ValueError as error:  # no UTF-8, or a name that no file can have
        raise ConfigError(f"--config: cannot read '{name}': {error}") from error
    except ConfigError as error:
        raise ConfigError(f"--config: '{name}': {error}") from error
