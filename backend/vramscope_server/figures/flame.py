"""Flamegraph as bar traces, one per kind of box. A box is as wide as its bytes; the outermost is on top."""

from __future__ import annotations

from typing import Final, TypedDict

import numpy as np
import plotly.graph_objects as go

from vramscope_server.analysis.number_format import amount, percent
from vramscope_server.analysis.timeline.flamegraph import Box, Flamegraph
from vramscope_server.figures.drawing import Drawing, byte_unit, escaped
from vramscope_server.figures.timeline import CHARACTER_PX, WIDTH_PX

_PADDING_PX: Final = 8
LABELS: Final = {"own": "your code", "library": "libraries", "module": "modules", "none": "no further detail"}


def draw(flame: Flamegraph, width_px: int = WIDTH_PX) -> go.Figure:
    """Draw boxes in bytes from the left end of the focus. ``customdata`` of a box is its key as the next focus."""
    drawing = Drawing("bytes")
    drawing.meta["kind"] = "static"
    if not flame.boxes:
        drawing.say("nothing is allocated at this event")
        return drawing.done()
    unit = byte_unit(float(flame.focus_bytes))
    levels = max(box.level for box in flame.boxes) + 1
    drawing.meta["levels"] = levels
    for kind, label in LABELS.items():
        boxes = [box for box in flame.boxes if box.kind == kind]
        if not boxes:
            continue
        drawing.figure.add_trace(
            go.Bar(
                orientation="h",
                base=np.array([box.first_bytes for box in boxes]) / unit.divisor,
                x=np.array([box.bytes for box in boxes]) / unit.divisor,
                y=np.array([box.level for box in boxes], np.int32),
                text=[_fitting(box, flame.focus_bytes, width_px) for box in boxes],
                width=0.95,
                textposition="inside",
                insidetextanchor="start",
                textangle=0,
                constraintext="none",
                customdata=[box.focus for box in boxes],
                hovertext=[_words(box, flame) for box in boxes],
                hovertemplate="%{hovertext}<extra></extra>",
                name=label,
                meta={"role": f"flame-{kind}", "label": label, "kind": "box", "unit": "bytes", "divisor": unit.divisor},
            )
        )
    drawing.figure.update_xaxes(
        title={"text": unit.name}, range=[0, flame.focus_bytes / unit.divisor], fixedrange=True, nticks=8
    )
    drawing.figure.update_yaxes(
        range=[levels - 0.5, -0.5], fixedrange=True, showgrid=False, showticklabels=False, ticks=""
    )
    if flame.left_out:
        drawing.say(
            "1 smaller box is left out" if flame.left_out == 1 else f"{flame.left_out:,} smaller boxes are left out"
        )
    return drawing.done(
        hovermode="closest",
        barmode="overlay",
        uniformtext={"mode": "hide", "minsize": 9},
        margin={"l": 12, "r": 12, "t": 6, "b": 40},
    )


def _fitting(box: Box, whole: int, width_px: int) -> str:
    room = int((box.bytes / whole * width_px - _PADDING_PX) / CHARACTER_PX)
    if len(box.name) <= room:
        return escaped(box.name)
    last = box.name.rpartition(".")[2]
    if box.kind == "module" and len(last) <= room:
        return escaped(last)  # what tells modules apart
    return escaped(f"{box.name[: room - 1]}…") if room >= 4 else ""


def _words(box: Box, flame: Flamegraph) -> str:
    of = box.bytes / flame.total_bytes
    lines = [
        box.detail,
        f"{amount(box.bytes)} in {box.allocations:,} allocations, {percent(of)} of all that is allocated",
    ]
    return "<br>".join(escaped(line) for line in lines)


class FlameFacts(TypedDict):
    """Fields of the API's answer beside the figure."""

    total_bytes: int
    focus_bytes: int
    focus_names: list[str]
    drawn: int
    left_out: int
    without_stack_bytes: int


def as_answer(flame: Flamegraph) -> FlameFacts:
    """Return the fields of the API's answer beside the figure."""
    return {
        "total_bytes": flame.total_bytes,
        "focus_bytes": flame.focus_bytes,
        "focus_names": flame.focus_names,
        "drawn": len(flame.boxes),
        "left_out": flame.left_out,
        "without_stack_bytes": flame.without_bytes,
    }
