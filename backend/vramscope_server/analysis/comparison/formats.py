"""A comparison as text to take along: Markdown and LaTeX for people, CSV for programs.

Names come from users: each format escapes what would be markup, or a formula, in it.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from vramscope_server.analysis.quantities import MIB, amount, count, duration, percent

Row = dict[str, Any]
FORMATS: Final = ("markdown", "csv", "latex")
NOT_KNOWN: Final = "–"  # noqa: RUF001 - a dash is meant


@dataclass(frozen=True)
class Column:
    """One column for people. ``needed``: which rows must tell something for it to be shown; None: always."""

    title: str
    words: Callable[[Row, bool], str | None]
    """of a row, and whether it is the baseline; None: not known"""
    needed: str | None = None
    number: bool = True


def _mib(field: str) -> Callable[[Row, bool], str | None]:
    return lambda row, _: None if row[field] is None else f"{row[field] / MIB:,.0f}"


def _change(field: str) -> Callable[[Row, bool], str | None]:
    """What is saved, with the sign of the change: -34 % is a third less."""

    def words(row: Row, is_baseline: bool) -> str | None:
        if is_baseline:
            return ""
        return None if row[field] is None else percent(0.0 - row[field], signed=True)

    return words


def _times(field: str) -> Callable[[Row, bool], str | None]:
    def words(row: Row, is_baseline: bool) -> str | None:
        if is_baseline:
            return ""
        return None if row[field] is None else f"×{row[field]:.2f}"  # noqa: RUF001 - times

    return words


def _rate(value: float | None) -> str | None:
    if value is None:
        return None
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _leaked(row: Row, _: bool) -> str | None:
    if row["leaks"] is None:
        return None
    return amount(row["leaked_bytes"]) if row["leaks"] else "none"


def _final_loss(row: Row, _: bool) -> str | None:
    return row["loss_words"] or (None if row["final_loss"] is None else f"{row['final_loss']:.4g}")


def _technique(row: Row, is_baseline: bool) -> str:
    if is_baseline:
        return "baseline" if row["name"] == "baseline" else f"{row['name']} (baseline)"
    return str(row["label"] or row["name"])


COLUMNS: Final = (
    Column("technique", _technique, number=False),
    Column("run", lambda row, _: row["name"], number=False),
    Column("allocated MiB", _mib("peak_allocated_bytes")),
    Column("saved", _change("saved_fraction")),
    Column("reserved MiB", _mib("peak_reserved_bytes")),
    Column("saved", _change("reserved_saved_fraction")),
    Column("device MiB", _mib("peak_device_bytes"), "peak_device_bytes"),
    Column("saved", _change("device_saved_fraction"), "peak_device_bytes"),
    Column("wall time", lambda row, _: duration(row["wall_seconds"], "") or None, "wall_seconds"),
    Column("ratio", _times("wall_time_ratio"), "wall_time_ratio"),
    Column("step time", lambda row, _: duration(row["step_seconds_median"], "") or None),
    Column("ratio", _times("step_time_ratio")),
    Column("effective batch", lambda row, _: count(row["effective_batch"], "") or None, "effective_batch"),
    Column(
        "samples/s",
        lambda row, _: _rate(row["samples_per_second"]),
        "samples_per_second",
    ),
    Column("final loss", _final_loss, "loss_source"),
    Column("leaked", _leaked, "leaks"),
    Column("never needed", lambda row, _: percent(row["fragmentation_fraction"], "") or None, "fragmentation_fraction"),
    Column("stranded MiB", _mib("stranded_bytes"), "stranded_bytes"),
)


def columns_of(rows: Sequence[Row]) -> list[Column]:
    """Those of which some row tells something; names beside techniques only where they differ."""
    told = [c for c in COLUMNS if c.needed is None or any(row[c.needed] is not None for row in rows)]
    return [c for c in told if c.title != "run" or any(row["label"] not in (None, row["name"]) for row in rows[1:])]


def table(rows: Sequence[Row]) -> tuple[list[str], list[list[str]], list[str]]:
    """Titles, cells, and notes: numbers in the first cell of a row lead to them. Nothing is escaped yet."""
    columns = columns_of(rows)
    numbered: dict[str, int] = {}
    cells = []
    for position, row in enumerate(rows):
        line = [column.words(row, position == 0) for column in columns]
        marks = [numbered.setdefault(text, len(numbered) + 1) for text in notes_of(row)]
        mark = f" [{', '.join(map(str, marks))}]" if marks else ""
        cells.append([f"{line[0]}{mark}", *(NOT_KNOWN if word is None else word for word in line[1:])])
    notes = [f"[{number}] {text}" for text, number in numbered.items()]
    return [column.title for column in columns], cells, notes


def notes_of(row: Row) -> list[str]:
    """What is said of a row below the table."""
    notes = [f"not quite comparable: {reason['text']}" for reason in row["reasons"]]
    left = row["leave_one_out"]
    if left is not None and left["allocated_bytes"] is not None:
        notes.append(
            f"{left['technique']} lowers the peak inside the combination by {amount(left['allocated_bytes'])} allocated"
            + (f", {amount(left['reserved_bytes'])} reserved" if left["reserved_bytes"] is not None else "")
        )
    return notes


LEGEND: Final = (
    "saved: against the baseline. allocated: the exact peak of what tensors hold, what the training itself needs; reserved: what "
    "PyTorch took from the card; device: what the driver tells, with context and libraries."
)

EMULATED: Final = "times: of a GPU that is emulated and computes nothing; its memory is right, its times mean nothing."


def legend(rows: Sequence[Row]) -> list[str]:
    """What the columns mean, and what no reader should take from them."""
    return [LEGEND, *([EMULATED] if any(row["emulated"] for row in rows) else [])]


def as_text(rows: Sequence[Row], form: str) -> str:
    """The table in one of FORMATS."""
    return {"markdown": markdown, "csv": as_csv, "latex": latex}[form](rows)


def _one_line(text: str) -> str:
    return "".join(letter for letter in " ".join(text.split()) if letter.isprintable())


# ---- Markdown ----

_MARKDOWN: Final = re.compile(r"([\\`*_{}\[\]<>|~$#])")


def _markdown_cell(text: str) -> str:
    """As text in GitHub's Markdown: what begins markup is escaped, and a line stays one."""
    return _MARKDOWN.sub(r"\\\1", _one_line(text)).replace("&", "&amp;")


def markdown(rows: Sequence[Row]) -> str:
    """GitHub's Markdown, notes below."""
    titles, cells, notes = table(rows)
    columns = columns_of(rows)
    lines = [
        f"| {' | '.join(titles)} |",
        f"|{'|'.join(' ---: ' if column.number else ' --- ' for column in columns)}|",
        *(f"| {' | '.join(map(_markdown_cell, line))} |" for line in cells),
    ]
    below = [*legend(rows), *(_markdown_cell(note) for note in notes)]
    return "\n".join(lines) + "\n\n" + "  \n".join(below) + "\n"


# ---- LaTeX ----

_LATEX: Final = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
    '"': "''", "×": r"$\times$", "–": "--", "−": "$-$", "µ": r"\textmu{}",  # noqa: RUF001 - signs of our own
}  # fmt: skip


def _latex_cell(text: str) -> str:
    shown = "".join(_LATEX.get(letter, letter) for letter in _one_line(text))
    return f"{{}}{shown}" if shown[:1] in ("[", "*") else shown  # after \\ these would be its argument


def latex(rows: Sequence[Row]) -> str:
    """A tabular with booktabs' rules."""
    titles, cells, notes = table(rows)
    layout = "".join("r" if column.number else "l" for column in columns_of(rows))
    lines = [
        r"% \usepackage{booktabs,textcomp}",
        rf"\begin{{tabular}}{{{layout}}}",
        r"\toprule",
        " & ".join(map(_latex_cell, titles)) + r" \\",
        r"\midrule",
        *(" & ".join(map(_latex_cell, line)) + r" \\" for line in cells),
        r"\bottomrule",
        r"\end{tabular}",
        *(rf"\par\footnotesize {_latex_cell(note)}" for note in [*legend(rows), *notes]),
    ]
    return "\n".join(lines) + "\n"


# ---- CSV ----

CSV_FIELDS: Final = (
    "run", "name", "label", "techniques", "peak_allocated_bytes", "saved_fraction", "peak_reserved_bytes",
    "reserved_saved_fraction", "peak_device_bytes", "peak_device_of", "device_saved_fraction", "wall_seconds",
    "wall_time_ratio", "step_seconds_median", "step_time_ratio", "batch", "accumulation", "effective_batch",
    "samples_per_second", "throughput_ratio", "fragmentation_fraction", "stranded_bytes", "leaks", "leaked_bytes", "worst_leak",
    "graphs_alive", "steps", "state", "not_comparable", "final_loss", "first_loss", "loss_source", "loss_words",
)  # fmt: skip
"""bytes, seconds and fractions as they are; empty: not known"""


def as_csv(rows: Sequence[Row]) -> str:
    """One line a run under a head; what a spreadsheet would take for a formula is made text."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(CSV_FIELDS)
    for row in rows:
        told = row | {
            "techniques": None if row["techniques"] is None else " + ".join(row["techniques"]),
            "not_comparable": "; ".join(reason["text"] for reason in row["reasons"]),
        }
        writer.writerow([_csv_cell(told[field]) for field in CSV_FIELDS])
    return out.getvalue()


def _csv_cell(value: object) -> object:
    if isinstance(value, str) and value[:1] in tuple("=+-@\t\r"):
        return f"'{value}"
    return "" if value is None else value
