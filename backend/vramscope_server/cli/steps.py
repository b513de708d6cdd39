"""``vramscope steps RUN``: exact peak of each step."""

from __future__ import annotations

from typing import Final

from rich.text import Text

from vramscope_server.analysis.number_format import amount, count, duration
from vramscope_server.answers.steps import Step
from vramscope_server.cli.client import ask, path_of, print_json
from vramscope_server.cli.format import ABSENT
from vramscope_server.cli.tables import Column, console, print_table

NEWEST: Final = 20
"""Default number of steps of the table. JSON has all."""
MOST: Final = 100_000
_RESET = {1: "peak counter reset by other code; still exact", 2: "peak counter reset by other code; lower bound"}


def show(
    server: str,
    as_json: bool,
    run: str,
    *,
    rank: int | None,
    device: int | None,
    first: int | None,
    to: int | None,
    last: int | None,
) -> None:
    """Print a table of steps, or a JSON array. Raises client.Failure."""
    whole = as_json or first is not None or to is not None
    limit = last if last is not None else MOST if whole else NEWEST
    words = {"rank": rank, "device": device, "from": first, "to": to, "limit": limit}
    rows: list[Step] = ask(server, f"/runs/{path_of(server, run)}/steps", **words)
    if as_json:
        print_json(rows)
        return
    out = console()
    if not rows:
        out.print(
            "No finished steps in this range." if first is not None or to is not None else "No finished steps yet."
        )
        return
    phases = list(dict.fromkeys(phase for row in rows for phase in row["phases"]))
    columns = [
        Column("STEP", number=True),
        Column("ALLOCATED", number=True),
        Column("PEAK IN", needed=1, number=True),
        Column("RESERVED", needed=1, number=True),
        Column("TIME", needed=2, number=True),
        *(Column(phase.upper(), needed=3, number=True) for phase in phases),
        Column(""),
    ]
    print_table(out, columns, [_cells(row, phases) for row in rows])
    known = [row for row in rows if row["peak_allocated_bytes"] is not None]
    if known:
        high = max(known, key=lambda row: row["peak_allocated_bytes"] or 0)
        text = f"highest of these {count(len(rows))}: {amount(high['peak_allocated_bytes'])} in {_named(high)}"
        out.print(Text(text, style="dim"))


def _named(row: Step) -> str:
    return f"{'step' if row['first_step'] == row['step'] else 'steps'} {_numbers(row)}"


def _numbers(row: Step) -> str:
    """The step, or the first and the last of a group."""
    return str(row["step"]) if row["first_step"] == row["step"] else f"{row['first_step']}-{row['step']}"


def _peak_of_phase(row: Step, phase: str) -> int | None:
    found = row["phases"].get(phase)
    return None if found is None else found.get("peak_allocated_bytes")


def _cells(row: Step, phases: list[str]) -> list[str | Text]:
    return [
        _numbers(row),
        amount(row["peak_allocated_bytes"], ABSENT),
        row["peak_phase"] or ABSENT,
        amount(row["peak_reserved_bytes"], ABSENT),
        duration(row["seconds"], ABSENT),
        *(amount(_peak_of_phase(row, phase), ABSENT) for phase in phases),
        Text(_RESET.get(row["foreign_reset"] or 0, ""), style="yellow"),
    ]
