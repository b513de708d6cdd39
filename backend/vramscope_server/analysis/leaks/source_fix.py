"""Source line of a leak with its fix applied, where the line alone tells how."""

from __future__ import annotations

import ast
from typing import Final

SUFFIXES: Final = {"item": ".item()", "detach": ".detach()", "host": ".detach().cpu()"}
"""What is put behind the value that is kept, by form of the fix (series.FIXES)."""
_ADDING: Final = ("append", "appendleft", "add", "insert", "put")
_SIMPLE: Final = (ast.Name, ast.Attribute, ast.Subscript, ast.Call)
_ENDINGS: Final = ("detach", "cpu", "item", "clone")


def fixed_lines(source: str, fix: str, name: str) -> list[str]:
    """Lines that take the place of the source line. Empty where the line does not tell.

    fix    a word of series.FIXES
    name   of the holder
    """
    line = source.strip()
    indent = source[: len(source) - len(source.lstrip())]
    try:
        (statement,) = ast.parse(line).body
    except (SyntaxError, ValueError):  # part of a longer statement, or several
        return []
    if fix == "carry":
        target = _assigned(statement, name)
        return [source, f"{indent}{target} = {target}.detach()"] if target else []
    kept = _kept_value(statement, name)
    if kept is None or fix not in SUFFIXES:
        return []
    while isinstance(kept, ast.Call) and isinstance(kept.func, ast.Attribute) and kept.func.attr in _ENDINGS:
        kept = kept.func.value  # what the new ending replaces begins here
    text = line.encode()  # positions are in bytes
    whole = _kept_value(statement, name)
    if kept.end_col_offset is None or whole is None or whole.end_col_offset is None:
        return []
    value = text[kept.col_offset : kept.end_col_offset].decode()
    value = f"({value})" if isinstance(kept, ast.BinOp) else value
    new = text[: whole.col_offset].decode() + value + SUFFIXES[fix] + text[whole.end_col_offset :].decode()
    return [indent + new] if new != line else []


def _assigned(statement: ast.stmt, name: str) -> str | None:
    """Target of this assignment that has the holder's name."""
    if not isinstance(statement, ast.Assign):
        return None
    targets = [
        one for target in statement.targets for one in (target.elts if isinstance(target, ast.Tuple) else [target])
    ]
    found = [one for one in targets if isinstance(one, (ast.Name, ast.Attribute)) and _is_named(one, name)]
    return ast.unparse(found[0]) if len(found) == 1 else None


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
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=given, attr=attr), args=[*_, last], keywords=[])) if (
            attr in _ADDING
        ):
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
    return value if _is_named(holder, name) and isinstance(value, (*_SIMPLE, ast.BinOp)) else None
