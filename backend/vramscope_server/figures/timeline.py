"""Timeline of a recording: stacked allocated bytes after each event, under lanes of steps, phases and modules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypedDict

import numpy as np
import plotly.graph_objects as go

from vramscope_server.analysis.array_types import FloatArray, IntArray
from vramscope_server.analysis.number_format import amount
from vramscope_server.analysis.timeline.axis_spans import AxisSpans, Lane, Span
from vramscope_server.analysis.timeline.grouping import Series
from vramscope_server.analysis.timeline.overview import Overview
from vramscope_server.figures.drawing import Drawing, Unit, byte_unit, escaped

LANES: Final[tuple[Lane, ...]] = ("step", "phase", "module", "range")
_LEAST_LANES: Final = 3
"""Minimum height of the lanes, as a number of rows."""
_RULER_FROM: Final = 0.84
"""Share of the height for the data. The lanes are above."""
CHARACTER_PX: Final = 6.6
"""Width of a character in the lanes, in pixels."""
WIDTH_PX: Final = 1200
"""Default width of the figure in pixels."""
_AXIS_PX: Final = 68
_RESERVED_SHOWN: Final = 1.35
"""Maximum height of the axis, as a multiple of the highest stack. Higher reserved values are cut off."""


def draw(
    overview: Overview,
    ruler: AxisSpans,
    *,
    out_of_memory: Sequence[int] = (),
    capacity_bytes: int | None = None,
    width_px: int = WIDTH_PX,
) -> go.Figure:
    """Draw areas of allocated memory and a line of reserved. ``width_px``: width of the figure, for label lengths."""
    highest, reserved = float(overview.allocated.max()), float(overview.reserved.max())
    unit = byte_unit(highest)
    top = top_of(highest, reserved)
    drawing = new_drawing(overview.first, overview.end, unit, top)
    if reserved > top:
        drawing.say(f"reserved: up to {amount(int(reserved))}, above the axis")
    say_joined(drawing, overview.joined_cycles)
    x = np.append(overview.moment, overview.end).astype(np.float64)  # what the last event left lasts until the end
    areas(drawing, overview, x, unit, role_of=_role_of, when="at the peak in view")
    drawing.trace(
        x,
        _with_end(overview.reserved, x),
        role="reserved",
        label="reserved",
        unit=unit,
        kind="line",
        line={"shape": "hv", "width": 1.2, "dash": "dot"},
        hoverinfo="skip",
        hovertemplate=None,
        shown={"colour": "total"},  # its own colour is that of the activations
        meaning="bytes that PyTorch took from the device",
    )
    shown = [event for event in out_of_memory if overview.first <= event < overview.end]
    if shown:
        at_event = np.searchsorted(overview.moment, shown, side="right") - 1
        heights = overview.allocated[at_event].astype(np.float64)
        drawing.out_of_memory(np.array(shown, np.float64), heights, unit, hoverinfo="skip", hovertemplate=None)
    mark_peak(drawing, overview.peak, highest / unit.divisor, overview.first, overview.end)
    draw_ruler(drawing, ruler, overview.first, overview.end, width_px)
    if overview.series.joined:
        drawing.say(f"“other”: {overview.series.joined:,} more")
    if capacity_bytes and capacity_bytes <= top:
        drawing.capacity(capacity_bytes, unit)
    return drawing.done(hovermode=False)


def say_joined(drawing: Drawing, cycles: int) -> None:
    """Note that short rises are drawn at their highest values."""
    if cycles:
        rises = "1 short rise" if cycles == 1 else f"{cycles:,} short rises, each"
        drawing.say(f"{rises} drawn at its highest value; zoom in to see all events")


def _role_of(key: str, name: str) -> str:
    return f"{key}:{name}" if key.startswith("series") else key


def areas(
    drawing: Drawing,
    overview: Overview,
    x: FloatArray,
    unit: Unit,
    *,
    role_of: Callable[[str, str], str],
    when: str,
) -> None:
    """Draw each series, stacked over ``x``: the moments, and the end of the window where the last values last until there.

    role_of  of a series, by its key and its name
    when     of which moment its highest bytes are, in words
    """
    for at, (name, key) in enumerate(zip(overview.series.names, overview.series.keys, strict=True)):
        drawing.trace(
            x,
            _with_end(overview.held_bytes[at], x),
            role=role_of(key, name),
            label=label_of(overview.series, at),
            unit=unit,
            kind="area",
            stackgroup="held",
            line={"shape": "hv"},
            hoverinfo="skip",
            hovertemplate=None,
            shown={"colour": key},
            meaning=f"{name}: {amount(int(overview.series.peak_bytes[at]))} {when}",
        )


def _with_end(values: IntArray, x: FloatArray) -> FloatArray:
    """Repeat the last value for the end of the window, where ``x`` has it."""
    return np.append(values, values[-1:]).astype(np.float64)[: len(x)]


def label_of(series: Series, at: int) -> str:
    """Return the legend label: bytes at the peak in view, then the name, which a narrow legend cuts off."""
    name = series.names[at]
    shown = "optimizer state" if name == series.keys[at] == "optimizer" else name
    return f"{amount(int(series.peak_bytes[at]))} {shown}"


def top_of(highest: float, reserved: float) -> float:
    """Return the end of the axis of bytes."""
    return (max(highest, min(reserved, highest * _RESERVED_SHOWN)) or 1.0) * 1.06


def new_drawing(first: int, end: int, unit: Unit, top_bytes: float) -> Drawing:
    """Create a drawing over a window's events with its two axes."""
    drawing = Drawing("event")
    drawing.where = "in this recording"
    drawing.meta |= {"kind": "timeline", "first": first, "end": end, "divisor": unit.divisor}
    drawing.y_axis(unit, range=[0, top_bytes / unit.divisor], domain=[0, _RULER_FROM - 0.01], fixedrange=True)
    drawing.figure.update_layout(
        margin_r=max(26, 4 * len(f"{end:,}"))
    )  # half of a label such as 1,000,000 at the end of the axis
    drawing.figure.update_xaxes(title={"text": "event"}, range=[first, end], nticks=9, tickformat=",d", anchor="y")
    return drawing


def mark_peak(drawing: Drawing, peak: int, height: float, first: int, end: int) -> None:
    """Draw an arrow to the peak in view."""
    drawing.figure.add_annotation(
        name="peak",
        text="peak",
        x=peak,
        y=height,
        ax=-28 if peak - first > 0.1 * (end - first) else 28,
        ay=-10,
        arrowhead=0,
        arrowwidth=1,
    )


def draw_ruler(drawing: Drawing, ruler: AxisSpans, first: int, end: int, width_px: int) -> None:
    """Draw lanes of steps, phases, modules and the program's ranges, and note what is not drawn."""
    spans = ruler.spans
    lanes = [lane for lane in LANES if any(span.lane == lane for span in spans)]
    if left_out := ruler_words(ruler):
        drawing.say(left_out)
    if not lanes:
        drawing.figure.update_layout(yaxis_domain=[0, 1])
        return
    drawing.figure.update_layout(
        yaxis2={
            "domain": [_RULER_FROM, 1],
            "range": [max(len(lanes), _LEAST_LANES) - 0.5, -0.5],
            "fixedrange": True,
            "tickmode": "array",
            "tickvals": list(range(len(lanes))),
            "ticktext": lanes,
            "showgrid": False,
            "zeroline": False,
            "anchor": "x",
        },
        barmode="overlay",
        uniformtext={"mode": "hide", "minsize": 9},
    )
    wide = (end - first) / (max(width_px - _AXIS_PX, CHARACTER_PX) / CHARACTER_PX)
    roles: dict[str, list[Span]] = {}
    turns = dict.fromkeys(LANES, 0)
    for span in spans:
        turns[span.lane] += 1
        role = f"phase-{span.name}" if span.lane == "phase" else f"ruler-{turns[span.lane] % 2}"
        roles.setdefault(role, []).append(span)
    for role, of_role in roles.items():
        begin = np.array([max(span.first, first) for span in of_role], np.int32)
        width = np.array([min(span.end, end) for span in of_role], np.int32) - begin
        drawing.figure.add_trace(
            go.Bar(
                orientation="h",
                base=begin,
                x=width,
                y=np.array([lanes.index(span.lane) for span in of_role], np.int32),
                yaxis="y2",
                text=[_fitting(span, int(room / wide)) for span, room in zip(of_role, width, strict=True)],
                width=0.9,
                textposition="inside",
                insidetextanchor="middle",
                textangle=0,
                constraintext="none",
                hovertext=[escaped(f"{span.lane} {span.name}") for span in of_role],
                hovertemplate="%{hovertext}<extra></extra>",
                name=role,
                meta={"role": role, "label": role, "kind": "span", "legend": False, "table": False},
            )
        )


def ruler_words(ruler: AxisSpans) -> str:
    """Describe spans that are not drawn; empty if all are."""
    narrow = [_many(lane, ruler.left_out[lane]) for lane in LANES if ruler.left_out.get(lane)]
    notes = [f"not drawn: {', '.join(narrow)} too narrow to be seen"] if narrow else []
    notes += [
        f"{lane}s: {shown} of {there} levels" for lane, (shown, there) in sorted(ruler.depth.items()) if shown < there
    ]
    return "; ".join(notes)


def _many(lane: Lane, count: int) -> str:
    return f"{count:,} {lane}{'' if count == 1 else 's'}"


def _fitting(span: Span, characters: int) -> str:
    """Shorten a name to fit. The end is kept, because it distinguishes modules."""
    name = f"step {span.name}" if span.lane == "step" and characters > len(span.name) + 5 else span.name
    if len(name) <= characters:
        return escaped(name)
    if span.lane == "range" and characters >= 8:
        return escaped(f"{name[: characters - 1]}…")
    if span.lane == "module" and characters >= 5:
        return escaped(f"…{name[-(characters - 1) :]}")
    return ""


class NamedSeries(TypedDict):
    """Description of a series."""

    name: str
    colour: str
    """Key of its colour."""
    peak_bytes: int


def series_rows(series: Series) -> list[NamedSeries]:
    """Return the API's description of the series, bottom first."""
    return [
        {"name": name, "colour": key, "peak_bytes": int(held)}
        for name, key, held in zip(series.names, series.keys, series.peak_bytes, strict=True)
    ]
