"""``vramscope steps RUN``: exact peaks, step by step."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from vramscope_server.cli.talk import ask, find, print_json
from vramscope_server.cli.words import UNKNOWN, amount, duration

_RESET = {None: "", 0: "", 1: "reset by somebody; exact", 2: "reset by somebody; at least"}


def show(server: str, as_json: bool, run: str, *, rank: int | None, device: int | None, last: int) -> None:
    """Print a table of the newest steps, or all of them as JSON. Raises talk.Failure."""
    rows: list[dict[str, Any]] = ask(server, f"/runs/{find(server, run)}/steps", rank=rank, device=device, limit=last)
    if as_json:
        print_json(rows)
        return
    console = Console(highlight=False)
    if not rows:
        console.print("No step has ended yet.")
        return
    phases = list(dict.fromkeys(phase for row in rows for phase in row["phases"]))
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("STEP", "TIME", "ALLOCATED", "RESERVED"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("PEAK IN")
    for phase in phases:
        table.add_column(phase.upper(), justify="right", no_wrap=True)
    table.add_column("")
    for row in rows:
        table.add_row(
            str(row["step"]),
            duration(row["seconds"]),
            amount(row["peak_allocated_bytes"]),
            amount(row["peak_reserved_bytes"]),
            row["peak_phase"] or UNKNOWN,
            *(amount(row["phases"].get(phase, {}).get("peak_allocated_bytes")) for phase in phases),
            _RESET.get(row["foreign_reset"], ""),
        )
    console.print(table)
