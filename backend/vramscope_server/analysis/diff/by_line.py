"""The difference of two recordings at their peaks, site by site: A and all differences together are B, to the byte."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from vramscope_server.analysis.diff.holdings import AllocatingLine, LineBytes, PeakAllocations
from vramscope_server.analysis.diff.line_matching import matched
from vramscope_server.analysis.ownership.categories import CATEGORIES

MOST_ROWS: Final = 200
NEARLY_ALL: Final = 0.9
_NOTHING: Final = LineBytes()


def difference(a: PeakAllocations, b: PeakAllocations) -> dict[str, Any]:
    """``{a, b, difference_bytes, rows, left_out, categories}``, rows by what they differ most (docs/http.md)."""
    rows = [_row(own, other, a, b) for own, other in matched(a.sites, b.sites)]
    rows.sort(key=lambda row: (-abs(row["difference_bytes"]), -row["b_bytes"], row["file"] or "", row["b_line"] or 0))
    rest = rows[MOST_ROWS:]
    return {
        "a": a.moment | {"allocated_bytes": a.allocated_bytes, "peak_bytes": a.peak_bytes},
        "b": b.moment | {"allocated_bytes": b.allocated_bytes, "peak_bytes": b.peak_bytes},
        "difference_bytes": b.allocated_bytes - a.allocated_bytes,
        "categories": _categories(a, b),
        "rows": rows[:MOST_ROWS],
        "left_out": {"sites": len(rest), "difference_bytes": sum(row["difference_bytes"] for row in rest)},
    }


def _row(
    own: AllocatingLine | None, other: AllocatingLine | None, a: PeakAllocations, b: PeakAllocations
) -> dict[str, Any]:
    site = other or own
    assert site is not None
    in_a = a.sites[own] if own is not None else _NOTHING
    in_b = b.sites[other] if other is not None else _NOTHING
    kinds = in_b.categories or in_a.categories
    return {
        "file": site.file or None,
        "function": site.function if site.file else None,
        "without_stack": None if site.file else site.function,
        "a_line": own.line if own is not None and own.file else None,
        "b_line": other.line if other is not None and other.file else None,
        "module": site.module or None,
        "category": max(kinds, key=lambda kind: kinds[kind], default=None),
        "category_words": _in_words(kinds),
        "a_bytes": in_a.bytes,
        "b_bytes": in_b.bytes,
        "difference_bytes": in_b.bytes - in_a.bytes,
        "a_allocations": in_a.allocations,
        "b_allocations": in_b.allocations,
    }


def _in_words(kinds: Mapping[str, int]) -> str | None:
    """What a site's bytes are for: what was there before the recording, or has no stack, is for several things at once."""
    largest, total = max(kinds, key=lambda kind: kinds[kind], default=None), sum(kinds.values())
    if largest is None or kinds[largest] >= NEARLY_ALL * total:
        return largest
    return f"mostly {largest}" if 2 * kinds[largest] > total else "several"


def _categories(a: PeakAllocations, b: PeakAllocations) -> list[dict[str, Any]]:
    """The same by what it is for; categories that neither holds are left out."""
    found = []
    for name in CATEGORIES:
        in_a, in_b = (sum(held.categories.get(name, 0) for held in one.sites.values()) for one in (a, b))
        if in_a or in_b:
            found.append({"category": name, "a_bytes": in_a, "b_bytes": in_b, "difference_bytes": in_b - in_a})
    return found
