"""The line that keeps something, where another line only takes the list out of a container."""

from __future__ import annotations

import types
from typing import Any

import pytest

from vramscope.leaks.holders.line_search import added_through


def by_setdefault(table: dict[Any, list[Any]], key: Any, value: Any) -> None:
    rows = table.setdefault(key, [])  # taken
    if rows:
        value = value + rows[-1]
    rows.append(value)  # keeps


def in_two_steps(state: dict[Any, dict[str, list[Any]]], key: Any, value: Any) -> None:
    of_one = state[key]  # taken
    rows = of_one.setdefault("past", [])
    rows.append(value)  # keeps


def adds_at_once(table: dict[Any, list[Any]], other: list[Any], key: Any, value: Any) -> None:
    table.setdefault(key, []).append(value)  # taken
    other.append(key)


def adds_to_another(table: dict[Any, Any], other: list[Any], key: Any, value: Any) -> None:
    mean = table.setdefault(key, value)  # taken
    other.append(mean)


@pytest.mark.parametrize("function", [by_setdefault, in_two_steps, adds_at_once, adds_to_another])
def test_the_line_that_adds_is_found_through_a_variable(function: types.FunctionType) -> None:
    marks: dict[str, int] = {}
    for number, line in enumerate(open(__file__), 1):  # noqa: SIM115
        if function.__code__.co_firstlineno < number <= function.__code__.co_firstlineno + 6 and "  # " in line:
            marks.setdefault(line.rpartition("# ")[2].strip(), number)
    expected = marks.get("keeps") if function in (by_setdefault, in_two_steps) else None
    assert added_through(function.__code__, marks["taken"]) == expected
