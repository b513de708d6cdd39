"""Reads a function's bytecode line by line: what each line loads, stores, adds to and takes out of.

Python 3.10 to 3.13 differ in the names of instructions; what matters here is the same in all of them.
"""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Iterator
from typing import Final, NamedTuple

from vramscope.process.frames import COMPREHENSIONS

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
SELECTORS: Final = frozenset(("filter", "nlargest", "nsmallest", "sample", "islice"))
"""Functions whose result has some elements of a container."""
SIZES: Final = frozenset(("len", "size", "shape", "numel", "nbytes"))
"""What a length is asked by, of a container or a tensor."""
LOOKUPS: Final = frozenset(("get", "setdefault"))
MAKERS: Final = frozenset(("list", "dict", "set", "deque", "defaultdict", "OrderedDict", "Counter"))
"""Names of container classes, whose call makes a new container."""
FUNCTIONS: Final = frozenset(
    ("heappush", "heappop", "heappushpop", "heapreplace", "insort", "insort_left", "insort_right")
)
"""Functions of the standard library that take the container as an argument."""
_TAKERS: Final = frozenset(("LIST_APPEND", "SET_ADD", "MAP_ADD"))
MOST_INSTRUCTIONS: Final = 20_000
"""Maximum number of instructions of one function that are read; generated code can be endless."""


class Line(NamedTuple):
    """What one source line of a function does, as far as it matters here."""

    number: int
    loads: frozenset[str]
    reads_first: frozenset[str]
    """Variables that the line reads before it assigns them: ``x = f(x)``, and not ``x = f(); g(x)``."""
    stores: frozenset[str]
    attributes_loaded: frozenset[str]
    attributes_stored: frozenset[str]
    adds: bool
    """True if it calls a method that adds to a container, or assigns to a subscript."""
    removes: bool
    """True if it calls a method that removes from a container, or deletes a subscript."""
    overwrites: bool
    """True if it assigns to a subscript."""
    cuts: bool
    """True if it takes a slice."""
    drops: bool
    """True if all its slices leave out a fixed number of first elements, and nothing else: ``queue[1:]``."""
    augments: bool
    """True if it has an in-place operation such as +=."""
    compares: bool
    """True if it asks whether one value is less than another, or not: ``len(pool) < size``, ``len(pool) >= size``."""
    looks_up: bool
    """True if it asks whether a container has a key: ``key in cache``, ``cache.get(key)``."""
    asks_size: bool
    """True if it compares a length or a size with another number, in whichever order."""
    calls: bool
    constant: bool
    """True if it stores only constants or empty containers: an initialisation."""
    depth: int
    """Number of loops around it."""
    texts: frozenset[str]
    """Constants that it contains, keys among them."""
    empties: frozenset[str]
    """Variables and attributes that it sets to an empty list, dict or set."""
    adds_to: frozenset[str]
    """Variables of which it calls a method that adds."""
    puts_into: frozenset[str]
    """Variables and ``.attributes`` of which it sets an element."""
    aliases: frozenset[tuple[str, str]]
    """(variable, the variable or ``.attribute`` whose value it is given as it is)"""
    filters: frozenset[str]
    """Variables and attributes of which it takes some elements, by a condition: ``[one for one in pool if one.waits]``."""

    @property
    def in_loop(self) -> bool:
        return self.depth > 0


def with_inner(code: types.CodeType, depth: int = 3) -> Iterator[types.CodeType]:
    yield code
    if depth:
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                yield from with_inner(constant, depth - 1)


def has_variable(code: types.CodeType, name: str) -> bool:
    """A variable, an attribute or a global of that name is spoken of in it. (To read a function's bytecode takes longer.)"""
    return name in code.co_varnames or name in code.co_names or name in code.co_cellvars or name in code.co_freevars


def arguments_of(code: types.CodeType) -> list[str]:
    """Names of a function's arguments, without the object's own."""
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return [name for name in names if name not in ("self", "cls")]


@functools.lru_cache(maxsize=512)
def lines_of(code: types.CodeType) -> tuple[Line, ...]:
    """The lines of a function in the order of its bytecode. Some 3 µs an instruction, once a function."""
    return tuple(_read(code))


class _Draft:
    def __init__(self) -> None:
        self.loads: set[str] = set()
        self.reads_first: set[str] = set()
        self.stores: set[str] = set()
        self.attributes_loaded: set[str] = set()
        self.attributes_stored: set[str] = set()
        self.adds = self.augments = self.calls = False
        self.removes = self.overwrites = self.cuts = self.compares = self.looks_up = False
        self.sizes = False
        """True if a slice of the line does more than leave out a fixed number of first elements."""
        self.computes = self.orders = False
        self.depth = 0
        self.texts: set[str] = set()
        self.empties: set[str] = set()
        self.adds_to: set[str] = set()
        self.puts_into: set[str] = set()
        self.aliases: set[tuple[str, str]] = set()
        self.walked: set[str] = set()
        """What a loop of the line walks over."""
        self.chooses = False
        """True if a comprehension of the line has a condition."""
        self.own: set[str] = set()
        """Variables of a comprehension on this line that is no function of its own (from Python 3.12 on)."""


def _leave_out_comprehensions(loops: dict[int, int], takers: list[tuple[int, int]]) -> None:
    """Remove the loops of comprehensions that are no functions of their own, as from Python 3.12 on.

    They are around an expression, not around the line: ``layers = [Layer() for _ in range(3)]`` runs once.
    """
    for offset, count in takers:
        around = sorted(start for start, end in loops.items() if start <= offset <= end)
        for start in around[-count:]:
            del loops[start]


def _read(code: types.CodeType) -> Iterator[Line]:
    drafts: dict[int, _Draft] = {}
    number = code.co_firstlineno
    loops: dict[int, int] = {}
    """Offset of a loop's first instruction -> offset of its last."""
    takers: list[tuple[int, int]] = []
    """(offset, loops of its comprehension) of each instruction that adds an element to what a comprehension makes."""
    at: list[tuple[int, int]] = []
    just_loaded: str | None = None
    path: set[str] = set()
    """Names since the last other value: ``self``, ``pool`` and ``items`` of ``self.pool.items()``."""
    constants: list[object] = []
    """Constants that the last instructions have loaded."""
    stack: list[str] = []
    """Known upper part of the stack: a variable, an ``.attribute``, an empty container, or something else."""
    for position, instruction in enumerate(dis.get_instructions(code)):
        if position >= MOST_INSTRUCTIONS:
            break
        number = _line_of(instruction) or number
        at.append((instruction.offset, number))
        draft = drafts.setdefault(number, _Draft())
        operation, argument = instruction.opname, instruction.argval
        if operation == "LOAD_CONST" and isinstance(argument, str):
            draft.texts.add(argument)
        if operation == "LOAD_CONST" and (slices := _slices_in(argument)):  # of constants alone, from Python 3.14 on
            draft.cuts = draft.computes = True
            draft.sizes |= any(one.step is not None or not _leaves_out_first([one.start, one.stop]) for one in slices)
        draft.chooses |= _has_condition(argument) or (bool(draft.own) and operation.startswith("POP_JUMP"))
        if operation == "GET_ITER":
            draft.walked |= path
        if operation == "LOAD_FAST_AND_CLEAR":
            draft.own.add(argument)
        named = [*_names(operation, argument)]
        for kind, name in named:
            if kind == "LOAD" and name not in draft.stores:
                draft.reads_first.add(name)
            (draft.loads if kind == "LOAD" else draft.stores).add(name)
            if kind == "LOAD":
                stack.append(name)
            elif (value := stack.pop() if stack else _ELSE) == _NOTHING_YET:
                draft.empties.add(name)
            elif value not in (_ELSE, name):
                draft.aliases.add((name, value))
            if name in FUNCTIONS and kind == "LOAD":
                draft.adds |= name in ADDERS
                draft.removes |= name in REMOVERS
        if operation in ("LOAD_ATTR", "LOAD_METHOD"):
            draft.attributes_loaded.add(argument)
            draft.adds |= argument in ADDERS
            draft.removes |= argument in REMOVERS
            draft.looks_up |= argument in LOOKUPS
            draft.computes = True
            if just_loaded is not None and argument in ADDERS:
                draft.adds_to.add(just_loaded)
        elif operation == "STORE_ATTR":
            draft.attributes_stored.add(argument)
            if stack[-2:-1] == [_NOTHING_YET]:
                draft.empties.add(argument)
        elif operation in ("STORE_SUBSCR", "STORE_SLICE"):
            draft.adds = draft.overwrites = True
            in_place = operation == "STORE_SLICE" or any(map(_slices_in, constants))
            draft.puts_into.update(() if in_place else stack[-2:-1])
        elif operation == "DELETE_SUBSCR":
            draft.removes = True
        elif operation in ("BUILD_SLICE", "BINARY_SLICE"):
            draft.cuts = draft.computes = True
            draft.sizes |= instruction.arg == 3 or not _leaves_out_first(constants)
        elif operation == "CONTAINS_OP":
            draft.looks_up = True
        elif operation == "COMPARE_OP":
            draft.compares |= str(argument).strip() in ("<", "<=", ">=")
            draft.orders |= str(argument).strip() in ("<", "<=", ">=", ">")
            draft.computes = True
        elif operation.startswith("INPLACE_") or (operation == "BINARY_OP" and str(instruction.argrepr).endswith("=")):
            draft.augments = draft.computes = True
        elif operation.startswith(("CALL", "BINARY_")):
            draft.calls |= operation.startswith("CALL")
            draft.computes = True
        elif operation == "FOR_ITER":
            # the jump leads behind the loop
            loops[instruction.offset] = max(argument - 1, loops.get(instruction.offset, 0))
        elif operation in _TAKERS and (instruction.arg or 0) > 1:  # 1 is a list display such as ``[*these, that]``
            takers.append((instruction.offset, (instruction.arg or 0) - 1))
        constants = [*constants, argument] if operation in _CONSTANTS else []
        just_loaded = next((name for kind, name in reversed(named) if kind == "LOAD"), None)
        if just_loaded is not None:
            path = {just_loaded}
        elif operation in ("LOAD_ATTR", "LOAD_METHOD"):
            path.add(argument)
        if not named:
            _follow(stack, operation, instruction.arg or 0, argument)
        if "JUMP_BACKWARD" in operation or (
            operation.startswith(("JUMP_ABSOLUTE", "POP_JUMP")) and _is_before(instruction)
        ):
            loops[argument] = max(instruction.offset, loops.get(argument, 0))
    if code.co_name not in COMPREHENSIONS:
        _leave_out_comprehensions(loops, takers)
    for offset, number in at:
        depth = sum(start <= offset <= end for start, end in loops.items())
        drafts[number].depth = max(depth, drafts[number].depth)
    for number, draft in drafts.items():
        draft.stores -= draft.own
        # A bare ``history = []`` or ``total = 0`` keeps nothing yet; ``a = b`` loads a name, so it is none.
        constant = bool(draft.stores or draft.attributes_stored) and not draft.computes and not draft.loads - {"self"}
        yield Line(
            number,
            frozenset(draft.loads),
            frozenset(draft.reads_first),
            frozenset(draft.stores),
            frozenset(draft.attributes_loaded),
            frozenset(draft.attributes_stored),
            draft.adds,
            draft.removes,
            draft.overwrites,
            draft.cuts,
            draft.cuts and not draft.sizes,
            draft.augments,
            draft.compares,
            draft.looks_up,
            draft.orders and not SIZES.isdisjoint(draft.loads | draft.attributes_loaded),
            draft.calls,
            constant,
            draft.depth,
            frozenset(draft.texts),
            frozenset(draft.empties),
            frozenset(draft.adds_to),
            frozenset(draft.puts_into - {_ELSE, _NOTHING_YET}),
            frozenset(draft.aliases),
            _selected_from(draft),
        )


def _selected_from(draft: _Draft) -> frozenset[str]:
    """Variables and attributes of which the line takes some elements."""
    named = draft.loads | draft.attributes_loaded
    return frozenset(draft.walked if draft.chooses else ()) | (named if named & SELECTORS else frozenset())


def _slices_in(constant: object) -> list[slice]:
    """Slices that a constant is, or has."""
    return [one for one in (constant if type(constant) is tuple else (constant,)) if type(one) is slice]


def _leaves_out_first(constants: list[object]) -> bool:
    """Whether a slice with these constants leaves out a fixed number of first elements: what is left may be of any length."""
    start, stop = constants[-2:] if len(constants) > 1 else (None, None)
    return stop is None and isinstance(start, int) and start > 0


def _has_condition(constant: object) -> bool:
    """Whether it is the function of a comprehension that leaves elements out (before Python 3.12)."""
    return (
        isinstance(constant, types.CodeType)
        and constant.co_name in COMPREHENSIONS
        and any(one.opname.startswith("POP_JUMP") for one in dis.get_instructions(constant))
    )


_ELSE: Final = ""
_NOTHING_YET: Final = "[]"
_CONSTANTS: Final = ("LOAD_CONST", "LOAD_SMALL_INT")
_EMPTY: Final = ("BUILD_LIST", "BUILD_MAP", "BUILD_SET")
_TAKEN: Final = {"STORE_ATTR": 2, "STORE_SUBSCR": 3}
"""Number of values that the instruction takes off the stack."""
_TURNED: Final = {"ROT_TWO": 2, "ROT_THREE": 3, "ROT_FOUR": 4}
"""Number of stack values of which the uppermost goes below the others (Python 3.10)."""


def _follow(stack: list[str], operation: str, number: int, argument: object) -> None:
    """What an instruction that names no variable makes of the known part of the stack, of which little is left after most."""
    if operation in _EMPTY and not number:
        stack.append(_NOTHING_YET)
    elif operation in _CONSTANTS:
        stack.append(_ELSE)
    elif operation == "LOAD_ATTR" and stack:
        stack[-1] = f".{argument}"
    elif operation in ("COPY", "DUP_TOP") and len(stack) >= max(1, number):
        stack.append(stack[-max(1, number)])
    elif operation == "DUP_TOP_TWO" and len(stack) > 1:
        stack += stack[-2:]
    elif operation == "SWAP" and len(stack) >= number:
        stack[-number], stack[-1] = stack[-1], stack[-number]
    elif operation in _TURNED and len(stack) >= _TURNED[operation]:
        stack.insert(-_TURNED[operation] + 1, stack.pop())
    elif operation in _TAKEN:
        del stack[-_TAKEN[operation] :]
    elif operation.startswith(("BINARY_", "INPLACE_")) and operation != "BINARY_SLICE":
        stack[-2:] = [_ELSE]
    else:
        stack.clear()


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
