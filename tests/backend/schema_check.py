"""Compares a JSON value with its schema in openapi.json. A field that the schema does not name is a difference, too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

KINDS: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


def differences(value: Any, schema: dict[str, Any], described: dict[str, Any], place: str = "") -> Iterator[str]:
    """Each difference in words. ``described`` is the whole of openapi.json."""
    if "$ref" in schema:
        schema = described["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        each = [list(differences(value, one, described, place)) for one in schema["anyOf"]]
        yield from min(each, key=len)
        return
    kind = schema.get("type")
    if kind is None:
        return
    if not isinstance(value, KINDS[kind]) or (isinstance(value, bool) and kind != "boolean"):
        yield f"{place}: {value!r:.60} is no {kind}"
    elif kind == "object":
        yield from _of_object(value, schema, described, place)
    elif kind == "array":
        first = schema.get("prefixItems", [])
        for at, item in enumerate(value):
            yield from differences(
                item, first[at] if at < len(first) else schema.get("items") or {}, described, f"{place}[]"
            )


def _of_object(value: dict[str, Any], schema: dict[str, Any], described: dict[str, Any], place: str) -> Iterator[str]:
    fields = schema.get("properties", {})
    others = schema.get("additionalProperties", not fields)
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{place}.{name} is missing"
    for name, one in value.items():
        if name in fields:
            yield from differences(one, fields[name], described, f"{place}.{name}")
        elif isinstance(others, dict):
            yield from differences(one, others, described, f"{place}.{name}")
        elif not others:
            yield f"{place}.{name} is not described"
