"""The memory of a profile's steps: what operations, modules or lines held after each change, stacked to what was allocated."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from vramscope.protocol.profile import NOT_ATTRIBUTED
from vramscope_server.analysis.profile.history import ProfileHistory
from vramscope_server.analysis.timeline.overview import overview
from vramscope_server.analysis.units import amount
from vramscope_server.figures.drawing import Drawing, byte_unit
from vramscope_server.figures.timeline import areas

UNTOLD = "what was held moment by moment is not told"


def draw(history: ProfileHistory | None) -> go.Figure:
    """Areas over the highest moments; their top is allocated, to the byte."""
    drawing = Drawing("change")
    drawing.meta["kind"] = "static"
    if history is None:
        drawing.say(UNTOLD)
        return drawing.done()
    made = overview(history.course, history.grouping, -1, history.course.end)
    unit = byte_unit(float(made.allocated.max()))
    x = (made.moment + 1).astype(np.float64)
    areas(drawing, made, x, unit, role_of="{}:{}".format, when="at the peak")
    drawing.y_axis(unit)
    drawing.figure.update_xaxes(title={"text": "allocations and frees since the profile began"}, tickformat=",d")
    if made.series.joined:
        drawing.say(f"“other” stands for {made.series.joined:,} more")
    unknown = made.held_bytes[made.series.names.index(NOT_ATTRIBUTED)]
    drawing.say(f"not attributed at most: {amount(int(unknown.max()))}")
    return drawing.done(hovermode=False)
