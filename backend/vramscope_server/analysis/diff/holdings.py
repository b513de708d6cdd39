"""What a recording holds at its peak, by site: the line of the user's that asked for it, and the module that ran.

A site without a Python stack is told by its phase: PyTorch's autograd threads run no Python. What was there before the recording
began is a site of its own. Layers of one kind are one module: ``encoder.layer.*.output``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from vramscope.protocol.series import PHASES
from vramscope_server.analysis.ownership.categories import CATEGORIES, categories_of
from vramscope_server.analysis.timeline.curve import Course, alive, course_of, look_at, stacks_from, when
from vramscope_server.analysis.timeline.source_lines import frame_of, sites_of

if TYPE_CHECKING:
    from vramscope_server.analysis.timeline.source_lines import Sites
    from vramscope_server.analysis.trace.trace import Trace

Whole = npt.NDArray[np.int64]
EARLIER: Final = "before the recording"
NO_STACK: Final = "no stack"
_NUMBER: Final = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.|$)")


@dataclass(frozen=True, order=True)
class AllocatingLine:
    """Who asked. ``file`` is "" where no stack tells; ``function`` then says what is known instead."""

    file: str
    function: str
    line: int
    module: str


@dataclass
class LineBytes:
    """What one site holds at the peak."""

    bytes: int = 0
    allocations: int = 0
    categories: dict[str, int] = field(default_factory=dict)
    calls: frozenset[str] = frozenset()
    """functions of libraries in which the memory was asked for"""


@dataclass(frozen=True)
class PeakAllocations:
    """All that is allocated at the moment: the sites' bytes add up to ``allocated_bytes``."""

    moment: dict[str, Any]
    allocated_bytes: int
    peak_bytes: int
    """the highest of the recording: more than at the moment where no stacks were recorded yet at the peak"""
    sites: dict[AllocatingLine, LineBytes]


def peak_allocations_of(trace: Trace, course: Course | None = None, sites: Sites | None = None) -> PeakAllocations:
    """At the peak, or at a moment nearly as high from which on stacks were recorded. Some 20 ns a life, 10 µs a site."""
    course = course_of(trace) if course is None else course
    sites = sites_of(trace) if sites is None else sites
    moment = look_at(course, stacks_from(trace))
    rows = alive(trace, moment)
    frame, module = _frames(trace, sites, rows), _modules(trace, rows)
    patterns, pattern = _patterns(trace.modules)
    module = np.where(module >= 0, pattern[np.maximum(module, 0)], -1)
    category = categories_of(trace)[rows].astype(np.int64)
    size = trace.lives.size_bytes[rows]
    inner = _inner_functions(trace, sites, rows)
    keys, group = np.unique(np.stack([frame, module, category, inner]), axis=1, return_inverse=True)
    group = group.reshape(-1)
    held_bytes = np.zeros(keys.shape[1], np.int64)
    np.add.at(held_bytes, group, size)
    counts = np.bincount(group, minlength=keys.shape[1])
    found: dict[AllocatingLine, LineBytes] = {}
    told = zip(keys.T.tolist(), held_bytes.tolist(), counts.tolist(), strict=True)
    for (at, of_module, kind, function), held, count in told:
        site = _site(trace, at, patterns[of_module] if of_module >= 0 else "")
        one = found.setdefault(site, LineBytes())
        one.bytes += held
        one.allocations += count
        one.categories[CATEGORIES[kind]] = one.categories.get(CATEGORIES[kind], 0) + held
        if function >= 0:
            one.calls |= {trace.words[function]}
    return PeakAllocations(when(trace, moment), int(size.sum()), int(course.allocated.max()), found)


def _frames(trace: Trace, sites: Sites, rows: Whole) -> Whole:
    """The frame of each allocation; below zero where no stack tells: -1 - phase, or the two codes after these."""
    stack, born = sites.stack[rows], trace.lives.alloc_event[rows]
    phase = np.full(len(rows), len(PHASES), np.int64)
    made = born >= 0
    phase[made] = trace.events.phase[born[made]]
    phase[phase < 0] = len(PHASES)
    phase[~made] = len(PHASES) + 1
    frame = -1 - phase
    known = stack >= 0
    frame[known] = sites.frame[stack[known]]
    return frame


def _inner_functions(trace: Trace, sites: Sites, rows: Whole) -> Whole:
    """Position among the words of the function that ran innermost, of Python where there is any; -1: no stack tells."""
    stack = sites.stack[rows]
    function = np.full(len(rows), -1, np.int64)
    known = stack >= 0
    innermost = np.asarray(trace.stacks.flat)[sites.inner[stack[known]]]
    function[known] = trace.frames["function"][innermost] if known.any() else -1
    return function


def _modules(trace: Trace, rows: Whole) -> Whole:
    born = trace.lives.alloc_event[rows]
    module = np.full(len(rows), -1, np.int64)
    made = born >= 0
    module[made] = trace.events.module[born[made]]
    return module


def _patterns(modules: list[str]) -> tuple[list[str], Whole]:
    """Names with their numbers left open, each once, and which of them each module is."""
    places: dict[str, int] = {}
    code = [places.setdefault(_NUMBER.sub("*", name), len(places)) for name in modules]
    return list(places), np.array(code or [0], np.int64)


def _site(trace: Trace, at: int, module: str) -> AllocatingLine:
    if at >= 0:
        frame = frame_of(trace, at)
        return AllocatingLine(frame.file, frame.function, frame.line, module)
    phase = -1 - at
    if phase < len(PHASES):
        return AllocatingLine("", f"{NO_STACK}: {PHASES[phase]}", 0, module)
    return AllocatingLine("", NO_STACK if phase == len(PHASES) else EARLIER, 0, module)
