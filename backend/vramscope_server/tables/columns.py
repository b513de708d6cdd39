"""Columns of a table, from the type of an answer."""

from __future__ import annotations

import enum
import json
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin

from typing_extensions import get_type_hints, is_typeddict


class Kind(str, enum.Enum):
    """What the cells of a column are. An unknown cell is None."""

    integer = "integer"
    number = "number"
    text = "text"
    boolean = "boolean"
    texts = "texts"
    integers = "integers"
    json = "json"
    """Text that is JSON."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column, and the place of its value in a row of the API."""

    name: str
    kind: Kind
    path: tuple[str | int, ...] = ()
    """Keys and indexes from the row to the value."""
    described_by: tuple[str, str] | None = None
    """Answer type and field whose docstring describes the column."""
    meaning: str = ""
    """Description of a column that is no field."""

    def value_in(self, row: Mapping[str, Any]) -> Any:
        """Return the cell of a row; None is unknown."""
        found: Any = row
        for key in self.path:
            if found is None or (isinstance(found, Mapping) and key not in found):
                return None
            found = found[key]
        if found is None:
            return None
        if self.kind is Kind.number:
            return float(found)
        return json.dumps(found, sort_keys=True) if self.kind is Kind.json else found


@dataclass(frozen=True, slots=True)
class Part:
    """Names of the columns that a record within a row becomes."""

    prefix: str
    suffix: str = ""


def columns_of(
    answer: type, *, without: Sequence[str] = (), parts: Mapping[str, Part] | None = None
) -> tuple[Column, ...]:
    """Return a column for each field of an answer type.

    without   fields that are left out
    parts     fields that are records; each field of such a record becomes a column
    Other records, and lists of records, become JSON. Raises TypeError for a type that no column can have.
    """
    return _columns(answer, tuple(without), parts or {}, (), Part(""))


def _columns(
    answer: type, without: tuple[str, ...], parts: Mapping[str, Part], path: tuple[str | int, ...], names: Part
) -> tuple[Column, ...]:
    found: list[Column] = []
    for field, hint in get_type_hints(answer).items():
        if field in without:
            continue
        kind = _known(hint)
        if field in parts and is_typeddict(kind):
            found.extend(_columns(kind, without, {}, (*path, field), parts[field]))
            continue
        name = f"{names.prefix}{field}{names.suffix}"
        cell = _kind_of(kind)
        if cell is Kind.json:
            name += "_json"
        found.append(Column(name, cell, (*path, field), (answer.__name__, field)))
    return tuple(found)


def _known(hint: Any) -> Any:
    """The type without None."""
    if get_origin(hint) in (Union, types.UnionType):
        left = [one for one in get_args(hint) if one is not type(None)]
        if len(left) != 1:
            raise TypeError(f"{hint} is no type of a column")
        return left[0]
    return hint


_SCALARS = {bool: Kind.boolean, int: Kind.integer, float: Kind.number, str: Kind.text}


def _kind_of(kind: Any) -> Kind:
    if kind in _SCALARS:
        return _SCALARS[kind]
    origin, inside = get_origin(kind), get_args(kind)
    if origin is Literal:
        return Kind.text
    if origin is list and inside[0] is str:
        return Kind.texts
    if origin is list and inside[0] is int:
        return Kind.integers
    if origin in (list, dict) or is_typeddict(kind):
        return Kind.json
    raise TypeError(f"{kind} is no type of a column")
