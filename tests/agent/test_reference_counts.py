"""References that a count adds itself: they depend on the version of Python, and are the same for each owner."""

from __future__ import annotations

import sys
from typing import Any

from vramscope.process.reference_counts import OF_ARGUMENT, OF_VARIABLE


def counted(thing: Any) -> int:
    return sys.getrefcount(thing) - OF_ARGUMENT


def test_a_variable_alone_and_with_other_owners() -> None:
    thing = object()
    assert sys.getrefcount(thing) == OF_VARIABLE
    others = [thing, thing]
    assert sys.getrefcount(thing) == OF_VARIABLE + len(others)


def test_an_argument_has_the_references_of_its_caller() -> None:
    thing = object()
    assert counted(thing) == 1, "the variable"
    others = [thing, (thing,)]
    assert counted(thing) == 1 + len(others)


def test_loops_and_comprehensions_have_a_variable_as_well() -> None:
    things = [object()]
    assert [counted(thing) for thing in things] == [2], "the list and the variable"
    for thing in things:
        assert counted(thing) == 2
        assert sys.getrefcount(thing) == OF_VARIABLE + 1
