"""What the stacks of a trace go through: files, functions, Python at all.

PyTorch records C++ frames too unless it is told not to (``stacks="all"``); then autograd's threads, which run no Python, have
stacks as well.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from vramscope_server.analysis.trace.frames import is_native
from vramscope_server.analysis.trace.trace import Trace

Flags = npt.NDArray[np.bool_]


def stacks_through(trace: Trace, file: str = "", functions: frozenset[str] = frozenset(), part: str = "") -> Flags:
    """For each stack, whether one of its frames is in such a file (a part of its path) and in a function of one of these names,
    or with such a part in its name (none given: in any)."""
    words = [word.replace("\\", "/") for word in trace.words]
    named = [part in word and (not functions or word in functions) for word in words]
    of_frame = _of_words(trace, "file", [file in word for word in words]) & _of_words(trace, "function", named)
    return _of_frames(trace, of_frame)


def stacks_in_python(trace: Trace) -> Flags:
    """For each stack, whether a frame of it is Python's."""
    return _of_frames(trace, _of_words(trace, "file", [not is_native(word) for word in trace.words]))


def lives_with(trace: Trace, stacks: Flags) -> Flags:
    """Of each row of ``trace.lives``, whether its stack is one of these; one without a stack is not."""
    of = np.append(stacks, False)
    stack = trace.lives.stack
    chosen: Flags = of[np.where((stack >= 0) & (stack < len(stacks)), stack, len(stacks))]
    return chosen


def _of_words(trace: Trace, what: str, chosen: list[bool]) -> Flags:
    """Of each frame, whether its file or function is one of the chosen words; one that is not told is not."""
    of = trace.frames[what] if trace.frames else np.empty(0, np.int32)
    return np.array([*chosen, False])[np.where(of >= 0, of, len(chosen))]


def _of_frames(trace: Trace, of_frame: Flags) -> Flags:
    stacks = trace.stacks
    through = np.zeros(len(stacks), np.bool_)
    of = np.repeat(np.arange(len(stacks)), np.diff(stacks.offsets))
    through[of[of_frame[stacks.flat]]] = True
    return through
