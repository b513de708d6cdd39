"""The table of a comparison: its columns, and the text of each cell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from vramscope_server.analysis.comparison.export import between, change_bound, name_of, ratio
from vramscope_server.analysis.number_format import amount, count, duration, graphs, percent
from vramscope_server.analysis.peak_bound import at_least
from vramscope_server.answers.compare import CompareRow
from vramscope_server.reports.plain_text import ABSENT, plain


@dataclass(frozen=True)
class ComparisonColumn:
    """One column.

    needed   0: always shown; in a narrow terminal, columns with the highest number are dropped first
    number   right-aligned, never folded
    """

    title: str
    needed: int = 0
    number: bool = False


COLUMNS: Final = (
    ComparisonColumn("RUN"),
    ComparisonColumn("N", number=True),
    ComparisonColumn("ID", needed=7, number=True),
    ComparisonColumn("TECHNIQUE"),
    ComparisonColumn("PEAK", number=True),
    ComparisonColumn("CHANGE", number=True),
    ComparisonColumn("RESERVED", needed=2, number=True),
    ComparisonColumn("CHANGE", needed=2, number=True),
    ComparisonColumn("DEVICE", needed=4, number=True),
    ComparisonColumn("CHANGE", needed=4, number=True),
    ComparisonColumn("WALL TIME", needed=5, number=True),
    ComparisonColumn("STEP TIME", needed=3, number=True),
    ComparisonColumn("TIME RATIO", number=True),
    ComparisonColumn("BATCH", needed=5, number=True),
    ComparisonColumn("NEVER NEEDED", needed=7, number=True),
    ComparisonColumn("UNUSABLE", needed=7, number=True),
    ComparisonColumn("LOSS", needed=4, number=True),
    ComparisonColumn("LEAKED", needed=1, number=True),
    ComparisonColumn("GRAPHS", needed=6, number=True),
)


def cells(row: CompareRow, *, is_baseline: bool, repeated: bool) -> list[str]:
    """Return the text of each of COLUMNS. ``repeated``: some rows are several runs of one configuration."""
    mark = " !" if row["reasons"] else ""
    return [
        plain(name_of(row)) + mark,
        count(row["n"]) if repeated else "",
        row["run"],
        plain(row["label"] or ""),
        _peak(row, "peak_allocated_bytes") + between(row, "peak_allocated_bytes", amount),
        _saved(row, "saved_fraction", is_baseline),
        _peak(row, "peak_reserved_bytes") + between(row, "peak_reserved_bytes", amount),
        _saved(row, "reserved_saved_fraction", is_baseline),
        _peak(row, "peak_device_bytes") if row["peak_device_of"] else "",
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
    return ABSENT if saved is None else change_bound(row, field) + _change(saved) + between(row, field, _change)


def _peak(row: CompareRow, field: Literal["peak_allocated_bytes", "peak_reserved_bytes", "peak_device_bytes"]) -> str:
    return at_least(amount(row[field], ABSENT), field in row["lower_bounds"])


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
