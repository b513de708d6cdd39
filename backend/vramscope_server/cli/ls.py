"""``vramscope ls``: the runs, newest first."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vramscope_server.cli.talk import ask, print_json
from vramscope_server.cli.words import STATE_STYLE, ago, amount, duration, percent


def show(server: str, as_json: bool, *, query: str, project: str, state: str) -> None:
    """Print a table, or a JSON array of the API's rows. Raises talk.Failure."""
    rows: list[dict[str, Any]] = []
    cursor: str | None = ""
    while cursor is not None:
        page = ask(server, "/runs", query=query, project=project, state=state, cursor=cursor, limit=1000)
        rows += page["runs"]
        cursor = page["next_cursor"]
    if as_json:
        print_json(rows)
        return
    console = Console(highlight=False)
    if not rows:
        console.print(
            "No runs yet. One line in a training brings the first: from vramscope import agent; agent.attach()"
        )
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("", "RUN", "NAME", "PROJECT", "DEVICE"):
        table.add_column(name, overflow="fold")
    for name in ("PEAK", "RESERVED", "FRAG", "STEPS", "STEP", "STARTED"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        mark = "◆" if row["baseline"] else "●" if row["pinned"] else ""
        table.add_row(
            Text(f"{row['state']} {mark}".strip(), style=STATE_STYLE.get(row["state"], "default")),
            row["run_id"][:10],
            Text(row["name"]),
            Text(row["project"]),
            Text(row["device"] or "unknown"),
            amount(row["peak_allocated_bytes"]),
            amount(row["peak_reserved_bytes"]),
            percent(row["fragmentation_fraction"]),
            "unknown" if row["steps"] is None else f"{row['steps']:,}",
            duration(row["step_seconds_median"]),
            ago(row["started_seconds"]),
        )
    console.print(table)
