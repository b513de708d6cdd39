"""Memory of a profile's steps by operation, module or source line, stacked to allocated."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from vramscope.protocol.profile import NOT_ATTRIBUTED
from vramscope_server.analysis.number_format import amount
from vramscope_server.analysis.profile.history import ProfileHistory
from vramscope_server.analysis.timeline.overview import overview
from vramscope_server.figures.drawing import Drawing, byte_unit
from vramscope_server.figures.timeline import areas

NO_TIMELINE = "no memory timeline in this profile"


def draw(history: ProfileHistory | None) -> go.Figure:
    """Draw areas; their top is the exact allocated memory."""
    drawing = Drawing("change")
    drawing.meta["kind"] = "static"
    if history is None:
        drawing.say(NO_TIMELINE)
        return drawing.done()
    made = overview(history.curve, history.grouping, -1, history.curve.end)
    unit = byte_unit(float(made.allocated.max()))
    x = (made.moment + 1).astype(np.float64)
    areas(drawing, made, x, unit, role_of="{}:{}".format, when="at the peak")
    drawing.y_axis(unit)
    drawing.figure.update_xaxes(title={"text": "allocations and frees"}, tickformat=",d")
    if made.series.joined:
        drawing.say(f"“other”: {made.series.joined:,} more")
    unknown = made.held_bytes[made.series.names.index(NOT_ATTRIBUTED)]
    drawing.say(f"maximum not attributed: {amount(int(unknown.max()))}")
    return drawing.done(hovermode=False)
