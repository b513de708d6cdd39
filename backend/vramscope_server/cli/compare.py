"""``vramscope compare BASELINE RUN...``: what each run needs, against the baseline."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from vramscope_server.cli.screen import Column, console, print_table
from vramscope_server.cli.talk import ask, id_of, print_json
from vramscope_server.cli.words import ABSENT, amount, count, duration, percent, plain

_COLUMNS = (
    Column("RUN"),
    Column("ID", needed=4, number=True),
    Column("TECHNIQUES", needed=3),
    Column("PEAK", number=True),
    Column("AGAINST BASELINE", number=True),
    Column("RESERVED", needed=2, number=True),
    Column("STEP TIME", needed=1, number=True),
    Column("TIME RATIO", number=True),
    Column("LEAKED", needed=1, number=True),
    Column("GRAPHS", needed=2, number=True),
)


def show(server: str, as_json: bool, baseline: str, runs: list[str]) -> None:
    """Print a table, baseline first, or its rows as JSON. Raises talk.Failure."""
    words = [id_of(server, run) if "," in run or not run.strip() else run for run in (baseline, *runs)]
    told: dict[str, Any] = ask(server, "/compare", runs=",".join(words), base=words[0])
    if as_json:
        print_json(told["rows"])
        return
    out = console()
    print_table(out, _COLUMNS, [_cells(row, is_baseline=not at) for at, row in enumerate(told["rows"])])
    for difference in told["differences"]:
        values = ", ".join(map(_setting, difference["values"]))
        out.print(Text(f"{plain(difference['name'])}: {values}", style="dim"))
    for warning in told["warnings"]:
        out.print(Text(f"note: {plain(warning)}", style="yellow"))


def _cells(row: dict[str, Any], *, is_baseline: bool) -> list[str | Text]:
    saved, ratio = row["saved_fraction"], row["step_time_ratio"]
    return [
        Text(plain(row["name"]), style="bold" if is_baseline else "default"),
        row["run"],
        ", ".join(plain(str(technique)) for technique in row["techniques"] or []),
        amount(row["peak_allocated_bytes"], ABSENT),
        "baseline" if is_baseline else percent(None if saved is None else -saved, ABSENT, signed=True),
        amount(row["peak_reserved_bytes"], ABSENT),
        duration(row["step_seconds_median"], ABSENT),
        "baseline" if is_baseline else ABSENT if ratio is None else f"×{ratio:.2f}",  # noqa: RUF001 - times
        _leaked(row),
        count(row["graphs_alive"], ABSENT),
    ]


def _leaked(row: dict[str, Any]) -> str:
    if row["leaks"] is None:
        return ABSENT
    return amount(row["leaked_bytes"]) if row["leaks"] else "none"


def _setting(value: object) -> str:
    return ABSENT if value is None else plain(str(value)) or "none"
