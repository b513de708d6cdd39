"""Exports a comparison as text: Markdown and LaTeX for people, CSV for programs.

Names come from users, so each format escapes its markup and formulas.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from vramscope_server.analysis.number_format import MIB, amount, count, duration, percent
from vramscope_server.analysis.peak_bound import at_least
from vramscope_server.analysis.spreadsheet_text import csv_cell

Row = Mapping[str, Any]
"""Row of ``GET /compare``, read by the name of a column."""
FORMATS: Final = ("markdown", "csv", "latex")
NOT_KNOWN: Final = "–"  # noqa: RUF001 - a dash is meant


@dataclass(frozen=True)
class TableColumn:
    """Column of a table for people. ``needed`` is the field that a row must have for the column to appear; None for always."""

    title: str
    words: Callable[[Row, bool], str | None]
    """Returns the text of a row; None if unknown. The second argument is True for the baseline."""
    needed: str | None = None
    number: bool = True


def _mib(field: str) -> Callable[[Row, bool], str | None]:
    return _with_spread(field, lambda value: f"{value / MIB:,.0f}")


def _peak_mib(field: str) -> Callable[[Row, bool], str | None]:
    words = _mib(field)

    def bounded(row: Row, is_baseline: bool) -> str | None:
        text = words(row, is_baseline)
        return None if text is None else at_least(text, field in row["lower_bounds"])

    return bounded


def _with_spread(field: str, words: Callable[[float], str]) -> Callable[[Row, bool], str | None]:
    return lambda row, _: None if row[field] is None else words(row[field]) + between(row, field, words)


def between(row: Row, field: str, words: Callable[[float], str]) -> str:
    """Range after the mean of repeats: `` ± 12`` for an interval, `` (1,204 to 1,228)`` for two repeats, "" for one run."""
    spread = row.get("spreads", {}).get(field)
    if spread is None:
        return ""
    if spread["low"] == spread["high"] or spread["kind"] == "t95":
        return f" ± {words((spread['high'] - spread['low']) / 2).lstrip('+-×')}"  # noqa: RUF001 - times
    low, high = sorted((spread["low"], spread["high"]), key=abs)
    return f" ({words(low)} to {words(high)})"


def change_bound(row: Row, field: str) -> str:
    """Mark of the change of a peak that is a bound: a saving of at most 30 % is a change of ``≥ -30 %``."""
    return {"at most": "≥ ", "at least": "≤ "}.get(row["saved_bounds"].get(field), "")


def _change(field: str) -> Callable[[Row, bool], str | None]:
    """Savings with the sign of the change: -34 % is a third less."""

    def words(row: Row, is_baseline: bool) -> str | None:
        if is_baseline:
            return ""
        if row[field] is None:
            return None
        return (
            change_bound(row, field)
            + percent(0.0 - row[field], signed=True)
            + between(row, field, lambda value: percent(0.0 - value, signed=True))
        )

    return words


def _times(field: str) -> Callable[[Row, bool], str | None]:
    def words(row: Row, is_baseline: bool) -> str | None:
        if is_baseline:
            return ""
        return None if row[field] is None else ratio(row[field]) + between(row, field, ratio)

    return words


def ratio(value: float) -> str:
    """A ratio as text: ``×1.25``."""
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
    TableColumn("allocated MiB", _peak_mib("peak_allocated_bytes")),
    TableColumn("change", _change("saved_fraction")),
    TableColumn("reserved MiB", _peak_mib("peak_reserved_bytes")),
    TableColumn("change", _change("reserved_saved_fraction")),
    TableColumn("device MiB", _peak_mib("peak_device_bytes"), "peak_device_bytes"),
    TableColumn("change", _change("device_saved_fraction"), "peak_device_bytes"),
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
    """Columns with a known value. ``run`` appears if names and labels differ, ``n`` if there are repeats."""
    known = [c for c in COLUMNS if c.needed is None or any(row[c.needed] is not None for row in rows)]
    left_out = set()
    if not any(row["label"] not in (None, row["name"]) for row in rows[1:]):
        left_out.add("run")
    if not has_repeats(rows):
        left_out.add("n")
    return [c for c in known if c.title not in left_out]


def has_repeats(rows: Sequence[Row]) -> bool:
    """Whether a row combines several runs."""
    return any(len(row.get("runs", ())) > 1 for row in rows)


def name_of(row: Row) -> str:
    """Name of a run; for repeats, their title; for a group by a setting, its value."""
    if row.get("group") is not None:
        return f"{row['group']} ({count(row['n'])} {'run' if row['n'] == 1 else 'runs'})"
    return str(row.get("title") or row["name"])


def table(rows: Sequence[Row]) -> tuple[list[str], list[list[str]], list[str]]:
    """Titles, cells and notes, not escaped. Numbers in the first cell of a row refer to the notes."""
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
    """Notes on a row below the table."""
    notes = [f"not quite comparable: {reason['text']}" for reason in row["reasons"]]
    left = row["leave_one_out"]
    if left is not None and left["allocated_bytes"] is not None:
        notes.append(
            f"{left['technique']} lowers the peak within the combination by {amount(left['allocated_bytes'])} allocated"
            + (f", {amount(left['reserved_bytes'])} reserved" if left["reserved_bytes"] is not None else "")
        )
    return notes


LEGEND: Final = (
    "change: difference to the baseline; negative is less memory. allocated: peak of the bytes that tensors own; reserved: "
    "bytes that PyTorch took from the device; device: bytes that the driver reports, with context and libraries."
)

BOUNDS: Final = (
    "≥: lower bound; the driver is read in samples, a rank has samples alone, or other code reset PyTorch's peak counters. "
    "≤: upper bound of a change. Changes on the device compare the highest samples."
)

EMULATED: Final = "times: emulated GPU, which computes nothing. Its memory is exact; its timing is not meaningful."

REPEATS: Final = (
    "n: number of runs with one configuration and different seeds; values are their means. ±: half the 95 % interval of the "
    "mean by Student's t; (a to b): lowest and highest value of fewer than three runs."
)


def legend(rows: Sequence[Row]) -> list[str]:
    """Explanation of the columns and their limits."""
    return [
        LEGEND,
        *([BOUNDS] if any(row["lower_bounds"] for row in rows) else []),
        *([REPEATS] if has_repeats(rows) else []),
        *([EMULATED] if any(row["emulated"] for row in rows) else []),
    ]


def as_text(rows: Sequence[Row], form: str) -> str:
    """The table in one of FORMATS. ``rows`` are those of all runs, or with repeats combined."""
    return {"markdown": markdown, "csv": as_csv, "latex": latex}[form](rows)


def _one_line(text: str) -> str:
    return "".join(letter for letter in " ".join(text.split()) if letter.isprintable())


# ---- Markdown ----

_MARKDOWN: Final = re.compile(r"([\\`*_{}\[\]<>|~$#])")


def _markdown_cell(text: str) -> str:
    """Text of a cell in GitHub's Markdown, escaped and on one line."""
    return _MARKDOWN.sub(r"\\\1", _one_line(text)).replace("&", "&amp;")


def markdown(rows: Sequence[Row]) -> str:
    """Table in GitHub's Markdown, with notes below."""
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
    '"': "''", "×": r"$\times$", "–": "--", "−": "$-$", "≥": r"$\geq$", "≤": r"$\leq$", "µ": r"\textmu{}", "±": r"$\pm$",  # noqa: RUF001 - signs of our own
}  # fmt: skip


def _latex_cell(text: str) -> str:
    shown = "".join(_LATEX.get(letter, letter) for letter in _one_line(text))
    return f"{{}}{shown}" if shown[:1] in ("[", "*") else shown  # after \\ these would be its argument


def latex(rows: Sequence[Row]) -> str:
    """LaTeX tabular with rules of booktabs."""
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
    "graphs_alive", "steps", "state", "not_comparable", "final_loss", "first_loss", "loss_source", "loss_words", "lower_bounds",
)  # fmt: skip
"""Fields in bytes, seconds and fractions; empty if unknown."""
REPEATED: Final = (
    "peak_allocated_bytes",
    "peak_reserved_bytes",
    "peak_device_bytes",
    "saved_fraction",
    "step_seconds_median",
    "step_time_ratio",
)
"""Fields for which a line also has the values over all repeats: number, mean, low, high, and the kind of range."""
SPREAD: Final = ("n", "mean", "low", "high", "kind")
CSV_REPEATS: Final = ("repeats_of", "n", *(f"{field}_{part}" for field in REPEATED for part in SPREAD))


def as_csv(rows: Sequence[Row], combined: Sequence[Row] = ()) -> str:
    """One line per run below a header. Values that look like formulas are escaped as text.

    If there are repeats, each line also has the values of its group. ``combined`` has the rows with repeats combined.
    """
    groups = {run["run"]: row for row in combined for run in row["runs"]} if has_repeats(combined) else {}
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow((*CSV_FIELDS, *(CSV_REPEATS if groups else ())))
    for row in rows:
        values = {
            **row,
            "techniques": None if row["techniques"] is None else " + ".join(row["techniques"]),
            "lower_bounds": " ".join(row["lower_bounds"]),
            "not_comparable": "; ".join(reason["text"] for reason in row["reasons"]),
        }
        cells = [values[field] for field in CSV_FIELDS]
        if groups:
            spreads = groups[row["run"]]["spreads"]
            cells += [row["repeats_of"], row["n"]]
            cells += [spreads.get(field, {}).get(part) for field in REPEATED for part in SPREAD]
        writer.writerow(map(csv_cell, cells))
    return out.getvalue()
