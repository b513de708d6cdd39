"""What a pickle would do, found before it is loaded: how many objects, how deep, and nothing but plain ones.

A pickle is a small program. Loading one that means harm can run code (globals), fill the memory (a memo index of two
billion, an array that claims a terabyte) or the C stack (tuples nested a million deep, hashed). One pass over the bytes,
at a gigabyte in some seconds, finds all of that; plain data of PyTorch's snapshots uses some thirty opcodes.
Source of the opcodes: the descriptions in the standard library's pickletools.
"""

from __future__ import annotations

import pickletools
from typing import Any, Final

import numpy as np

from vramscope_server.analysis.compiled import entry

MAX_OBJECTS: Final = 200_000_000
"""An event of a snapshot is some 25 of them."""
MAX_DEPTH: Final = 64

(
    _UNKNOWN, _REFUSED, _GLOBAL, _NOTHING, _SCALAR, _CONTAINER, _MARK, _APPEND, _APPENDS, _SETITEM, _SETITEMS, _TUPLE,
    _TUPLE1, _TUPLE2, _TUPLE3, _GET, _PUT, _MEMOIZE, _POP, _DUP, _STOP,
) = range(21)  # fmt: skip
"""What an opcode does to the stack."""
_NAMES: Final = {
    _GLOBAL: "GLOBAL STACK_GLOBAL INST PERSID BINPERSID",
    _NOTHING: "PROTO FRAME",
    _SCALAR: "NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINFLOAT SHORT_BINUNICODE BINUNICODE BINUNICODE8",
    _CONTAINER: "EMPTY_LIST EMPTY_DICT EMPTY_TUPLE",
    _MARK: "MARK", _APPEND: "APPEND", _APPENDS: "APPENDS", _SETITEM: "SETITEM", _SETITEMS: "SETITEMS",
    _TUPLE: "TUPLE", _TUPLE1: "TUPLE1", _TUPLE2: "TUPLE2", _TUPLE3: "TUPLE3",
    _GET: "BINGET LONG_BINGET", _PUT: "BINPUT LONG_BINPUT", _MEMOIZE: "MEMOIZE", _POP: "POP", _DUP: "DUP", _STOP: "STOP",
}  # fmt: skip
_MEANING: Final = {name: kind for kind, names in _NAMES.items() for name in names.split()}

_kind: Final = np.full(256, _UNKNOWN, np.int64)
_argument: Final = np.zeros(256, np.int64)
"""Bytes of an opcode's argument; below 0: the argument begins with a length of so many bytes."""
_LENGTH_BYTES: Final = {
    pickletools.TAKEN_FROM_ARGUMENT1: -1,
    pickletools.TAKEN_FROM_ARGUMENT4: -4,
    pickletools.TAKEN_FROM_ARGUMENT4U: -4,
    pickletools.TAKEN_FROM_ARGUMENT8U: -8,
}
for _opcode in pickletools.opcodes:
    _kind[ord(_opcode.code)] = _MEANING.get(_opcode.name, _REFUSED)
    if _opcode.arg is not None:  # of those that end with a line none is plain
        _argument[ord(_opcode.code)] = _LENGTH_BYTES.get(_opcode.arg.n, max(_opcode.arg.n, 0))

FINE, CUT_OFF, FORBIDDEN, TOO_MANY, TOO_DEEP, BROKEN, FOREIGN = range(7)


class Refused(ValueError):
    """This pickle is not loaded. Says why."""


def check(data: bytes, *, max_objects: int = MAX_OBJECTS, max_depth: int = MAX_DEPTH) -> None:
    """Raises Refused where loading ``data`` would do anything but make bounded plain objects.

    Passes what comes after a global: the unpickler refuses the global itself, and can name it.
    """
    if data[:1] != b"\x80" or data[1:2] not in (b"\x02", b"\x03", b"\x04", b"\x05"):
        raise Refused("the file is no pickle of protocol 2 to 5")
    verdict, at = _scan(np.frombuffer(data, np.uint8), _kind, _argument, max_objects, max_depth)
    if verdict == CUT_OFF:
        raise Refused(f"the file is cut off: it ends after {len(data):,} bytes, within the pickle")
    if verdict == TOO_MANY:
        raise Refused(f"the pickle makes more than {max_objects:,} objects")
    if verdict == TOO_DEEP:
        raise Refused(f"the pickle nests its objects more than {max_depth} deep, at byte {at:,}")
    if verdict == FORBIDDEN:
        raise Refused(f"the pickle does more than plain data needs: {_name_of(data[at])} at byte {at:,}")
    if verdict == BROKEN:
        raise Refused(f"the pickle is damaged: {_name_of(data[at])} at byte {at:,} has nothing to work on, or is none")


def _name_of(code: int) -> str:
    known = {ord(op.code): op.name for op in pickletools.opcodes}
    return f"the opcode {known[code]}" if code in known else f"the byte {code:#04x}"


@entry
def _scan(data: Any, kind_of: Any, argument_of: Any, max_objects: int, max_depth: int) -> Any:
    """(verdict, position). Runs the pickle with the depth of each object in place of the object."""
    size = len(data)
    stack = np.zeros(1024, np.int16)
    marks = np.zeros(1024, np.int64)
    memo = np.zeros(1024, np.int16)
    height = marked = remembered = objects = 0
    at = 0
    while at < size:
        opcode = data[at]
        kind = kind_of[opcode]
        if kind == _UNKNOWN:
            return BROKEN, at
        if kind == _REFUSED:
            return FORBIDDEN, at
        if kind == _GLOBAL:
            return FOREIGN, at
        width = argument_of[opcode]
        number = np.int64(0)
        for byte in range(min(abs(width), 8)):
            if at + 1 + byte >= size:
                return CUT_OFF, at
            number |= np.int64(data[at + 1 + byte]) << (8 * byte)
        following = at + 1 + abs(width)
        if width < 0:
            if number < 0 or number > size - following:
                return CUT_OFF, at
            following += number
        floor = marks[marked - 1] if marked else 0
        depth = 0
        if kind in (_SCALAR, _CONTAINER, _GET, _DUP):
            if kind == _CONTAINER:
                depth = 1
            elif kind == _GET:
                if number >= remembered:
                    return BROKEN, at
                depth = memo[number]
            elif kind == _DUP:
                if height <= floor:
                    return BROKEN, at
                depth = stack[height - 1]
            objects += 1
            stack[height] = depth
            height += 1
        elif kind == _MARK:
            marks[marked] = height
            marked += 1
        elif kind in (_MEMOIZE, _PUT):
            where = remembered if kind == _MEMOIZE else number
            if height <= floor or where > remembered + 1:  # real picklers count from 0 or 1 without gaps
                return BROKEN, at
            remembered = max(remembered, where + 1)
            if remembered + 2 > len(memo):
                memo = np.concatenate((memo, np.zeros(len(memo), np.int16)))
            memo[where] = stack[height - 1]
        elif kind == _POP:
            if height > floor:
                height -= 1
            elif marked:
                marked -= 1
            else:
                return BROKEN, at
        elif kind != _NOTHING and kind != _STOP:
            low = height
            if kind in (_APPENDS, _SETITEMS, _TUPLE):
                if not marked:
                    return BROKEN, at
                low = floor
                marked -= 1
                floor = marks[marked - 1] if marked else 0
            elif kind in (_SETITEM, _TUPLE2):
                low = height - 2
            elif kind in (_APPEND, _TUPLE1):
                low = height - 1
            elif kind == _TUPLE3:
                low = height - 3
            is_tuple = kind in (_TUPLE, _TUPLE1, _TUPLE2, _TUPLE3)
            if low < floor + (0 if is_tuple else 1):
                return BROKEN, at
            for item in range(low, height):
                depth = max(depth, stack[item] + 1)
            if is_tuple:
                objects += 1
                height = low + 1
                stack[low] = max(depth, 1)
            else:
                height = low
                stack[low - 1] = max(stack[low - 1], depth)
            depth = max(depth, 1)
        if depth > max_depth:
            return TOO_DEEP, at
        if objects > max_objects:
            return TOO_MANY, at
        if kind == _STOP:
            return (FINE if height == 1 and not marked else BROKEN), at
        if height + 2 > len(stack):
            stack = np.concatenate((stack, np.zeros(len(stack), np.int16)))
        if marked + 2 > len(marks):
            if marked > 1_000_000:
                return TOO_DEEP, at
            marks = np.concatenate((marks, np.zeros(len(marks), np.int64)))
        at = following
    return CUT_OFF, size
