"""Finds the source line of each stack: its innermost frame in the user's code, which is the line that can be changed.

A frame is a library's if its file is where packages are installed, or belongs to Python, PyTorch or the agent. Stacks of a
backward pass have no frame of the user, because autograd runs it. Their line is the node of the graph. Frames that only recorded
the stack are the last choice.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from vramscope_server.analysis.array_types import IntArray
from vramscope_server.analysis.numba_compile import entry
from vramscope_server.analysis.trace.frames import brief, is_library, is_native, is_recording

if TYPE_CHECKING:
    from vramscope_server.analysis.trace.trace import Trace

Ids = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]

_NODE: Final = re.compile(
    r"autograd::(.*Backward\w*|AccumulateGrad|CopySlices)::apply|autograd::InputMetadata::reduce_grad"
)
_OF_RECORDING, _OF_LIBRARY, _OF_NODE, _OWN = range(4)


@dataclass(frozen=True, eq=False)
class SourceLines:
    """The source line of each stack of a trace."""

    own: Flags
    """True for each frame that the user wrote."""
    frame: Ids
    """Frame of each stack: the innermost of the user's, else of a graph's node, else the innermost with information."""
    stack: IntArray
    """Stack that requested each row of trace.lives; -1: unknown, or empty."""
    inner: IntArray
    """Position in ``stacks.flat`` of each stack's innermost frame of Python or of a graph's node, else of its innermost
    frame with information; -1 for an empty stack."""
    frees_told: bool
    """True if stacks of frees were recorded too."""


def sites_of(trace: Trace) -> SourceLines:
    """Find the lines. Takes about 5 ns for each frame of each stack, and 10 ns for each row of trace.lives."""
    library = np.array([is_library(word) for word in trace.words] or [True])
    files = trace.frames["file"] if trace.frames else np.empty(0, np.int32)
    own = np.where(files >= 0, ~library[np.maximum(files, 0)], False)
    telling = _telling(trace)
    flat = np.asarray(trace.stacks.flat)
    chosen = _innermost_of(trace, np.where(own, _OWN, telling))
    frame = np.full(len(chosen), -1, np.int32)
    frame[chosen >= 0] = flat[chosen[chosen >= 0]]
    native = np.array([is_native(word) for word in trace.words] or [True])
    python = np.where(files >= 0, ~native[np.maximum(files, 0)], False)
    inner = _innermost_of(trace, np.where(python | (telling == _OF_NODE), _OWN, telling))
    frees_told = _frees_are_told(trace)
    stack = trace.lives.stack.astype(np.int64)
    stack[stack >= len(frame)] = -1
    stack[stack >= 0] = np.where(frame[stack[stack >= 0]] >= 0, stack[stack >= 0], -1)
    if frees_told and trace.start is None:  # memory from before the trace has one event only, its end
        lives = trace.lives
        stack[(lives.alloc_event < 0) & (lives.completed_event < len(trace.events))] = -1
    return SourceLines(own, frame, stack, inner, frees_told)


def _telling(trace: Trace) -> npt.NDArray[np.int8]:
    """Return for each frame, by its function, how informative it is in stacks without a frame of the user."""
    of_word = [
        _OF_NODE if _NODE.search(word) else _OF_RECORDING if is_recording(word) else _OF_LIBRARY for word in trace.words
    ]
    of = np.array(of_word or [_OF_LIBRARY], np.int8)
    functions = trace.frames["function"] if trace.frames else np.empty(0, np.int32)
    return np.where(functions >= 0, of[np.maximum(functions, 0)], _OF_LIBRARY).astype(np.int8)


def _frees_are_told(trace: Trace) -> bool:
    """Return True if stacks of frees were recorded. If not, the event of a free repeats the stack of its allocation."""
    lives, stack = trace.lives, trace.events.stack
    gone = np.flatnonzero(
        (lives.alloc_event >= 0)
        & (lives.free_requested_event >= 0)
        & (lives.free_requested_event < len(stack))
        & (lives.stack >= 0)
    )
    freed_at = stack[lives.free_requested_event[gone]]
    return bool(np.any((freed_at >= 0) & (freed_at != lives.stack[gone])))


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame in words."""

    file: str
    """Empty for compiled code, of which only the function is known."""
    line: int
    function: str

    @property
    def short(self) -> str:
        """Return the file with its folder, and the line: ``project/train.py:87``."""
        return f"{'/'.join(self.file.replace(chr(92), '/').split('/')[-2:])}:{self.line}"

    def __str__(self) -> str:
        return f"{self.short} {self.function}" if self.file else self.function


def frame_of(trace: Trace, at: int) -> Frame:
    """Return the frame at a position of the trace."""
    file, function = (_word(trace, int(trace.frames[what][at])) for what in ("file", "function"))
    if is_native(file) and file != "unknown":
        return Frame("", 0, f"C++ {brief(function)}")
    return Frame(file, int(trace.frames["line"][at]), function)


def frame_texts(trace: Trace, places: IntArray) -> list[str]:
    """Return ``str(frame_of(trace, place))`` of each place. Words that frames share are decoded once."""
    files, lines, functions = (trace.frames[name][places].tolist() for name in ("file", "line", "function"))
    known = {at: _word(trace, at) for at in {*files, *functions}}
    file_words = {at: Frame(known[at], 0, "").short.removesuffix(":0") for at in set(files) if known[at]}
    native = {at for at in set(files) if is_native(known[at]) and known[at] != "unknown"}
    return [
        f"C++ {brief(known[function])}"
        if file in native
        else f"{file_words[file]}:{line} {known[function]}"
        if file in file_words
        else known[function]
        for file, line, function in zip(files, lines, functions, strict=True)
    ]


def _word(trace: Trace, at: int) -> str:
    return trace.words[at] if at >= 0 else "unknown"


def _innermost_of(trace: Trace, telling: npt.NDArray[Any]) -> IntArray:
    """Return for each stack the position in ``stacks.flat`` of its innermost frame among the most informative ones."""
    place = np.full(len(trace.stacks), -1, np.int64)
    _innermost(np.asarray(trace.stacks.flat), np.asarray(trace.stacks.offsets), telling.astype(np.int8), place)
    return place


@entry
def _innermost(flat: Any, offsets: Any, telling: Any, place: Any) -> None:
    for stack in range(len(offsets) - 1):
        best = -1
        for at in range(offsets[stack], offsets[stack + 1]):
            if telling[flat[at]] > best:
                best = telling[flat[at]]
                place[stack] = at
                if best == _OWN:
                    break
