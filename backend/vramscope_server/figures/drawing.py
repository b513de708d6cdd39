"""Base of all figures: units, lines, bands, areas, and notes on unknown values.

Figures are neutral to the theme: no template, transparent, no colours. Each trace says in ``meta`` what it is:

role      series or category; the page takes the colour from it
label     its name in words, for legend and hover
kind      line | edge | band | area | bar | marker: how the page colours it
part      value | min | mean | max: one role may have several traces
unit      bytes | percent | watts | celsius | seconds | count
divisor   what the drawn values times this give the unit
smooths   a line that the page may smooth for the eye; peaks never are
whole     the legend's numbers over all rows (figures/legend_numbers.py), where the trace is drawn from fewer

``layout.meta``: ``stream`` lists what live rows feed (trace, stream, field, scale; ``minus``: a field, or several, to
take off; ``needs``: only rows in which this field is known), ``x`` is time or step,
``x0_seconds`` the zero of a time axis, ``capacity`` the device's capacity in the units of the y axis, ``kind`` series, or
static where axes are not time or step, ``settled`` the end of the warm-up: an axis that does not begin at zero is drawn
close around what comes after it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go

from vramscope_server.analysis.array_types import FloatArray, IntArray
from vramscope_server.analysis.number_format import amount
from vramscope_server.analysis.series.chart_data import RunWindow, StreamWindow
from vramscope_server.figures.legend_numbers import whole_window


class Unit(NamedTuple):
    """Unit of an axis: its name, the wire's unit, and the factor between them."""

    name: str
    quantity: str
    divisor: float
    decimals: int = 2


PERCENT = Unit("%", "percent", 1.0, 0)
WATTS = Unit("W", "watts", 1.0, 0)
CELSIUS = Unit("°C", "celsius", 1.0, 0)
COUNT = Unit("", "count", 1.0, 0)

BYTE_UNITS = (
    Unit("GiB", "bytes", 2.0**30, 2),
    Unit("MiB", "bytes", 2.0**20, 1),
    Unit("KiB", "bytes", 2.0**10, 1),
)


def known(values: FloatArray) -> bool:
    """Return True if the series has a known value in the window."""
    return bool(values.size) and bool(np.isfinite(values).any())


def highest(*series: FloatArray) -> float:
    """Return the highest known value of several series, or 0.0. Only for the choice of a unit."""
    return max((float(np.nanmax(values)) for values in series if known(values)), default=0.0)


def byte_unit(top_bytes: float) -> Unit:
    """Return the unit of a figure: GiB from 0.5 GiB up, else MiB or KiB."""
    for unit in BYTE_UNITS:
        if top_bytes >= unit.divisor / 2:
            return unit
    return BYTE_UNITS[-1]


def run_unit(run: Mapping[str, Any]) -> Unit:
    """Return the unit of all charts of a run's page: that of its peak reserved memory; GiB if that is unknown."""
    peak = run.get("peak_reserved_bytes") or run.get("peak_allocated_bytes")
    return byte_unit(peak) if peak else BYTE_UNITS[0]


def escaped(text: str) -> str:
    """Escape text for Plotly, which reads some HTML tags and ``%{...}`` in names."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("%{", "%\u200b{")


class Drawing:
    """Builder of one figure: add known data, note unknown data, then call :meth:`done`."""

    def __init__(self, x: str, x0_seconds: float | None = None) -> None:
        self.figure = go.Figure()
        self.figure.update_layout(
            template="none",
            paper_bgcolor="rgba(0,0,0,0)",
            plot_bgcolor="rgba(0,0,0,0)",
            margin={"l": 56, "r": 12, "t": 10, "b": 40},
            showlegend=False,
            hovermode="x unified",
            uirevision="kept",
        )
        self.meta: dict[str, Any] = {"x": x, "x0_seconds": x0_seconds, "kind": "series"}
        self.stream: list[dict[str, Any]] = []
        self.all_rows: dict[str, Mapping[str, IntArray]] = {}
        self.statements: list[str] = []
        self.missing: list[str] = []
        self.where = "here"
        title, hover = {
            "time": ("time since start (s)", "%{x:.1f} s after the start"),
            "step": ("step", "step %{x:.0f}"),
        }.get(x, (None, None))
        self.figure.update_xaxes(
            title={"text": title, "standoff": 8},
            unifiedhovertitle={"text": hover},
            showgrid=False,
            zeroline=False,
            ticks="outside",
            ticklen=4,
            separatethousands=True,
        )
        self.figure.update_yaxes(zeroline=False, automargin=False, nticks=6, separatethousands=True)

    @classmethod
    def over(cls, window: RunWindow) -> Drawing:
        """Create a figure over the time or the steps of one run."""
        drawing = cls(window.x, window.x0_seconds)
        drawing.all_rows = {stream: rows.all_rows for stream, rows in window.streams.items() if rows.all_rows}
        drawing.where = "on this device" if window.device >= 0 else "on the CPU (no CUDA device)"
        for part in (part for stream in window.streams.values() for part in stream.damaged):
            drawing.say(
                f"{part['rows']} rows (steps {part['first_step']} to {part['last_step']}) are damaged and not shown"
            )
        return drawing

    def unknown(self, what: str) -> None:
        """Note that a series is unknown here. Unknown is never drawn as 0."""
        self.missing.append(what)

    def say(self, statement: str) -> None:
        """Add a note on missing data. The page shows it with the figure."""
        self.statements.append(statement)

    def no_rows(self, stream: str, statement: str) -> None:
        """Note that the window has no rows of a stream. The page loads the window again with the first live row."""
        self.meta["awaits"] = stream
        self.say(statement)

    def y_axis(self, unit: Unit, key: str = "yaxis", **options: Any) -> None:
        self.figure.update_layout(
            {key: {"title": {"text": unit.name, "standoff": 6}, "rangemode": "tozero", **options}}
        )

    def count_axis(self, title: str) -> None:
        """Add a second axis on the right for small counts. It reaches at least 4, so that ticks are integers."""
        whole = {"nticks": 5, "tickformat": "d", "tickmode": "auto", "autorangeoptions": {"include": [0, 4]}}
        self.y_axis(COUNT, "yaxis2", overlaying="y", side="right", showgrid=False, **whole)
        self.figure.update_layout(yaxis2_title={"text": title}, margin_r=56)

    def trace(
        self,
        x: FloatArray,
        y: FloatArray,
        *,
        role: str,
        label: str,
        unit: Unit,
        kind: str,
        part: str = "value",
        axis: str = "y",
        meaning: str | None = None,
        feed: dict[str, Any] | None = None,
        shown: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """Add one trace. ``y`` in the unit of the wire; ``feed`` names the stream and the field of its live rows."""
        silent = kind in {"edge", "band"}
        if silent:
            options["hoverinfo"] = "skip"
        else:
            options.setdefault("hovertemplate", f"%{{y:.{unit.decimals}f}} {unit.name}<extra>{escaped(label)}</extra>")
        maker = go.Bar if kind == "bar" else go.Scatter
        if kind != "bar":
            options.setdefault("mode", "lines")
        meta = {
            "role": role,
            "label": label,
            "kind": kind,
            "part": part,
            "unit": unit.quantity,
            "divisor": unit.divisor,
            "axisUnit": unit.name,
            "meaning": meaning,
            "smooths": kind == "line" and feed is not None and "peak" not in feed["field"],
            **(shown or {}),
        }
        if feed is not None:
            entry = {"trace": len(self.figure.data), "scale": 1.0 / unit.divisor, **feed}
            self.stream.append(entry)
            if not silent and feed["stream"] in self.all_rows:
                meta["whole"] = whole_window(self.all_rows[feed["stream"]], feed, entry["scale"])
        self.figure.add_trace(
            maker(x=x, y=y / unit.divisor, name=escaped(label), yaxis=axis, meta=meta, showlegend=False, **options)
        )

    def line(
        self,
        stream: StreamWindow,
        name: str,
        *,
        role: str,
        label: str,
        unit: Unit,
        factor: float = 1.0,
        meaning: str | None = None,
        axis: str = "y",
        **options: Any,
    ) -> bool:
        """Draw a column: its mean as a line and, for thinned rows, the range from min to max as a band.

        ``factor`` turns the wire's unit into ``unit.quantity`` (milliwatts to watts).
        Returns whether anything was known.
        """
        column = stream.columns[name]
        if not known(column.max):
            return False
        feed = {"stream": stream.stream, "field": name, "scale": factor / unit.divisor}
        common: dict[str, Any] = {
            "role": role,
            "label": label,
            "unit": unit,
            "axis": axis,
            "meaning": meaning,
            "feed": feed,
        }
        if stream.envelope:
            x = stream.x_values
            self.trace(x, column.min * factor, kind="edge", part="min", **common)
            self.trace(x, column.max * factor, kind="band", part="max", fill="tonexty", **common)
            # thin over a band: where a sawtooth is dense, a thick mean would be all that one sees
            options["line"] = {**options.get("line", {}), "width": 1}
        part = "mean" if stream.envelope else "value"
        self.trace(stream.x_values, column.mean * factor, kind="line", part=part, **common, **options)
        return True

    def capacity(self, capacity_bytes: float | None, unit: Unit) -> None:
        """Draw a line at the device's capacity, or note that it is unknown."""
        if not capacity_bytes:
            self.say("capacity of the device: unknown")
            return
        level = capacity_bytes / unit.divisor
        self.meta["capacity"] = level
        self.figure.add_shape(
            name="capacity",
            type="line",
            xref="paper",
            x0=0,
            x1=1,
            y0=level,
            y1=level,
            line={"width": 1.5, "dash": "dash"},
            label={
                "text": f"capacity {amount(capacity_bytes)}",
                "textposition": "start",  # what is newest, or an error, is at the end
                "yanchor": "bottom",
                "padding": 2,
            },
        )

    def out_of_memory(self, x: FloatArray, y: FloatArray, unit: Unit, **options: Any) -> None:
        """Draw a cross at each failed request."""
        self.trace(
            x,
            y,
            role="out-of-memory",
            label="out of memory",
            unit=unit,
            kind="marker",
            mode="markers",
            marker={"symbol": "x", "size": 9},
            **options,
        )

    def done(self, **layout: Any) -> go.Figure:
        """Return the finished figure."""
        self.meta["stream"] = self.stream
        empty = not self.figure.data
        if self.missing:
            self.say(f"{', '.join(self.missing)}: unknown {self.where}")
        if empty and not self.statements:
            self.say("nothing recorded yet")
        # The page reads these by their name and says them in its own place; a notebook shows them as they are.
        for i, statement in enumerate(self.statements):
            place: dict[str, Any] = (
                {"x": 0.5, "y": 0.5 - 0.1 * i} if empty else {"x": 0, "y": 1 - 0.08 * i, "xanchor": "left"}
            )
            self.figure.add_annotation(
                name="statement", text=escaped(statement), showarrow=False, xref="paper", yref="paper", **place
            )
        if empty:
            self.figure.update_xaxes(visible=False)
            self.figure.update_yaxes(visible=False)
        if self.meta["kind"] != "static":
            # Numbers have room enough: to ask whether they would touch or run over costs the browser a layout an axis.
            self.figure.update_xaxes(tickangle=0, ticklabeloverflow="allow")
            self.figure.update_yaxes(ticklabeloverflow="allow")
        self.figure.update_layout(meta=self.meta, **layout)
        return self.figure


def samples_of(window: RunWindow) -> StreamWindow:
    """Return the sampler's rows. On a step axis, the rows of one step are side by side.

    A sample says how many steps had finished; of the samples with the same number, each stands at its share of the way
    to the next. They come at even intervals, so that this is their moment within the step, to one sample.
    """
    samples = window.samples
    x = samples.x_values
    if window.x != "step" or x.size < 2:
        return samples
    firsts = np.flatnonzero(np.r_[True, x[1:] != x[:-1]])
    lengths = np.diff(np.r_[firsts, x.size])
    within = (np.arange(x.size) - np.repeat(firsts, lengths)) / np.repeat(lengths, lengths)
    room = np.diff(np.r_[x[firsts], x[-1] + 1])
    return dataclasses.replace(samples, x_values=x + within * np.repeat(np.minimum(room, 1.0), lengths))
