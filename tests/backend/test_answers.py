"""openapi.json describes every answer, each field with a sentence."""

from __future__ import annotations

import ast
import builtins
import importlib
import pkgutil
import sys
from pathlib import Path
from typing import Any

import pytest
from schema_check import differences
from typing_extensions import is_typeddict

from vramscope_server import answers
from vramscope_server.api import schemas
from vramscope_server.app import create_app
from vramscope_server.settings import Settings


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    app = create_app(Settings(data_dir=Path(tmp_path_factory.mktemp("described"))))
    try:
        return app.openapi()
    finally:
        app.state.services.close()


def test_every_json_answer_has_a_schema(described: dict[str, Any]) -> None:
    missing = []
    for path, methods in described["paths"].items():
        for method, call in methods.items():
            for status, one in call["responses"].items():
                content = one.get("content", {})
                json = content.get("application/json", {"schema": True})
                if status.startswith("2") and (not json.get("schema") or (status != "204" and not content)):
                    missing.append(f"{method} {path} {status}")
    assert not missing


def test_every_field_of_an_answer_has_a_sentence() -> None:
    wrong = []
    for name, schema in schemas.components().items():
        for field, one in schema.get("properties", {}).items():
            if not one.get("description", "").endswith("."):
                wrong.append(f"{name}.{field}")
    assert not wrong


def test_every_reference_leads_to_a_schema(described: dict[str, Any]) -> None:
    def references(part: Any) -> set[str]:
        if isinstance(part, dict):
            own = {part["$ref"]} if "$ref" in part else set()
            return own.union(*map(references, part.values()))
        return set().union(*map(references, part)) if isinstance(part, list) else set()

    known = {schemas.REF.format(name=name) for name in described["components"]["schemas"]}
    assert references(described) <= known


@pytest.mark.parametrize(
    ("field", "unit"),
    [("peak_allocated_bytes", "bytes"), ("slope_low_bytes_per_step", "bytes per step"), ("step", None), ("name", None)],
)
def test_the_name_of_a_field_ends_with_its_unit(field: str, unit: str | None) -> None:
    assert schemas.unit_of(field) == unit


def test_the_check_of_answers_finds_what_differs(described: dict[str, Any]) -> None:
    schema = {"$ref": schemas.REF.format(name="Health")}
    assert not [*differences({"status": "ok"}, schema, described)]
    assert [*differences({"status": 1, "more": 2}, schema, described, "health")] == [
        "health.status: 1 is no string",
        "health.more is not described",
    ]
    assert [*differences({}, schema, described)] == [".status is missing"]


def test_inherited_types_are_known_where_they_are_inherited() -> None:
    """On Python 3.14 msgspec reads them with the names of the module of the derived class."""
    for module in pkgutil.walk_packages(answers.__path__, answers.__name__ + "."):
        importlib.import_module(module.name)
    names = [name for name in sys.modules if name.startswith(answers.__name__ + ".")]
    kinds = [
        (sys.modules[name], kind)
        for name in names
        for kind in vars(sys.modules[name]).values()
        if is_typeddict(kind) and kind.__module__ == name
    ]
    read = 0
    for module, kind in kinds:
        for field, written in kind.__annotations__.items():
            text = getattr(written, "__forward_arg__", written)
            if isinstance(text, str):
                read += 1
                for name in (one.id for one in ast.walk(ast.parse(text, mode="eval")) if isinstance(one, ast.Name)):
                    assert hasattr(module, name) or hasattr(builtins, name), f"{kind.__qualname__}.{field}: {name}"
    assert read > 1_000
