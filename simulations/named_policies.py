"""Policies as they are written on a command line: ``predicted_ttft(price=3),round_robin``.

Knows names, brackets and values. Never knows what a policy does: ``balancer.policies.base`` finds it and checks its settings.
"""

import tomllib
from typing import Any, Final

import msgspec

from balancer.errors import ConfigError
from balancer.policies.base import Policy, make

_OPEN: Final = "("
_CLOSE: Final = ")"


class NamedPolicy(msgspec.Struct, frozen=True):
    """A policy's name and settings; ``written`` is how people wrote it, spaces left out."""

    written: str
    name: str
    settings: dict[str, Any]

    def make(self) -> Policy:
        """The policy itself, with a memory of its own where it has one.

        Raises:
            ConfigError: there is none of this name, or it has no such setting.
        """
        return make(self.name, self.settings)


def parse(text: str) -> list[NamedPolicy]:
    """The policies of a list with commas, in its order.

    Raises:
        ConfigError: it cannot be read, or names what there is not.
    """
    found = parse_names(text, "--policy")
    if not found:
        raise ConfigError("--policy: name at least one policy, as in --policy predicted_ttft,round_robin")
    for each in found:
        each.make()
    return found


def parse_names(text: str, flag: str) -> list[NamedPolicy]:
    """Names with settings, whatever they are names of; ``flag`` is where they stand.

    Raises:
        ConfigError: they cannot be read.
    """
    return [_parse_one(each, flag) for each in _split(text, flag) if each]


def _parse_one(text: str, flag: str) -> NamedPolicy:
    name, bracket, rest = text.partition(_OPEN)
    name = name.strip()
    if not bracket:
        return NamedPolicy(name, name, {})
    settings = {}
    inside = rest.strip()[:-1].strip()
    for pair in _split(inside, f"{flag} {name}") if inside else []:
        key, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"{flag} {name}: {pair.strip()!r} is no setting; write key=value, as in {name}(price=3)")
        if (known := key.strip()) in settings:
            raise ConfigError(f"{flag} {name}: {known} is there twice in {text!r}; give it once")
        settings[known] = value_of(value)
    written = ",".join([f"{key}={_shown(value)}" for key, value in settings.items()])
    return NamedPolicy(f"{name}({written})" if written else name, name, settings)


def value_of(text: str) -> Any:
    """A value as TOML writes it; what is none is a text."""
    try:
        found = tomllib.loads(f"value = {text.strip()}")
    except tomllib.TOMLDecodeError:
        return text.strip()
    return found["value"] if len(found) == 1 else text.strip()  # or lines behind the first would count for nothing


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _split(text: str, where: str) -> list[str]:
    """At the commas outside brackets."""
    parts, depth, begin = [], 0, 0
    for at, letter in enumerate(text):
        if letter == _OPEN:
            depth += 1
        elif letter == _CLOSE:
            depth -= 1
            rest = text[at + 1 :].lstrip()
            if depth < 0 or (rest and rest[0] != ","):
                raise ConfigError(f"{where}: cannot read {text!r}: write name(key=value,key=value),name")
        elif letter == "," and not depth:
            parts.append(text[begin:at].strip())
            begin = at + 1
    if depth:
        raise ConfigError(f"{where}: a bracket is not closed in {text!r}")
    return [*parts, text[begin:].strip()]
