"""Finds the line that removes from a container, empties it or replaces it, in the bytecode as ``bytecode.py`` reads it.

What the code takes out of may have a bound, and what it empties again and again is as large as this only until then.
"""

from __future__ import annotations

import dis
import inspect
import itertools
import types
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from vramscope.leaks.holders.bytecode import MAKERS, Line, arguments_of, has_variable, lines_of, with_inner

COPIES: Final = frozenset(("copy", "deepcopy", "clone"))
"""Functions and methods whose result is new."""


class Drain(NamedTuple):
    """A line that takes out of a container."""

    code: types.CodeType
    number: int
    whole: bool
    """True if the line removes everything."""


def taken_from(codes: Iterable[types.CodeType], name: str, *, is_list: bool, attribute: bool = False) -> Drain | None:
    """Where one of the functions takes something out of the container of that name, keeps a slice of it, or begins an empty one
    (the first one aside), also by another name that it gives it (``rows = self.rows``): of several lines the first that leaves
    nothing in it.

    is_list     to assign to its subscript overwrites
    attribute   it is that of an object or a class, and no variable
    """
    found: Drain | None = None
    for code in codes:
        for part in with_inner(code):
            if not has_variable(part, name):
                continue
            its = f".{name}" if attribute else name
            others = {variable for line in lines_of(part) for variable, value in line.aliases if value == its}
            made_of_it = _made_of_it(part, name, attribute=attribute)
            for line in _again_and_again(part, name):
                loaded = _loads(line, name, attribute=attribute)
                stored = name in (line.attributes_stored if attribute else line.stores)
                swapped = any(value == its for _, value in line.aliases)
                replaces = stored and (swapped or not loaded) and _begins_anew(line, name)
                replaces = replaces and (line.in_loop or _outlives(part, None if attribute else name))
                loaded = loaded or not others.isdisjoint(line.loads)
                chooses = not line.filters.isdisjoint({name} | made_of_it) and not line.augments
                cuts = line.cuts and (loaded or not made_of_it.isdisjoint(line.loads))
                takes = loaded and (line.removes or (is_list and line.overwrites))
                takes = takes or (stored and (cuts or chooses))
                if replaces or takes:
                    whole = replaces or "clear" in line.attributes_loaded or (line.removes and line.cuts)
                    if found is None or (whole and not found.whole):
                        found = Drain(part, line.number, whole)
    return found


def _made_of_it(code: types.CodeType, name: str, *, attribute: bool) -> set[str]:
    """Variables of a function whose value is made of the container: ``both = self.rows + new``."""
    return {
        variable
        for line in lines_of(code)
        if not attribute or name not in line.attributes_stored
        for variable in line.stores - {name}
        if _loads(line, name, attribute=attribute) and not line.filters
    }


def taken_by_callee(
    codes: Iterable[types.CodeType],
    name: str,
    callees: Sequence[types.CodeType],
    *,
    is_list: bool,
    attribute: bool = False,
) -> Drain | None:
    """Where one of the ``callees``, to which one of the functions hands the container, takes something out of its argument, or
    leaves nothing in it; None where it is not clear which argument that is."""
    found: Drain | None = None
    for code in codes:
        for part in with_inner(code):
            if not has_variable(part, name):
                continue
            for line in _again_and_again(part, name):
                if not line.calls or line.adds or not _loads(line, name, attribute=attribute):
                    continue
                for callee in callees:
                    if callee.co_name in line.loads | line.attributes_loaded:
                        taking = _taken_from_argument(line, name, callee, is_list=is_list)
                        if taking is not None and (found is None or (taking.whole and not found.whole)):
                            found = taking
    return found


def _taken_from_argument(line: Line, name: str, callee: types.CodeType, *, is_list: bool) -> Drain | None:
    """Where a function that this line calls takes something out of the argument that is the container of that name."""
    by_argument = {
        argument: taking
        for argument in arguments_of(callee)
        if (taking := taken_from([callee], argument, is_list=is_list)) is not None
    }
    emptied = [taking for taking in by_argument.values() if taking.whole]
    if name in by_argument:
        return by_argument[name]
    if len(emptied) == 1:
        return emptied[0]
    # Something is often taken out of another argument, such as the labels out of a batch.
    others = (line.loads | line.attributes_loaded) - {name, callee.co_name, "self"}
    is_it = len(arguments_of(callee)) == 1 or not others
    return next(iter(by_argument.values()), None) if is_it else None


def set_by_name(codes: Iterable[types.CodeType]) -> Drain | None:
    """Line at which a method sets attributes one after the other by names that it computes, as the reset of a metric does:
    ``for name, default in self.defaults.items(): setattr(self, name, list(default))``."""
    for code in codes:
        for part in with_inner(code):
            if has_variable(part, "setattr") and _outlives(part, None):
                for line in lines_of(part):
                    # (A name that is made of a text and a number is that of a new attribute. A value that is not made
                    # on this line may be any: load_state_dict() brings the old ones.)
                    is_new = line.empties or not (MAKERS | COPIES).isdisjoint(line.loads | line.attributes_loaded)
                    if is_new and line.in_loop and line.loads >= {"setattr", "self"} and not line.texts:
                        return Drain(part, line.number, whole=True)
    return None


def begun_by_call(code: types.CodeType, name: str, caller: types.CodeType, number: int) -> Drain | None:
    """Line at which a function begins an empty container of its own, where that line of its caller is in a loop: each call has a
    container that ends with it. The function of an epoch does that."""
    if name not in code.co_varnames + code.co_cellvars or name in arguments_of(code):
        return None
    if not any(line.number == number and line.in_loop for line in lines_of(caller)):
        return None
    made = (line for line in lines_of(code) if name in line.stores and _begins_anew(line, name))
    return next((Drain(code, line.number, whole=True) for line in made), None)


def is_limited(codes: Iterable[types.CodeType], name: str, *, attribute: bool = False) -> bool:
    """True if a function that adds to the container of that name compares its length: ``if len(pool) < size``."""
    return any(_limits(part, name, attribute=attribute) for code in codes for part in with_inner(code))


def is_shortened(codes: Iterable[types.CodeType], name: str, *, attribute: bool = False) -> bool:
    """True if a function that makes a tensor longer also leaves out its first rows: ``queue = queue[1:]``. Or it asks for the size,
    and has another line that gives it a new value, which may be shorter: ``if bank.size(0) > 5000: bank = bank[chosen]``."""
    for code in codes:
        for part in with_inner(code):
            if not has_variable(part, name):
                continue
            lines = [line for line in lines_of(part) if line.in_loop or attribute]
            its = [line for line in lines if name in (line.attributes_stored if attribute else line.stores)]
            if any(line.drops and _loads(line, name, attribute=attribute) for line in its):
                return True
            asks = any(line.asks_size and _loads(line, name, attribute=attribute) for line in lines)
            if asks and len(its) > 1 and any(_loads(line, name, attribute=attribute) for line in its):
                return True
    return False


def is_looked_up(codes: Iterable[types.CodeType], name: str, *, attribute: bool = False) -> bool:
    """True if a function that adds to the container of that name asks first what is in it: ``if n not in self.masks``."""
    return any(_looks_up(part, name, attribute=attribute) for code in codes for part in with_inner(code))


def _looks_up(code: types.CodeType, name: str, *, attribute: bool) -> bool:
    if not has_variable(code, name):
        return False
    its = [line for line in lines_of(code) if _loads(line, name, attribute=attribute)]
    return any(line.adds for line in its) and any(line.looks_up for line in its)


def _limits(code: types.CodeType, name: str, *, attribute: bool) -> bool:
    if not has_variable(code, name):
        return False
    its = [line for line in lines_of(code) if _loads(line, name, attribute=attribute)]
    return any(line.adds for line in its) and any(line.compares and "len" in line.loads for line in its)


def is_handed_out(codes: Iterable[types.CodeType], name: str, *, attribute: bool = False) -> bool:
    """True if a generator fills the container of that name and hands out what is in it: ``yield from self.cache``.

    Such a cache is as large as its source: a loader that keeps its batches on the device from the first epoch on.
    """
    return any(_fills_and_hands_out(code, name, attribute=attribute) for code in codes)


def _fills_and_hands_out(code: types.CodeType, name: str, *, attribute: bool) -> bool:
    if not code.co_flags & inspect.CO_GENERATOR or not has_variable(code, name):
        return False
    fills = any(line.adds and _loads(line, name, attribute=attribute) for line in lines_of(code))
    if not fills:
        return False
    pairs = itertools.pairwise(dis.get_instructions(code))
    return any(one.argval == name and after.opname in ("GET_ITER", "GET_YIELD_FROM_ITER") for one, after in pairs)


def is_cut(codes: Iterable[types.CodeType], name: str, *, attribute: bool = False) -> bool:
    """True if a line keeps only a slice of what it adds to: ``queue = torch.cat([queue, new])[-size:]``, or ``q = q[-size:]``.

    Such a tensor has the length of the slice once it is full. On Python 3.10 only the second form is seen. ``q = q[1:]`` limits
    nothing by itself.
    """
    return any(_cuts(part, name, attribute=attribute) for code in codes for part in with_inner(code))


def _cuts(code: types.CodeType, name: str, *, attribute: bool) -> bool:
    if not has_variable(code, name):
        return False
    for line in lines_of(code):
        stored = name in (line.attributes_stored if attribute else line.stores)
        cuts = stored and line.cuts and not line.drops and _loads(line, name, attribute=attribute)
        if cuts and (not line.calls or _cuts_result(code, line.number)):
            return True
    return False


def _cuts_result(code: types.CodeType, number: int) -> bool:
    """True if a line slices all that it assigns, and not an argument: the slice begins where the line's first value does."""
    begin: int | None = None
    for instruction in dis.get_instructions(code):
        at = getattr(instruction, "positions", None)
        if at is None or at.lineno != number or at.col_offset is None:
            continue
        if begin is None and instruction.opname.startswith("LOAD"):
            begin = at.col_offset
        slices = instruction.opname in ("BINARY_SUBSCR", "BINARY_SLICE") or instruction.argrepr == "[]"
        if slices and at.col_offset == begin:
            return True
    return False


def begun_anew(codes: Iterable[types.CodeType], name: str, *, attribute: bool = False) -> Drain | None:
    """Line at which one of the functions resets a carried value: ``total = 0`` in its loop, or anything around the one
    that has ``total += loss``; of an attribute where a method sets it to a constant."""
    for code in codes:
        for part in with_inner(code):
            if not has_variable(part, name):
                continue
            its = [line for line in lines_of(part) if name in (line.attributes_stored if attribute else line.stores)]
            carried = max((line.depth for line in its if _loads(line, name, attribute=attribute)), default=0)
            for line in its:
                constant = line.constant and (_outlives(part, None) if attribute else line.in_loop)
                if not _loads(line, name, attribute=attribute) and (constant or 0 < line.depth < carried):
                    return Drain(part, line.number, whole=True)
    return None


def _again_and_again(code: types.CodeType, name: str) -> Iterator[Line]:
    """The lines that may empty the container of that name each time it is full: not those that come once in a training."""
    loops = [line for line in lines_of(code) if line.in_loop]
    fills = max((line.depth for line in loops if _fills(line, name)), default=0)
    for line in lines_of(code):
        # Before its loops, or after them all: once, unless the function is that of an epoch.
        if line.in_loop or not loops or (line.number > loops[-1].number and fills <= 1):
            yield line


def _loads(line: Line, name: str, *, attribute: bool) -> bool:
    return name in (line.attributes_loaded if attribute else line.loads)


def _fills(line: Line, name: str) -> bool:
    """Whether a line adds to a container of that name, or gives it to a function that may."""
    return (name in line.loads and (line.adds or line.calls)) or (name in line.attributes_loaded and line.adds)


def _begins_anew(line: Line, name: str) -> bool:
    """Whether what a line gives that name is an empty container."""
    return name in line.empties or not MAKERS.isdisjoint(line.loads | line.attributes_loaded)


def _outlives(code: types.CodeType, variable: str | None) -> bool:
    """Whether what code gives a variable, or an attribute (None), outside of any loop, takes the place of an earlier one: not a
    variable of its own, and not what an object, a class or a module begins with."""
    is_function = code.co_flags & inspect.CO_OPTIMIZED
    return bool(is_function) and code.co_name != "__init__" and variable not in code.co_varnames + code.co_cellvars
