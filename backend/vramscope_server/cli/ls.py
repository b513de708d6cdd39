"""``vramscope ls``: list runs, pinned ones and baselines first, then newest first."""

from __future__ import annotations

from typing import Final

from rich.text import Text

from vramscope_server.analysis.number_format import amount, count, duration, percent
from vramscope_server.analysis.peak_bound import peak_bound
from vramscope_server.answers.runs import ListedRun, RunList, RunRow
from vramscope_server.cli.client import ask, print_json
from vramscope_server.cli.format import ABSENT, STATE_STYLE, ago, plain
from vramscope_server.cli.tables import Column, console, print_table

SHOWN: Final = 50
"""Default number of rows of the table. JSON has all."""
_PAGE: Final = 1000
_COLUMNS = (
    Column("STATE"),
    Column("NAME"),
    Column("ID", needed=3, number=True),
    Column("PROJECT", needed=4),
    Column("DEVICE", needed=7),
    Column("PEAK", number=True),
    Column("RESERVED", needed=2, number=True),
    Column("NEVER NEEDED", needed=6, number=True),
    Column("UNUSABLE", needed=6, number=True),
    Column("LEAKED", needed=5, number=True),
    Column("TECHNIQUES", needed=8),
    Column("STEPS", needed=5, number=True),
    Column("STEP TIME", needed=4, number=True),
    Column("STARTED", needed=1, number=True),
)


def show(server: str, as_json: bool, *, query: str, project: str, state: str, job: str, limit: int | None) -> None:
    """Print a table, or a JSON array of the API's rows. Raises client.Failure."""
    limit = limit if limit is not None else 0 if as_json else SHOWN
    rows, total = runs_of(server, limit, query=query, project=project, state=state, job=job)
    if as_json:
        print_json(rows)
        return
    out = console()
    if not rows:
        anything = query or project or state or job
        out.print(
            "No matching runs."
            if anything
            else "No runs yet. Add to a training: from vramscope import agent; agent.attach()"
        )
        return
    print_table(out, _COLUMNS, [_cells(row) for row in rows])
    if total > len(rows):
        out.print(Text(f"{len(rows)} of {total} runs; show all with --limit 0", style="dim"))


def runs_of(server: str, limit: int, **conditions: str) -> tuple[list[ListedRun], int]:
    """Return up to ``limit`` rows (0: all) and the total number. Raises client.Failure."""
    rows: list[ListedRun] = []
    cursor: str | None = ""
    total = 0
    while cursor is not None and (not limit or len(rows) < limit):
        wanted = min(_PAGE, limit - len(rows)) if limit else _PAGE
        page: RunList = ask(server, "/runs", **conditions, cursor=cursor, limit=wanted)
        rows += page["runs"]
        cursor, total = page["next_cursor"], page["total"]
    return rows, total


def _cells(row: RunRow) -> list[str | Text]:
    marks = [word for word, given in (("baseline", row["baseline"]), ("pinned", row["pinned"])) if given]
    name = Text(plain(row["name"]), style="bold")
    if marks:
        name.append(f" ({', '.join(marks)})", style="not bold cyan")
    return [
        Text(row["state"], style=STATE_STYLE.get(row["state"], "default")),
        name,
        row["run_id"],
        plain(row["project"]),
        plain(row["device"] or ABSENT),
        peak_bound(row, "peak_allocated").cell(ABSENT),
        peak_bound(row, "peak_reserved").cell(ABSENT),
        percent(row["fragmentation_fraction"], ABSENT),
        amount(row["unusable_bytes"], ABSENT),
        amount(row["leaked_bytes"]) if row["leaks"] else "",
        plain(", ".join(row["techniques"] or ())),
        count(row["steps"], ABSENT),
        duration(row["step_seconds_median"], ABSENT),
        ago(row["started_seconds"]),
    ]
