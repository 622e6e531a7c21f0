"""Values as people write them on a command line: numbers, words, lists and tables, with commas between several of them.

Knows TOML, brackets and quotes, and words that lack the latter, as shells take them away. Never knows fields, or what a word
stands for.
"""

import re
from typing import Any, Final

from simulations.named_policies import value_of

_PAIRS: Final = {"[": "]", "{": "}"}
_QUOTES: Final = "\"'"
_WORD: Final = re.compile(r"[\w.:+/-]+")


class Unreadable(ValueError):
    """What was written is no value; the message says why, and how one is written."""


def read_values(text: str) -> list[Any]:
    """The values of a list with commas, in its order; those within brackets or quotes part nothing.

    Raises:
        Unreadable: a bracket or a quote is not closed, or a list or a table is none.
    """
    return [_value(each) for each in _parts(text) if each]


def _value(text: str) -> Any:
    """As TOML writes it, and words without quotes, too, in lists and tables as well."""
    found = value_of(text)
    if not isinstance(found, str) or text[0] in _QUOTES:
        return found
    inside = text[1:-1].strip()
    if text[0] == "[":
        return [_element(each, text) for each in _parts(inside) if each]
    if text[0] == "{":
        return _table(inside, text)
    return found


def _table(inside: str, whole: str) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for pair in filter(None, _parts(inside)):
        key, equals, value = (each.strip() for each in pair.partition("="))
        if not (equals and value and _WORD.fullmatch(key)):
            raise Unreadable(f"{pair!r} in {whole!r} is no field; write {{field=value,field=value}}")
        if key in made:
            raise Unreadable(f"{key} is there twice in {whole!r}; give it once")
        made[key] = _element(value, whole)
    return made


def _element(text: str, whole: str) -> Any:
    found = _value(text)
    if found == text and not _WORD.fullmatch(text):
        raise Unreadable(f"{text!r} in {whole!r} is no value; write a number, a word, or words in quotes")
    return found


def _parts(text: str) -> list[str]:
    """At the commas outside brackets and quotes, without the spaces around."""
    parts, begin, quote, is_escaped = [], 0, "", False
    closing: list[str] = []
    for at, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote and not is_escaped else quote
            is_escaped = quote == '"' and letter == "\\" and not is_escaped
        elif letter in _QUOTES:
            quote = letter
        elif letter in _PAIRS:
            closing.append(_PAIRS[letter])
        elif letter in _PAIRS.values():
            if not closing or closing.pop() != letter:
                raise Unreadable(f"{letter} closes nothing in {text!r}")
            if not closing and (rest := text[at + 1 :].lstrip()) and rest[0] not in ",]}":
                raise Unreadable(f"a comma is missing behind {letter} in {text!r}")
        elif letter == "," and not closing:
            parts.append(text[begin:at].strip())
            begin = at + 1
    if quote or closing:
        raise Unreadable(f"{quote or closing[-1]} is missing in {text!r}")
    return [*parts, text[begin:].strip()]
