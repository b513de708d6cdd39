"""Schemas of the answers in ``openapi.json``, from the types in ``vramscope_server.answers``."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import pkgutil
from importlib import import_module
from typing import Any, Final, get_args, get_origin

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from vramscope_server import answers
from vramscope_server.api.problems import ProblemAnswer

REF: Final = "#/components/schemas/{name}"
PROBLEM: Final = "application/problem+json"
UNITS: Final = {
    "bytes_per_step": "bytes per step",
    "samples_per_second": "samples per second",
    "seconds_per_step": "seconds per step",
    "bytes": "bytes",
    "seconds": "seconds",
    "median": "seconds",
    "ns": "nanoseconds",
    "fraction": "fraction, 0 to 1",
    "ratio": "ratio",
    "days": "days",
}
"""Unit of a number by the end of its name; the longest end counts."""

_published: dict[str, Any] = {}
"""Every type that an answer has, by its name."""


def answers_with(kind: Any, *, status: int = 200, text: str = "") -> dict[int | str, dict[str, Any]]:
    """``responses`` of a route whose successful answer is a ``kind``: a TypedDict, a list of it, or one of it or null."""
    parts = [part for part in get_args(kind) if part is not type(None)] or [kind]
    for part in parts:
        _published[part.__name__] = part
    named = {"$ref": REF.format(name=parts[0].__name__)}
    schema: dict[str, Any] = named
    if get_origin(kind) is list:
        schema = {"type": "array", "items": named}
    elif parts != [kind]:
        schema = {"anyOf": [named, {"type": "null"}]}
    description = text or inspect.cleandoc(parts[0].__doc__ or "").partition("\n")[0]
    return {status: {"description": description, "content": {"application/json": {"schema": schema}}}}


def install(app: FastAPI) -> None:
    """Have ``openapi.json`` contain the schemas of all answers, and of problems."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=app.version, summary=app.summary, routes=app.routes)
            parts = schema.setdefault("components", {}).setdefault("schemas", {})
            parts.update(components())
            for name in ("HTTPValidationError", "ValidationError"):
                parts.pop(name, None)
            for methods in schema["paths"].values():
                for call in methods.values():
                    _with_problems(call["responses"])
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def components() -> dict[str, dict[str, Any]]:
    """Schema of every published answer and of each part of one, by name."""
    _, found = msgspec.json.schema_components([*_published.values(), ProblemAnswer], ref_template=REF)
    meanings = field_meanings()
    for name, schema in found.items():
        fields = schema.get("properties", {})
        order = [field for field in meanings.get(name, ()) if field in fields]
        schema["properties"] = {field: fields[field] for field in dict.fromkeys([*order, *fields])}
        for field, one in fields.items():
            if "description" not in one and (meaning := meanings.get(name, {}).get(field)):
                one["description"] = meaning
            if (unit := unit_of(field)) is not None:
                one["x-unit"] = unit
    return found


def unit_of(field: str) -> str | None:
    """Unit of a number by its name; None for one that is counted, or no number."""
    ends = (end for end in UNITS if field == end or field.endswith(f"_{end}"))
    return UNITS.get(max(ends, key=len, default=""))


@functools.cache
def field_meanings() -> dict[str, dict[str, str]]:
    """The docstrings below the fields of all answer types, inherited ones included, by class and field."""
    own: dict[str, dict[str, str]] = {}
    bases: dict[str, list[str]] = {}
    modules = [f"{answers.__name__}.{found.name}" for found in pkgutil.iter_modules(answers.__path__)]
    for module in (*modules, ProblemAnswer.__module__):
        for node in ast.parse(inspect.getsource(import_module(module))).body:
            if isinstance(node, ast.ClassDef):
                own[node.name] = dict(_documented(node.body))
                bases[node.name] = [ast.unparse(base) for base in node.bases]

    def gather(name: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for base in bases.get(name, ()):
            found |= gather(base)
        return found | own.get(name, {})

    return {name: gather(name) for name in own}


def _documented(body: list[ast.stmt]) -> list[tuple[str, str]]:
    found = []
    for field, below in itertools.pairwise(body):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
        ):
            found.append((field.target.id, " ".join(str(below.value.value).split())))
    return found


def _with_problems(responses: dict[str, Any]) -> None:
    """Refusals have one schema; FastAPI would describe an answer of its own that no route gives."""
    responses.pop("422", None)
    problem = {"schema": {"$ref": REF.format(name=ProblemAnswer.__name__)}}
    responses["default"] = {"description": "A problem: the request was refused.", "content": {PROBLEM: problem}}
