"""The number above which code takes elements out of a container; values that are replaced under their keys."""

from __future__ import annotations

from types import CodeType
from typing import Any

import pytest

from vramscope.leaks.holders import limits
from vramscope.leaks.holders.holder import Holder
from vramscope.leaks.scan.object_children import bound_of, length
from vramscope.leaks.scan.paths import Path
from vramscope.leaks.verdict.history import Observation, gains_keys_lately
from vramscope.leaks.verdict.may_fill_up import is_below_limit, replaces_values
from vramscope.process.name_roots import Root

MOST = 70


class Pool:
    smallest = 30

    def __init__(self, most: int) -> None:
        self.most, self.rows = most, [object()]

    def add(self, row: object) -> None:
        self.rows.append(row)
        if len(self.rows) > self.most:
            self.rows.pop(0)

    def add_to_smallest(self, row: object) -> None:
        self.rows.append(row)
        while self.smallest < len(self.rows):
            del self.rows[0]

    def add_and_warn(self, row: object) -> None:
        self.rows.append(row)
        if len(self.rows) > self.most:
            print("many rows")

    def add_and_cut_each(self, row: list[object]) -> None:
        self.rows.append(row)
        if len(self.rows[-1]) > self.most:
            self.rows[-1].pop(0)

    def take(self) -> object:
        return self.rows.pop(0)


def links_to_rows(pool: Pool) -> list[Path]:
    root = Root("global", "pool", pool, None, None, None, "")
    first = Path(None, root, "pool", Pool, None, None, 0)
    return [first, Path(first, root, ".rows", list, length(pool.rows), bound_of(pool.rows), 1)]


@pytest.mark.parametrize(
    ("function", "limit"),
    [
        (Pool.add, 40),
        (Pool.add_to_smallest, 30),
        (Pool.add_and_warn, None),
        (Pool.add_and_cut_each, None),
        (Pool.take, None),
    ],
)
def test_the_limit_of_an_object_is_read_from_its_attribute(function: Any, limit: int | None) -> None:
    found = limits.limit_of(links_to_rows(Pool(40)), [function.__code__], "rows", attribute=True)
    assert found == limit


def constant(rows):
    for row in range(99):
        rows.append(row)
        if len(rows) >= 500:
            rows.clear()


def of_the_module(rows):
    for row in range(99):
        rows.append(row)
        while len(rows) > MOST:
            rows.pop(0)


def unknown(rows, most):
    for row in range(99):
        rows.append(row)
        while len(rows) > most:
            rows.pop(0)


def of_another(rows, old):
    for row in range(99):
        rows.append(row)
        if len(old) > 500:
            rows.pop(0)


def of_an_outer_function(MOST):
    def inner(rows):
        for row in range(99):
            rows.append(row)
            if len(rows) > MOST:
                rows.pop(0)

    return inner


def of_an_element(rows):
    for row in range(99):
        rows.append(row)
        if rows[-1].shape[0] < 256:
            rows.pop()


def of_what_is_under_a_key(rows):
    for row in range(99):
        rows[row].append(row)
        if len(rows[row]) > 500:
            rows[row].pop(0)


@pytest.mark.parametrize(
    ("code", "limit"),
    [
        (constant.__code__, 500),
        (of_the_module.__code__, MOST),
        (unknown.__code__, None),
        (of_another.__code__, None),
        (of_an_outer_function(5000).__code__, None),
        (of_an_element.__code__, None),
        (of_what_is_under_a_key.__code__, None),
    ],
)
def test_the_limit_of_a_variable_is_a_constant_or_a_global(code: CodeType, limit: int | None) -> None:
    root = Root("local", "rows", [], code, None, None, "f")
    assert limits.limit_of([Path(None, root, "rows", list, 0, None, 0)], [code], "rows", attribute=False) == limit


def holder(**more: Any) -> Holder:
    given = dict.fromkeys(Holder._fields[: Holder._fields.index("in_model")])
    return Holder(**{**given, **more})


@pytest.mark.parametrize(
    ("size", "limit", "below"),
    [
        (100, 500, True),
        (501, 500, True),  # one more, until it is taken out
        (600, 500, False),  # the code does not do what it seems to do
        (48, 10**9, False),  # the memory ends before
        (48, None, False),
    ],
)
def test_a_limit_counts_while_it_is_near_and_not_exceeded(size: int, limit: int | None, below: bool) -> None:
    assert is_below_limit(holder(size=size, limit=limit)) is below


def seen(iteration: int, elements: int, tensors: int) -> Observation:
    return Observation(iteration, iteration, tensors, 0, tensors, 0, False, 0, 0, [], elements=elements)


def test_a_table_whose_values_are_replaced_is_not_emptied() -> None:
    """Each parameter's residue is another tensor after each step, and a layer that is unfrozen brings a new one."""
    table = holder(keyed=True)
    assert replaces_values(table, [seen(40, 6, 6)], seen(50, 8, 8))
    assert not replaces_values(table, [seen(40, 6, 6)], seen(50, 4, 4)), "fewer keys: some were removed"
    assert not replaces_values(table, [seen(40, 2, 20)], seen(50, 2, 20)), "lists below two keys may have been emptied"
    assert not replaces_values(holder(keyed=True, drained=True), [seen(40, 6, 6)], seen(50, 6, 6))
    assert not replaces_values(table, [], seen(50, 6, 6))


def test_keys_that_are_all_there_bound_nothing_below_them() -> None:
    assert not gains_keys_lately([seen(4, 2, 2), seen(20, 4, 40), seen(40, 4, 80)])
    assert gains_keys_lately([seen(4, 2, 2), seen(20, 4, 4), seen(40, 5, 5)])
