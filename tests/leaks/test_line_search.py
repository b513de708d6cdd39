"""The line that keeps something, where another line only takes the list out of a container."""

from __future__ import annotations

import types
from typing import Any

import pytest

from vramscope.leaks.holders import line_search
from vramscope.leaks.holders.bytecode import Line, lines_of
from vramscope.leaks.holders.line_search import added_through, called_from, name_kept_at


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


class Ratios:
    def __init__(self, tasks: list[str]) -> None:
        self.history: dict[str, list[Any]] = {task: [] for task in tasks}

    def newest(self, task: str) -> Any:
        of_one = self.history[task]
        return of_one[-1]

    def keep(self, task: str, value: Any) -> None:
        past = self.history[task]
        past.append(value)


def test_the_line_that_fills_lists_made_by_another_method_is_found() -> None:
    """Neither the method that makes the lists nor one that only reads them is named."""
    codes = list(line_search.codes_of_class(Ratios))
    assert line_search.taken_and_filled(codes, "history") == (
        Ratios.keep.__code__,
        Ratios.keep.__code__.co_firstlineno + 2,
    )
    assert line_search.taken_and_filled(codes[:2], "history") is None
    assert line_search.taken_and_filled(codes, "other") is None


def starts(threads: list[Any], upload: Any) -> None:
    for _ in range(3):
        threads.append(Any(target=upload))  # calls


def test_functions_that_do_not_speak_of_it_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may have thousands of functions, and the training waits for the search."""
    read: list[types.CodeType] = []

    def reading(code: types.CodeType) -> tuple[Line, ...]:
        read.append(code)
        return lines_of(code)

    monkeypatch.setattr(line_search, "lines_of", reading)
    codes = [by_setdefault.__code__, in_two_steps.__code__, starts.__code__]
    found = called_from(codes, "upload")
    assert found is not None and found[0] is starts.__code__
    assert read == [starts.__code__]


def test_of_two_lines_that_assign_a_variable_the_one_that_ran_last_is_named() -> None:
    """A training loop and the evaluation in it may use the same name."""
    named: list[int | None] = []

    def line() -> int | None:
        at = name_kept_at(loop.__code__, "logits", container=False)
        return None if at is None else at[1]

    def loop() -> None:
        for _ in range(2):
            logits = [1]
            named.append(line())
            logits = [2]
            named.append(line())
        del logits

    first = loop.__code__.co_firstlineno + 2
    assert line() == first, "it does not run"
    loop()
    assert named == [first, first + 2] * 2


def number_of(function: Any, name: str) -> int | None:
    """Line of a function that keeps a variable, from its first line on."""
    at = name_kept_at(function.__code__, name, container=False)
    return None if at is None else at[1] - function.__code__.co_firstlineno


def test_before_the_first_line_of_an_iteration_the_last_one_of_the_iteration_before_is_named() -> None:
    named: list[int | None] = []

    def loop() -> None:
        for _ in range(2):
            named.append(number_of(loop, "logits"))
            logits = [1]
            logits = [2]
        del logits

    loop()
    assert named[1] == 4


@pytest.mark.parametrize("is_first", [True, False])
def test_after_branches_the_first_is_named(is_first: bool) -> None:
    """After them it is unknown which ran."""
    named: list[int | None] = []

    def loop() -> None:
        for _ in range(2):
            logits = [0]
            if is_first:
                logits = [1]
                named.append(number_of(loop, "logits"))
            else:
                logits = [2]
                named.append(number_of(loop, "logits"))
            named.append(number_of(loop, "logits"))
        del logits

    loop()
    assert named == [4 if is_first else 7, 4] * 2


def test_the_line_of_an_exception_handler_is_not_named_after_it() -> None:
    def loop() -> int | None:
        for _ in range(2):
            try:
                logits = [1]
            except ValueError:
                logits = [2]
            named = number_of(loop, "logits")
        del logits
        return named

    assert loop() == 3


def test_in_an_evaluation_of_a_loop_the_line_of_the_evaluation_is_named() -> None:
    named: list[int | None] = []

    def loop() -> None:
        for _ in range(2):
            for _ in range(2):
                logits = [1]
                named.append(number_of(loop, "logits"))
            if named:
                for _ in range(2):
                    logits = [2]
                    named.append(number_of(loop, "logits"))
        del logits

    loop()
    assert named == [3, 3, 7, 7] * 2


def test_lines_of_a_comprehension_are_found_while_its_function_runs() -> None:
    rows: list[list[int]] = []

    def loop() -> int | None:
        _ = [
            total
            for row in rows
            if (total := sum(row)) and
            (total := max(row))
        ]  # fmt: skip
        return number_of(loop, "total")

    assert loop() in {4, 5}
