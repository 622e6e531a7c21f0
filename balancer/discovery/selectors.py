"""What a label selector of Kubernetes may look like.

Knows its grammar as the API server reads it (k8s.io/apimachinery ``labels.Parse``): requirements between commas, each a key,
``!key``, a key with ``=``, ``==``, ``!=``, ``<`` or ``>`` and a value, or with ``in`` or ``notin`` and values in parentheses;
and the form of keys and values. Never knows which labels there are. Between calls nothing is kept.
"""

import re
from typing import Final

_NAME: Final = "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_PART: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_KEY: Final = re.compile(rf"(?P<prefix>{_PART}(\.{_PART})*/)?{_NAME}")
_VALUE: Final = re.compile(f"({_NAME})?")
_PREFIX_LONGEST: Final = 253
_REQUIREMENT: Final = re.compile(
    r"""\s*(?:
        (?P<not>!)\s*(?P<absent>[^\s!=<>(),]+)
      | (?P<key>[^\s!=<>(),]+)\s*(?:
            (?P<operator>==|=|!=|<|>)\s*(?P<value>[^\s!=<>(),]*)
          | \s(?P<set>in|notin)\s*\((?P<values>[^()!=<>]*)\)
        )?
    )\s*(?:,|$)""",
    re.X,
)


def problem(selector: str) -> str | None:
    """What is wrong with it, in words, or None where the API server would take it."""
    at = 0
    while at < len(selector) or at == 0 or selector[at - 1] == ",":
        found = _REQUIREMENT.match(selector, at)
        if found is None:
            rest = selector[at:].strip()
            return f"{rest!a} is no requirement" if rest else "it ends with a comma"
        wrong = _wrong(found)
        if wrong is not None:
            return wrong
        at = found.end()
    return None


def _wrong(found: re.Match[str]) -> str | None:
    key = found["absent"] or found["key"]
    named = _KEY.fullmatch(key)
    if named is None or len(named["prefix"] or "") > _PREFIX_LONGEST + 1:
        return f"{key!a} is no name of a label"
    values = [each.strip() for each in found["values"].split(",")] if found["set"] else [found["value"] or ""]
    for value in values:
        if not _VALUE.fullmatch(value):
            return f"{value!a} is no value of a label"
    if found["operator"] in {"<", ">"} and not re.fullmatch("[0-9]+", values[0]):
        return f"{values[0]!a} is no number to compare with"
    return None
