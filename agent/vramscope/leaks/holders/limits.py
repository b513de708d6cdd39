"""Finds the number above which the code takes elements out of a container: ``if len(self.rows) > self.most: self.rows.pop(0)``.

The line tells where the number is from: a constant, an attribute of the object that has the container, or a global.
"""

from __future__ import annotations

import dis
import functools
import itertools
import types
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from vramscope.leaks.holders.bytecode import MOST_INSTRUCTIONS, Line, has_variable, lines_of, with_inner
from vramscope.leaks.scan.paths import Path, objects_at
from vramscope.process import name_roots, type_info

NUMBERS: Final = ("LOAD_CONST", "LOAD_SMALL_INT")
"""Instructions that load a number."""
MOST_OBJECTS: Final = 64
"""Objects of a class that are asked for their limit, the newest ones."""


def limit_of(links: list[Path], codes: Iterable[types.CodeType], name: str, *, attribute: bool) -> int | None:
    """The largest number that such a line compares the length with; None if there is no such line, or no number is known.

    links   path to the container
    name    of the container in these functions, of a variable or an ``attribute``
    """
    for code, line in _guards(codes, name, attribute=attribute):
        known = [*_comparison(code, line.number).constants]
        known += _values_of(links, line.attributes_loaded) if attribute else []
        known += _globals_of(code, line.loads)
        if known:
            return max(known)
    return None


def _guards(codes: Iterable[types.CodeType], name: str, *, attribute: bool) -> Iterator[tuple[types.CodeType, Line]]:
    """Lines that compare the length, where they or the next ones take something out. (That of an element bounds nothing.)"""
    for code in codes:
        for part in with_inner(code):
            lines = lines_of(part) if has_variable(part, name) else ()
            its = [line for line in lines if name in (line.attributes_loaded if attribute else line.loads)]
            for line, after in itertools.pairwise((*its, *its[-1:])):
                takes = line.removes or (after.removes and after.number > line.number)
                if line.asks_size and takes and name in _comparison(part, line.number).measured:
                    yield part, line


class _Comparison(NamedTuple):
    """What a line compares."""

    measured: frozenset[str]
    """What it asks the length of by its name: ``len(self.rows)``, but not ``len(self.rows[key])``."""
    constants: tuple[int, ...]
    """Whole numbers on it, without 0 and 1: those are subscripts."""


@functools.lru_cache(maxsize=512)
def _comparison(code: types.CodeType, number: int) -> _Comparison:
    """What a line of a function compares. Some 1 µs an instruction of the function, once a line."""
    lines = {start: line for start, _, line in code.co_lines()}
    current: int | None = None
    asks, loaded = False, None
    measured, constants = set(), []
    for instruction in itertools.islice(dis.get_instructions(code), MOST_INSTRUCTIONS):
        current = lines.get(instruction.offset, current)
        operation, argument = instruction.opname, instruction.argval
        if current != number or operation in ("PRECALL", "PUSH_NULL"):
            continue
        if operation in NUMBERS and type(argument) is int and argument > 1:
            constants.append(argument)
        if operation.startswith("LOAD_"):
            asks, loaded = asks or argument == "len", argument
            continue
        if asks and operation.startswith("CALL") and type(loaded) is str:
            measured.add(loaded)
        asks = False
    return _Comparison(frozenset(measured), tuple(constants))


def _values_of(links: list[Path], names: frozenset[str]) -> Iterator[int]:
    """Values of those attributes that are whole numbers, of the objects that have the container."""
    for value in objects_at(links[:-1] or links, MOST_OBJECTS):
        yield from _numbers(type_info.attributes_of(value, type_info.dict_of(type(value))) or {}, names)
        yield from _numbers(type_info.namespace(type(value)), names)


def _globals_of(code: types.CodeType, names: frozenset[str]) -> Iterator[int]:
    names = (names & {*code.co_names}) - {"len", *code.co_varnames, *code.co_cellvars, *code.co_freevars}
    for module in name_roots.user_modules() if names else ():
        if module.__dict__.get("__file__") == code.co_filename:
            yield from _numbers(module.__dict__, names)


def _numbers(values: Any, names: frozenset[str]) -> Iterator[int]:
    found = (values.get(name) for name in names)
    return (value for value in found if type(value) is int)
