"""One out-of-memory error as a self-contained HTML file, to attach to an issue or to keep."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

import plotly.graph_objects as go

from vramscope_server.analysis.number_format import amount, count, duration
from vramscope_server.analysis.oom.saving import saving_words
from vramscope_server.figures.html_file import drawn, escaped, html_file, table

SHORTEST_SECONDS: Final = 0.001
ENOUGH: Final = {True: "enough", False: "not enough", None: "may be enough"}


def report(error: Mapping[str, Any], figure: go.Figure) -> str:
    """HTML of an error as ``GET /oom/RECORD`` answers it. About 2 MB, with the drawing library."""
    when = (
        time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(error["time_seconds"]))
        if error["time_seconds"]
        else "unknown"
    )
    parts = [
        f"<p class=say>{escaped(error['sentence'])}</p>",
        f"<p class=muted>run {escaped(error['run'])}, rank {error['rank']}, {when}; "
        f"cause: {escaped(error['cause'] or 'unknown')}</p>",
        "<h2>Remedies</h2>",
        table(
            ("remedy", "saves", "", "cost", "source"),
            [
                (
                    row["what"],
                    saving_words(row, error),
                    ENOUGH[row["enough"]],
                    row["cost"],
                    f"{row['source']}: {row['source_words']}",
                )
                for row in error["remedies"]
            ],
        ),
        *_ranks(error["ranks"]),
        "<h2>The last minute</h2>",
        drawn(figure, 360),
        "<h2>Memory by owner</h2>",
        table(("owner", "bytes"), [(row["name"], amount(row["bytes"])) for row in error["by_category"]]),
        "<h2>By module</h2>",
        table(
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
        parts += ["<h2>By line</h2>", table(("line", "category", "bytes"), rows)]
    if error["by_site_words"]:
        parts += [] if error["by_site"] else ["<h2>By line</h2>"]
        parts.append(f"<p class=muted>{escaped(error['by_site_words'])}</p>")
    taken = error["counters"]["before_seconds"]
    head = ("counter", f"{duration(taken)} before" if taken and taken >= SHORTEST_SECONDS else "before", "at the error")
    parts += ["<h2>Counters before and at the error</h2>", table(head, _counters(error["counters"]["rows"]))]
    stack = [f"{frame['file']}:{frame['line']} in {frame['function']}" for frame in error["stack"]]
    parts += ["<h2>Stack</h2>", f"<pre>{escaped(chr(10).join(stack) or 'no Python code ran on that thread')}</pre>"]
    if error["message"].get("text"):
        parts += ["<h2>Error message</h2>", f"<pre>{escaped(error['message']['text'])}</pre>"]
    return html_file(f"Out of memory: {error['run']}", parts)


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
    return ["<h2>All ranks at the error</h2>", table(head, rows)] if rows else []


def _counters(rows: Iterable[Mapping[str, Any]]) -> Iterable[tuple[str, str, str]]:
    for row in rows:
        words = amount if row["name"].endswith("_bytes") else count
        name = row["name"].removesuffix("_bytes").replace("_", " ")
        is_equal = row["at"] is not None and row["before"] == row["at"]
        yield name, "equal" if is_equal else words(row["before"]), words(row["at"])
