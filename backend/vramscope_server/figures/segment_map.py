"""Segment map: reserved memory folded into lines, as shares in use per cell, or as blocks if few."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from vramscope.protocol.window import STATES
from vramscope_server.analysis.number_format import amount
from vramscope_server.analysis.ownership.categories import CATEGORIES
from vramscope_server.analysis.trace.frames import is_native
from vramscope_server.analysis.trace.segment_map import (
    ALLOCATED,
    LinearLayout,
    StackFrame,
    blocks_between,
    cells,
    stack_lines,
)
from vramscope_server.analysis.trace.trace import Trace
from vramscope_server.figures.drawing import Drawing, byte_unit, escaped

EXACT_BLOCKS = 2000
"""Up to this number of blocks in view, each block is drawn."""
MOST_SEGMENTS = 1500
"""Above this number of blocks in view, borders are not drawn."""
PENDING_CODE, ROUNDING_CODE = 2, 3
_MOSTLY = 0.5

STATE_LABELS = {
    "active_allocated": ("used", "used"),
    "active_pending_free": ("pending", "waiting for a stream"),
    "inactive": ("free", "free"),
}


def draw(
    trace: Trace,
    row: LinearLayout,
    low: int,
    high: int,
    lines: int,
    columns: int,
    categories: Callable[[], Sequence[str] | None] = lambda: None,
) -> tuple[go.Figure, bool]:
    """Draw the offsets from ``low`` to ``high``; also return True if each block is drawn.

    categories   returns the category of each block, or None if no category is known: blocks in use then have one colour.
                 Called only if each block is drawn.
    """
    drawing = Drawing("offset")
    drawing.meta["kind"] = "static"
    line_bytes = (high - low) / lines
    unit = byte_unit(line_bytes)
    scale = unit.divisor
    here = blocks_between(row, low, high)
    exact = len(here) < EXACT_BLOCKS
    drawing.meta |= {"low": low, "line_bytes": line_bytes, "divisor": scale}
    if exact:
        _blocks(drawing, trace, row, here, low, high, line_bytes, scale, categories())
    else:
        _heat(drawing, row, low, high, lines, columns, scale)
    _borders(drawing, row, low, high, line_bytes, scale)
    figure = drawing.figure
    of_line = byte_unit(high)
    shown = range(0, lines, max(1, lines // 8))
    figure.update_xaxes(
        title={"text": f"{unit.name} from the start of the line"}, range=[0, line_bytes / scale], fixedrange=True
    )
    figure.update_layout(margin_l=70)  # room for labels such as 18.75 beside the title
    figure.update_yaxes(
        range=[lines - 0.5, -0.5],
        fixedrange=True,
        tickmode="array",
        tickvals=list(shown),
        ticktext=[f"{(low + line * line_bytes) / of_line.divisor:.{of_line.decimals}f}" for line in shown],
        title={"text": f"starts at ({of_line.name})", "standoff": 6},
        showgrid=False,
    )
    return drawing.done(hovermode="closest", barmode="overlay", bargap=0.12), exact


def _heat(drawing: Drawing, row: LinearLayout, low: int, high: int, lines: int, columns: int, scale: float) -> None:
    part = cells(row, low, high, lines, columns)
    code = part.used + part.rounding
    code[part.rounding > _MOSTLY] = ROUNDING_CODE
    code[part.pending > _MOSTLY] = PENDING_CODE
    # Two digits are more than a colour can show, and a third of the bytes.
    z = np.round(code * 100).astype(np.uint16)
    x = (np.arange(columns) + 0.5) * part.cell_bytes / scale
    drawing.figure.add_trace(
        go.Heatmap(
            z=z,
            x=x,
            y=np.arange(lines),
            zmin=0,
            zmax=100 * ROUNDING_CODE,
            showscale=False,
            hoverinfo="none",
            ygap=1,
            meta={"role": "map", "label": "used share", "kind": "heat", "legend": False},
        )
    )


def _blocks(
    drawing: Drawing,
    trace: Trace,
    row: LinearLayout,
    here: Any,
    low: int,
    high: int,
    line_bytes: float,
    scale: float,
    categories: Sequence[str] | None,
) -> None:
    blocks = row.layout.blocks
    positions = row.block_order[here]
    starts = row.block_starts[here]
    ends = np.minimum(starts + blocks.size_bytes[positions], high)
    starts = np.maximum(starts, low)
    groups: dict[tuple[str, str], list[int]] = {}
    for at, code in enumerate(blocks.state[positions].tolist()):
        role, label = STATE_LABELS[STATES[code]]
        key = (f"block-{role}", label)
        if categories is not None and code == ALLOCATED:
            category = categories[int(positions[at])]
            key = (category, category if category != "unknown" else "unknown owner")
        groups.setdefault(key, []).append(at)
    for role, label in sorted(groups, key=_place_in_key):
        base, width, line, words = [], [], [], []
        for at in groups[role, label]:
            text = _words(trace, row, int(positions[at]), label)
            for number, first, end in folded(int(starts[at]), int(ends[at]), low, line_bytes):
                base.append(first / scale)
                width.append((end - first) / scale)
                line.append(number)
                words.append(text)
        drawing.figure.add_trace(
            go.Bar(
                orientation="h",
                base=np.array(base),
                x=np.array(width),
                y=np.array(line),
                hovertext=words,
                hovertemplate="%{hovertext}<extra></extra>",
                name=label,
                meta={"role": role, "label": label, "kind": "block", "legend": False},
            )
        )


def _place_in_key(group: tuple[str, str]) -> int:
    """Place in the key below the map: categories in their order, then the states of blocks."""
    return CATEGORIES.index(group[0]) if group[0] in CATEGORIES else len(CATEGORIES)


def _borders(drawing: Drawing, row: LinearLayout, low: int, high: int, line_bytes: float, scale: float) -> None:
    """Draw a tick at the start of each segment."""
    starts = row.segment_starts
    inside = starts[(starts >= low) & (starts < high)]
    if len(inside) > MOST_SEGMENTS:
        drawing.say(f"{len(inside)} segments start here: too many to mark")
        return
    number = np.floor((inside - low) / line_bytes)
    at = (inside - low - number * line_bytes) / scale
    x = np.column_stack([at, at, np.full(len(at), np.nan)]).ravel()
    y = np.column_stack([number - 0.5, number + 0.5, np.full(len(at), np.nan)]).ravel()
    drawing.figure.add_trace(
        go.Scatter(
            x=x,
            y=y,
            mode="lines",
            line={"width": 1.5},
            hoverinfo="skip",
            name="segment starts",
            meta={"role": "border", "label": "start of a segment", "kind": "line", "legend": False},
        )
    )


def folded(start: int, end: int, low: int, line_bytes: float) -> list[tuple[int, float, float]]:
    """Split a range of offsets into (line, from, to), relative to the line's start."""
    first, last = int((start - low) // line_bytes), int((end - low - 1) // line_bytes)
    return [
        (
            number,
            max(start - low - number * line_bytes, 0.0),
            min(end - low - number * line_bytes, line_bytes),
        )
        for number in range(first, last + 1)
    ]


def _place(frame: StackFrame) -> str:
    return f"{frame['file'].rpartition('/')[2]}:{frame['line']}" if frame["line"] else "C++"


def _words(trace: Trace, row: LinearLayout, block: int, label: str) -> str:
    blocks = row.layout.blocks
    parts = [f"{amount(int(blocks.size_bytes[block]))}, {label}"]
    whole = stack_lines(trace, int(blocks.stack[block]))
    # C++ frames count only if there are no others.
    stack = [frame for frame in whole if not is_native(frame["file"])] or whole
    parts += [f"{frame['function']}  {_place(frame)}" for frame in stack[:4]]
    if len(stack) > 4:
        parts.append(f"… {len(stack) - 4} more")
    return "<br>".join(escaped(line) for line in parts)
