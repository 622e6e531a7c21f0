"""helm/values.schema.json, of values.yaml: each value has the type of its default, and nothing else may be given."""

import json
from typing import Any

from tests.helm import definitions
from tests.helm.definitions import Schema
from tests.helm.values_file import Value, read


def text() -> str:
    """The file."""
    values = read()
    known = {**definitions.PIECES, **definitions.settings()}
    engine = next(
        each for value in values if value.path == ("fleet",) for each in value.inner if each.path[-1] == "engine"
    )
    name = {"type": "string", "pattern": "^[a-z]([-a-z0-9]{0,20}[a-z0-9])?$"}
    pool = {**_group(engine.inner), "type": ["object", "null"]}  # null: a pool of another file that is not wanted
    known["pools"] = {**definitions.a_map(pool), "propertyNames": name}
    schema = _group(values)
    schema["properties"]["global"] = {"type": "object"}  # what a chart above this one gives to all
    return (
        json.dumps(
            {"$schema": "http://json-schema.org/draft-07/schema#", "title": "Values", **schema, "definitions": known},
            indent=1,
            sort_keys=True,
        )
        + "\n"
    )


def _group(values: list[Value]) -> Schema:
    return definitions.an_object(**{value.path[-1]: _schema(value) for value in values})


def _schema(value: Value) -> Schema:
    if value.definition is not None:
        return {"$ref": f"#/definitions/{value.definition}"}
    if value.inner:
        return _group(value.inner)
    return {**_type_of(value.default), **value.schema}


def _type_of(default: Any) -> Schema:
    if isinstance(default, bool):
        return {"type": "boolean"}
    if isinstance(default, int):
        return {"type": "integer"}
    if isinstance(default, float):
        return {"type": "number"}
    if isinstance(default, list):
        return {"type": "array"}
    return {"type": "string"}
