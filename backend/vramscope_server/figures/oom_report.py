"""One out-of-memory error as a self-contained HTML file, to attach to an issue or to keep."""

from __future__ import annotations

import html
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

import plotly.graph_objects as go
import plotly.io

from vramscope_server.analysis.number_format import amount, count, duration

_STYLE: Final = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:64rem;margin:2rem auto;padding:0 1rem;color-scheme:light dark}"
    "h1{font-size:1.4rem}h2{font-size:1.05rem;margin-top:2rem}table{border-collapse:collapse;width:100%}"
    "td,th{padding:.25rem .8rem .25rem 0;text-align:left;vertical-align:top;border-bottom:1px solid #8884}"
    ".n{text-align:right;white-space:nowrap}.own{font-weight:600}pre{white-space:pre-wrap;overflow-wrap:anywhere}"
    ".say{font-size:1.1rem}.muted{opacity:.7}"
)
_COLOURS: Final = {"allocated": "#2f7ed8", "reserved": "#e08a1e", "device-in-use": "#888", "device-used": "#888"}
ENOUGH: Final = {True: "enough", False: "not enough", None: "may be enough"}


def report(error: Mapping[str, Any], figure: go.Figure) -> str:
    """HTML of an error as ``GET /oom/RECORD`` answers it. About 4.5 MB, with the drawing library."""
    for trace in figure.data:
        trace.update(line_color=_COLOURS.get(str((trace.meta or {}).get("role")), "#c0392b"))
    figure.update_layout(height=360, font={"color": "#888"}, showlegend=True)
    for trace in figure.data:
        trace.update(showlegend=True)
    drawn = plotly.io.to_html(figure, include_plotlyjs=True, full_html=False, config={"displayModeBar": False})
    when = (
        time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(error["time_seconds"]))
        if error["time_seconds"]
        else "unknown"
    )
    parts = [
        f"<p class=say>{_e(error['sentence'])}</p>",
        f"<p class=muted>run {_e(error['run'])}, rank {error['rank']}, {when}; cause: {_e(error['cause'] or 'unknown')}</p>",
        "<h2>Remedies</h2>",
        _table(
            ("remedy", "saves", "", "cost", "source"),
            [
                (
                    row["what"],
                    amount(row["saves_bytes"]),
                    ENOUGH[row["enough"]],
                    row["cost"],
                    f"{row['source']}: {row['source_words']}",
                )
                for row in error["remedies"]
            ],
        ),
        *_ranks(error["ranks"]),
        "<h2>The last minute</h2>",
        drawn,
        "<h2>Memory by owner</h2>",
        _table(("owner", "bytes"), [(row["name"], amount(row["bytes"])) for row in error["by_category"]]),
        "<h2>By module</h2>",
        _table(
            ("module", "total", "parameters", "gradients", "optimizer", "buffers"),
            [
                (
                    row["module"],
                    *(amount(row.get(k, 0)) for k in ("bytes", "parameters", "gradients", "optimizer", "buffers")),
                )
                for row in error["by_module"]
            ],
        ),
    ]
    if error["by_site"]:
        rows = [
            (
                f"{row['file'] or ''}:{row['line'] or ''} {row['function'] or ''}",
                row["category"] or "",
                amount(row["bytes"]),
            )
            for row in error["by_site"]
        ]
        parts += ["<h2>By line</h2>", _table(("line", "category", "bytes"), rows)]
    if error["by_site_words"]:
        parts += [] if error["by_site"] else ["<h2>By line</h2>"]
        parts.append(f"<p class=muted>{_e(error['by_site_words'])}</p>")
    taken = error["counters"]["before_seconds"]
    head = ("counter", "before" if taken is None else f"{duration(taken)} before", "at the error")
    parts += ["<h2>Counters before and at the error</h2>", _table(head, _counters(error["counters"]["rows"]))]
    stack = [f"{frame['file']}:{frame['line']} in {frame['function']}" for frame in error["stack"]]
    parts += ["<h2>Stack</h2>", f"<pre>{_e(chr(10).join(stack) or 'no Python code ran on that thread')}</pre>"]
    if error["message"].get("text"):
        parts += ["<h2>Error message</h2>", f"<pre>{_e(error['message']['text'])}</pre>"]
    title = _e(f"Out of memory: {error['run']}")
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'><title>{title}</title>"
        f"<style>{_STYLE}</style><h1>{title}</h1>{''.join(parts)}<p class=muted>Created by vramscope</p></html>"
    )


def _ranks(ranks: Iterable[Mapping[str, Any]]) -> list[str]:
    state = {True: "ran out", False: "waited", None: "no record"}
    rows = [
        (
            rank["rank"],
            state[rank["ran_out"]]
            + (
                ""
                if rank["record"] or rank["as_of_seconds"] is None
                else f", sampled {-rank['as_of_seconds']:.2f} s before"
            ),
            f"{rank['file']}:{rank['line']}" if rank["file"] else "",
            *(amount(rank[name]) for name in ("free_bytes", "allocated_bytes", "reserved_bytes")),
        )
        for rank in ranks
    ]
    head = ("rank", "state", "line", "free on the device", "allocated", "reserved")
    return ["<h2>All ranks at the error</h2>", _table(head, rows)] if rows else []


def _counters(rows: Iterable[Mapping[str, Any]]) -> Iterable[tuple[str, str, str]]:
    for row in rows:
        words = amount if row["name"].endswith("_bytes") else count
        name = row["name"].removesuffix("_bytes").replace("_", " ")
        yield name, words(row["before"]), words(row["at"])


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    body = "".join(f"<tr>{''.join(f'<td>{_e(cell)}</td>' for cell in row)}</tr>" for row in rows)
    titles = "".join(f"<th>{_e(cell)}</th>" for cell in head)
    return f"<table><tr>{titles}</tr>{body or '<tr><td>none</td></tr>'}</table>"


def _e(text: object) -> str:
    return html.escape(str(text))
