"""Self-contained HTML files: figures, tables and text in one file that loads nothing.

The drawing library is stored compressed, about 2 MB, and unpacked by the browser when the file is opened.
"""

from __future__ import annotations

import base64
import functools
import gzip
import html
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import Any, Final

import numpy as np
import plotly.graph_objects as go

from vramscope_server.analysis.array_types import FloatArray

_STYLE: Final = (
    ":root{color-scheme:light dark;--soft:#555}@media(prefers-color-scheme:dark){:root{--soft:#aaa}}"
    "body{font:15px/1.5 system-ui,sans-serif;max-width:88rem;margin:2rem auto;padding:0 1rem}"
    "p{max-width:50rem}"
    "h1{font-size:1.4rem;overflow-wrap:anywhere}h2{font-size:1.05rem;margin-top:2rem}"
    "table{border-collapse:collapse;width:100%}"
    "td,th{padding:.25rem .8rem .25rem 0;text-align:left;vertical-align:top;border-bottom:1px solid #8884;"
    "white-space:nowrap}td.text{white-space:normal;min-width:11rem;overflow-wrap:anywhere}.scroll{overflow-x:auto}"
    "pre{white-space:pre-wrap;overflow-wrap:anywhere}.say{font-size:1.1rem}.muted{color:var(--soft)}"
    ".wide td.text:not(:last-child){white-space:nowrap}"
    ".legend{display:flex;flex-wrap:wrap;gap:.1rem 1.2rem;padding:0;margin:.2rem 0 0;list-style:none;font-size:.85rem}"
    ".legend i{display:inline-block;width:1em;height:.7em;margin-right:.5em;border:2px solid}"
    ".legend i.line{height:0;border-width:2px 0 0}"
    ":is(.xtick,.ytick,.y2tick,.g-xtitle,.g-ytitle,.g-y2title,.annotation,.shape-label,.textpoint) text"
    "{fill:var(--soft)!important}"
)
_DRAW: Final = """
(async () => {
  const packed = atob(document.getElementById("plotly").textContent);
  const stream = new Blob([Uint8Array.from(packed, (c) => c.charCodeAt(0))]).stream();
  const code = await new Response(stream.pipeThrough(new DecompressionStream("gzip"))).text();
  const library = document.createElement("script");
  library.textContent = code;
  document.head.append(library);
  for (const place of document.querySelectorAll("[data-figure]")) {
    const { data, layout } = JSON.parse(place.nextElementSibling.textContent);
    Plotly.newPlot(place, data, layout, { displaylogo: false, responsive: true });
  }
})();
"""
_COLOURS: Final = (
    "#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb", "#997700", "#004488", "#ee99aa",
    "#44aa99", "#882255",
)  # fmt: skip
"""Colour-blind safe colours: Paul Tol's bright scheme, and five of his others."""
_GRID: Final = "#88888844"
_FIXED: Final = {
    "reserved": "#888888", "total": "#888888", "out-of-memory": "#c0392b", "unknown": "#999999", "other": "#777777",
    "flame-own": "#cc6633", "flame-library": "#99aabb", "flame-module": "#6699aa", "flame-none": "#aaaaaa",
    "parameters": "#0072b2", "gradients": "#cc79a7", "optimizer": "#009e73", "buffers": "#f0e442", "activations": "#e69f00",
    "workspaces": "#8a7a00", "temporaries": "#d55e00", "input": "#56b4e9", "unsplit": "#a3adb8", "unused": "#4b9fd0",
    "usable": "#a9d3ee", "unusable": "#d55e00", "private": "#7a5aa6", "outside": "#5b6b7c", "context": "#5b6b7c",
    "others": "#c3ccd6", "unattributed": "#98a4b1", "capacity": "#c0392b", "loss-lost": "#b3261e",
    "pareto": "#888888", "trend": "#888888",
}  # fmt: skip
"""Colours of roles, as on the pages. Other roles take turns."""
LONG: Final = 20
"""Letters from which on a cell is a text, whose lines may break."""
_LITTLE_USED: Final = 0.5
"""Below this share of the capacity its line is left out: data beside it would be flat. An axis with a range of its own stays."""


def html_file(title: str, parts: Iterable[str]) -> str:
    """The file. ``title``: as text; ``parts``: as HTML, of the functions below."""
    name = escaped(title)
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>{name}</title><style>{_STYLE}</style><h1>{name}</h1>{''.join(parts)}"
        f"<p class=muted>Created by vramscope</p><script type=text/plain id=plotly>{_library()}</script>"
        f"<script>{_DRAW}</script></html>"
    )


def drawn(figure: go.Figure | dict[str, Any], height: int) -> str:
    """A figure of the server in colours of its own, its notes and its legend; ``height`` in pixels."""
    shown = go.Figure(figure)
    notes = [note.text for note in shown.layout.annotations if note.name == "statement"]
    said = f"<p class=muted>{'<br>'.join(notes)}</p>" if notes else ""  # escaped when they were drawn
    if not shown.data:
        return said
    entries: dict[str, str] = {}
    turns: dict[str, int] = {}
    for trace in shown.data:
        meta = trace.meta or {}
        role = str(meta.get("role"))
        if role not in _FIXED:
            role = str(meta.get("colour") or role)
        colour = _FIXED.get(role) or _COLOURS[turns.setdefault(role, len(turns)) % len(_COLOURS)]
        if trace.type == "bar":
            trace.update(marker_color=colour, constraintext="both")
        elif meta.get("kind") == "area":
            trace.update(fillcolor=colour, line_color=colour, line_width=0)
        elif meta.get("kind") == "marker":
            trace.update(marker_color=colour)
        else:
            trace.update(line_color=colour)
        if trace.name and meta.get("legend") is not False and trace.visible is not False:
            entries.setdefault(trace.name, _entry(trace, colour))
    shown.update_layout(
        height=height,
        font={"color": "#888888"},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        showlegend=False,
        uniformtext={"minsize": 9, "mode": "hide"},  # names of phases and boxes that are too narrow for them
    )
    for shape in shown.layout.shapes:
        if shape.line.color is None:  # Plotly's black is not seen in the dark
            shape.line.color = _FIXED["out-of-memory"] if shape.name == "capacity" else "#888888"
    shown.layout.annotations = [note for note in shown.layout.annotations if note.name != "statement"]
    capacity = (shown.layout.meta or {}).get("capacity")
    if capacity and shown.layout.yaxis.range is None and _highest(shown) < _LITTLE_USED * capacity:
        shown.layout.shapes = [shape for shape in shown.layout.shapes if shape.name != "capacity"]
    shown.update_xaxes(gridcolor=_GRID, zerolinecolor=_GRID)
    shown.update_yaxes(gridcolor=_GRID, zerolinecolor=_GRID)
    drawing = (
        f"<div data-figure></div><script type=application/json>{shown.to_json()}</script>"  # to_json escapes each <
    )
    legend = f"<ul class=legend>{''.join(entries.values())}</ul>" if len(entries) > 1 else ""
    return f"{said}{drawing}{legend}"


def _entry(trace: Any, colour: str) -> str:
    """Entry of the legend. The name was escaped when it was drawn."""
    hollow = str(getattr(trace.marker, "symbol", "")).endswith("-open")
    is_line = trace.type == "scatter" and "lines" in (trace.mode or "lines") and not (trace.fill or trace.stackgroup)
    fill = "" if hollow or is_line else f";background:{colour}"
    dashed = ";border-style:dashed" if is_line and trace.line.dash else ""
    kind = " class=line" if is_line else ""
    return f"<li><i{kind} style='border-color:{colour}{fill}{dashed}'></i>{trace.name}</li>"


def _highest(figure: go.Figure) -> float:
    """Highest value that is drawn on the first y axis; of stacked areas that of their sum."""
    drawn_here = [trace for trace in figure.data if trace.visible is not False and trace.yaxis in {None, "y"}]
    curves = [(trace.stackgroup, _numbers(trace.y)) for trace in drawn_here if trace.y is not None]
    stacked = [values for group, values in curves if group]
    tops = [values.max(initial=0) for _, values in curves]
    if stacked and len({values.size for values in stacked}) == 1:
        tops.append(np.sum(stacked, axis=0).max(initial=0))
    return float(max(tops, default=0.0))


def _numbers(values: Any) -> FloatArray:
    """Values of a trace: numbers, or Plotly's JSON of an array. Unknown ones are 0."""
    if isinstance(values, Mapping):
        values = np.frombuffer(base64.b64decode(values["bdata"]), values["dtype"])
    known: FloatArray = np.nan_to_num(np.array(values, float))
    return known


def table(head: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    """A table of texts; ``head`` may be empty texts. On a narrow page it scrolls by itself, and its numbers stay whole."""
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    titles = "".join(f"<th>{escaped(cell)}</th>" for cell in head) if any(head) else ""
    kind = "" if titles else " class=facts"
    rows_shown = f"{f'<tr>{titles}</tr>' if titles else ''}{body or '<tr><td>none</td></tr>'}"
    return f"<div class=scroll tabindex=0><table{kind}>{rows_shown}</table></div>"


def _cell(text: object) -> str:
    kind = " class=text" if len(str(text)) > LONG else ""
    return f"<td{kind}>{escaped(text)}</td>"


def wide(inner: str) -> str:
    """A table of which each row is one line, the last column aside."""
    return f"<div class=wide>{inner}</div>"


def section(title: str, *parts: str) -> str:
    return f"<h2>{escaped(title)}</h2>{''.join(parts)}"


def escaped(text: object) -> str:
    return html.escape(str(text))


@functools.cache
def _library() -> str:
    """Plotly.js as base64 of gzip, the same in each process."""
    code = resources.files("plotly").joinpath("package_data/plotly.min.js").read_bytes()
    return base64.b64encode(gzip.compress(code, 9, mtime=0)).decode()
