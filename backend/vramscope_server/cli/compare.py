"""``vramscope compare BASELINE RUN...``: memory and time of runs against a baseline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from rich.text import Text

from vramscope_server.analysis.comparison.export import EMULATED, REPEATS, between, has_repeats, name_of, ratio
from vramscope_server.analysis.number_format import amount, count, duration, graphs, percent
from vramscope_server.answers.compare import CompareAnswer, CompareRow
from vramscope_server.cli.client import Source, ask, fetch, id_of, print_json
from vramscope_server.cli.format import ABSENT, plain
from vramscope_server.cli.tables import Column, console, print_table

COLUMNS: Final = (
    Column("RUN"),
    Column("N", number=True),
    Column("ID", needed=7, number=True),
    Column("TECHNIQUE"),
    Column("PEAK", number=True),
    Column("CHANGE", number=True),
    Column("RESERVED", needed=2, number=True),
    Column("CHANGE", needed=2, number=True),
    Column("DEVICE", needed=4, number=True),
    Column("CHANGE", needed=4, number=True),
    Column("WALL TIME", needed=5, number=True),
    Column("STEP TIME", needed=3, number=True),
    Column("TIME RATIO", number=True),
    Column("BATCH", needed=5, number=True),
    Column("NEVER NEEDED", needed=7, number=True),
    Column("UNUSABLE", needed=7, number=True),
    Column("LOSS", needed=4, number=True),
    Column("LEAKED", needed=1, number=True),
    Column("GRAPHS", needed=6, number=True),
)


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
    print_table(out, COLUMNS, [cells(row, is_baseline=not at, repeated=repeated) for at, row in enumerate(rows)])
    out.print(
        Text("CHANGE: difference to the baseline's peak in the column before. Negative is less memory.", style="dim")
    )
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


def joined(server: Source, runs: Sequence[str]) -> str:
    """Return runs as one parameter of the API, the baseline first. Raises client.Failure."""
    return ",".join(id_of(server, run) if "," in run or not run.strip() else run for run in runs)


def cells(row: CompareRow, *, is_baseline: bool, repeated: bool) -> list[str | Text]:
    """Return the text of each of COLUMNS. ``repeated``: some rows are several runs of one configuration."""
    mark = " !" if row["reasons"] else ""
    return [
        Text(plain(name_of(row)) + mark, style="bold" if is_baseline else "default"),
        count(row["n"]) if repeated else "",
        row["run"],
        plain(row["label"] or ""),
        amount(row["peak_allocated_bytes"], ABSENT) + between(row, "peak_allocated_bytes", amount),
        _saved(row, "saved_fraction", is_baseline),
        amount(row["peak_reserved_bytes"], ABSENT) + between(row, "peak_reserved_bytes", amount),
        _saved(row, "reserved_saved_fraction", is_baseline),
        amount(row["peak_device_bytes"], ABSENT) if row["peak_device_of"] else "",
        _saved(row, "device_saved_fraction", is_baseline) if row["peak_device_of"] else "",
        duration(row["wall_seconds"], ABSENT),
        duration(row["step_seconds_median"], ABSENT) + between(row, "step_seconds_median", duration),
        "baseline" if is_baseline else _ratio(row),
        "" if row["effective_batch"] is None else count(row["effective_batch"]),
        percent(row["fragmentation_fraction"], ABSENT),
        amount(row["unusable_bytes"], ABSENT),
        _loss(row),
        _leaked(row),
        graphs(row["graphs_alive"], ABSENT),
    ]


def _saved(
    row: CompareRow,
    field: Literal["saved_fraction", "reserved_saved_fraction", "device_saved_fraction"],
    is_baseline: bool,
) -> str:
    if is_baseline:
        return "baseline"
    saved = row[field]
    return ABSENT if saved is None else _change(saved) + between(row, field, _change)


def _change(saved: float) -> str:
    return percent(0.0 - saved, signed=True)


def _ratio(row: CompareRow) -> str:
    return (
        ABSENT
        if row["step_time_ratio"] is None
        else ratio(row["step_time_ratio"]) + between(row, "step_time_ratio", ratio)
    )


def _loss(row: CompareRow) -> str:
    return row["loss_words"] or (ABSENT if row["final_loss"] is None else f"{row['final_loss']:.4g}")


def _leaked(row: CompareRow) -> str:
    if row["leaks"] is None:
        return ABSENT
    return amount(row["leaked_bytes"]) if row["leaks"] else "none"


def setting_text(value: object) -> str:
    """Return the value of a setting in words; a list is its parts."""
    if isinstance(value, list):
        value = ", ".join(str(part) for part in value)
    return ABSENT if value is None else plain(str(value)) or "none"
