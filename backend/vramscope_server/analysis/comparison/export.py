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

from vramscope_server.analysis.units import MIB, amount, count, duration, percent

Row = dict[str, Any]
FORMATS: Final = ("markdown", "csv", "latex")
NOT_KNOWN: Final = "–"  # noqa: RUF001 - a dash is meant


@dataclass(frozen=True)
class TableColumn:
    """One column for people. ``needed``: which rows must tell something for it to be shown; None: always."""

    title: str
    words: Callable[[Row, bool], str | None]
    """of a row, and whether it is the baseline; None: not known"""
    needed: str | None = None
    number: bool = True


def _mib(field: str) -> Callable[[Row, bool], str | None]:
    return _with_spread(field, lambda value: f"{value / MIB:,.0f}")


def _with_spread(field: str, words: Callable[[float], str]) -> Callable[[Row, bool], str | None]:
    return lambda row, _: None if row[field] is None else words(row[field]) + between(row, field, words)


def between(row: Row, field: str, words: Callable[[float], str]) -> str:
    """What stands behind the mean of repeats: `` ± 12`` where an interval is known, `` (1,204 to 1,228)`` where there are only two;
    empty where the figure is that of one run."""
    told = row.get("spreads", {}).get(field)
    if told is None:
        return ""
    if told["low"] == told["high"] or told["kind"] == "t95":
        return f" ± {words((told['high'] - told['low']) / 2).lstrip('+-×')}"  # noqa: RUF001 - times
    low, high = sorted((told["low"], told["high"]), key=abs)
    return f" ({words(low)} to {words(high)})"


def _change(field: str) -> Callable[[Row, bool], str | None]:
    """What is saved, with the sign of the change: -34 % is a third less."""

    def words(row: Row, is_baseline: bool) -> str | None:
        if is_baseline:
            return ""
        if row[field] is None:
            return None
        return percent(0.0 - row[field], signed=True) + between(
            row, field, lambda value: percent(0.0 - value, signed=True)
        )

    return words


def _times(field: str) -> Callable[[Row, bool], str | None]:
    def words(row: Row, is_baseline: bool) -> str | None:
        if is_baseline:
            return ""
        return None if row[field] is None else ratio(row[field]) + between(row, field, ratio)

    return words


def ratio(value: float) -> str:
    """Of times."""
    return f"×{value:.2f}"  # noqa: RUF001 - times


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _leaked(row: Row, _: bool) -> str | None:
    if row["leaks"] is None:
        return None
    return amount(row["leaked_bytes"]) if row["leaks"] else "none"


def _final_loss(row: Row, _: bool) -> str | None:
    return row["loss_words"] or _with_spread("final_loss", lambda value: f"{value:.4g}")(row, False)


def _technique(row: Row, is_baseline: bool) -> str:
    if is_baseline:
        return "baseline" if row["name"] == "baseline" else f"{row['name']} (baseline)"
    return str(row["label"] or name_of(row))


COLUMNS: Final = (
    TableColumn("technique", _technique, number=False),
    TableColumn("run", lambda row, _: name_of(row), number=False),
    TableColumn("n", lambda row, _: count(row.get("n"), "") or None),
    TableColumn("allocated MiB", _mib("peak_allocated_bytes")),
    TableColumn("saved", _change("saved_fraction")),
    TableColumn("reserved MiB", _mib("peak_reserved_bytes")),
    TableColumn("saved", _change("reserved_saved_fraction")),
    TableColumn("device MiB", _mib("peak_device_bytes"), "peak_device_bytes"),
    TableColumn("saved", _change("device_saved_fraction"), "peak_device_bytes"),
    TableColumn("wall time", _with_spread("wall_seconds", duration), "wall_seconds"),
    TableColumn("ratio", _times("wall_time_ratio"), "wall_time_ratio"),
    TableColumn("step time", _with_spread("step_seconds_median", duration)),
    TableColumn("ratio", _times("step_time_ratio")),
    TableColumn("effective batch", lambda row, _: count(row["effective_batch"], "") or None, "effective_batch"),
    TableColumn("samples/s", _with_spread("samples_per_second", _rate), "samples_per_second"),
    TableColumn("final loss", _final_loss, "loss_source"),
    TableColumn("leaked", _leaked, "leaks"),
    TableColumn("never needed", _with_spread("fragmentation_fraction", percent), "fragmentation_fraction"),
    TableColumn("unusable MiB", _mib("unusable_bytes"), "unusable_bytes"),
)


def columns_of(rows: Sequence[Row]) -> list[TableColumn]:
    """Those of which some row tells something; names beside techniques only where they differ, ``n`` where there are repeats."""
    told = [c for c in COLUMNS if c.needed is None or any(row[c.needed] is not None for row in rows)]
    left_out = set()
    if not any(row["label"] not in (None, row["name"]) for row in rows[1:]):
        left_out.add("run")
    if not has_repeats(rows):
        left_out.add("n")
    return [c for c in told if c.title not in left_out]


def has_repeats(rows: Sequence[Row]) -> bool:
    """Whether some row stands for more than one run."""
    return any(len(row.get("runs", ())) > 1 for row in rows)


def name_of(row: Row) -> str:
    """Of a run; of repeats that of the first, and how many there are besides."""
    more = len(row.get("runs", ())) - 1
    return f"{row['name']} and {more} more" if more > 0 else str(row["name"])


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


REPEATS: Final = (
    "n: runs that are repeats of one configuration, the same but for a seed; figures are their means. ±: half the 95 % interval of "
    "the mean by Student's t; (a to b): the lowest and the highest where fewer than three runs tell it."
)


def legend(rows: Sequence[Row]) -> list[str]:
    """What the columns mean, and what no reader should take from them."""
    return [
        LEGEND,
        *([REPEATS] if has_repeats(rows) else []),
        *([EMULATED] if any(row["emulated"] for row in rows) else []),
    ]


def as_text(rows: Sequence[Row], form: str) -> str:
    """The table in one of FORMATS. ``rows``: each run's, or with repeats together."""
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
    '"': "''", "×": r"$\times$", "–": "--", "−": "$-$", "µ": r"\textmu{}", "±": r"$\pm$",  # noqa: RUF001 - signs of our own
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
    "samples_per_second", "throughput_ratio", "fragmentation_fraction", "unusable_bytes", "leaks", "leaked_bytes", "worst_leak",
    "graphs_alive", "steps", "state", "not_comparable", "final_loss", "first_loss", "loss_source", "loss_words",
)  # fmt: skip
"""bytes, seconds and fractions as they are; empty: not known"""
REPEATED: Final = (
    "peak_allocated_bytes",
    "peak_reserved_bytes",
    "peak_device_bytes",
    "saved_fraction",
    "step_seconds_median",
    "step_time_ratio",
)
"""figures of which a line tells besides what they come to over all repeats: of how many it is known, their mean, between what it
lies, and whether that is a range or a 95 % interval"""
SPREAD: Final = ("n", "mean", "low", "high", "kind")
CSV_REPEATS: Final = ("repeats_of", "n", *(f"{field}_{part}" for field in REPEATED for part in SPREAD))


def as_csv(rows: Sequence[Row], together: Sequence[Row] = ()) -> str:
    """One line a run under a head; what a spreadsheet would take for a formula is made text.

    Where some of the runs are repeats (``together``: the rows with these as one), each line tells besides of its group.
    """
    groups = {run["run"]: row for row in together for run in row["runs"]} if has_repeats(together) else {}
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow((*CSV_FIELDS, *(CSV_REPEATS if groups else ())))
    for row in rows:
        told = row | {
            "techniques": None if row["techniques"] is None else " + ".join(row["techniques"]),
            "not_comparable": "; ".join(reason["text"] for reason in row["reasons"]),
        }
        cells = [told[field] for field in CSV_FIELDS]
        if groups:
            spreads = groups[row["run"]]["spreads"]
            cells += [row["repeats_of"], row["n"]]
            cells += [spreads.get(field, {}).get(part) for field in REPEATED for part in SPREAD]
        writer.writerow(map(_csv_cell, cells))
    return out.getvalue()


def _csv_cell(value: object) -> object:
    if isinstance(value, str) and value[:1] in tuple("=+-@\t\r"):
        return f"'{value}"
    return "" if value is None else value
