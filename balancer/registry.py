"""Things that settings name: classes whose fields are their settings, of ours and of others.

Knows names, entry points and how settings become fields. Never knows what any of them does. Each kind has its registry:
policies in ``balancer.policies.base``, discoveries in ``balancer.discovery.base``.
"""

import difflib
import importlib
import pkgutil
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any, Generic, Literal, TypeVar, cast, get_args, get_origin

import msgspec

from balancer.errors import ConfigError

T = TypeVar("T")
C = TypeVar("C", bound=type)


class Registry(Generic[T]):
    """Every class of one kind: ``[kind] name = ...`` chooses one, and what else stands there are its own settings.

    ``package`` has one module for each of ours, ``group`` is the entry-point group for those of others, ``method`` what each
    must have.
    """

    def __init__(self, kind: str, *, package: str, group: str, method: str) -> None:
        self.kind = kind
        self._package = package
        self._group = group
        self._method = method
        self._classes: dict[str, type[T]] = {}

    def __repr__(self) -> str:
        return f"<Registry of {self._group}: {', '.join(sorted(self._classes))}>"

    def register(self, name: str) -> Callable[[C], C]:
        """Class decorator: makes the class known under ``name``."""

        def decorate(cls: C) -> C:
            self._classes[name] = cls
            return cls

        return decorate

    def names(self) -> list[str]:
        """Everything that can be named in the settings."""
        self._load_all()
        return sorted(self._classes)

    def make(self, name: str, settings: dict[str, Any], at: str | None = None) -> T:
        """The one called ``name`` with these settings; ``package.module:Class`` names one that is not registered.

        ``at`` is the section that they stand in, if it is not called as its kind is.

        Raises:
            ConfigError: there is none, or a setting is not one of its fields or not of its type.
        """
        at = at or self.kind
        cls: Any = self._find(name, at)
        if not (isinstance(cls, type) and issubclass(cls, msgspec.Struct) and hasattr(cls, self._method)):
            raise ConfigError(
                f"{at}.name: {name!r} is no {self.kind}; it must be a msgspec.Struct with a method {self._method}"
            )
        known = cls.__struct_fields__
        for unknown in settings.keys() - set(known):
            near = difflib.get_close_matches(unknown, known, 1)
            remedy = f"did you mean {near[0]}?" if near else f"its settings are: {', '.join(known) or 'none'}"
            raise ConfigError(f"{at}.{unknown}: {name} has no such setting; {remedy}")
        try:
            made: Any = msgspec.convert(settings, cls)
        except msgspec.ValidationError as error:
            words = _words(cls, str(error))
            raise ConfigError(f"{at}.{name}: {error}{words}; its settings are: {', '.join(known) or 'none'}") from error
        return cast(T, made)

    def _find(self, name: str, at: str) -> object:
        if ":" in name:
            module, _, attribute = name.partition(":")
            try:
                found: object = getattr(importlib.import_module(module), attribute)
            except Exception as error:  # whatever a module of somebody else does when it is imported
                raise ConfigError(
                    f"{at}.name: cannot load {name!r}: {error}; give package.module:Class, importable from here"
                ) from error
            return found
        self._load_all()
        if name not in self._classes:
            raise ConfigError(f"{at}.name: there is no {self.kind} {name!r}; there are: {', '.join(self.names())}")
        return self._classes[name]

    def _load_all(self) -> None:
        for module in pkgutil.iter_modules(importlib.import_module(self._package).__path__):
            importlib.import_module(f"{self._package}.{module.name}")
        for point in entry_points(group=self._group):
            self._classes.setdefault(point.name, point.load())


def _words(cls: type[msgspec.Struct], error: str) -> str:
    """The words that the setting of this error takes; msgspec names none of them."""
    setting = error.partition(" - at `$.")[2].rstrip("`")
    kind = next((each.type for each in msgspec.structs.fields(cls) if each.encode_name == setting), None)
    words = [word for each in (kind, *get_args(kind)) if get_origin(each) is Literal for word in get_args(each)]
    return f" (words that it takes: {', '.join(map(repr, words))})" if words else ""
