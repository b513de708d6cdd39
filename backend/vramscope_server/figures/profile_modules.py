"""Steps by module: boxes as wide as a quantity, with inner modules below."""

from __future__ import annotations

from typing import Final

import numpy as np
import plotly.graph_objects as go

from vramscope_server.analysis.number_format import amount, duration
from vramscope_server.analysis.profile.module_tree import ModuleBox, boxes_of
from vramscope_server.analysis.profile.tables import Table
from vramscope_server.figures.drawing import Drawing, byte_unit, escaped
from vramscope_server.figures.profile_operations import WORDS, time_unit

_CHARACTERS: Final = 170
"""Maximum number of boxes per level."""


def draw(table: Table, quantity: str) -> go.Figure:
    """Draw boxes of modules by a ``self_`` quantity, whose parts add up."""
    drawing = Drawing("name")
    drawing.meta["kind"] = "static"
    if not len(table) or (table.columns[quantity] < 0).any():
        drawing.say(f"by module, {WORDS[quantity]}: unknown")
        return drawing.done()
    boxes, left_out = boxes_of(table, quantity.removeprefix("self_"))
    if not boxes:
        drawing.say(f"no module {WORDS[quantity]}")
        return drawing.done()
    width = max(box.first + box.total for box in boxes)
    of_bytes = quantity.endswith("_bytes")
    unit = byte_unit(float(width)) if of_bytes else time_unit(float(width))
    levels = max(box.level for box in boxes) + 1
    drawing.meta["levels"] = levels

    def words(box: ModuleBox) -> str:
        def shown(value: int) -> str:
            return amount(value) if of_bytes else duration(value / 1e9)

        kind = f" ({box.kind})" if box.kind and box.kind != box.name else ""
        text = f"{box.name}{kind}<br>{shown(box.total)} {WORDS[quantity]}".replace(", by itself", "")
        return f"{text}, {shown(box.own)} of it by itself" + (f"<br>{box.calls:,} calls" if box.calls else "")

    for role, label, chosen in (
        ("flame-module", "modules", [box for box in boxes if not box.name.startswith("(")]),
        ("flame-none", "outside modules", [box for box in boxes if box.name.startswith("(")]),
    ):
        if not chosen:
            continue
        drawing.figure.add_trace(
            go.Bar(
                orientation="h",
                base=np.array([box.first for box in chosen]) / unit.divisor,
                x=np.array([box.total for box in chosen]) / unit.divisor,
                y=np.array([box.level for box in chosen], np.int32),
                text=[_fitting(box, width) for box in chosen],
                textposition="inside",
                insidetextanchor="start",
                textangle=0,
                constraintext="none",
                hovertext=[words(box) for box in chosen],
                hovertemplate="%{hovertext}<extra></extra>",
                name=label,
                meta={"role": role, "label": label, "kind": "box", "unit": unit.quantity, "divisor": unit.divisor},
            )
        )
    drawing.figure.update_xaxes(title={"text": unit.name}, range=[0, width / unit.divisor], fixedrange=True, nticks=8)
    drawing.figure.update_yaxes(
        range=[levels - 0.5, -0.5], fixedrange=True, showgrid=False, showticklabels=False, ticks=""
    )
    if left_out:
        drawing.say(f"{left_out:,} smaller modules: see the table")
    return drawing.done(
        hovermode="closest",
        barmode="overlay",
        bargap=0.04,
        uniformtext={"mode": "hide", "minsize": 9},
        margin={"l": 12, "r": 12, "t": 6, "b": 40},
    )


def _fitting(box: ModuleBox, width: int) -> str:
    room = int(box.total / width * _CHARACTERS)
    for name in (box.name if box.level < 2 else "", box.name.rpartition(".")[2]):
        if name and len(name) <= room:
            return escaped(name)
    return ""
