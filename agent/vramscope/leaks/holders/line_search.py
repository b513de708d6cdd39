"""Finds the line on which something is kept, in the bytecode: no source is needed, and no function is mistaken for another.

A container is kept where something is added to it (``history.append(x)``, ``cache[key] = x``), a variable where it is
assigned; what happens inside a loop counts more than what happens once.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator
from typing import Any, Final

from vramscope.leaks.holders.bytecode import Line, arguments_of, has_variable, lines_of, with_inner
from vramscope.leaks.holders.last_line import ran_last
from vramscope.process import type_info

NO_KEYS: Final[frozenset[str]] = frozenset()
MOST_NAMES: Final = 3
"""Variables that are followed from one to the next."""


def _lines_with(code: types.CodeType, *names: str) -> Iterable[Line]:
    """The lines of a function that speaks of one of these names; none of another. (To read a function's bytecode takes longer than
    all other checks, and a program may have thousands of functions.)"""
    return lines_of(code) if any(has_variable(code, name) for name in names) else ()


def name_kept_at(
    code: types.CodeType, name: str, *, container: bool, keys: frozenset[str] = NO_KEYS
) -> tuple[types.CodeType, int] | None:
    """The line that keeps something in variable ``name``, and which it is in of a function and those inside it (a comprehension is
    its function's); None where there is none. Of equal lines it is the first. Where one value is kept and the function runs, it is
    the one that ran last, or the first of alternatives: which branch ran is unknown.

    keys   under which the variable, a dict, and dicts in it have it: of two lines the one that names more of them is right
    """
    best, found = 0, list[tuple[types.CodeType, int]]()
    for part in with_inner(code):
        if not has_variable(part, name):
            continue  # reading a function's bytecode takes longer than all other checks
        if part is not code and name in (*part.co_varnames, *part.co_cellvars):
            continue  # a variable of its own, of the same name
        for line in lines_of(part):
            score = _score(line, name in line.loads, name in line.stores, container=container)
            # of two names, take the one that retains more
            score = _named(score, line, keys) * 8 + min(len(line.loads), 7) if score else 0
            if score > best:
                best, found = score, []
            if score and score == best:
                found.append((code if part.co_name.startswith("<") else part, line.number))
    if len(found) < 2 or container:
        return found[0] if found else None
    first = found[0][0]
    return first, ran_last(first, {number for part, number in found if part is first}) or found[0][1]


def attribute_kept_at(
    codes: Iterable[types.CodeType],
    attribute: str,
    *,
    container: bool,
    of: str = "",
    strictly: bool = False,
    keys: frozenset[str] = NO_KEYS,
) -> tuple[types.CodeType, int] | None:
    """The function and line, of those given, that keep something in an attribute of that name.

    of         what the object is called where its name is known: of two lines the one that has it is right
    strictly   a line without it does not count
    keys       as of :func:`name_kept_at`
    """
    best: tuple[int, types.CodeType, int] | None = None
    for code in codes:
        for part in with_inner(code):
            if attribute not in part.co_names:
                continue
            for line in lines_of(part):
                loaded, stored = attribute in line.attributes_loaded, attribute in line.attributes_stored
                score = _score(line, loaded, stored, container=container)
                if score and part.co_name != "__init__":
                    score += 4
                if score and of and (of in line.loads or of in line.attributes_loaded):
                    score += 8
                elif strictly:
                    continue
                # ``cache[key] = []`` comes before the line that fills it
                score = _named(score, line, keys) * 2 + (not line.overwrites) if score else 0
                if score and (best is None or score > best[0]):
                    best = score, part, line.number
    return best[1:] if best else None


def added_at(codes: Iterable[types.CodeType], name: str) -> tuple[types.CodeType, int] | None:
    """The first function and line that add something to the variable of that name."""
    for code in codes:
        for line in _lines_with(code, name):
            if name in line.loads and line.adds:
                return code, line.number
    return None


def filled_at(codes: Iterable[types.CodeType], attribute: str, of: set[str]) -> tuple[types.CodeType, int] | None:
    """The first function and line that add to an attribute of something that is called one of these names."""
    found = (
        (code, line.number) for code, line in _adding_to(codes, attribute) if of & (line.loads | line.attributes_loaded)
    )
    return next(found, None)


def sole_adder(codes: Iterable[types.CodeType], attribute: str) -> tuple[types.CodeType, int] | None:
    """The function and line that add to what an attribute of that name has; None where there are several, or none."""
    found = {(code, line.number) for code, line in _adding_to(codes, attribute)}
    return found.pop() if len(found) == 1 else None


def _adding_to(codes: Iterable[types.CodeType], attribute: str) -> Iterator[tuple[types.CodeType, Line]]:
    for code in codes:
        for part in with_inner(code):
            if attribute in part.co_names:
                yield from (
                    (part, line) for line in lines_of(part) if line.adds and attribute in line.attributes_loaded
                )


def added_through(code: types.CodeType, number: int) -> int | None:
    """The line that adds to a variable which line ``number`` takes out of a container: ``rows.append(x)`` after
    ``rows = self.table.setdefault(key, [])``. None where there is none."""
    lines = lines_of(code)
    taken = next((line.stores for line in lines if line.number == number), NO_KEYS)
    for _ in range(MOST_NAMES):
        if len(taken) != 1:
            return None
        found = next(
            (line.number for line in lines if line.number > number and taken & line.adds_to and not line.stores), None
        )
        if found is not None:
            return found
        taken = next(
            (line.stores for line in lines if line.number > number and line.stores and taken & line.adds_to), NO_KEYS
        )
    return None


def taken_and_filled(codes: Iterable[types.CodeType], name: str) -> tuple[types.CodeType, int] | None:
    """The first function and line that add to what an earlier line takes out of the variable or attribute of that name."""
    for outer in codes:
        for code in with_inner(outer):
            for line in lines_of(code) if has_variable(code, name) else ():
                if (
                    name in line.loads | line.attributes_loaded
                    and (found := added_through(code, line.number)) is not None
                ):
                    return code, found
    return None


def overwritten_through(code: types.CodeType, number: int) -> int | None:
    """The line that puts most into a variable which line ``number`` takes out of a container, and only takes out:
    ``state["mean"] = 0.9 * state["mean"] + g`` after ``state = self.state[p]``. None where there is none."""
    lines = lines_of(code)
    taken = [line for line in lines if line.number == number and len(line.stores) == 1 and not line.adds]
    if not taken:
        return None
    later = [line for line in lines if line.number > number and taken[0].stores & line.puts_into]
    return max(later, key=lambda line: len(line.loads)).number if later else None


def only_reads(code: types.CodeType, number: int, attribute: str) -> bool:
    """Whether that line asks for an attribute, and neither assigns it nor adds to anything."""
    its = [line for line in lines_of(code) if line.number == number and attribute in line.attributes_loaded]
    return bool(its) and not any(line.adds or attribute in line.attributes_stored for line in its)


def begins_empty(code: types.CodeType, number: int, name: str) -> bool:
    """Whether that line makes an empty container of that name, and keeps nothing in it yet."""
    return any(line.number == number and name in line.empties for line in lines_of(code))


def adds_to_attribute(code: types.CodeType, attribute: str) -> bool:
    """Whether a function adds to what an attribute of that name has."""
    return attribute in code.co_names and any(
        line.adds and attribute in line.attributes_loaded for line in lines_of(code)
    )


def called_at(
    codes: Iterable[types.CodeType], of: str, methods: frozenset[str], through: frozenset[str] = frozenset()
) -> tuple[types.CodeType, int] | None:
    """The function and line that call one of these methods of the variable ``of``: the first of those that go through the most
    of these attributes (``model.losses.update(x)``, and not ``model.accuracy.update(x)``)."""
    best: tuple[int, types.CodeType, int] | None = None
    for code in codes:
        for line in _lines_with(code, of):
            if line.calls and of in line.loads and not methods.isdisjoint(line.attributes_loaded):
                score = len(through & line.attributes_loaded)
                if best is None or score > best[0]:
                    best = score, code, line.number
    return best[1:] if best else None


def handed_on(
    code: types.CodeType, number: int, name: str, codes: Iterable[types.CodeType], keys: frozenset[str] = NO_KEYS
) -> tuple[types.CodeType, int] | None:
    """Where a line of ``code`` only gives the variable to one of these functions: the line of that one which adds to its argument,
    or to what the argument has under these keys. None where the line adds by itself, or where it is not clear which argument it is.
    """
    given = next(
        (line for part in with_inner(code) for line in lines_of(part) if line.number == number and name in line.loads),
        None,
    )
    if given is None or given.adds or not given.calls:
        return None
    for callee in codes:
        if callee.co_name in given.loads | given.attributes_loaded:
            adding = {
                argument: line.number
                for line in reversed(lines_of(callee))
                for argument in arguments_of(callee)
                if argument in line.adds_to
            }
            if name in adding or len(adding) == 1:
                return callee, adding.get(name) or next(iter(adding.values()))
            within = [line for line in lines_of(callee) if line.adds and name in line.loads]
            if name in arguments_of(callee) and within:
                return callee, max(within, key=lambda line: len(keys & line.texts)).number
    return None


def named_at(codes: Iterable[types.CodeType]) -> tuple[types.CodeType, int] | None:
    """The first function and line that set an attribute, a buffer or a global of a name that is made up as the program runs."""
    for code in codes:
        for line in _lines_with(code, "setattr", "globals", "register_buffer", "register_parameter"):
            if (
                "setattr" in line.loads
                or ("globals" in line.loads and line.adds)
                or not line.attributes_loaded.isdisjoint(("register_buffer", "register_parameter"))
            ):
                return code, line.number
    return None


def call_at(codes: Iterable[types.CodeType], prefix: str, suffix: str) -> tuple[types.CodeType, int] | None:
    """The first line, one in a loop before others, that calls a method of such a name (``register_forward_hook``)."""
    found: list[tuple[bool, types.CodeType, int]] = []
    for code in codes:
        for part in with_inner(code):
            if not any(name.startswith(prefix) and name.endswith(suffix) for name in part.co_names):
                continue
            for line in lines_of(part):
                called = line.attributes_loaded | line.loads
                if any(name.startswith(prefix) and name.endswith(suffix) for name in called):
                    found.append((not line.in_loop, part, line.number))
    return min(found, key=lambda entry: entry[0])[1:] if found else None


def adds_at(code: types.CodeType | None, number: int | None) -> bool:
    """True if a line calls a method that adds to a container."""
    return code is not None and any(
        line.number == number and line.adds and not line.overwrites for line in lines_of(code)
    )


def put_under(codes: Iterable[types.CodeType], key: str) -> tuple[types.CodeType, int] | None:
    """The first line in a function that overwrites what is under a key: ``group["params"][0] = parameter``."""
    for code in codes:
        for part in with_inner(code):
            if key in part.co_consts:
                for line in lines_of(part):
                    if line.overwrites and key in line.texts:
                        return part, line.number
    return None


def called_from(codes: Iterable[types.CodeType], function: str) -> tuple[types.CodeType, int] | None:
    """The first line, one in a loop before others, that calls the function or hands it to a call (``Thread(target=upload)``)."""
    found = [
        (not line.in_loop, part, line.number)
        for code in codes
        for part in with_inner(code)
        for line in _lines_with(part, function)
        if line.calls and function in line.loads | line.attributes_loaded
    ]
    return min(found, key=lambda entry: entry[0])[1:] if found else None


def registered_at(codes: Iterable[types.CodeType], function: types.CodeType) -> tuple[types.CodeType, int] | None:
    """The line that hands a function to a call which registers it: ``register_forward_hook(hook)``."""
    for outer in codes:
        for part in with_inner(outer):
            if function not in part.co_consts:
                continue
            for line in lines_of(part):
                if any(name.startswith(("register_", "add_")) for name in line.attributes_loaded | line.loads) and (
                    function.co_name in line.loads or line.number == function.co_firstlineno
                ):
                    return part, line.number
    return None


def _named(score: int, line: Line, keys: frozenset[str]) -> int:
    """A score, and of two that are equal more for the line that names more of the keys."""
    return score * 4 + min(3, len(keys & line.texts))


def _score(line: Line, loaded: bool, stored: bool, *, container: bool) -> int:
    score = 0
    if container and line.removes and not line.adds:
        return 0
    if container and loaded and line.adds:
        score = 60
    elif stored and line.augments and loaded:
        score = 50
    elif stored and loaded:
        score = 40
    elif stored and not line.constant:
        score = 30
    elif container and loaded and (line.calls or line.in_loop):
        # Handed to a function that adds to it; in a loop more likely than on a line before it that makes it.
        score = 29 if line.calls and line.in_loop else 20
    elif stored:
        score = 10
    return score + (2 if score and line.in_loop else 0)


def stored_on(code: types.CodeType, number: int) -> str | None:
    """The variable or attribute that a line assigns; None where it is none, or several."""
    stores = [name for line in lines_of(code) if line.number == number for name in line.stores | line.attributes_stored]
    return stores[0] if len(stores) == 1 else None


def carried_by_loop(code: types.CodeType, name: str) -> bool:
    """Whether a loop reads the variable before it assigns it: what one round leaves there, the next one uses."""
    inside = [line for line in lines_of(code) if line.in_loop]
    touched = [line for line in inside if name in line.loads or name in line.stores]
    return bool(touched) and name in touched[0].reads_first and any(name in line.stores for line in touched)


def read_after_backward(code: types.CodeType, name: str) -> bool:
    """True if the function reads the variable after a backward pass, before it assigns it again."""
    walked = False
    for line in lines_of(code):
        if walked and name in line.loads:
            return True
        if name in line.stores:
            walked = False
        walked = walked or "backward" in line.attributes_loaded
    return False


def made_anew(code: types.CodeType, name: str) -> bool:
    """Whether a loop assigns the variable before it reads it: each round makes its own."""
    inside = [line for line in lines_of(code) if line.in_loop and (name in line.loads or name in line.stores)]
    return bool(inside) and name in inside[0].stores and name not in inside[0].reads_first


def codes_of_class(kind: type) -> Iterator[types.CodeType]:
    """The functions of a class and of its bases, the class's own first."""
    for base in type_info.bases(kind):
        for member in list(type_info.namespace(base).values()):
            code = code_of(member)
            if code is not None:
                yield code


def code_of(member: object) -> types.CodeType | None:
    """The code of a function, method or property; None for anything else. By type: asking for ``__class__`` can run code."""
    found: Any = member
    for _ in range(4):
        kind = type(found)
        if kind is types.FunctionType:
            inner = found.__dict__.get("__wrapped__")
            if type(inner) is not types.FunctionType:
                code: types.CodeType = found.__code__
                return code
            found = inner
        elif kind in (staticmethod, classmethod, types.MethodType):
            found = found.__func__
        elif kind is property:
            found = found.fget
        else:
            break
    return None


def forward_class(function: type) -> type:
    """The autograd Function that a user wrote, for the class of nodes that PyTorch makes of it (``MaskReluBackward``)."""
    source: type = getattr(function, "_forward_cls", function)
    return source


def context_kept_at(function: type, attribute: str) -> tuple[types.CodeType, int] | None:
    """The function and line of an autograd Function that set ``ctx.attribute``."""
    return attribute_kept_at(codes_of_class(forward_class(function)), attribute, container=False)
