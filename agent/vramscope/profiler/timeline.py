"""What each row of a profile's tables held, moment by moment: the memory events of the window, each with its block's rows."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence
from typing import Final

from vramscope.profiler.sliced import sliced
from vramscope.profiler.summarize import ProfileTotals, SummaryTable
from vramscope.protocol import series
from vramscope.protocol.profile import HISTORY, MAX_CHANGES, OTHER, Columns

_BEFORE: Final = (series.UNKNOWN,) * 3


def history_columns(sums: ProfileTotals, told: Sequence[bool]) -> Columns:
    """Columns of profile_tables.HISTORY. ``told``: which of the three tables there are.

    An end counts for the rows of the allocation, whoever let go. What lies at an address that is given out again was let go
    by then, if nobody said so.
    """
    if sums.counters is None or len(sums.allocations) > MAX_CHANGES:
        return {}
    tables = (sums.operations, sums.modules, sums.lines)
    others: tuple[Hashable, ...] = ((OTHER, series.UNKNOWN), OTHER, OTHER)
    places = [_places(table, other) if there else {} for table, other, there in zip(tables, others, told, strict=True)]
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
                of_table.get(keys[0], of_table.get(other, series.UNKNOWN))
                for of_table, keys, other in zip(places, sums.memory_keys(event), others, strict=True)
            )
            alive[event.address] = event.size_bytes, rows
        add(event.size_bytes, event.total_bytes, rows)
    return {name: column.tobytes() for name, column in columns.items()}


def _places(table: SummaryTable, other: Hashable) -> dict[Hashable, int]:
    """The row of each key, in the order in which the table is sent."""
    return {key: row for row, key in enumerate(table.bounded(other))}
