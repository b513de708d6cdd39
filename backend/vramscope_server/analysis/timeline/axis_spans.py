"""Spans above the timeline: consecutive events of one step, phase or module, and ranges that the program annotated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from vramscope.protocol.series import PHASES
from vramscope_server.analysis.array_types import IntArray
from vramscope_server.analysis.timeline.grouping import at_depth

if TYPE_CHECKING:
    from vramscope_server.analysis.trace.trace import Trace

Codes = npt.NDArray[np.signedinteger]
Lane = Literal["step", "phase", "module", "range"]
"""Row of spans. ``range``: annotations by record_function."""
MOST_SPANS: Final = 90
"""Maximum number of spans in a lane. Module depth is limited by it."""
_MOST_DEPTHS: Final = 32
_SLICE: Final = 10_000
_LEAST: Final = 1 / 700
"""Minimum width as a fraction of the window: narrower spans would be no wider than their borders."""


class Span(NamedTuple):
    """Events from ``first`` to below ``end``."""

    lane: Lane
    name: str
    first: int
    end: int


@dataclass(frozen=True)
class AxisSpans:
    """Drawn spans of a window, and the number of those that are left out."""

    spans: list[Span] = field(default_factory=list)
    left_out: dict[Lane, int] = field(default_factory=dict)
    """Number of spans per lane that are not drawn: narrower than 1/700 of the window, or beyond the 90 widest."""
    depth: dict[Lane, tuple[int, int]] = field(default_factory=dict)
    """Number of drawn levels, and of all levels in the window, for the nested lanes (module, range)."""

    def __iter__(self) -> Iterator[Span]:
        return iter(self.spans)

    def __len__(self) -> int:
        return len(self.spans)

    def add(self, lane: Lane, name: Callable[[int], str], runs: IntArray, low: int, least: float) -> None:
        """Add the widest spans of a lane.

        name    returns the name of a code
        runs    (code, begin, end) of each span, counted from event ``low``
        least   minimum width in events
        """
        shown = _widest(runs, least)
        self.spans.extend(Span(lane, name(code), low + at, low + to) for code, at, to in shown)
        self.left_out[lane] = runs.shape[1] - len(shown)


def ruler(trace: Trace, first: int, end: int) -> AxisSpans:
    """Return the spans of a window that are wide enough to be seen. Takes 5 ns per event, and again per level of modules."""
    made, events = AxisSpans(), trace.events
    low = max(first, 0)
    step, phase, module = (column[low:end] for column in (events.step, events.phase, events.module))
    least = (end - first) * _LEAST
    made.add("step", "{:,}".format, _runs(step), low, least)
    made.add("phase", PHASES.__getitem__, _runs(phase), low, least)
    _add_ranges(made, trace, low, end, least)
    if not len(module) or int(module.max()) < 0:
        return made
    parts = [name.split(".") for name in trace.modules]
    # Modules may be known in a part of the window only. That part must still have room for the names.
    most = max(6, int(MOST_SPANS * np.count_nonzero(module >= 0) / (end - first)))
    deepest = max(len(parts[code]) for code in np.unique(module[module >= 0]))
    names, runs = _at(parts, 1, module)
    shown = 1
    for depth in range(2, deepest + 1):
        deeper_names, deeper = _at(parts, depth, module)
        if deeper.shape[1] > most:
            break
        names, runs, shown = deeper_names, deeper, depth
    made.add("module", names.__getitem__, runs, low, least)
    made.depth["module"] = (shown, deepest)
    return made


def every_span(trace: Trace, first: int, end: int) -> Iterator[tuple[str, Span]]:
    """Yield all spans of a window with their track, also the narrowest. Modules come at all depths, outer ones first.

    Ranges have one track per depth. Spans are created one by one, because a window may have millions.
    """
    low, events = max(first, 0), trace.events
    step, phase, module = (column[low:end] for column in (events.step, events.phase, events.module))
    yield from _spans("step", "step", "{:,}".format, _runs(step), low)
    yield from _spans("phase", "phase", PHASES.__getitem__, _runs(phase), low)
    parts = [name.split(".") for name in trace.modules]
    lengths = np.array([0, *map(len, parts)])[module + 1]  # -1: unknown
    for depth in range(1, int(lengths.max(initial=0)) + 1):
        names, runs = _at(parts, depth, np.where(lengths >= depth, module, -1))
        yield from _spans("module", "module", names.__getitem__, runs, low)
    annotations = trace.annotations
    inside = np.flatnonzero((annotations.first < end) & (annotations.end > np.maximum(annotations.first, low)))
    for depth in np.unique(annotations.depth[inside]).tolist():
        runs = _innermost(trace, inside[annotations.depth[inside] == depth], low, end)
        track = f"range {depth + 1}" if depth else "range"
        yield from _spans(track, "range", lambda row: trace.words[annotations.name[row]], runs, 0)


def _spans(track: str, lane: Lane, name: Callable[[int], str], runs: IntArray, low: int) -> Iterator[tuple[str, Span]]:
    for begin in range(0, runs.shape[1], _SLICE):
        for code, at, to in runs[:, begin : begin + _SLICE].T.tolist():
            yield track, Span(lane, name(code), low + at, low + to)


def _add_ranges(made: AxisSpans, trace: Trace, low: int, end: int, least: float) -> None:
    """Add annotated ranges, down to the deepest level that fits."""
    annotations = trace.annotations
    inside = np.flatnonzero((annotations.first < end) & (annotations.end > np.maximum(annotations.first, low)))
    depths = np.unique(annotations.depth[inside])
    if not len(depths):
        return
    runs = np.empty((3, 0), np.int64)
    shown = 0
    for depth in depths[:_MOST_DEPTHS]:
        deeper = _innermost(trace, inside[annotations.depth[inside] <= depth], low, end)
        if runs.shape[1] and deeper.shape[1] > MOST_SPANS:
            break
        runs, shown = deeper, shown + 1
    made.add("range", lambda row: trace.words[annotations.name[row]], runs, 0, least)
    made.depth["range"] = (shown, len(depths))


def _innermost(trace: Trace, rows: IntArray, low: int, end: int) -> IntArray:
    """Return (row, begin, end) of the innermost range at each event. O(rows log rows) per depth, for a window of any length."""
    annotations = trace.annotations
    borders = np.unique(np.clip(np.concatenate([annotations.first[rows], annotations.end[rows], [low, end]]), low, end))
    top = np.full(len(borders), -1)
    for depth in np.unique(annotations.depth[rows]):
        level = rows[annotations.depth[rows] == depth]
        at = np.searchsorted(annotations.first[level], borders, side="right") - 1
        covers = (at >= 0) & (annotations.end[level[np.maximum(at, 0)]] > borders)
        top[covers] = level[at[covers]]
    found = _runs(top)
    found[1:] = np.append(borders, end)[found[1:]]
    return found


def _at(parts: list[list[str]], depth: int, module: Codes) -> tuple[list[str], IntArray]:
    names, code = at_depth(parts, depth)
    return names, _runs(np.where(module >= 0, code[np.maximum(module, 0)], -1))


def _runs(code: Codes) -> IntArray:
    """Return (code, begin, end) of runs of equal codes, without unknown ones. Shape (3, runs)."""
    if not len(code):
        return np.empty((3, 0), np.int64)
    starts = np.concatenate([[0], np.flatnonzero(np.diff(code)) + 1])
    found = np.stack([code[starts].astype(np.int64), starts, np.append(starts[1:], len(code))])
    known: IntArray = found[:, found[0] >= 0]
    return known


def _widest(runs: IntArray, least: float) -> list[list[int]]:
    width = runs[2] - runs[1]
    widest = np.argsort(-width, kind="stable")[:MOST_SPANS]
    kept = np.sort(widest[width[widest] >= least])
    rows: list[list[int]] = runs[:, kept].T.tolist()
    return rows
