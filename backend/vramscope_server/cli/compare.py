"""``vramscope compare BASELINE RUN...``: which run needs how much, against the baseline."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vramscope_server.cli.talk import ask, find, print_json
from vramscope_server.cli.words import UNKNOWN, amount, duration, percent


def show(server: str, as_json: bool, baseline: str, runs: list[str]) -> None:
    """Print a table, baseline first, or its rows as JSON. Raises talk.Failure."""
    words = [find(server, run) if "/" in run else run for run in (baseline, *runs)]
    told: dict[str, Any] = ask(server, "/compare", runs=",".join(words), base=words[0])
    if as_json:
        print_json(told["rows"])
        return
    console = Console(highlight=False)
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("RUN")
    for name in ("PEAK", "AGAINST BASELINE", "RESERVED", "STEP", "TIME"):
        table.add_column(name, justify="right", no_wrap=True)
    for position, row in enumerate(told["rows"]):
        saved = None if row["saved_fraction"] is None else -row["saved_fraction"]
        ratio = UNKNOWN if row["step_time_ratio"] is None else f"{row['step_time_ratio']:.2f} times"
        table.add_row(
            Text(row["name"], style="bold" if position == 0 else "default"),
            amount(row["peak_allocated_bytes"]),
            "baseline" if position == 0 else percent(saved, signed=True),
            amount(row["peak_reserved_bytes"]),
            duration(row["step_seconds_median"]),
            "" if position == 0 else ratio,
        )
    console.print(table)
    for warning in told["warnings"]:
        console.print(Text(f"note: {warning}", style="yellow"))
