"""Finds the line on which something is kept, in the bytecode: no source is needed, and no function is mistaken for another.

A container is kept where something is added to it (``history.append(x)``, ``cache[key] = x``), a variable where it is
assigned; what happens inside a loop counts more than what happens once.
"""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from vramscope.graphs import classes

ADDERS: Final = frozenset(
    (
        "append",
        "appendleft",
        "extend",
        "extendleft",
        "add",
        "update",
        "insert",
        "setdefault",
        "put",
        "put_nowait",
        "push",
        "heappush",
        "insort",
        "insort_left",
        "insort_right",
    )
)
REMOVERS: Final = frozenset(
    ("pop", "popleft", "popitem", "clear", "remove", "discard", "heappop", "heappushpop", "heapreplace")
)
FUNCTIONS: Final = frozenset(
    ("heappush", "heappop", "heappushpop", "heapreplace", "insort", "insort_left", "insort_right")
)
"""of Python's own, which take the container as an argument; imported by name they are no attribute"""
MOST_INSTRUCTIONS: Final = 20_000
"""of one function; generated code can be endless"""


class Line(NamedTuple):
    """What one source line of a function does, as far as it matters here."""

    number: int
    loads: frozenset[str]
    stores: frozenset[str]
    attributes_loaded: frozenset[str]
    attributes_stored: frozenset[str]
    adds: bool
    """calls a method that adds to a container, or assigns to a subscript"""
    removes: bool
    """calls a method that takes out of a container, or deletes a subscript"""
    overwrites: bool
    """assigns to a subscript"""
    cuts: bool
    """takes a slice of something"""
    augments: bool
    """has an in-place operation such as +="""
    calls: bool
    constant: bool
    """stores constants only, or empty containers: an initialisation"""
    in_loop: bool


def name_kept_at(code: types.CodeType, name: str, *, container: bool) -> int | None:
    """The line of a function (or of one inside it) that keeps something in variable ``name``; None where there is none."""
    best: tuple[int, int] | None = None
    for part in with_inner(code):
        if not _has_variable(part, name):
            continue  # (to read a function's bytecode takes longer than all else)
        for line in lines_of(part):
            score = _score(line, name in line.loads, name in line.stores, container=container)
            score = score * 8 + min(len(line.loads), 7) if score else 0  # of two, the one that has more to keep
            if score and (best is None or score > best[0]):
                best = score, line.number
    return best[1] if best else None


def _has_variable(code: types.CodeType, name: str) -> bool:
    return name in code.co_varnames or name in code.co_names or name in code.co_cellvars or name in code.co_freevars


def attribute_kept_at(
    codes: Iterable[types.CodeType], attribute: str, *, container: bool, of: str = "", strictly: bool = False
) -> tuple[types.CodeType, int] | None:
    """The function and line, of those given, that keep something in an attribute of that name.

    of         what the object is called where its name is known: of two lines the one that has it is right
    strictly   a line that does not have it is of no use
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
                score = (
                    score * 2 + (not line.overwrites) if score else 0
                )  # ``cache[key] = []`` comes before what is put there
                if score and (best is None or score > best[0]):
                    best = score, part, line.number
    return best[1:] if best else None


def taken_from(codes: Iterable[types.CodeType], name: str, *, is_list: bool) -> bool:
    """Whether one of the functions also takes something out of the container of that name (a variable or an attribute), or
    keeps a slice of it.

    is_list   to assign to its subscript overwrites
    """
    for code in codes:
        for part in with_inner(code):
            if _has_variable(part, name):
                has_loop = any(line.in_loop for line in lines_of(part))
                for line in lines_of(part):
                    if has_loop and not line.in_loop:
                        continue  # emptied once, before the training or after it
                    loaded = name in line.loads or name in line.attributes_loaded
                    stored = name in line.stores or name in line.attributes_stored
                    if loaded and (line.removes or (is_list and line.overwrites) or (stored and line.cuts)):
                        return True
    return False


def added_at(codes: Iterable[types.CodeType], name: str) -> tuple[types.CodeType, int] | None:
    """The first function and line that add something to the variable of that name."""
    for code in codes:
        for line in lines_of(code):
            if name in line.loads and line.adds:
                return code, line.number
    return None


def adds_to_attribute(code: types.CodeType, attribute: str) -> bool:
    """Whether a function adds to what an attribute of that name has."""
    return attribute in code.co_names and any(
        line.adds and attribute in line.attributes_loaded for line in lines_of(code)
    )


def called_at(codes: Iterable[types.CodeType], of: str, methods: frozenset[str]) -> tuple[types.CodeType, int] | None:
    """The first function and line that call one of these methods of the variable ``of``."""
    for code in codes:
        for line in lines_of(code):
            if line.calls and of in line.loads and not methods.isdisjoint(line.attributes_loaded):
                return code, line.number
    return None


def named_at(codes: Iterable[types.CodeType]) -> tuple[types.CodeType, int] | None:
    """The first function and line that set an attribute, or a buffer, of a name that is made up as the program runs."""
    for code in codes:
        for line in lines_of(code):
            if "setattr" in line.loads or not line.attributes_loaded.isdisjoint(
                ("register_buffer", "register_parameter")
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
                if any(name.startswith(prefix) and name.endswith(suffix) for name in line.attributes_loaded):
                    found.append((not line.in_loop, part, line.number))
    return min(found, key=lambda entry: entry[0])[1:] if found else None


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
    return bool(touched) and name in touched[0].loads and any(name in line.stores for line in touched)


def made_anew(code: types.CodeType, name: str) -> bool:
    """Whether a loop assigns the variable before it reads it: each round makes its own."""
    inside = [line for line in lines_of(code) if line.in_loop and (name in line.loads or name in line.stores)]
    return bool(inside) and name in inside[0].stores and name not in inside[0].loads


def codes_of_class(kind: type) -> Iterator[types.CodeType]:
    """The functions of a class and of its bases, the class's own first."""
    for base in classes.bases(kind):
        for member in list(classes.namespace(base).values()):
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


def with_inner(code: types.CodeType, depth: int = 3) -> Iterator[types.CodeType]:
    yield code
    if depth:
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                yield from with_inner(constant, depth - 1)


@functools.lru_cache(maxsize=512)
def lines_of(code: types.CodeType) -> tuple[Line, ...]:
    """The lines of a function in the order of its bytecode. Some 3 µs an instruction, once a function."""
    return tuple(_read(code))


class _Draft:
    def __init__(self) -> None:
        self.loads: set[str] = set()
        self.stores: set[str] = set()
        self.attributes_loaded: set[str] = set()
        self.attributes_stored: set[str] = set()
        self.adds = self.augments = self.calls = False
        self.removes = self.overwrites = self.cuts = False
        self.computes = False
        self.in_loop = False
        self.own: set[str] = set()
        """variables of a comprehension on this line that is no function of its own (from Python 3.12 on)"""


def _read(code: types.CodeType) -> Iterator[Line]:
    drafts: dict[int, _Draft] = {}
    number = code.co_firstlineno
    loops: list[tuple[int, int]] = []
    at: list[tuple[int, int]] = []
    for position, instruction in enumerate(dis.get_instructions(code)):
        if position >= MOST_INSTRUCTIONS:
            break
        number = _line_of(instruction) or number
        at.append((instruction.offset, number))
        draft = drafts.setdefault(number, _Draft())
        operation, argument = instruction.opname, instruction.argval
        if operation == "LOAD_FAST_AND_CLEAR":
            draft.own.add(argument)
        for kind, name in _names(operation, argument):
            (draft.loads if kind == "LOAD" else draft.stores).add(name)
            if name in FUNCTIONS and kind == "LOAD":
                draft.adds |= name in ADDERS
                draft.removes |= name in REMOVERS
        if operation in ("LOAD_ATTR", "LOAD_METHOD"):
            draft.attributes_loaded.add(argument)
            draft.adds |= argument in ADDERS
            draft.removes |= argument in REMOVERS
            draft.computes = True
        elif operation == "STORE_ATTR":
            draft.attributes_stored.add(argument)
        elif operation in ("STORE_SUBSCR", "STORE_SLICE"):
            draft.adds = draft.overwrites = True
        elif operation == "DELETE_SUBSCR":
            draft.removes = True
        elif operation in ("BUILD_SLICE", "BINARY_SLICE"):
            draft.cuts = draft.computes = True
        elif operation.startswith("INPLACE_") or (operation == "BINARY_OP" and str(instruction.argrepr).endswith("=")):
            draft.augments = draft.computes = True
        elif operation.startswith(("CALL", "BINARY_")):
            draft.calls |= operation.startswith("CALL")
            draft.computes = True
        elif operation == "FOR_ITER":
            loops.append((instruction.offset, argument))
        if "JUMP_BACKWARD" in operation or (
            operation.startswith(("JUMP_ABSOLUTE", "POP_JUMP")) and _is_before(instruction)
        ):
            loops.append((argument, instruction.offset))
    for offset, number in at:
        if any(start <= offset <= end for start, end in loops):
            drafts[number].in_loop = True
    for number, draft in drafts.items():
        draft.stores -= draft.own
        # A bare ``history = []`` or ``total = 0`` keeps nothing yet; ``a = b`` loads a name, so it is none.
        constant = bool(draft.stores or draft.attributes_stored) and not draft.computes and not draft.loads - {"self"}
        yield Line(
            number,
            frozenset(draft.loads),
            frozenset(draft.stores),
            frozenset(draft.attributes_loaded),
            frozenset(draft.attributes_stored),
            draft.adds,
            draft.removes,
            draft.overwrites,
            draft.cuts,
            draft.augments,
            draft.calls,
            constant,
            draft.in_loop,
        )


_SCOPES: Final = ("FAST", "NAME", "GLOBAL", "DEREF", "CLASSDEREF")


def _names(operation: str, argument: object) -> Iterator[tuple[str, str]]:
    """(LOAD or STORE, variable) of an instruction; Python 3.13 joins two in one."""
    words = operation.split("_")
    if words[0] not in ("LOAD", "STORE") or len(words) < 2 or words[1] not in _SCOPES:
        return
    if isinstance(argument, str):
        yield words[0], argument
        if "AND" in words or words[-1] == "CLEAR":
            yield "STORE", argument
    elif isinstance(argument, tuple):
        kinds = [word for word in words if word in ("LOAD", "STORE")]
        for kind, name in zip(kinds, argument, strict=False):
            if isinstance(name, str):
                yield kind, name


def _line_of(instruction: dis.Instruction) -> int | None:
    positions = getattr(instruction, "positions", None)
    if positions is not None:
        line: int | None = positions.lineno
        return line
    start = instruction.starts_line  # Python 3.10
    return start if isinstance(start, int) and not isinstance(start, bool) else None


def _is_before(instruction: dis.Instruction) -> bool:
    return isinstance(instruction.argval, int) and instruction.argval < instruction.offset
