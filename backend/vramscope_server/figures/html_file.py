"""Self-contained HTML files: figures, tables and text in one file that loads nothing.

The drawing library is stored compressed, about 2 MB, and unpacked by the browser when the file is opened.
"""

from __future__ import annotations

import base64
import functools
import gzip
import html
from collections.abc import Iterable, Sequence
from importlib import resources
from typing import Any, Final

import plotly.graph_objects as go

_STYLE: Final = (
    ":root{color-scheme:light dark}"
    "body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem}"
    "h1{font-size:1.4rem;overflow-wrap:anywhere}h2{font-size:1.05rem;margin-top:2rem}"
    "table{border-collapse:collapse;width:100%}"
    "td,th{padding:.25rem .8rem .25rem 0;text-align:left;vertical-align:top;border-bottom:1px solid #8884;"
    "overflow-wrap:anywhere}td:first-child,th:first-child{min-width:6.5rem}td:not(:last-child){min-width:3.5rem}pre{white-space:pre-wrap;overflow-wrap:anywhere}.say{font-size:1.1rem}.muted{opacity:.7}"
    ".wide{overflow-x:auto}.wide td,.wide th{white-space:nowrap}"
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
)  # fmt: skip
"""Colour-blind safe colours: Paul Tol's bright scheme, and three of his others."""
_GRID: Final = "#88888844"
_FIXED: Final = {
    "reserved": "#888888", "out-of-memory": "#c0392b", "unknown": "#999999", "other": "#777777",
    "flame-own": "#cc6633", "flame-library": "#99aabb", "flame-module": "#6699aa", "flame-none": "#aaaaaa",
}  # fmt: skip


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
    """A figure of the server in colours of its own; ``height`` in pixels."""
    shown = go.Figure(figure)
    for at, trace in enumerate(shown.data):
        meta = trace.meta or {}
        colour = _FIXED.get(str(meta.get("role")), _COLOURS[at % len(_COLOURS)])
        if trace.type == "bar":
            trace.update(marker_color=colour)
        elif meta.get("kind") == "area":
            trace.update(fillcolor=colour, line_color=colour, line_width=0)
        elif meta.get("kind") == "marker":
            trace.update(marker_color=colour)
        else:
            trace.update(line_color=colour)
        trace.update(showlegend=trace.name not in {other.name for other in shown.data[:at]})
    shown.update_layout(
        height=height,
        font={"color": "#888888"},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        showlegend=True,
        legend={"orientation": "h", "y": -0.25},
    )
    shown.update_xaxes(gridcolor=_GRID, zerolinecolor=_GRID)
    shown.update_yaxes(gridcolor=_GRID, zerolinecolor=_GRID)
    return f"<div data-figure></div><script type=application/json>{shown.to_json()}</script>"  # to_json escapes each <


def table(head: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    """A table of texts; ``head`` may be empty texts."""
    body = "".join(f"<tr>{''.join(f'<td>{escaped(cell)}</td>' for cell in row)}</tr>" for row in rows)
    titles = "".join(f"<th>{escaped(cell)}</th>" for cell in head) if any(head) else ""
    return f"<table>{f'<tr>{titles}</tr>' if titles else ''}{body or '<tr><td>none</td></tr>'}</table>"


def wide(inner: str) -> str:
    """A table whose columns do not fit into a narrow page: it scrolls by itself."""
    return f"<div class=wide tabindex=0>{inner}</div>"


def section(title: str, *parts: str) -> str:
    return f"<h2>{escaped(title)}</h2>{''.join(parts)}"


def escaped(text: object) -> str:
    return html.escape(str(text))


@functools.cache
def _library() -> str:
    """Plotly.js as base64 of gzip, the same in each process."""
    code = resources.files("plotly").joinpath("package_data/plotly.min.js").read_bytes()
    return base64.b64encode(gzip.compress(code, 9, mtime=0)).decode()
