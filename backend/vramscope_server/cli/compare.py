"""``vramscope compare BASELINE RUN...``: memory and time of runs against a baseline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.text import Text

from vramscope_server.analysis.comparison.export import BOUNDS, EMULATED, REPEATS, has_repeats
from vramscope_server.analysis.number_format import amount, count
from vramscope_server.answers.compare import CompareAnswer, CompareRow
from vramscope_server.cli.client import ask, fetch, id_of, print_json
from vramscope_server.cli.format import plain
from vramscope_server.cli.tables import Column, console, print_table
from vramscope_server.reports.comparison_table import COLUMNS, cells, setting_text

TERMINAL_COLUMNS: Final = [Column(one.title, one.needed, one.number) for one in COLUMNS]
MOST_ONE_SIDED: Final = 8
"""Maximum number of listed settings that only some runs have. Two frameworks have many of them."""


def show(server: str, form: str | None, baseline: str, runs: list[str], *, each: bool = False) -> None:
    """Print a table, baseline first, or the format ``form``: json, markdown, csv, latex. Raises client.Failure.

    ``each`` shows repeats of a configuration in separate rows. JSON always has one row per run.
    """
    named = {"runs": joined(server, (baseline, *runs))}
    if form not in (None, "json"):
        asked = {"format": form, "repeats": "each" if each else "together"}
        for line in fetch(server, "/compare/table", **named, **asked).decode().rstrip("\n").split("\n"):
            print(plain(line.rstrip("\r")))
        return
    comparison: CompareAnswer = ask(server, "/compare", **named)
    if form == "json":
        print_json(comparison["rows"])
        return
    out = console()
    rows: Sequence[CompareRow] = comparison["rows"]
    if not each:
        rows = comparison.get("together", rows)
    repeated = has_repeats(rows)
    print_table(
        out, TERMINAL_COLUMNS, [_styled(row, is_baseline=not at, repeated=repeated) for at, row in enumerate(rows)]
    )
    out.print(
        Text("CHANGE: difference to the baseline's peak in the column before. Negative is less memory.", style="dim")
    )
    if any(row["lower_bounds"] for row in comparison["rows"]):
        out.print(Text(BOUNDS, style="dim"))
    if repeated:
        out.print(Text(REPEATS, style="dim"))
    if any(row["graphs_alive"] for row in comparison["rows"]):
        out.print(
            Text(
                "GRAPHS: autograd graphs of earlier steps still alive at the newest step. 1 is usual: the last loss.",
                style="dim",
            )
        )
    if any(row["emulated"] for row in comparison["rows"]):
        out.print(Text(EMULATED, style="dim"))
    for row in rows:
        left = row["leave_one_out"]
        if left is not None and left["allocated_bytes"] is not None:
            text = f"{left['technique']} lowers the peak inside the combination by {amount(left['allocated_bytes'])}"
            out.print(Text(plain(text), style="dim"))
    one_sided = [difference for difference in comparison["differences"] if None in difference["values"]]
    left_out = one_sided if len(one_sided) > MOST_ONE_SIDED else []
    for difference in comparison["differences"]:
        if difference not in left_out:
            values = "; ".join(
                f"{plain(row['name'])} {setting_text(value)}"
                for row, value in zip(comparison["rows"], difference["values"], strict=True)
            )
            out.print(Text(f"{plain(difference['name'])}: {values}", style="dim"))
    if left_out:
        out.print(
            Text(f"{count(len(left_out))} settings that only some runs have; see --json or the page.", style="dim")
        )
    for warning in comparison["warnings"]:
        out.print(Text(f"not fully comparable: {plain(warning)}", style="yellow"))


def joined(server: str, runs: Sequence[str]) -> str:
    """Return runs as one parameter of the API, the baseline first. Raises client.Failure."""
    return ",".join(id_of(server, run) if "," in run or not run.strip() else run for run in runs)


def _styled(row: CompareRow, *, is_baseline: bool, repeated: bool) -> list[str | Text]:
    name, *others = cells(row, is_baseline=is_baseline, repeated=repeated)
    return [Text(name, style="bold" if is_baseline else "default"), *others]
