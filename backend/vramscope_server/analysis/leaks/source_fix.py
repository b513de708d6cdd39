"""Source line of a leak with its fix applied, where the line alone tells how."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Final

SUFFIXES: Final = {"item": ".item()", "detach": ".detach()", "host": ".detach().cpu()"}
"""What is put behind the value that is kept, by form of the fix (series.FIXES)."""
MOST_CHARACTERS: Final = 400
_ADDING: Final = {"append": 1, "appendleft": 1, "add": 1, "put": 1, "insert": 2}
"""Methods that add one value to a container, and how many arguments they take; the value is the last."""
_SIMPLE: Final = (ast.Name, ast.Attribute, ast.Subscript, ast.Call, ast.BinOp)
_BEFORE_ITEM: Final = ("detach", "cpu", "clone")
"""Calls that ``.item()`` makes superfluous."""


def keeps_tensors_directly(chain: Sequence[str]) -> bool:
    """Whether the holder is a tensor or one container of tensors: no tuples, dicts or objects lie between.

    chain   references from the root to the tensors: ``["local 'history'", "list[412]", "Tensor"]``
    """
    containers = sum("[" in link for link in chain[:-1])
    return bool(chain) and chain[-1].lower().startswith("tensor") and containers <= 1


def fixed_lines(source: str, fix: str, name: str) -> list[str]:
    """Lines that take the place of the source line. Empty where the line does not tell.

    fix    a word of series.FIXES
    name   of the holder
    """
    line = source.strip()
    indent = source[: len(source) - len(source.lstrip())]
    if fix not in SUFFIXES or len(line) > MOST_CHARACTERS:
        return []
    try:
        (statement,) = ast.parse(line).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # part of a longer statement, or several
        return []
    whole = kept = _kept_value(statement, name)
    if whole is None:
        return []
    if fix == "item":
        while isinstance(kept, ast.Call) and isinstance(kept.func, ast.Attribute) and kept.func.attr in _BEFORE_ITEM:
            kept = kept.func.value
    if kept is None or kept.end_col_offset is None or whole.end_col_offset is None:
        return []
    text = line.encode()  # positions are in bytes
    value = text[kept.col_offset : kept.end_col_offset].decode()
    value = f"({value})" if isinstance(kept, ast.BinOp) else value
    before, after = text[: whole.col_offset].decode(), text[whole.end_col_offset :].decode()
    return [indent + before + value + SUFFIXES[fix] + after]


def _is_named(expression: ast.expr, name: str) -> bool:
    """Whether the expression is the holder or an entry of it: ``self.history["train"]`` of ``model.history``."""
    while isinstance(expression, ast.Subscript):
        expression = expression.value
    last = expression.id if isinstance(expression, ast.Name) else getattr(expression, "attr", None)
    return last == name.rpartition(".")[2]


def _kept_value(statement: ast.stmt, name: str) -> ast.expr | None:
    """Expression that the statement adds to the holder, or to a sum."""
    holder: ast.expr
    value: ast.expr
    match statement:
        case ast.Expr(
            value=ast.Call(func=ast.Attribute(value=given, attr=attr), args=[*_, last] as given_all, keywords=[])
        ) if len(given_all) == _ADDING.get(attr):
            holder, value = given, last
        case ast.Assign(targets=[ast.Subscript() as given], value=last):
            holder, value = given, last
        case ast.AugAssign(target=given, op=ast.Add(), value=last):
            holder, value = given, last
        case ast.Assign(targets=[given], value=ast.BinOp(left=left, op=ast.Add(), right=last)) if ast.unparse(
            left
        ) == ast.unparse(given):
            holder, value = given, last
        case _:
            return None
    return value if _is_named(holder, name) and isinstance(value, _SIMPLE) else None
