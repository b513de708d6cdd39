"""A copy of a model's weights in a variable that no later line of the program reads: a checkpoint that was loaded long ago.

What is needed later is no leak. So the variable counts only if the rest of its function, with the loops around the current line,
does not name it, and if nothing else refers to the copy.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from vramscope.leaks.holders.bytecode import MOST_INSTRUCTIONS, with_inner
from vramscope.leaks.holders.line_search import name_kept_at
from vramscope.leaks.scan import storages
from vramscope.leaks.scan.storages import Storages
from vramscope.oom.other_models import copies_by_name
from vramscope.oom.weight_copies import DICTS
from vramscope.oom_diagnosis.facts import line_of
from vramscope.process.frames import is_library, is_own, locals_of
from vramscope.protocol import messages
from vramscope.protocol.oom_record import COPIES

if TYPE_CHECKING:
    from types import CodeType, FrameType

READS_ALL: Final = ("locals", "globals", "vars", "eval", "exec")
"""Functions that may read a variable which no instruction names."""
DEPTH: Final = 2
"""Dicts in dicts: ``checkpoint["model"]``."""


def unread_copy(
    frames: Iterable[FrameType], weights: Mapping[str, Any], device: int, step: int
) -> messages.Leak | None:
    """The variable with most bytes of such copies, as a leak; None where there is none.

    frames    stack of the thread that ran out, innermost first
    weights   parameters of the models that train, by name
    """
    best: tuple[int, int, str, FrameType] | None = None
    for frame in frames:
        code = frame.f_code
        if is_own(code.co_filename) or is_library(code.co_filename):
            continue
        at_module = code.co_name == "<module>"
        names = [name for name, value in locals_of(frame).items() if type(value) in DICTS and not name.startswith("__")]
        for name in names:
            freed: Storages = {}
            for tensor in _only_here(locals_of(frame).pop(name, None), weights):
                if _is_on(tensor, device):
                    storages.add(freed, tensor)
            if not freed or is_read_later(code, frame.f_lasti, name, is_global=at_module):
                continue
            size = sum(freed.values())
            if best is None or size > best[0]:
                best = size, len(freed), name, frame
    return None if best is None else _as_leak(*best, step)


def is_read_later(code: CodeType, at: int, name: str, *, is_global: bool) -> bool:
    """Whether code that may run after an instruction can read the variable. In doubt it can.

    at          offset of the instruction that runs
    is_global   it is a global of the module whose code this is
    """
    parts = list(with_inner(code))
    if name in code.co_cellvars or any(len(part.co_code) > 2 * MOST_INSTRUCTIONS for part in parts):
        return True
    loads = {part: [one for one in dis.get_instructions(part) if _loads_a_name(one)] for part in parts}
    if any(_is_named(one.argval, reader) for part in parts for one in loads[part] for reader in READS_ALL):
        return True
    if is_global and any(_is_named(one.argval, name) for part in parts[1:] for one in loads[part]):
        return True
    back = [
        (one.offset, one.argval)
        for one in dis.get_instructions(code)
        if "JUMP" in one.opname and isinstance(one.argval, int) and one.argval < one.offset
    ]
    begin = at + 1
    while (earlier := min([to for offset, to in back if offset >= begin], default=begin)) < begin:
        begin = earlier
    return any(one.offset >= begin and one.offset != at and _is_named(one.argval, name) for one in loads[code])


def _loads_a_name(instruction: dis.Instruction) -> bool:
    """Whether it loads a variable or a constant: ``model.eval()`` loads an attribute."""
    name = instruction.opname
    return name.startswith("LOAD") and not name.startswith(("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER"))


def _is_on(tensor: Any, device: int) -> bool:
    return bool(tensor.is_cuda) and tensor.device.index == device


def _is_named(argument: object, name: str) -> bool:
    return argument == name or (isinstance(argument, tuple) and name in argument)


def _only_here(value: Any, weights: Mapping[str, Any], depth: int = DEPTH) -> Iterator[Any]:
    """Copies of weights in a dict, if nothing but a variable refers to the dict, and nothing but the dict to the copies."""
    # References to the value: its container's or the variable's, the argument, and that of getrefcount.
    if type(value) not in DICTS or sys.getrefcount(value) > _OF_VALUE:
        return
    known = set(map(id, copies_by_name(weights, [value])))
    for key in list(value):
        if id(value[key]) in known and sys.getrefcount(value[key]) <= _OF_ITEM:
            yield value[key]
        elif depth > 1 and not known:
            yield from _only_here(value[key], weights, depth - 1)


_OF_VALUE: Final = 3
_OF_ITEM: Final = 3


def _as_leak(size: int, tensors: int, name: str, frame: FrameType, step: int) -> messages.Leak:
    code = frame.f_code
    at = name_kept_at(code, name, container=False)
    file, line = (code.co_filename, None) if at is None else (at[0].co_filename, at[1])
    return messages.Leak(
        kind="overlap",
        name=name,
        holder=f"'{name}' ({line_of(file, line)}), which no later line reads",
        chain=[f"'{name}'", COPIES],
        file=file,
        line=line,
        function=code.co_name,
        count=tensors,
        first_step=step,
        last_step=step,
        held_bytes=size,
        exclusive_bytes=size,
        peak_effect="retained when memory ran out",
        advice=f"{name} has a copy of the weights, and no later line reads it: del {name} once the weights are loaded, or load it "
        'with map_location="cpu"',
    )
