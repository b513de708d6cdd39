"""Checks for finite numbers in a program's source, and what they give in a healthy training."""

from __future__ import annotations

import ast
import functools
import operator
import re
from collections.abc import Callable, Mapping
from typing import Final

FINITE: Final = re.compile(r"(?<!in)(?<!de)finite")
NOT_FINITE: Final = re.compile(r"isnan|isinf|overflow|found_inf|has_?(nan|inf)|is_?infinite|non_?finite|not_?finite")
"""Matches names that are true for numbers that are not finite."""
MANY: Final = 1 << 40
"""Number that stands for true elements of a tensor of unknown size."""
COMPARISONS: Final[Mapping[type[ast.cmpop], Callable[[float, float], bool]]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.eq,
    ast.IsNot: operator.ne,
}
AGAINST_A_SIZE: Final[Mapping[bool, Mapping[type[ast.cmpop], bool]]] = {
    True: {ast.Eq: True, ast.GtE: True, ast.NotEq: False, ast.Lt: False},
    False: {ast.Lt: True, ast.LtE: True, ast.Gt: False, ast.GtE: False},
}
"""Comparison of a number of true elements (all, or none) with a number that the source does not have: ``x.numel()``, or a limit."""


@functools.lru_cache(maxsize=256)
def healthy_value(text: str) -> bool | None:
    """Return what an expression gives if all numbers are finite: False for ``torch.isnan(loss).any()``.

    None if it tests something else. ``~``, ``not`` and comparisons with a constant are taken into account. Of a statement, such as
    ``if x: pass``, the names alone count.
    """
    try:
        return _value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError):
        return _by_name(text)


def _by_name(text: str) -> bool | None:
    if NOT_FINITE.search(text):
        return False
    return True if FINITE.search(text) else None


def _value(node: ast.expr) -> bool | None:
    """Return the value of a part. Parts that test something else are left out."""
    if isinstance(node, ast.UnaryOp):
        inner = _value(node.operand)
        return inner if inner is None or isinstance(node.op, ast.UAdd | ast.USub) else not inner
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return _compared(node)
    if isinstance(node, ast.BoolOp):
        return _first(node.values)
    if isinstance(node, ast.BinOp):
        return _first([node.left, node.right])
    if isinstance(node, ast.Call):
        return _called(node)
    if isinstance(node, ast.GeneratorExp | ast.ListComp):
        return _value(node.elt)
    if isinstance(node, ast.Name):
        return _by_name(node.id)
    if isinstance(node, ast.Attribute):
        by_name = _by_name(node.attr)
        return _value(node.value) if by_name is None else by_name
    return _value(node.value) if isinstance(node, ast.Subscript) else None


def _first(parts: list[ast.expr]) -> bool | None:
    return next((value for part in parts if (value := _value(part)) is not None), None)


def _called(call: ast.Call) -> bool | None:
    """Return the value of a call: by its name, else of the object of a method, else of its arguments."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    by_name = _by_name(name)
    if by_name is None and isinstance(call.func, ast.Attribute):
        by_name = _value(call.func.value)
    value = by_name if by_name is not None else _first(call.args)
    return not value if name == "logical_not" and value is not None else value


def _compared(node: ast.Compare) -> bool | None:
    value, other, kind = _value(node.left), node.comparators[0], type(node.ops[0])
    compare = COMPARISONS.get(kind)
    if value is None or compare is None:
        return None
    if not isinstance(other, ast.Constant) or not isinstance(other.value, int | float):
        return AGAINST_A_SIZE[value].get(kind)
    # A share, or one truth value; else a number of elements.
    is_one = isinstance(other.value, bool | float) or (other.value == 1 and kind in (ast.Eq, ast.NotEq))
    return compare(int(value) if is_one or not value else MANY, other.value)
