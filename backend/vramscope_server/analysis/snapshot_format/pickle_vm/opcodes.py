"""The opcodes of pickle by their meaning for the machine, and the reasons for which it stops."""

from __future__ import annotations

import pickletools
from typing import Final

import numpy as np

(
    DO_UNKNOWN, DO_REFUSED, DO_GLOBAL, DO_LINE, DO_PERSISTENT, DO_IGNORED, DO_GET, DO_INT, DO_MEMOIZE, DO_TEXT, DO_DICT,
    DO_SETITEMS, DO_SETITEM, DO_MARK, DO_LIST, DO_APPENDS, DO_APPEND, DO_LONG, DO_TUPLE, DO_TUPLE1, DO_TUPLE2, DO_TUPLE3,
    DO_EMPTY_TUPLE, DO_CONST, DO_FLOAT, DO_PUT, DO_POP, DO_DUP, DO_STOP, DO_LIST_OF, DO_DICT_OF,
) = range(31)  # fmt: skip
"""Meaning of an opcode. The machine runs none of those up to PERSISTENT. LINE: the argument is a line of text
(``text_protocols``)."""
_NAMES: Final = {
    DO_GLOBAL: "GLOBAL STACK_GLOBAL INST", DO_LINE: "INT LONG FLOAT STRING UNICODE GET PUT",
    DO_PERSISTENT: "PERSID BINPERSID", DO_IGNORED: "PROTO FRAME", DO_GET: "BINGET LONG_BINGET",
    DO_INT: "BININT BININT1 BININT2", DO_MEMOIZE: "MEMOIZE",
    DO_TEXT: "SHORT_BINUNICODE BINUNICODE BINUNICODE8 SHORT_BINSTRING BINSTRING", DO_DICT: "EMPTY_DICT",
    DO_SETITEMS: "SETITEMS", DO_SETITEM: "SETITEM", DO_MARK: "MARK", DO_LIST: "EMPTY_LIST", DO_APPENDS: "APPENDS",
    DO_APPEND: "APPEND", DO_LONG: "LONG1 LONG4", DO_TUPLE: "TUPLE", DO_TUPLE1: "TUPLE1", DO_TUPLE2: "TUPLE2",
    DO_TUPLE3: "TUPLE3", DO_EMPTY_TUPLE: "EMPTY_TUPLE", DO_CONST: "NONE NEWTRUE NEWFALSE", DO_FLOAT: "BINFLOAT",
    DO_PUT: "BINPUT LONG_BINPUT", DO_POP: "POP", DO_DUP: "DUP", DO_STOP: "STOP", DO_LIST_OF: "LIST", DO_DICT_OF: "DICT",
}  # fmt: skip
_MEANING: Final = {name: kind for kind, names in _NAMES.items() for name in names.split()}
_LENGTH_BYTES: Final = {
    pickletools.TAKEN_FROM_ARGUMENT1: -1,
    pickletools.TAKEN_FROM_ARGUMENT4: -4,
    pickletools.TAKEN_FROM_ARGUMENT4U: -4,
    pickletools.TAKEN_FROM_ARGUMENT8U: -8,
}

kind_of: Final = np.full(256, DO_UNKNOWN, np.int64)
argument_of: Final = np.zeros(256, np.int64)
"""Number of bytes of an opcode's argument. If negative, the argument begins with a length of that many bytes."""
for _opcode in pickletools.opcodes:
    kind_of[ord(_opcode.code)] = _MEANING.get(_opcode.name, DO_REFUSED)
    if _opcode.arg is not None:  # an argument that is a line has no length here
        argument_of[ord(_opcode.code)] = _LENGTH_BYTES.get(_opcode.arg.n, max(_opcode.arg.n, 0))
OPCODE_TRUE, OPCODE_FALSE, OPCODE_SIGNED = 0x88, 0x89, 0x4A
NAME_OF: Final = {ord(opcode.code): opcode.name for opcode in pickletools.opcodes}

DONE, MORE, ROOM, FORBIDDEN, FOREIGN, ELSEWHERE, BROKEN, FIELD, CHANGED, DEEP, LINE = range(11)
"""Reason for which a run stops:

DONE        the pickle has ended
MORE        more bytes are needed
ROOM        a table needs more rows
FORBIDDEN   an opcode that plain data does not need
FOREIGN     an opcode that imports a name
ELSEWHERE   an opcode that refers to an object outside of the pickle
BROKEN      the pickle is damaged
FIELD       a field has an invalid value
CHANGED     a dict or list was changed after its use
DEEP        objects are nested too deeply
LINE        an opcode has a line of text, and must be rewritten first
"""
