"""Which of several lines of a running function ran last, from the bytecode and the place at which it runs."""

from __future__ import annotations

import dis
import types
from typing import Final

from vramscope.process.frames import running_offset

_JUMPS: Final = ("JUMP_FORWARD", "JUMP_ABSOLUTE")
"""Jumps without a condition."""


def ran_last(code: types.CodeType, numbers: set[int]) -> int | None:
    """Return the one of these lines that ran last. After the branches of an ``if`` or ``try`` it is their first one, because
    it is unknown which ran. None if the function does not run, or the lines are all in a comprehension.
    """
    running = running_offset(code)
    offsets: dict[int, int] = {}
    for offset, _, number in code.co_lines():
        if number in numbers:
            offsets.setdefault(number, offset)
    if running is None or not offsets:
        return None
    lines = sorted((offset, number) for number, offset in offsets.items())
    # In a loop, lines that are behind the running one ran in the iteration before.
    lines = [line for line in lines if line[0] <= running] or lines
    skips = [(one.offset, one.argval) for one in dis.get_instructions(code) if one.opname in _JUMPS]
    last = lines.pop()
    for line in reversed(lines):
        if not any(line[0] < offset < last[0] < end and not last[0] <= running < end for offset, end in skips):
            break
        last = line
    return last[1]
