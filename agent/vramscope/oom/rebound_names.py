"""Names that a running statement assigns and does not read: until it has ended, each still has its old value."""

from __future__ import annotations

import dis
from collections.abc import Sequence
from types import FrameType
from typing import Final

ENDS: Final = ("JUMP", "RETURN", "YIELD", "RAISE", "FOR_ITER", "POP_TOP", "END_SEND")
"""Operations, or parts of their names, after which another statement may run. A call before one of them is assigned to nothing."""
NAMES: Final = ("STORE_FAST", "STORE_NAME", "STORE_GLOBAL", "STORE_DEREF")


def rebound_names(frame: FrameType) -> frozenset[str]:
    """Return the plain variables that the statement running in a frame will assign, and nothing on its lines reads.

    Empty before Python 3.11, whose bytecode has no ranges of lines.
    """
    instructions = list(dis.get_instructions(frame.f_code))
    at = max((number for number, one in enumerate(instructions) if one.offset <= frame.f_lasti), default=None)
    if at is None:
        return frozenset()
    last = _first_store(instructions, at + 1)
    if last is None:
        return frozenset()
    stored: set[str] = set()
    for one in instructions[last:]:
        if not one.opname.startswith(("STORE_", "UNPACK_", "CACHE", "NOP", "EXTENDED_ARG")):
            break
        stored.update(_names(one))
    lines = [span for one in instructions[at:last] if (span := _lines(one)) is not None]
    if not lines:
        return frozenset()
    first, end = min(begin for begin, _ in lines), max(end for _, end in lines)
    for one in instructions:
        span = _lines(one)
        reads = one.opname.startswith(("LOAD_", "DELETE_")) or "LOAD_FAST" in one.opname
        if reads and (span is None or first <= span[0] <= end):
            stored.difference_update(_names(one))
    return frozenset(stored)


def _first_store(instructions: Sequence[dis.Instruction], begin: int) -> int | None:
    """Position of the first operation from here on that assigns a plain variable, or parts of a result to several."""
    for number in range(begin, len(instructions)):
        name = instructions[number].opname
        if name.startswith(("UNPACK_", *NAMES)):
            return number
        if name.startswith("STORE_") or any(end in name for end in ENDS):
            return None
    return None


def _names(instruction: dis.Instruction) -> tuple[str, ...]:
    """Variables of an operation. From Python 3.13 on some have two."""
    value = instruction.argval
    if instruction.opname.startswith(
        ("STORE_ATTR", "STORE_SUBSCR", "STORE_SLICE", "LOAD_ATTR", "LOAD_METHOD", "LOAD_CONST")
    ):
        return ()
    return tuple(one for one in (value if isinstance(value, tuple) else (value,)) if isinstance(one, str))


def _lines(instruction: dis.Instruction) -> tuple[int, int] | None:
    positions = getattr(instruction, "positions", None)
    if positions is None or positions.lineno is None or positions.end_lineno is None:
        return None
    return positions.lineno, positions.end_lineno
