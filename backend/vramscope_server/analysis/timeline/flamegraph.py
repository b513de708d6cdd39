"""Memory at a moment as a flamegraph, by the lines of the stacks that allocated it, or by module.

Each box is as wide as its bytes, and never narrower than the sum of the boxes above it. Frames of the user are shown, and at the
end of each stack the innermost frame of a library: the operation that allocated the memory. All frames of libraries are shown
on request. Boxes that are too small to see are left out, and counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
import numpy.typing as npt

from vramscope.protocol.series import PHASES
from vramscope_server.analysis.array_types import IntArray
from vramscope_server.analysis.timeline.curve import alive
from vramscope_server.analysis.timeline.source_lines import SourceLines, frame_of

if TYPE_CHECKING:
    from vramscope_server.analysis.trace.trace import Trace

FlameBy = Literal["stack", "module"]

MOST_BOXES: Final = 2000
LEAST_SHARE: Final = 0.001
MOST_LEVELS: Final = 200


@dataclass(frozen=True, slots=True)
class Box:
    """One box. Its position is in bytes from the left end of the focus."""

    name: str
    detail: str
    kind: Literal["own", "library", "module", "none"]
    level: int
    first_bytes: int
    bytes: int
    allocations: int
    focus: str
    """Identifier that selects this box as the root."""


@dataclass(frozen=True, slots=True)
class Flamegraph:
    """Boxes from the focus up, level by level."""

    total_bytes: int
    """Allocated bytes at the moment."""
    focus_bytes: int
    focus_names: list[str]
    """Names from the outermost box to the focus; empty: everything."""
    boxes: list[Box]
    left_out: int
    """Number of boxes that are left out."""
    without_bytes: int
    """Allocated bytes at the moment without a known stack (or module)."""


class UnknownFocus(ValueError):
    """The moment has no box with this identifier."""


def flame(
    trace: Trace, sites: SourceLines, moment: int, by: FlameBy = "stack", *, focus: str = "", libraries: bool = False
) -> Flamegraph:
    """The boxes above ``focus`` (of an earlier answer; "": everything). Raises UnknownFocus.

    Some 10 ns a row of trace.lives, and 50 ns a frame of each stack that is alive.
    """
    rows = alive(trace, moment)
    size = trace.lives.size_bytes[rows]
    paths = _by_stack(trace, sites, rows, libraries) if by == "stack" else _by_module(trace, rows)
    weight = np.zeros(len(paths), np.int64)
    np.add.at(weight, paths.of_row, size)
    count = np.bincount(paths.of_row, minlength=len(paths))
    return _grown(trace, paths, weight, count, focus)


# ---- paths: the labels of each row ----


@dataclass(frozen=True, eq=False)
class _Paths:
    """Lists of labels, outermost first, one for each kind of row. A label is a frame, or of ``names`` (counted from there on)."""

    flat: IntArray
    offsets: IntArray
    of_row: IntArray
    frames: int
    """Labels below this number are frames."""
    names: list[str]
    own: npt.NDArray[np.bool_]
    by: FlameBy
    sources: IntArray
    """Source of each path: a stack, or the negative of another index."""

    def __len__(self) -> int:
        return len(self.offsets) - 1


def _without(trace: Trace, rows: IntArray) -> IntArray:
    """Return the label of rows without a path: the phase of their allocation, else "unknown", else "before the recording"."""
    born = trace.lives.alloc_event[rows]
    codes = np.full(len(rows), len(PHASES) + 1, np.int64)
    made = born >= 0
    phase = trace.events.phase[born[made]].astype(np.int64)
    codes[made] = np.where(phase >= 0, phase, len(PHASES))
    return codes


def _by_stack(trace: Trace, sites: SourceLines, rows: IntArray, libraries: bool) -> _Paths:
    stack = sites.stack[rows]
    key = np.where(stack >= 0, stack, -1 - _without(trace, rows))
    sources, of_row = np.unique(key, return_inverse=True)
    flat, offsets = np.asarray(trace.stacks.flat), np.asarray(trace.stacks.offsets)
    frames = len(sites.own)
    names = [*(f"no stack: {phase}" for phase in PHASES), "no stack", "before the recording"]
    has_source = sources >= 0
    starts = (
        np.where(has_source, offsets[np.where(has_source, sources, 0)], 0)
        if len(offsets) > 1
        else np.zeros(len(sources), np.int64)
    )
    ends = (
        np.where(has_source, offsets[np.where(has_source, sources, 0) + 1], 1)
        if len(offsets) > 1
        else np.ones(len(sources), np.int64)
    )
    lengths = ends - starts
    path = np.repeat(np.arange(len(sources)), lengths)
    nth = np.arange(len(path)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    place = ends[path] - 1 - nth  # outermost first
    known = has_source[path]
    label = np.where(known, flat[np.where(known, place, 0)] if len(flat) else 0, frames - 1 - sources[path])
    if not libraries:
        innermost = known & (place == np.append(sites.inner, -1)[np.where(has_source, sources, -1)][path])
        kept = ~known | innermost | np.append(sites.own, False)[np.minimum(label, frames)]
        path, label = path[kept], label[kept]
    out = np.concatenate([[0], np.cumsum(np.bincount(path, minlength=len(sources)))])
    return _Paths(label.astype(np.int64), out, of_row.reshape(-1), frames, names, sites.own, "stack", sources)


def _by_module(trace: Trace, rows: IntArray) -> _Paths:
    born = trace.lives.alloc_event[rows]
    made = born >= 0
    module = np.full(len(rows), -1, np.int64)
    module[made] = trace.events.module[born[made]]
    key = np.where(module >= 0, module, -1 - _without(trace, rows))
    sources, of_row = np.unique(key, return_inverse=True)
    places: dict[str, int] = {}
    paths: list[list[int]] = []
    for source in sources.tolist():
        if source < 0:
            what = [*(f"no module: {phase}" for phase in PHASES), "no module", "before the recording"][-1 - source]
            paths.append([places.setdefault(what, len(places))])
            continue
        parts = trace.modules[source].split(".")
        paths.append([places.setdefault(".".join(parts[: depth + 1]), len(places)) for depth in range(len(parts))])
    flat = np.array([label for one in paths for label in one], np.int64)
    offsets = np.concatenate([[0], np.cumsum([len(one) for one in paths])]).astype(np.int64)
    return _Paths(flat, offsets, of_row.reshape(-1), 0, list(places), np.empty(0, bool), "module", sources)


# ---- the tree, level by level ----


def _grown(trace: Trace, paths: _Paths, weight: IntArray, count: IntArray, focus: str) -> Flamegraph:
    total = int(weight.sum())
    inside, depth, names = _focused(trace, paths, focus)
    length = np.diff(paths.offsets)
    focus_bytes = int(weight[inside].sum())
    least = max(1, int(np.ceil(focus_bytes * LEAST_SHARE)))
    # Each level has the paths that continue, sorted by their box. A box begins where its parent begins, plus the bytes of
    # its larger siblings.
    active = inside
    parent = np.zeros(len(active), np.int64)
    parent_first = np.zeros(1, np.int64)
    found: list[tuple[int, int, int, int, int, int]] = []  # bytes, level, first, allocations, label, a path
    labels = int(paths.flat.max(initial=0)) + 1
    left_out = 0
    level = 0
    while len(active) and level < MOST_LEVELS:
        on = length[active] > depth + level
        active, parent = active[on], parent[on]
        if not len(active):
            break
        label = paths.flat[paths.offsets[active] + depth + level]
        # one number for a box and the label above it, as sorting pairs takes five times as long
        boxes_here, box = np.unique(parent * labels + label, return_inverse=True)
        box = box.reshape(-1)
        of_box, label_of_box = np.divmod(boxes_here, labels)
        held = np.zeros(len(boxes_here), np.int64)
        np.add.at(held, box, weight[active])
        allocations = np.zeros(len(boxes_here), np.int64)
        np.add.at(allocations, box, count[active])
        sample = np.zeros(len(boxes_here), np.int64)
        sample[box[::-1]] = active[::-1]
        order = np.lexsort((label_of_box, -held, of_box))
        running = np.cumsum(held[order]) - held[order]
        of_parent = of_box[order]
        opens = np.concatenate([[True], of_parent[1:] != of_parent[:-1]])
        base = np.maximum.accumulate(np.where(opens, running, 0))
        first = np.empty(len(order), np.int64)
        first[order] = parent_first[of_parent] + running - base
        wide = held >= least
        left_out += int(np.count_nonzero(~wide))
        for at in np.flatnonzero(wide).tolist():
            found.append(
                (int(held[at]), level, int(first[at]), int(allocations[at]), int(label_of_box[at]), int(sample[at]))
            )
        keep = wide[box]
        active, parent, parent_first = active[keep], box[keep], first
        level += 1
    left_out += len(np.unique(parent)) if len(active) else 0
    found.sort(key=lambda one: (-one[0], one[1], one[2]))
    left_out += max(0, len(found) - MOST_BOXES)
    boxes = [_box(trace, paths, depth, *one) for one in found[:MOST_BOXES]]
    boxes.sort(key=lambda one: (one.level, one.first_bytes))
    return Flamegraph(total, focus_bytes, names, boxes, left_out, int(weight[paths.sources < 0].sum()))


def _box(
    trace: Trace, paths: _Paths, depth: int, held: int, level: int, first: int, allocations: int, label: int, path: int
) -> Box:
    focus = f"{int(paths.sources[path])}:{depth + level + 1}"
    if label >= paths.frames:
        name = paths.names[label - paths.frames]
        is_module = paths.by == "module" and int(paths.sources[path]) >= 0
        short = name.rpartition(".")[2] if is_module and "." in name else name
        # a block's number alone says little
        if is_module and short.isdigit():
            short = ".".join(name.split(".")[-2:])
        return Box(short, name, "module" if is_module else "none", level, first, held, allocations, focus)
    frame = frame_of(trace, label)
    kind: Literal["own", "library"] = "own" if paths.own[label] else "library"
    place = (f" {frame.short.rpartition('/')[2]}", f"  {frame.file}:{frame.line}") if frame.file else ("", "")
    return Box(
        f"{frame.function}{place[0]}", f"{frame.function}{place[1]}",
        kind, level, first, held, allocations, focus,
    )  # fmt: skip


def _focused(trace: Trace, paths: _Paths, focus: str) -> tuple[IntArray, int, list[str]]:
    """Return the paths through the focus, its depth, and the names that lead to it."""
    everything = np.arange(len(paths))
    if not focus:
        return everything, 0, []
    source, _, deep = focus.partition(":")
    try:
        depth, wanted = int(deep), int(source)
    except ValueError:
        raise UnknownFocus(f"{focus!r} is no box of a flamegraph") from None
    at = np.flatnonzero(paths.sources == wanted)
    if not len(at) or not 0 < depth <= int(np.diff(paths.offsets)[at[0]]):
        raise UnknownFocus("what the flamegraph was focused on is not alive at this moment")
    begin = int(paths.offsets[at[0]])
    inside = everything[np.diff(paths.offsets) >= depth]
    for level in range(depth):
        inside = inside[paths.flat[paths.offsets[inside] + level] == paths.flat[begin + level]]
    labels = paths.flat[begin : begin + depth].tolist()
    return (
        inside,
        depth,
        [_box(trace, paths, 0, 0, at, 0, 0, int(label), int(inside[0])).name for at, label in enumerate(labels)],
    )
