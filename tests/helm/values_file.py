"""helm/values.yaml with its comments: what each value means, and what may be given for it.

Knows the form of the file: two blanks a level, a comment above a key is what it means, a line "@is NAME" or "@ JSON" of it
is its schema. Where a key has "@is", or holds nothing that is deeper, it is a value by itself.
"""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

PATH: Final = Path(__file__).parents[2] / "helm" / "values.yaml"

_LINE: Final = re.compile(r"^( *)(?:# ?(?P<comment>.*)|(?P<key>[A-Za-z][\w.-]*):(?P<rest>.*))$")


@dataclass
class Value:
    """One value, or a group of them."""

    path: tuple[str, ...]
    default: Any
    meaning: str
    definition: str | None
    """The name of its schema, where it has one."""
    schema: dict[str, Any]
    """What is said of it besides its type."""
    inner: list["Value"] = field(default_factory=list)


def read() -> list[Value]:
    """The values at the top, in the file's order."""
    text = PATH.read_text()
    tree = yaml.safe_load(text)
    top: list[Value] = []
    open_groups: list[Value] = []
    comments: list[str] = []
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None:
            comments = []
            continue
        if match["comment"] is not None:
            comments.append(match["comment"])
            continue
        depth = len(match[1]) // 2
        del open_groups[depth:]
        if len(open_groups) < depth:
            comments = []  # within a value that stands for itself
            continue
        path = (*(each.path[-1] for each in open_groups), match["key"])
        value = _value(path, _at(tree, path), comments)
        comments = []
        (open_groups[-1].inner if open_groups else top).append(value)
        if isinstance(value.default, dict) and value.default and value.definition is None:
            open_groups.append(value)
    return top


def _at(tree: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        tree = tree[name]
    return tree


def _value(path: tuple[str, ...], default: Any, comments: list[str]) -> Value:
    definition, schema, words = None, {}, []
    for comment in comments:
        if comment.startswith("@is "):
            definition = comment.removeprefix("@is ")
        elif comment.startswith("@ "):
            schema = json.loads(comment.removeprefix("@ "))
        else:
            words.append(comment)
    return Value(path, default, " ".join(words), definition, schema)
