"""The ruler above the picture: stretches of events that belong to one step, phase or module, or that the program named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from vramscope.wire import PHASES
from vramscope_server.analysis.timeline.grouping import at_depth

if TYPE_CHECKING:
    from vramscope_server.analysis.history.trace import Trace

Codes = npt.NDArray[np.signedinteger]
Whole = npt.NDArray[np.int64]
Lane = Literal["step", "phase", "module", "range"]
"""range: of record_function"""
MOST_SPANS: Final = 90
"""of one lane; modules are told as deep as that allows"""
_MOST_DEPTHS: Final = 32
_LEAST: Final = 1 / 700
"""of the window: narrower ones would be no wider than their borders"""


class Span(NamedTuple):
    """From ``first`` up to ``end``, not included, of the events."""

    lane: Lane
    name: str
    first: int
    end: int


def ruler(trace: Trace, first: int, end: int) -> list[Span]:
    """The stretches of a window that are wide enough to be seen. 5 ns an event of it, and again for each level of modules."""
    events = trace.events
    low = max(first, 0)
    step, phase, module = (column[low:end] for column in (events.step, events.phase, events.module))
    least = (end - first) * _LEAST
    shown = [Span("step", f"{code:,}", low + at, low + to) for code, at, to in _widest(_stretches(step), least)]
    shown += [Span("phase", PHASES[code], low + at, low + to) for code, at, to in _widest(_stretches(phase), least)]
    shown += _ranges(trace, low, end, least)
    if not len(module) or int(module.max()) < 0:
        return shown
    parts = [name.split(".") for name in trace.modules]
    # as deep as leaves room for names, where modules are known in a part of the window only
    most = max(6, int(MOST_SPANS * np.count_nonzero(module >= 0) / (end - first)))
    names, stretches = _at(parts, 1, module)
    for depth in range(2, max(map(len, parts)) + 1):
        deeper_names, deeper = _at(parts, depth, module)
        if deeper.shape[1] > most:
            break
        names, stretches = deeper_names, deeper
    return shown + [Span("module", names[code], low + at, low + to) for code, at, to in _widest(stretches, least)]


def _ranges(trace: Trace, low: int, end: int, least: float) -> list[Span]:
    """What the program named, as deep as there is room for."""
    told = trace.annotations
    inside = np.flatnonzero((told.first < end) & (told.end > np.maximum(told.first, low)))
    stretches = np.empty((3, 0), np.int64)
    for depth in np.unique(told.depth[inside])[:_MOST_DEPTHS]:
        deeper = _painted(trace, inside[told.depth[inside] <= depth], low, end)
        if stretches.shape[1] and deeper.shape[1] > MOST_SPANS:
            break
        stretches = deeper
    return [Span("range", trace.words[told.name[row]], at, to) for row, at, to in _widest(stretches, least)]


def _painted(trace: Trace, rows: Whole, low: int, end: int) -> Whole:
    """(row, begin, end) of stretches with what was begun last on top. O(rows log rows) a depth, whatever the window."""
    told = trace.annotations
    borders = np.unique(np.clip(np.concatenate([told.first[rows], told.end[rows], [low, end]]), low, end))
    top = np.full(len(borders), -1)
    for depth in np.unique(told.depth[rows]):
        level = rows[told.depth[rows] == depth]
        at = np.searchsorted(told.first[level], borders, side="right") - 1
        covers = (at >= 0) & (told.end[level[np.maximum(at, 0)]] > borders)
        top[covers] = level[at[covers]]
    found = _stretches(top)
    found[1:] = np.append(borders, end)[found[1:]]
    return found


def _at(parts: list[list[str]], depth: int, module: Codes) -> tuple[list[str], Whole]:
    names, code = at_depth(parts, depth)
    return names, _stretches(np.where(module >= 0, code[np.maximum(module, 0)], -1))


def _stretches(code: Codes) -> Whole:
    """(code, begin, end) of what stays the same, without what is unknown: shape (3, stretches)."""
    if not len(code):
        return np.empty((3, 0), np.int64)
    starts = np.concatenate([[0], np.flatnonzero(np.diff(code)) + 1])
    found = np.stack([code[starts].astype(np.int64), starts, np.append(starts[1:], len(code))])
    known: Whole = found[:, found[0] >= 0]
    return known


def _widest(stretches: Whole, least: float) -> list[list[int]]:
    width = stretches[2] - stretches[1]
    widest = np.argsort(-width, kind="stable")[:MOST_SPANS]
    kept = np.sort(widest[width[widest] >= least])
    rows: list[list[int]] = stretches[:, kept].T.tolist()
    return rows
