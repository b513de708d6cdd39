"""Difference of two recordings at their peaks, by source line. A plus all differences equals B to the byte."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypedDict

from vramscope_server.analysis.diff.holdings import AllocatingLine, LineBytes, PeakAllocations
from vramscope_server.analysis.diff.line_matching import matched
from vramscope_server.analysis.ownership.categories import CATEGORIES
from vramscope_server.analysis.timeline.curve import EventMoment

MAX_ROWS: Final = 200
NEARLY_ALL: Final = 0.9
_NOTHING: Final = LineBytes()


class ComparedPeak(EventMoment):
    """Peak of one of the two recordings."""

    allocated_bytes: int
    peak_bytes: int


class CategoryChange(TypedDict):
    """Difference of a category."""

    category: str
    a_bytes: int
    b_bytes: int
    difference_bytes: int


class LineChange(TypedDict):
    """Difference of a source line and module; docs/http.md describes the fields."""

    file: str | None
    function: str | None
    without_stack: str | None
    a_line: int | None
    b_line: int | None
    module: str | None
    category: str | None
    category_words: str | None
    a_bytes: int
    b_bytes: int
    difference_bytes: int
    a_allocations: int
    b_allocations: int


class OtherLines(TypedDict):
    """Lines that are left out."""

    sites: int
    difference_bytes: int


class LineDifferences(TypedDict):
    """Difference of two recordings, as in the answer of GET /compare/sites."""

    a: ComparedPeak
    b: ComparedPeak
    difference_bytes: int
    categories: list[CategoryChange]
    rows: list[LineChange]
    left_out: OtherLines


def difference(a: PeakAllocations, b: PeakAllocations) -> LineDifferences:
    """Difference of two recordings. The largest differences come first."""
    rows = [_row(own, other, a, b) for own, other in matched(a.lines, b.lines)]
    rows.sort(key=lambda row: (-abs(row["difference_bytes"]), -row["b_bytes"], row["file"] or "", row["b_line"] or 0))
    rest = rows[MAX_ROWS:]
    return {
        "a": {**a.moment, "allocated_bytes": a.allocated_bytes, "peak_bytes": a.peak_bytes},
        "b": {**b.moment, "allocated_bytes": b.allocated_bytes, "peak_bytes": b.peak_bytes},
        "difference_bytes": b.allocated_bytes - a.allocated_bytes,
        "categories": _categories(a, b),
        "rows": rows[:MAX_ROWS],
        "left_out": {"sites": len(rest), "difference_bytes": sum(row["difference_bytes"] for row in rest)},
    }


def _row(
    own: AllocatingLine | None, other: AllocatingLine | None, a: PeakAllocations, b: PeakAllocations
) -> LineChange:
    line = other or own
    assert line is not None
    in_a = a.lines[own] if own is not None else _NOTHING
    in_b = b.lines[other] if other is not None else _NOTHING
    kinds = (in_b if in_b.bytes >= in_a.bytes else in_a).categories
    return {
        "file": line.file or None,
        "function": line.function if line.file else None,
        "without_stack": None if line.file else line.function,
        "a_line": own.line if own is not None and own.file else None,
        "b_line": other.line if other is not None and other.file else None,
        "module": line.module or None,
        "category": max(kinds, key=lambda kind: kinds[kind], default=None),
        "category_words": _category_text(kinds),
        "a_bytes": in_a.bytes,
        "b_bytes": in_b.bytes,
        "difference_bytes": in_b.bytes - in_a.bytes,
        "a_allocations": in_a.allocations,
        "b_allocations": in_b.allocations,
    }


def _category_text(kinds: Mapping[str, int]) -> str | None:
    """Category of a line's bytes. Bytes from before the recording, or without a stack, may have several categories."""
    largest, total = max(kinds, key=lambda kind: kinds[kind], default=None), sum(kinds.values())
    if largest is None or kinds[largest] >= NEARLY_ALL * total:
        return largest
    return f"mostly {largest}" if 2 * kinds[largest] > total else "several"


def _categories(a: PeakAllocations, b: PeakAllocations) -> list[CategoryChange]:
    """Difference by category, without categories that are 0 in both."""
    found: list[CategoryChange] = []
    for name in CATEGORIES:
        in_a, in_b = (sum(line.categories.get(name, 0) for line in one.lines.values()) for one in (a, b))
        if in_a or in_b:
            found.append({"category": name, "a_bytes": in_a, "b_bytes": in_b, "difference_bytes": in_b - in_a})
    return found
