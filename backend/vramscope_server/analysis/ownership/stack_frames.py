"""Finds stacks of a trace with frames in given files or functions, or in Python.

With ``stacks="all"`` PyTorch records C++ frames too. Then autograd's threads, which run no Python, have stacks as well.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from vramscope_server.analysis.trace.frames import is_native
from vramscope_server.analysis.trace.trace import Trace

Flags = npt.NDArray[np.bool_]


def stacks_through(trace: Trace, file: str = "", functions: frozenset[str] = frozenset(), part: str = "") -> Flags:
    """Whether each stack has a frame in such a file and function.

    file        part of the file's path
    functions   names of functions; empty for any
    part        part of the function's name
    """
    words = [word.replace("\\", "/") for word in trace.words]
    named = [part in word and (not functions or word in functions) for word in words]
    of_frame = _of_words(trace, "file", [file in word for word in words]) & _of_words(trace, "function", named)
    return _of_frames(trace, of_frame)


def stacks_in_python(trace: Trace) -> Flags:
    """Whether each stack has a Python frame."""
    return _of_frames(trace, _of_words(trace, "file", [not is_native(word) for word in trace.words]))


def stacks_ending_in(trace: Trace, functions: frozenset[str]) -> Flags:
    """Whether the innermost Python frame of each stack is in such a function."""
    stacks = trace.stacks
    is_python = _of_words(trace, "file", [not is_native(word) for word in trace.words])[stacks.flat]
    of_function = _of_words(trace, "function", [word in functions for word in trace.words])[stacks.flat]
    at = np.flatnonzero(is_python)
    stack_of = np.repeat(np.arange(len(stacks)), np.diff(stacks.offsets))[at]
    with_python, first = np.unique(stack_of, return_index=True)
    ending = np.zeros(len(stacks), np.bool_)
    ending[with_python] = of_function[at[first]]
    return ending


def lives_with(trace: Trace, stacks: Flags) -> Flags:
    """Whether the stack of each allocation is one of these. False without a stack."""
    of = np.append(stacks, False)
    stack = trace.lives.stack
    chosen: Flags = of[np.where((stack >= 0) & (stack < len(stacks)), stack, len(stacks))]
    return chosen


def _of_words(trace: Trace, what: str, chosen: list[bool]) -> Flags:
    """Whether each frame's file or function is one of the chosen words. False if it is unknown."""
    of = trace.frames[what] if trace.frames else np.empty(0, np.int32)
    return np.array([*chosen, False])[np.where(of >= 0, of, len(chosen))]


def _of_frames(trace: Trace, of_frame: Flags) -> Flags:
    stacks = trace.stacks
    through = np.zeros(len(stacks), np.bool_)
    of = np.repeat(np.arange(len(stacks)), np.diff(stacks.offsets))
    through[of[of_frame[stacks.flat]]] = True
    return through
