"""Memory of each row of a profile's tables over time: the memory events of the window, each with its block's rows."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence
from typing import Final

from vramscope.profiler.sliced import sliced
from vramscope.profiler.summarize import ProfileTotals, SummaryTable
from vramscope.protocol import series
from vramscope.protocol.profile import HISTORY, MAX_CHANGES, OTHER, Columns

_BEFORE: Final = (series.UNKNOWN,) * 3


def history_columns(sums: ProfileTotals, existing: Sequence[bool]) -> Columns:
    """Return columns of profile.HISTORY. ``existing``: which of the three tables exist.

    A free counts for the rows of the allocation, whichever operation freed it. A block without a free event counts as freed when
    its address is allocated again.
    """
    if sums.counters is None or len(sums.allocations) > MAX_CHANGES:
        return {}
    tables = (sums.operations, sums.modules, sums.lines)
    others: tuple[Hashable, ...] = ((OTHER, series.UNKNOWN), OTHER, OTHER)
    row_numbers = [
        _row_numbers(table, other) if there else {}
        for table, other, there in zip(tables, others, existing, strict=True)
    ]
    columns = {name: array("q") for name in HISTORY}
    alive: dict[int, tuple[int, tuple[int, ...]]] = {}

    def add(change: int, total: int, rows: tuple[int, ...]) -> None:
        for column, value in zip(columns.values(), (change, total, *rows), strict=True):
            column.append(value)

    for event in sliced(sums.allocations, sums.pause):
        size, rows = alive.pop(event.address, (0, _BEFORE))
        if event.size_bytes > 0:
            if size:
                add(-size, series.UNKNOWN, rows)
            rows = tuple(
                numbers.get(keys[0], numbers.get(other, series.UNKNOWN))
                for numbers, keys, other in zip(row_numbers, sums.memory_keys(event), others, strict=True)
            )
            alive[event.address] = event.size_bytes, rows
        add(event.size_bytes, event.total_bytes, rows)
    return {name: column.tobytes() for name, column in columns.items()}


def _row_numbers(table: SummaryTable, other: Hashable) -> dict[Hashable, int]:
    """Return the row of each key, in the order in which the table is sent."""
    return {key: row for row, key in enumerate(table.bounded(other))}
